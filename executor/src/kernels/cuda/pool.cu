// Pooling over images and volumes, and its gradients. Each result is some thread's, which walks its windows: sums come in
// the same order every time.

// Windows over S axes of space: 2 of an image, 3 of a volume.
template <int S> struct Windows {
    // Of the tensors with pooled sizes: batch, channels, then the axes of space; and how each of both lies.
    i64 input[2 + S], output[2 + S], input_strides[2 + S], output_strides[2 + S];
    i64 size[S], stride[S], pad[S];

    // A box of positions, from the first to before the last.
    struct Box {
        i64 from[S], to[S];

        __device__ inline i64 count() const {
            i64 count = 1;
            for (int axis = 0; axis < S; axis++)
                count *= to[axis] > from[axis] ? to[axis] - from[axis] : 0;
            return count;
        }
        // The first position; whether there is one.
        __device__ inline bool begin(i64 (&at)[S]) const {
            bool is_there = true;
            for (int axis = 0; axis < S; axis++) {
                at[axis] = from[axis];
                is_there = is_there && from[axis] < to[axis];
            }
            return is_there;
        }
        // The next one, the last axis first.
        __device__ inline bool next(i64 (&at)[S]) const {
            for (int axis = S - 1; axis >= 0; axis--) {
                if (++at[axis] < to[axis])
                    return true;
                at[axis] = from[axis];
            }
            return false;
        }
    };

    static __device__ inline void split(i64 i, const i64 (&sizes)[2 + S], i64 (&at)[2 + S]) {
        for (int axis = 1 + S; axis >= 0; axis--) {
            at[axis] = i % sizes[axis];
            i /= sizes[axis];
        }
    }
    static __device__ inline i64 place(const i64 (&at)[2 + S], const i64 (&strides)[2 + S]) {
        i64 place = 0;
        for (int axis = 0; axis < 2 + S; axis++)
            place += at[axis] * strides[axis];
        return place;
    }
    // Within an image, of one channel.
    static __device__ inline i64 pixel(const i64 (&at)[S], const i64 (&strides)[2 + S]) {
        i64 place = 0;
        for (int axis = 0; axis < S; axis++)
            place += at[axis] * strides[2 + axis];
        return place;
    }
    // Input positions under the window at an output.
    template <int N> __device__ inline Box under(const i64 (&at)[N]) const {
        Box box;
        for (int axis = 0; axis < S; axis++) {
            i64 from = at[N - S + axis] * stride[axis] - pad[axis], to = from + size[axis];
            box.from[axis] = from < 0 ? 0 : from;
            box.to[axis] = to > input[2 + axis] ? input[2 + axis] : to;
        }
        return box;
    }
    // Outputs whose windows hold an input position.
    __device__ inline Box over(const i64 (&at)[2 + S]) const {
        Box box;
        for (int axis = 0; axis < S; axis++) {
            i64 reached = at[2 + axis] + pad[axis], first = reached - size[axis] + 1;
            box.from[axis] = first <= 0 ? 0 : (first + stride[axis] - 1) / stride[axis];
            i64 to = reached < 0 ? 0 : reached / stride[axis] + 1;
            box.to[axis] = to > output[2 + axis] ? output[2 + axis] : to;
        }
        return box;
    }
    template <class T> __device__ inline const T *of_input(const T *x, const i64 (&at)[2 + S]) const {
        return x + at[0] * input_strides[0] + at[1] * input_strides[1];
    }
    template <class T> __device__ inline const T *of_output(const T *y, const i64 (&at)[2 + S]) const {
        return y + at[0] * output_strides[0] + at[1] * output_strides[1];
    }
};

template <class T, int S> __global__ void max_pool(const T *x, T *y, i64 n, Windows<S> w) {
    EACH(i, n) {
        i64 at[2 + S], in[S];
        Windows<S>::split(i, w.output, at);
        auto window = w.under(at);
        const T *image = w.of_input(x, at);
        Wide<T> best = lowest<Wide<T>>();
        for (bool more = window.begin(in); more; more = window.next(in)) {
            Wide<T> value = wide(image[Windows<S>::pixel(in, w.input_strides)]);
            if (value > best)
                best = value;
        }
        y[Windows<S>::place(at, w.output_strides)] = narrow<T>(best);
    }
}

// What arrived at each window goes to the first of its largest elements.
template <class T, int S> __global__ void max_pool_gradient(const T *x, const T *dy, T *dx, i64 n, Windows<S> w) {
    EACH(i, n) {
        i64 at[2 + S], out[S], in[S];
        Windows<S>::split(i, w.input, at);
        auto windows = w.over(at);
        const T *image = w.of_input(x, at), *slopes = w.of_output(dy, at);
        i64 own = Windows<S>::place(at, w.input_strides) - (image - x);
        Wide<T> sum = 0;
        for (bool more = windows.begin(out); more; more = windows.next(out)) {
            auto window = w.under(out);
            i64 found = -1;
            Wide<T> best = 0;
            for (bool some = window.begin(in); some; some = window.next(in)) {
                i64 place = Windows<S>::pixel(in, w.input_strides);
                Wide<T> value = wide(image[place]);
                if (found < 0 || value > best) {
                    best = value;
                    found = place;
                }
            }
            if (found == own)
                sum += wide(slopes[Windows<S>::pixel(out, w.output_strides)]);
        }
        dx[Windows<S>::place(at, w.input_strides)] = narrow<T>(sum);
    }
}

// What arrived at each window goes to all that equals its largest element, or nearly so: so it is of volumes.
template <class T, int S>
__global__ void near_max_pool_gradient(const T *x, const T *y, const T *dy, T *dx, i64 n, Windows<S> w) {
    EACH(i, n) {
        i64 at[2 + S], out[S];
        Windows<S>::split(i, w.input, at);
        auto windows = w.over(at);
        i64 own = Windows<S>::place(at, w.input_strides);
        const T *pooled = w.of_output(y, at), *slopes = w.of_output(dy, at);
        Wide<T> value = wide(x[own]), sum = 0;
        for (bool more = windows.begin(out); more; more = windows.next(out)) {
            i64 place = Windows<S>::pixel(out, w.output_strides);
            if (fabs(value - wide(pooled[place])) < (Wide<T>)1e-5)
                sum += wide(slopes[place]);
        }
        dx[own] = narrow<T>(sum);
    }
}

// Of the elements that are there: padding does not count.
template <class T, int S> __global__ void average_pool(const T *x, T *y, i64 n, Windows<S> w) {
    EACH(i, n) {
        i64 at[2 + S], in[S];
        Windows<S>::split(i, w.output, at);
        auto window = w.under(at);
        const T *image = w.of_input(x, at);
        Wide<T> sum = 0;
        for (bool more = window.begin(in); more; more = window.next(in))
            sum += wide(image[Windows<S>::pixel(in, w.input_strides)]);
        y[Windows<S>::place(at, w.output_strides)] = narrow<T>(sum / (Wide<T>)window.count());
    }
}

template <class T, int S> __global__ void average_pool_gradient(const T *dy, T *dx, i64 n, Windows<S> w) {
    EACH(i, n) {
        i64 at[2 + S], out[S];
        Windows<S>::split(i, w.input, at);
        auto windows = w.over(at);
        const T *slopes = w.of_output(dy, at);
        Wide<T> sum = 0;
        for (bool more = windows.begin(out); more; more = windows.next(out))
            sum += wide(slopes[Windows<S>::pixel(out, w.output_strides)]) / (Wide<T>)w.under(out).count();
        dx[Windows<S>::place(at, w.input_strides)] = narrow<T>(sum);
    }
}
