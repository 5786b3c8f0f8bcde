// Bucketing and counting of values, and searches in sorted rows. Counts are added atomically, in no fixed
// order.

// The bucket of each value: the number of sorted bounds that are not greater than it; for NaN, the number of
// all bounds.
template <class T> __global__ void bucketize(const T *x, const double *bounds, i32 *y, i64 n, i64 count) {
    EACH(i, n) {
        double value = (double)x[i];
        i64 low = 0, high = count;
        while (low < high) {
            i64 middle = (low + high) / 2;
            if (value < bounds[middle])
                high = middle;
            else
                low = middle + 1;
        }
        y[i] = (i32)low;
    }
}

// A search in sorted rows, for the first input that is not less than a value (`LowerBound`) or that is greater
// (`UpperBound`).
struct LowerBound {
    template <class W> static __device__ inline bool leads(W x, W value) {
        return x < value;
    }
};
struct UpperBound {
    template <class W> static __device__ inline bool leads(W x, W value) {
        return !(value < x);
    }
};
template <class F, class T, class I>
__global__ void bound(const T *sorted, const T *values, I *places, i64 n, i64 width, i64 count) {
    EACH(i, n) {
        const T *inputs = sorted + i / count * width;
        i64 first = 0;
        for (i64 length = width; length > 0;) {
            i64 half = length / 2;
            if (F::leads(wide(inputs[first + half]), wide(values[i]))) {
                first += half + 1;
                length -= half + 1;
            } else {
                length = half;
            }
        }
        places[i] = (I)first;
    }
}

__device__ inline void add(i32 *to, i32 by) {
    atomicAdd(to, by);
}
__device__ inline void add(i64 *to, i64 by) {
    atomicAdd((u64 *)to, (u64)by);
}
__device__ inline void add(float *to, float by) {
    atomicAdd(to, by);
}
__device__ inline void add(double *to, double by) {
    atomicAdd(to, by);
}

// The number of values in each of `bins` bins of equal width; values outside count in the first or last bin.
template <class T, class U>
__global__ void fixed_width(const T *x, U *counts, i64 n, double low, double width, i64 bins) {
    EACH(i, n) {
        double bin = floor(((double)x[i] - low) / width);
        add(counts + (bin > 0 ? bin < (double)bins ? (i64)bin : bins - 1 : 0), (U)1);
    }
}

// For each row and bin, the sum of the weights of the numbers that are equal to the bin's index, or their count
// if `weights` is null. Numbers outside the bins are not counted.
template <class T, class I>
__global__ void bincount(const I *numbers, const T *weights, T *sums, i64 n, i64 columns, i64 bins) {
    EACH(i, n) {
        i64 bin = numbers[i];
        if (bin >= 0 && bin < bins)
            add(sums + i / columns * bins + bin, weights ? weights[i] : (T)1);
    }
}
template <class T> __global__ void presence(T *sums, i64 n) {
    EACH(i, n) sums[i] = (T)(sums[i] != (T)0);
}
