// Depthwise convolutions, where each input channel has filters of its own, and their gradients. Sums are added
// in a fixed order, so results are reproducible.

struct Depthwise {
    // `depth` is the number of input channels, `multiplier` the number of filters of each channel.
    i64 depth, multiplier;
    // Each array holds a value for the rows and one for the columns.
    i64 input[2], output[2], filter[2], stride[2], dilation[2], pad[2];
    // Strides in elements of the input and of the output, along images, rows, columns and channels.
    i64 in_steps[4], out_steps[4];

    // Splits the index of an element of a batch of images into image, row, column and channel.
    static __device__ inline void split(i64 i, const i64 (&sizes)[2], i64 channels, i64 (&at)[4]) {
        at[3] = i % channels;
        i /= channels;
        at[2] = i % sizes[1];
        i /= sizes[1];
        at[1] = i % sizes[0];
        at[0] = i / sizes[0];
    }
    static __device__ inline i64 place(i64 image, i64 row, i64 column, i64 channel, const i64 (&steps)[4]) {
        return image * steps[0] + row * steps[1] + column * steps[2] + channel * steps[3];
    }
    // The input position, along an axis, under a filter tap for an output position; less than 0 in the padding.
    __device__ inline i64 under(int axis, i64 out, i64 tap) const {
        i64 at = out * stride[axis] + tap * dilation[axis] - pad[axis];
        return at < input[axis] ? at : -1;
    }
    // The output position, along an axis, for which a filter tap is over an input position; less than 0 if
    // there is none.
    __device__ inline i64 over(int axis, i64 in, i64 tap) const {
        i64 at = in + pad[axis] - tap * dilation[axis];
        return at >= 0 && at % stride[axis] == 0 && at / stride[axis] < output[axis] ? at / stride[axis] : -1;
    }
};

template <class T> __global__ void depthwise(const T *x, const T *w, T *y, i64 n, Depthwise d) {
    i64 channels = d.depth * d.multiplier;
    EACH(i, n) {
        i64 at[4];
        Depthwise::split(i, d.output, channels, at);
        Wide<T> sum = 0;
        for (i64 r = 0; r < d.filter[0]; r++)
            for (i64 c = 0; c < d.filter[1]; c++) {
                i64 row = d.under(0, at[1], r), column = d.under(1, at[2], c);
                if (row >= 0 && column >= 0)
                    sum += wide(x[Depthwise::place(at[0], row, column, at[3] / d.multiplier, d.in_steps)]) *
                           wide(w[(r * d.filter[1] + c) * channels + at[3]]);
            }
        y[Depthwise::place(at[0], at[1], at[2], at[3], d.out_steps)] = narrow<T>(sum);
    }
}

template <class T> __global__ void depthwise_input(const T *dy, const T *w, T *dx, i64 n, Depthwise d) {
    i64 channels = d.depth * d.multiplier;
    EACH(i, n) {
        i64 at[4];
        Depthwise::split(i, d.input, d.depth, at);
        Wide<T> sum = 0;
        for (i64 r = 0; r < d.filter[0]; r++)
            for (i64 c = 0; c < d.filter[1]; c++) {
                i64 row = d.over(0, at[1], r), column = d.over(1, at[2], c);
                if (row < 0 || column < 0)
                    continue;
                for (i64 m = 0; m < d.multiplier; m++) {
                    i64 channel = at[3] * d.multiplier + m;
                    sum += wide(dy[Depthwise::place(at[0], row, column, channel, d.out_steps)]) *
                           wide(w[(r * d.filter[1] + c) * channels + channel]);
                }
            }
        dx[Depthwise::place(at[0], at[1], at[2], at[3], d.in_steps)] = narrow<T>(sum);
    }
}

// Computes the gradient with respect to the filter, as partial sums in the order [tap, channel, part].
template <class T>
__global__ void depthwise_filter(const T *x, const T *dy, Wide<T> *sums, i64 images, i64 width, i64 parts, Depthwise d) {
    i64 channels = d.depth * d.multiplier, pixels = images * d.output[0] * d.output[1];
    i64 blocks = (channels + width - 1) / width * parts;
    EACH_BLOCK(i, d.filter[0] * d.filter[1] * blocks) {
        i64 tap = i / blocks;
        Share share(i % blocks, width, parts, channels, pixels);
        Wide<T> sum = 0;
        for (i64 p = share.first + share.row; p < share.end; p += share.rows) {
            i64 at[4];
            Depthwise::split(p, d.output, 1, at);
            i64 row = d.under(0, at[1], tap / d.filter[1]), column = d.under(1, at[2], tap % d.filter[1]);
            if (row >= 0 && column >= 0)
                sum += wide(x[Depthwise::place(at[0], row, column, share.channel / d.multiplier, d.in_steps)]) *
                       wide(dy[Depthwise::place(at[0], at[1], at[2], share.channel, d.out_steps)]);
        }
        sum = over_rows<Plus>(sum, (int)width);
        if (share.row == 0 && share.channel < channels)
            sums[tap * channels * parts + share.place] = sum;
    }
}
