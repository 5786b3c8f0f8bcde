// Sequences along one axis, of which another axis says which is how long: the first elements in the opposite order. A
// length out of range is as if it were the axis's: there is nobody to tell.

template <class E, class I>
__global__ void reverse_sequence(const E *x, const I *lengths, E *y, i64 n, i64 batch_step, i64 batch, i64 step,
                                 i64 size) {
    EACH(i, n) {
        i64 place = i / step % size, length = lengths[i / batch_step % batch];
        length = length < 0 || length > size ? size : length;
        y[i] = x[place < length ? i + (length - 1 - 2 * place) * step : i];
    }
}
