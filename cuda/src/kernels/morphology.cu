// Dilation of greyscale images: the maximum, over each window and channel, of a pixel plus the filter's
// element. The gradient goes to the first pixel, or first element of the filter, that gave the maximum.

// The sizes and steps of a dilation along one axis.
struct Reach {
    i64 input, filter, output, stride, rate, pad;

    // The input position under the filter's first element, for an output position.
    __device__ inline i64 start(i64 output) const {
        return output * stride - pad;
    }
    // The input position under filter element `tap`. Computed in 32 bits, as on the CPU, so that an overflow
    // with a huge rate gives the CPU's position.
    __device__ inline i64 at(i64 output, i64 tap) const {
        return (i32)((u32)start(output) + (u32)tap * (u32)rate);
    }
};

// The least finite number of a type.
template <class T> __device__ inline Wide<T> least();
template <> __device__ inline float least<float>() {
    return __int_as_float(0xff7fffff);
}
template <> __device__ inline double least<double>() {
    return __longlong_as_double(0xffefffffffffffffLL);
}
template <> __device__ inline float least<f16>() {
    return -65504.0f;
}
template <> __device__ inline float least<bf16>() {
    return __int_as_float(0xff7f0000);
}

struct Sizes {
    Reach rows, columns;
    i64 depth;

    __device__ inline i64 pixel(i64 image, i64 y, i64 x) const {
        return (image * rows.input + y) * columns.input + x;
    }
};

// The maximum under a window, rounded to T, and the indices in the filter and in the input that give it; both
// are less than 0 if there is no maximum.
template <class T> struct Greatest {
    i64 image, row, column, channel;
    Wide<T> sum;
    i64 tap, pixel;

    __device__ inline Greatest(const T *input, const T *filter, i64 i, const Sizes &s) {
        channel = i % s.depth;
        i /= s.depth;
        column = i % s.columns.output;
        i /= s.columns.output;
        row = i % s.rows.output;
        image = i / s.rows.output;
        sum = least<T>();
        tap = pixel = -1;
        for (i64 down = 0; down < s.rows.filter; down++) {
            i64 y = s.rows.at(row, down);
            if (y < 0 || y >= s.rows.input)
                continue;
            for (i64 right = 0; right < s.columns.filter; right++) {
                i64 x = s.columns.at(column, right);
                if (x < 0 || x >= s.columns.input)
                    continue;
                i64 from = s.pixel(image, y, x) * s.depth + channel;
                i64 by = (down * s.columns.filter + right) * s.depth + channel;
                Wide<T> value = wide(narrow<T>(wide(input[from]) + wide(filter[by])));
                if (value > sum) {
                    sum = value;
                    tap = by;
                    pixel = from;
                }
            }
        }
    }
};

template <class T> __global__ void dilate(const T *input, const T *filter, T *y, i64 n, Sizes s) {
    EACH(i, n) y[i] = narrow<T>(Greatest<T>(input, filter, i, s).sum);
}

// The element that gets the gradient of a window. For a window without a maximum it is the filter's first
// element (`OfFilter`), or the window's first pixel, clamped to the image (`OfInput`).
struct OfFilter {
    template <class T> static __device__ inline i64 place(const Greatest<T> &greatest, const Sizes &) {
        return greatest.tap < 0 ? greatest.channel : greatest.tap;
    }
};
struct OfInput {
    template <class T> static __device__ inline i64 place(const Greatest<T> &greatest, const Sizes &s) {
        if (greatest.pixel >= 0)
            return greatest.pixel;
        i64 y = s.rows.start(greatest.row), x = s.columns.start(greatest.column);
        if (y >= s.rows.input || x >= s.columns.input)
            return -1;
        return s.pixel(greatest.image, y < 0 ? 0 : y, x < 0 ? 0 : x) * s.depth + greatest.channel;
    }
};
template <class F, class T>
__global__ void dilation_gradient(const T *input, const T *filter, const T *dy, Wide<T> *sums, i64 n, Sizes s) {
    EACH(i, n) {
        i64 place = F::place(Greatest<T>(input, filter, i, s), s);
        if (place >= 0)
            atomicAdd(sums + place, wide(dy[i]));
    }
}
