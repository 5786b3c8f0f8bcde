// Complex numbers: construction, parts and conjugation.

#define MAP(NAME, VALUE)                                                                                               \
    struct NAME {                                                                                                      \
        template <class T> static __device__ inline auto apply(T z, double) {                                          \
            return VALUE;                                                                                              \
        }                                                                                                              \
    };

MAP(Real, z.re)
MAP(Imag, z.im)
MAP(ComplexAbs, hypot(z.re, z.im))
MAP(Angle, atan2(z.im, z.re))
MAP(Conj, (T{z.re, -z.im}))

struct Make {
    template <class P> static __device__ inline Complex<P> apply(P re, P im, double) {
        return {re, im};
    }
};
