// Convolutions over volumes as matrix products: the matrix of patches has a row for each output position, with
// the input elements under the filter in the order of planes, rows, columns and input channels.

struct Volumes {
    i64 channels;
    // Each array holds a value for planes, one for rows and one for columns.
    i64 input[3], output[3], filter[3], stride[3], dilation[3], pad[3];
    // Strides in elements of the input, along volumes, planes, rows, columns and channels.
    i64 steps[5];

    // Splits index i into the positions along three axes; i becomes the quotient that remains, the index along
    // outer axes.
    static __device__ inline void split(i64 &i, const i64 (&sizes)[3], i64 (&at)[3]) {
        for (int axis = 2; axis >= 0; axis--) {
            at[axis] = i % sizes[axis];
            i /= sizes[axis];
        }
    }
    __device__ inline i64 place(i64 volume, const i64 (&at)[3], i64 channel) const {
        return volume * steps[0] + at[0] * steps[1] + at[1] * steps[2] + at[2] * steps[3] + channel * steps[4];
    }
    __device__ inline i64 taps() const {
        return filter[0] * filter[1] * filter[2];
    }
};

// Copies the patches of the volumes from index `first` on to the matrix `rows`.
template <class T> __global__ void patches(const T *x, T *rows, i64 n, i64 first, Volumes v) {
    EACH(i, n) {
        i64 channel = i % v.channels, rest = i / v.channels, tap[3], out[3], in[3];
        Volumes::split(rest, v.filter, tap);
        Volumes::split(rest, v.output, out);
        bool is_inside = true;
        for (int axis = 0; axis < 3; axis++) {
            in[axis] = out[axis] * v.stride[axis] + tap[axis] * v.dilation[axis] - v.pad[axis];
            is_inside = is_inside && in[axis] >= 0 && in[axis] < v.input[axis];
        }
        T value = {};
        if (is_inside)
            value = x[v.place(first + rest, in, channel)];
        rows[i] = value;
    }
}

// Computes the gradient with respect to the input: for each input element, the sum over all patches that
// contain it.
template <class T> __global__ void of_patches(const Wide<T> *rows, T *dx, i64 n, i64 first, Volumes v) {
    i64 taps = v.taps();
    EACH(i, n) {
        i64 channel = i % v.channels, volume = i / v.channels, in[3];
        Volumes::split(volume, v.input, in);
        Wide<T> sum = 0;
        for (i64 t = 0; t < taps; t++) {
            i64 rest = t, tap[3], row = volume;
            Volumes::split(rest, v.filter, tap);
            bool is_there = true;
            for (int axis = 0; axis < 3; axis++) {
                i64 at = in[axis] + v.pad[axis] - tap[axis] * v.dilation[axis];
                is_there = is_there && at >= 0 && at % v.stride[axis] == 0 && at / v.stride[axis] < v.output[axis];
                row = row * v.output[axis] + at / v.stride[axis];
            }
            if (is_there)
                sum += rows[(row * taps + t) * v.channels + channel];
        }
        dx[v.place(first + volume, in, channel)] = narrow<T>(sum);
    }
}
