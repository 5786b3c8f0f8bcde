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

// How many elements of a chain a thread computes at most: as many as cross memory at once, or one of a long chain, which
// would not keep more in registers.
template <class C, class T> __device__ constexpr int most_lanes() {
    return C::is_short ? 16 / sizeof(T) : 1;
}

// Each thread computes `width` elements that follow each other, which is 1 or as many as it can. More than 1 only where
// they are of one row: then patterns go on through all of them by the steps of the innermost axis. Without patterns
// `axes` says nothing. The result may lie where a whole operand does: whoever writes an element has read it.
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
