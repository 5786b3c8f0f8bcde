// A chain of functions of elements, of as many operands as it has. What stands before this text says which: a structure
// `Chain` with
//     static const int operands, and static const bool is_short;
//     template <class T> static __device__ Wide<T> apply(const Wide<T> (&x)[operands]).

// How an operand lies along the result: an element for each of the result's, one for all, or, from SPREAD on, as one of
// so many patterns says.
#define WHOLE 0
#define SINGLE 1
#define SPREAD 2
#define PATTERNS 4

template <class T, int N> struct Operands {
    const T *at[N];
    i64 places[N];
};

// Elements that cross memory at once.
template <class T, int N> struct alignas(N * sizeof(T)) Lanes {
    T at[N];
};

// Each thread computes some elements that follow each other: as many as cross memory at once, or one of a long chain,
// which would not keep more in registers. The result may lie where a whole operand does: whoever writes an element has
// read it. Without patterns `axes` says nothing.
template <class C, class T, bool HAS_PATTERNS>
__global__ void chain(Operands<T, C::operands> x, T *z, i64 n, Axes<PATTERNS> axes) {
    const int lanes = C::is_short ? 16 / sizeof(T) : 1;
    EACH(group, (n + lanes - 1) / lanes) {
        const i64 first = group * lanes;
        const int count = n - first < lanes ? (int)(n - first) : lanes;
        Lanes<T, lanes> read[C::operands];
#pragma unroll
        for (int k = 0; k < C::operands; k++) {
            if (x.places[k] == WHOLE && count == lanes) {
                read[k] = *(const Lanes<T, lanes> *)(x.at[k] + first);
            } else if (x.places[k] <= SINGLE) {
                const i64 step = x.places[k] == WHOLE;
#pragma unroll
                for (int v = 0; v < lanes; v++)
                    if (v < count)
                        read[k].at[v] = x.at[k][(first + v) * step];
            }
        }
        if (HAS_PATTERNS) {
            const int inner = (int)axes.rank - 1;
            i64 at[PATTERNS];
            axes.at(first, at);
            i64 left = axes.sizes[inner] - first % axes.sizes[inner];
#pragma unroll
            for (int v = 0; v < lanes; v++) {
                if (v >= count)
                    continue;
#pragma unroll
                for (int k = 0; k < C::operands; k++)
#pragma unroll
                    for (int p = 0; p < PATTERNS; p++)
                        if (x.places[k] == SPREAD + p)
                            read[k].at[v] = x.at[k][at[p]];
                if (--left > 0) {
#pragma unroll
                    for (int p = 0; p < PATTERNS; p++)
                        at[p] += axes.strides[p][inner];
                } else {
                    axes.at(first + v + 1, at);
                    left = axes.sizes[inner];
                }
            }
        }
        Lanes<T, lanes> result;
#pragma unroll
        for (int v = 0; v < lanes; v++) {
            if (v >= count)
                continue;
            Wide<T> of[C::operands];
#pragma unroll
            for (int k = 0; k < C::operands; k++)
                of[k] = wide(read[k].at[v]);
            result.at[v] = narrow<T>(C::template apply<T>(of));
        }
        if (count == lanes) {
            *(Lanes<T, lanes> *)(z + first) = result;
        } else {
#pragma unroll
            for (int v = 0; v < lanes; v++)
                if (v < count)
                    z[first + v] = result.at[v];
        }
    }
}
