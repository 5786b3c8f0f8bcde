// Rotates the elements of a tensor along each axis.
template <class E> __global__ void roll(const E *x, E *y, i64 n, Axes<1> axes) {
    EACH(i, n) {
        i64 rest = i, from = 0, step = 1;
        for (int axis = (int)axes.rank - 1; axis >= 0; axis--) {
            i64 size = axes.sizes[axis];
            from += (rest % size + size - axes.strides[0][axis]) % size * step;
            rest /= size;
            step *= size;
        }
        y[i] = x[from];
    }
}

// Reverses the first elements of each sequence, which runs along one axis; the index along another axis selects
// the number of elements to reverse. A length out of range counts as the axis's length, because a kernel cannot
// report an error.

template <class E, class I>
__global__ void reverse_sequence(const E *x, const I *lengths, E *y, i64 n, i64 batch_step, i64 batch, i64 step,
                                 i64 size) {
    EACH(i, n) {
        i64 place = i / step % size, length = lengths[i / batch_step % batch];
        length = length < 0 || length > size ? size : length;
        y[i] = x[place < length ? i + (length - 1 - 2 * place) * step : i];
    }
}

// Cross products of 3-vectors; the terms are rounded to T, as on the CPU.
template <class T> __global__ void cross(const T *a, const T *b, T *y, i64 n) {
    EACH(i, n) {
        const i64 first = i - i % 3, j = first + (i + 1) % 3, k = first + (i + 2) % 3;
        y[i] = narrow<T>(wide(narrow<T>(wide(a[j]) * wide(b[k]))) - wide(narrow<T>(wide(a[k]) * wide(b[j]))));
    }
}
