// Combination of rows into one row per segment. The rows of a segment are combined in order, so results are
// reproducible.

#define COMBINATION(NAME, EMPTY, COMBINE, FINISH)                                                                      \
    struct NAME {                                                                                                      \
        template <class W> static __device__ inline W empty() {                                                        \
            return EMPTY;                                                                                              \
        }                                                                                                              \
        template <class W> static __device__ inline W combine(W x, W y) {                                              \
            return COMBINE;                                                                                            \
        }                                                                                                              \
        template <class W> static __device__ inline W finish(W x, i64 count) {                                         \
            return FINISH;                                                                                             \
        }                                                                                                              \
    };

COMBINATION(Sum, (W)0, x + y, x)
COMBINATION(Mean, (W)0, x + y, x / (W)count)
COMBINATION(SqrtN, (W)0, x + y, x / (W)sqrt((double)count))
COMBINATION(Prod, (W)1, x *y, x)
COMBINATION(Max, (W)0, (y > x ? y : x), x)
COMBINATION(Min, (W)0, (y < x ? y : x), x)

// Combines the rows from each segment's start to the start of the next segment, or, if `indices` is not null,
// the rows that the indices in that range name. An index out of range adds nothing, because a kernel cannot
// report an error.
template <class F, class T, class I>
__global__ void segments(const T *data, const I *indices, const i64 *starts, T *out, i64 n, i64 inner, i64 rows) {
    typedef Wide<T> W;
    EACH(i, n) {
        i64 segment = i / inner, from = starts[segment], to = starts[segment + 1];
        W sum = F::template empty<W>();
        bool is_first = true;
        for (i64 k = from; k < to; k++) {
            i64 row = indices ? (i64)indices[k] : k;
            if (row < 0 || row >= rows)
                continue;
            W value = wide(data[row * inner + i % inner]);
            sum = is_first ? value : F::combine(sum, value);
            is_first = false;
        }
        out[i] = narrow<T>(from < to ? F::finish(sum, to - from) : sum);
    }
}

// Adds the gradient of a segment to each row that belongs to the segment. `indices` are the rows; `table` has
// for each of them the segment and the number of rows in that segment.
template <class F, class T, class I>
__global__ void spread(const T *grad, const I *indices, const i64 *table, Wide<T> *out, i64 n, i64 inner, i64 rows) {
    EACH(i, n) {
        i64 k = i / inner, row = indices[k];
        Wide<T> part = F::finish(wide(grad[table[2 * k] * inner + i % inner]), table[2 * k + 1]);
        if (row >= 0 && row < rows)
            atomicAdd(out + row * inner + i % inner, part);
    }
}
