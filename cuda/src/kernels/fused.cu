// A fused chain of element-wise functions, of any number of operands. The text before this file defines the
// chain: a structure `Chain` with
//     static const int operands, and static const bool is_short;
//     template <class T> static __device__ Wide<T> apply(const Wide<T> (&x)[operands]).

// How an operand broadcasts to the result: WHOLE has the result's shape, SINGLE has one element, and SPREAD + p
// has the strides of pattern p.
#define WHOLE 0
#define SINGLE 1
#define SPREAD 2
#define PATTERNS 4

template <class T, int N> struct Operands {
    const T *at[N];
    i64 places[N];
};

// Largest number of elements that a thread computes: 16 bytes of elements, so that memory accesses are vectors,
// or one element for a long chain, which needs the registers for intermediate values.
template <class C, class T> __device__ constexpr int most_lanes() {
    return C::is_short ? 16 / sizeof(T) : 1;
}

// Each thread computes `width` consecutive elements, either 1 or `most_lanes`. With more than 1, a thread's
// elements must be in one row, so that a pattern advances by the stride of the innermost axis. Without patterns
// `axes` is unused. The result may be in the memory of an operand that does not broadcast, because each thread
// reads an element before it writes it.
template <class C, class T, bool HAS_PATTERNS>
__global__ void chain(Operands<T, C::operands> x, T *z, i64 n, i64 width, Axes<PATTERNS> axes) {
    const int lanes = most_lanes<C, T>();
    EACH(group, (n + width - 1) / width) {
        const i64 first = group * width;
        const int count = (int)(n - first < width ? n - first : width);
        i64 at[PATTERNS];
        if (HAS_PATTERNS)
            axes.at(first, at);
        Pack<T, lanes> read[C::operands];
#pragma unroll
        for (int k = 0; k < C::operands; k++) {
            const i64 place = x.places[k];
            if (place == WHOLE && count == lanes) {
                read[k] = *(const Pack<T, lanes> *)(x.at[k] + first);
                continue;
            }
            i64 from = place == WHOLE ? first : 0, step = place == WHOLE;
            if (HAS_PATTERNS) {
#pragma unroll
                for (int p = 0; p < PATTERNS; p++)
                    if (place == SPREAD + p) {
                        from = at[p];
                        step = axes.strides[p][axes.rank - 1];
                    }
            }
#pragma unroll
            for (int v = 0; v < lanes; v++)
                if (v < count)
                    read[k].at[v] = x.at[k][from + v * step];
        }
        Pack<T, lanes> result;
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
            *(Pack<T, lanes> *)(z + first) = result;
        } else {
#pragma unroll
            for (int v = 0; v < lanes; v++)
                if (v < count)
                    z[first + v] = result.at[v];
        }
    }
}
