// Reductions along axes. A reduction defines the initial value of an accumulator, the accumulator of one
// element, the combination of two accumulators, and the result from an accumulator and the number of elements.

#define REDUCTION(NAME, START, LOAD, COMBINE, FINISH)                                                                  \
    struct NAME {                                                                                                      \
        template <class W> static __device__ inline W start() {                                                        \
            return START;                                                                                              \
        }                                                                                                              \
        template <class W> static __device__ inline W load(W x) {                                                      \
            return LOAD;                                                                                               \
        }                                                                                                              \
        template <class W> static __device__ inline W combine(W x, W y) {                                              \
            return COMBINE;                                                                                            \
        }                                                                                                              \
        template <class W> static __device__ inline W finish(W x, i64 count) {                                         \
            return FINISH;                                                                                             \
        }                                                                                                              \
    };

// Functions for the reductions: the square of the absolute value, the square root, and the quotient by a count.
template <class W> __device__ inline W squared(W x) {
    return x * x;
}
template <class P> __device__ inline Complex<P> squared(Complex<P> x) {
    return {x.re * x.re + x.im * x.im, (P)0};
}
template <class W> __device__ inline W root(W x) {
    return (W)sqrt((double)x);
}
template <class P> __device__ inline Complex<P> root(Complex<P> x) {
    return {(P)sqrt((double)x.re), (P)0};
}
template <class W> __device__ inline W part(W x, i64 count) {
    return x / (W)count;
}
template <class P> __device__ inline Complex<P> part(Complex<P> x, i64 count) {
    // The mean of no elements is 0, as on the CPU.
    return count ? Complex<P>{x.re / (P)count, x.im / (P)count} : Complex<P>{};
}

REDUCTION(Sum, zero<W>(), x, x + y, x)
REDUCTION(Prod, one<W>(), x, x *y, x)
REDUCTION(Max, lowest<W>(), x, (y > x || y != y ? y : x), x)
REDUCTION(Min, highest<W>(), x, (y < x || y != y ? y : x), x)
REDUCTION(Mean, zero<W>(), x, x + y, part(x, count))
REDUCTION(EuclideanNorm, zero<W>(), squared(x), x + y, root(x))
REDUCTION(L2Loss, (W)0, x *x, x + y, x / (W)2)
REDUCTION(All, true, x, (bool)(x && y), x)
REDUCTION(Any, false, x, (bool)(x || y), x)

// The axes of the input that remain in the output, and the axes that are reduced.
struct Layout {
    Axes<1> kept;
    Axes<1> reduced;
};

// Reduces with one thread per result.
template <class F, class T> __global__ void reduce_each(const T *x, T *y, i64 n, i64 count, Layout layout) {
    typedef Wide<T> W;
    EACH(i, n) {
        i64 start[1], at[1];
        layout.kept.at(i, start);
        W sum = F::template start<W>();
        for (i64 k = 0; k < count; k++) {
            layout.reduced.at(k, at);
            sum = F::combine(sum, F::load(wide(x[start[0] + at[0]])));
        }
        y[i] = narrow<T>(F::finish(sum, count));
    }
}

// One of the parts into which the elements of a result are divided: the index of the result, and the range of
// its elements.
struct Part {
    i64 result, first, end;

    __device__ inline Part(i64 i, i64 count, i64 parts) : result(i / parts) {
        i64 size = (count + parts - 1) / parts;
        first = i % parts * size;
        end = first + size < count ? first + size : count;
    }
};

// The memory for partial results (`sums`) and for results (`y`). If each result has only one part, the result
// is written at once, without a partial result.
template <class F, class T> struct Parts {
    Wide<T> *sums;
    T *y;
    i64 count;

    __device__ inline void put(i64 result, i64 part, i64 parts, Wide<T> sum) const {
        if (parts == 1)
            y[result] = narrow<T>(F::finish(sum, count));
        else
            sums[result * parts + part] = sum;
    }
};

