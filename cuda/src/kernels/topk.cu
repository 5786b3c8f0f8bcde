// The largest elements of each row, and whether a given element is among them.

// Returns whether element i, of value x, comes before element j, of value y: larger elements come first, and
// NaN last; of equal elements the one with the smaller index comes first.
template <class W> __device__ inline bool before(W x, i64 i, W y, i64 j) {
    if (x > y)
        return true;
    if (x < y)
        return false;
    bool x_is_none = x != x, y_is_none = y != y;
    return x_is_none != y_is_none ? y_is_none : i < j;
}

// Finds the largest elements of each row in order; one block per row, which searches repeatedly for the largest
// element after the last one found.
template <class T, class I>
__global__ void top(const T *x, T *values, I *indices, i64 rows, i64 columns, i64 k) {
    typedef Wide<T> W;
    __shared__ W best[THREADS];
    __shared__ i64 place[THREADS];
    EACH_BLOCK(row, rows) {
        const T *from = x + row * columns;
        W last = 0;
        i64 last_place = -1;
        for (i64 n = 0; n < k; n++) {
            W own = 0;
            i64 at = -1;
            for (i64 i = threadIdx.x; i < columns; i += THREADS) {
                W value = wide(from[i]);
                bool is_left = last_place < 0 || before(last, last_place, value, i);
                if (is_left && (at < 0 || before(value, i, own, at))) {
                    own = value;
                    at = i;
                }
            }
            __syncthreads();
            best[threadIdx.x] = own;
            place[threadIdx.x] = at;
            for (int half = THREADS / 2; half > 0; half /= 2) {
                __syncthreads();
                int other = threadIdx.x + half;
                if (threadIdx.x < half && place[other] >= 0 &&
                    (place[threadIdx.x] < 0 ||
                     before(best[other], place[other], best[threadIdx.x], place[threadIdx.x]))) {
                    best[threadIdx.x] = best[other];
                    place[threadIdx.x] = place[other];
                }
            }
            __syncthreads();
            last = best[0];
            last_place = place[0];
            if (threadIdx.x == 0) {
                values[row * k + n] = narrow<T>(last);
                indices[row * k + n] = (I)last_place;
            }
        }
    }
}

// For each row, computes whether fewer than `k` elements are larger than the target's element. The result is false for
// rows with non-finite values.
template <class I>
__global__ void in_top(const float *x, const I *targets, bool *y, i64 rows, i64 classes, i64 k) {
    EACH_BLOCK(row, rows) {
        const float *from = x + row * classes;
        i64 target = targets[row];
        bool is_there = target >= 0 && target < classes;
        float own = is_there ? from[target] : 0.0f;
        // The number of larger elements; a non-finite value counts as 2^40, more than a row can have.
        i64 larger = 0;
        for (i64 i = threadIdx.x; is_there && i < classes; i += THREADS) {
            float value = from[i];
            larger += !(fabs(value) < highest<float>()) ? (i64)1 << 40 : (i64)(value > own);
        }
        larger = over_block<Plus>(larger);
        if (threadIdx.x == 0)
            y[row] = is_there && larger < (i64)1 << 40 && larger < k;
    }
}
