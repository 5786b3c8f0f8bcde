// Pooling over images, and its gradients. Each result is some thread's, which walks its windows: sums come in the same
// order every time.

struct Windows {
    // Of the tensors with pooled sizes: batch, channels, rows, columns; and how each of both lies.
    i64 input[4], output[4], input_strides[4], output_strides[4];
    i64 size[2], stride[2], pad[2];

    static __device__ inline void split(i64 i, const i64 (&sizes)[4], i64 (&at)[4]) {
        for (int axis = 3; axis >= 0; axis--) {
            at[axis] = i % sizes[axis];
            i /= sizes[axis];
        }
    }
    static __device__ inline i64 place(const i64 (&at)[4], const i64 (&strides)[4]) {
        return at[0] * strides[0] + at[1] * strides[1] + at[2] * strides[2] + at[3] * strides[3];
    }
    // Input positions under the window at an output, along an axis (0 rows, 1 columns).
    __device__ inline void under(int axis, i64 at, i64 &from, i64 &to) const {
        from = at * stride[axis] - pad[axis];
        to = from + size[axis];
        from = from < 0 ? 0 : from;
        to = to > input[2 + axis] ? input[2 + axis] : to;
    }
    // Outputs whose windows hold an input position.
    __device__ inline void over(int axis, i64 at, i64 &from, i64 &to) const {
        i64 first = at + pad[axis] - size[axis] + 1;
        from = first <= 0 ? 0 : (first + stride[axis] - 1) / stride[axis];
        to = (at + pad[axis]) / stride[axis] + 1;
        to = to > output[2 + axis] ? output[2 + axis] : to;
    }
};

template <class T> __global__ void max_pool(const T *x, T *y, i64 n, Windows w) {
    EACH(i, n) {
        i64 at[4], rows[2], columns[2];
        Windows::split(i, w.output, at);
        w.under(0, at[2], rows[0], rows[1]);
        w.under(1, at[3], columns[0], columns[1]);
        const T *image = x + at[0] * w.input_strides[0] + at[1] * w.input_strides[1];
        Wide<T> best = lowest<Wide<T>>();
        for (i64 r = rows[0]; r < rows[1]; r++)
            for (i64 c = columns[0]; c < columns[1]; c++) {
                Wide<T> value = wide(image[r * w.input_strides[2] + c * w.input_strides[3]]);
                if (value > best)
                    best = value;
            }
        y[Windows::place(at, w.output_strides)] = narrow<T>(best);
    }
}

// What arrived at each window goes to the first of its largest elements.
template <class T> __global__ void max_pool_gradient(const T *x, const T *dy, T *dx, i64 n, Windows w) {
    EACH(i, n) {
        i64 at[4], out_rows[2], out_columns[2];
        Windows::split(i, w.input, at);
        w.over(0, at[2], out_rows[0], out_rows[1]);
        w.over(1, at[3], out_columns[0], out_columns[1]);
        const T *image = x + at[0] * w.input_strides[0] + at[1] * w.input_strides[1];
        const T *slopes = dy + at[0] * w.output_strides[0] + at[1] * w.output_strides[1];
        Wide<T> sum = 0;
        for (i64 p = out_rows[0]; p < out_rows[1]; p++)
            for (i64 q = out_columns[0]; q < out_columns[1]; q++) {
                i64 rows[2], columns[2];
                w.under(0, p, rows[0], rows[1]);
                w.under(1, q, columns[0], columns[1]);
                i64 best_row = rows[0], best_column = columns[0];
                Wide<T> best = wide(image[best_row * w.input_strides[2] + best_column * w.input_strides[3]]);
                for (i64 r = rows[0]; r < rows[1]; r++)
                    for (i64 c = columns[0]; c < columns[1]; c++) {
                        Wide<T> value = wide(image[r * w.input_strides[2] + c * w.input_strides[3]]);
                        if (value > best) {
                            best = value;
                            best_row = r;
                            best_column = c;
                        }
                    }
                if (best_row == at[2] && best_column == at[3])
                    sum += wide(slopes[p * w.output_strides[2] + q * w.output_strides[3]]);
            }
        dx[Windows::place(at, w.input_strides)] = narrow<T>(sum);
    }
}

// Of the elements that are there: padding does not count.
template <class T> __global__ void average_pool(const T *x, T *y, i64 n, Windows w) {
    EACH(i, n) {
        i64 at[4], rows[2], columns[2];
        Windows::split(i, w.output, at);
        w.under(0, at[2], rows[0], rows[1]);
        w.under(1, at[3], columns[0], columns[1]);
        const T *image = x + at[0] * w.input_strides[0] + at[1] * w.input_strides[1];
        Wide<T> sum = 0;
        for (i64 r = rows[0]; r < rows[1]; r++)
            for (i64 c = columns[0]; c < columns[1]; c++)
                sum += wide(image[r * w.input_strides[2] + c * w.input_strides[3]]);
        i64 count = (rows[1] - rows[0]) * (columns[1] - columns[0]);
        y[Windows::place(at, w.output_strides)] = narrow<T>(sum / (Wide<T>)count);
    }
}

template <class T> __global__ void average_pool_gradient(const T *dy, T *dx, i64 n, Windows w) {
    EACH(i, n) {
        i64 at[4], out_rows[2], out_columns[2];
        Windows::split(i, w.input, at);
        w.over(0, at[2], out_rows[0], out_rows[1]);
        w.over(1, at[3], out_columns[0], out_columns[1]);
        const T *slopes = dy + at[0] * w.output_strides[0] + at[1] * w.output_strides[1];
        Wide<T> sum = 0;
        for (i64 p = out_rows[0]; p < out_rows[1]; p++)
            for (i64 q = out_columns[0]; q < out_columns[1]; q++) {
                i64 rows[2], columns[2];
                w.under(0, p, rows[0], rows[1]);
                w.under(1, q, columns[0], columns[1]);
                i64 count = (rows[1] - rows[0]) * (columns[1] - columns[0]);
                sum += wide(slopes[p * w.output_strides[2] + q * w.output_strides[3]]) / (Wide<T>)count;
            }
        dx[Windows::place(at, w.input_strides)] = narrow<T>(sum);
    }
}
