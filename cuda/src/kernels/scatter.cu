// Rows updated by index, in no fixed order for repeated indices. An index out of range is skipped, because a
// kernel cannot report an error.

// The unsigned integer type of an element's size, for compare-and-swap loops.
template <int size> struct WordOf;
template <> struct WordOf<2> {
    typedef u16 type;
};
template <> struct WordOf<4> {
    typedef u32 type;
};
template <> struct WordOf<8> {
    typedef u64 type;
};
template <class F, class T> __device__ inline void exchange(T *to, T by) {
    typedef typename WordOf<sizeof(T)>::type Word;
    union Either {
        T value;
        Word word;
    };
    Either old, changed;
    old.word = *(volatile Word *)to;
    for (;;) {
        changed.value = narrow<T>(F::of(wide(old.value), wide(by)));
        Word found = atomicCAS((Word *)to, old.word, changed.word);
        if (found == old.word)
            return;
        old.word = found;
    }
}

#define EXCHANGED(NAME, VALUE)                                                                                         \
    struct NAME {                                                                                                      \
        template <class W> static __device__ inline W of(W x, W by) {                                                  \
            return VALUE;                                                                                              \
        }                                                                                                              \
        template <class T> static __device__ inline void apply(T *to, T by) {                                          \
            exchange<NAME>(to, by);                                                                                    \
        }                                                                                                              \
    };
EXCHANGED(Mul, x *by)
EXCHANGED(Div, x / by)
EXCHANGED(Min, by < x ? by : x)
EXCHANGED(Max, x < by ? by : x)
EXCHANGED(More, x + by)
EXCHANGED(Less, x - by)

// Additions that the hardware performs atomically.
__device__ inline void add(float *to, float by) {
    atomicAdd(to, by);
}
__device__ inline void add(double *to, double by) {
    atomicAdd(to, by);
}
__device__ inline void add(i64 *to, i64 by) {
    atomicAdd((u64 *)to, (u64)by);
}

struct Add {
    template <class T> static __device__ inline void apply(T *to, T by) {
        if constexpr (sizeof(T) == 2)
            More::apply(to, by);
        else
            add(to, by);
    }
};
struct Sub {
    template <class T> static __device__ inline void apply(T *to, T by) {
        if constexpr (sizeof(T) == 2)
            Less::apply(to, by);
        else
            add(to, (T)-by);
    }
};
struct Update {
    template <class T> static __device__ inline void apply(T *to, T by) {
        *to = by;
    }
};

// Converts an element of the updates to the type of the updated tensor.
template <class A, class T> struct As {
    static __device__ inline A of(T x) {
        return (A)wide(x);
    }
};
template <class T> struct As<T, T> {
    static __device__ inline T of(T x) {
        return x;
    }
};

// Updates the rows of `inner` elements that the indices select. If `step` is 0, the first element of `updates`
// is used for all elements.
template <class F, class A, class T, class I>
__global__ void scatter(A *to, const I *indices, const T *updates, i64 n, i64 rows, i64 inner, i64 step) {
    EACH(i, n) {
        i64 row = indices[i / inner];
        if (row >= 0 && row < rows)
            F::apply(to + row * inner + i % inner, As<A, T>::of(updates[i * step]));
    }
}

struct Indexed {
    i64 depth;
    i64 sizes[MOST_AXES], strides[MOST_AXES];
};
template <class F, class A, class T, class I>
__global__ void scatter_nd(A *to, const I *indices, const T *updates, i64 n, i64 length, Indexed indexed) {
    EACH(i, n) {
        const I *vector = indices + i / length * indexed.depth;
        i64 at = 0;
        bool inside = true;
        for (i64 d = 0; d < indexed.depth; d++) {
            i64 index = vector[d];
            inside = inside && index >= 0 && index < indexed.sizes[d];
            at += index * indexed.strides[d];
        }
        if (inside)
            F::apply(to + at + i % length, As<A, T>::of(updates[i]));
    }
}

// The greatest and the least finite value of a type, with which a minimum or a maximum starts.
template <class T> struct Ends;
template <> struct Ends<f16> {
    static __device__ inline float least() {
        return -65504.0f;
    }
    static __device__ inline float greatest() {
        return 65504.0f;
    }
};
template <> struct Ends<bf16> {
    static __device__ inline float least() {
        return __int_as_float(0xff7f0000);
    }
    static __device__ inline float greatest() {
        return __int_as_float(0x7f7f0000);
    }
};
template <> struct Ends<float> {
    static __device__ inline float least() {
        return __int_as_float(0xff7fffff);
    }
    static __device__ inline float greatest() {
        return __int_as_float(0x7f7fffff);
    }
};
template <> struct Ends<double> {
    static __device__ inline double least() {
        return __longlong_as_double(0xffefffffffffffffLL);
    }
    static __device__ inline double greatest() {
        return __longlong_as_double(0x7fefffffffffffffLL);
    }
};
template <> struct Ends<i64> {
    static __device__ inline i64 least() {
        return lowest<i64>();
    }
    static __device__ inline i64 greatest() {
        return highest<i64>();
    }
};
template <class F, class T> struct Start;
template <class T> struct Start<Max, T> {
    static __device__ inline Wide<T> of() {
        return Ends<T>::least();
    }
};
template <class T> struct Start<Min, T> {
    static __device__ inline Wide<T> of() {
        return Ends<T>::greatest();
    }
};
template <class T> struct Start<Mul, T> {
    static __device__ inline Wide<T> of() {
        return (Wide<T>)1;
    }
};
template <class F, class T> __global__ void start(Wide<T> *to, i64 n) {
    EACH(i, n) to[i] = Start<F, T>::of();
}
