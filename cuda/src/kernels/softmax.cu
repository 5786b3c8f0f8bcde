// Softmax along rows, and cross entropies of the softmax; one block per row.

template <class T> struct Row {
    typedef Wide<T> W;
    const T *x;
    i64 step;
    W largest, sum;

    // Computes the row's maximum and sum. All threads of the block must call the constructor, because it
    // synchronises them.
    __device__ inline Row(const T *x, i64 step, i64 classes) : x(x), step(step) {
        W most = lowest<W>();
        for (i64 k = threadIdx.x; k < classes; k += THREADS)
            most = Larger::combine(most, wide(x[k * step]));
        largest = over_block<Larger>(most);
        W total = 0;
        for (i64 k = threadIdx.x; k < classes; k += THREADS)
            total += exp(wide(x[k * step]) - largest);
        sum = over_block<Plus>(total);
    }
    // Returns element k of the row minus the row's maximum.
    __device__ inline W below(i64 k) const {
        return wide(x[k * step]) - largest;
    }
};

template <class T> __global__ void softmax(const T *x, T *y, i64 rows, i64 classes, i64 logarithm) {
    EACH_BLOCK(i, rows) {
        Row<T> row(x + i * classes, 1, classes);
        for (i64 k = threadIdx.x; k < classes; k += THREADS)
            y[i * classes + k] = narrow<T>(logarithm ? row.below(k) - log(row.sum) : exp(row.below(k)) / row.sum);
    }
}

// The strides of `x` and `labels` along rows and along classes, for a cross entropy with a distribution per
// row; a stride is 0 along an axis that broadcasts.
struct Steps {
    i64 x[2], labels[2];
};
template <class T>
__global__ void cross_entropy(const T *x, const T *labels, T *loss, T *gradient, i64 rows, i64 classes, Steps steps) {
    typedef Wide<T> W;
    EACH_BLOCK(i, rows) {
        Row<T> row(x + i * steps.x[0], steps.x[1], classes);
        W total = 0;
        for (i64 k = threadIdx.x; k < classes; k += THREADS) {
            W label = wide(labels[i * steps.labels[0] + k * steps.labels[1]]);
            W below = row.below(k);
            if (label != (W)0)
                total += label * (log(row.sum) - below);
            gradient[i * classes + k] = narrow<T>(exp(below) / row.sum - label);
        }
        total = over_block<Plus>(total);
        if (threadIdx.x == 0)
            loss[i] = narrow<T>(total);
    }
}

// Cross entropy with one class per row; an invalid class makes the loss and gradient of the row NaN, because a
// kernel cannot report an error.
template <class T, class L>
__global__ void sparse_cross_entropy(const T *x, const L *labels, T *loss, T *gradient, i64 rows, i64 classes) {
    typedef Wide<T> W;
    EACH_BLOCK(i, rows) {
        Row<T> row(x + i * classes, 1, classes);
        i64 label = labels[i];
        bool is_class = label >= 0 && label < classes;
        W nan = highest<W>() - highest<W>();
        for (i64 k = threadIdx.x; k < classes; k += THREADS) {
            W slope = exp(row.below(k)) / row.sum - (W)(k == label);
            gradient[i * classes + k] = narrow<T>(is_class ? slope : nan);
        }
        if (threadIdx.x == 0)
            loss[i] = narrow<T>(is_class ? log(row.sum) - row.below(label) : nan);
    }
}