// Reduces with one block per part of a result.
template <class F, class T>
__global__ void reduce_block(const T *x, Parts<F, T> to, i64 n, i64 parts, Layout layout) {
    typedef Wide<T> W;
    EACH_BLOCK(i, n * parts) {
        Part part(i, to.count, parts);
        i64 start[1], at[1];
        layout.kept.at(part.result, start);
        W sum = F::template start<W>();
        for (i64 k = part.first + threadIdx.x; k < part.end; k += THREADS) {
            layout.reduced.at(k, at);
            sum = F::combine(sum, F::load(wide(x[start[0] + at[0]])));
        }
        sum = over_block<F>(sum);
        if (threadIdx.x == 0)
            to.put(part.result, i % parts, parts, sum);
    }
}

// Reduces the columns of a matrix. A block handles a part of the rows of 32 columns, so that neighbouring
// threads read neighbouring elements; eight threads share a column.
template <class F, class T>
__global__ void reduce_columns(const T *x, Parts<F, T> to, i64 columns, i64 parts) {
    typedef Wide<T> W;
    __shared__ W shared[8][32];
    int lane = threadIdx.x % 32, row_lane = threadIdx.x / 32;
    EACH_BLOCK(i, (columns + 31) / 32 * parts) {
        Part part(i, to.count, parts);
        i64 column = part.result * 32 + lane;
        W sum = F::template start<W>();
        if (column < columns)
            for (i64 row = part.first + row_lane; row < part.end; row += 8)
                sum = F::combine(sum, F::load(wide(x[row * columns + column])));
        __syncthreads();
        shared[row_lane][lane] = sum;
        __syncthreads();
        if (row_lane == 0 && column < columns) {
            for (int other = 1; other < 8; other++)
                sum = F::combine(sum, shared[other][lane]);
            to.put(column, i % parts, parts, sum);
        }
    }
}

// Combines the partial results of each result; one block per result.
template <class F, class T> __global__ void reduce_parts(Parts<F, T> of, i64 n, i64 parts) {
    EACH_BLOCK(i, n) {
        Wide<T> sum = F::template start<Wide<T>>();
        for (i64 part = threadIdx.x; part < parts; part += THREADS)
            sum = F::combine(sum, of.sums[i * parts + part]);
        sum = over_block<F>(sum);
        if (threadIdx.x == 0)
            of.y[i] = narrow<T>(F::finish(sum, of.count));
    }
}

// The index of the maximum or minimum along the middle of three axes; of equal elements the first counts. NaN
// is ignored.
struct ArgMax {
    template <class W> static __device__ inline W start() {
        return lowest<W>();
    }
    template <class W> static __device__ inline bool better(W x, W best) {
        return x > best;
    }
};
struct ArgMin {
    template <class W> static __device__ inline W start() {
        return highest<W>();
    }
    template <class W> static __device__ inline bool better(W x, W best) {
        return x < best;
    }
};
template <class F, class T, class I> __global__ void extreme(const T *x, I *y, i64 n, i64 count, i64 inner) {
    typedef Wide<T> W;
    EACH(i, n) {
        const T *column = x + i / inner * count * inner + i % inner;
        W best = F::template start<W>();
        i64 place = 0;
        for (i64 k = 0; k < count; k++) {
            W value = wide(column[k * inner]);
            if (F::better(value, best)) {
                best = value;
                place = k;
            }
        }
        y[i] = (I)place;
    }
}

// Cumulative sums and products along the middle of three axes; one block per line along that axis, whose
// threads handle one element each at a time.
template <class F, class T>
__global__ void scan(const T *x, T *y, i64 lines, i64 size, i64 inner, i64 exclusive, i64 reverse) {
    typedef Wide<T> W;
    __shared__ W shared[THREADS];
    EACH_BLOCK(line, lines) {
        i64 start = line / inner * size * inner + line % inner;
        W before = F::template start<W>();
        for (i64 first = 0; first < size; first += THREADS) {
            i64 k = first + threadIdx.x;
            i64 at = start + (reverse ? size - 1 - k : k) * inner;
            W sum = k < size ? wide(x[at]) : F::template start<W>();
            sum = running<F>(sum, F::template start<W>(), shared);
            W own = exclusive ? (threadIdx.x > 0 ? shared[threadIdx.x - 1] : F::template start<W>()) : sum;
            if (k < size)
                y[at] = narrow<T>(F::combine(before, own));
            before = F::combine(before, shared[THREADS - 1]);
        }
    }
}
