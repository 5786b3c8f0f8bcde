// Pooling over images and volumes, and its gradients. Each result is computed by one thread, which iterates
// over its windows, so sums are added in a fixed order. With channels last a tensor consists of images whose
// pixels have an element for each channel; with channels first each channel is an image of one-element pixels.
// In all kernels T is the element type, N the number of a pixel's elements that a thread handles as a pack, I
// the type of indices, and S the number of spatial axes: 2 for images, 3 for volumes.

#define EACH_OF_PACK(v) _Pragma("unroll") for (int v = 0; v < N; v++)

// A size by which indices are divided.
template <class I> struct Divisor {
    i64 size, factor, shift;

    __device__ inline operator I() const {
        return (I)size;
    }
    // The quotient of a non-negative index and the size.
    __device__ inline I in(I i) const;
};
template <> __device__ inline i64 Divisor<i64>::in(i64 i) const {
    return i / size;
}
// With 32 bits, a multiplication and a shift replace the division, which is slow on GPUs.
template <> __device__ inline i32 Divisor<i32>::in(i32 i) const {
    return (i32)(__umulhi(2 * (u32)i, (u32)factor) >> (int)shift);
}

// A range of indices along an axis; `to` is excluded.
template <class I> struct Range {
    I from, to;

    __device__ inline I count() const {
        return to > from ? to - from : 0;
    }
};

template <class I, int S> struct Box {
    Range<I> axes[S];
};

// The position of a pack: image, spatial position, and index of the pack in the pixel.
template <class I, int S> struct Place {
    I image, space[S], pack;
};

// The sizes of a tensor's images in pixels, and the number of packs per pixel.
template <class I, int S> struct Images {
    Divisor<I> space[S], packs;

    __device__ inline Place<I, S> place(I i) const {
        Place<I, S> at;
        I rest = packs.in(i);
        at.pack = i - rest * packs;
#pragma unroll
        for (int axis = S - 1; axis >= 0; axis--) {
            I outer = space[axis].in(rest);
            at.space[axis] = rest - outer * space[axis];
            rest = outer;
        }
        at.image = rest;
        return at;
    }
    // The index of the first pack of the image that contains `at`.
    __device__ inline I start(const Place<I, S> &at) const {
        I packs_before = at.image * packs;
#pragma unroll
        for (int axis = 0; axis < S; axis++)
            packs_before *= space[axis];
        return packs_before;
    }
    // Calls `f` with the index and the spatial position of each pack in a box of pixels, in memory order. The
    // packs are in the same image as `at`, and have the same index in their pixel as `at`.
    template <class F> __device__ inline void each(const Place<I, S> &at, const Box<I, S> &box, F f) const {
        const Range<I> none = {0, 1}, planes = S == 3 ? box.axes[0] : none;
        const Range<I> rows = box.axes[S - 2], columns = box.axes[S - 1];
        for (I plane = planes.from; plane < planes.to; plane++) {
            I image = S == 3 ? at.image * space[0] + plane : at.image;
            for (I row = rows.from; row < rows.to; row++) {
                I line = image * space[S - 2] + row;
                I i = (line * space[S - 1] + columns.from) * packs + at.pack;
                for (I column = columns.from; column < columns.to; column++, i += packs)
                    f(i, plane, row, column);
            }
        }
    }
};

// Stride, size and padding of the windows along a spatial axis.
template <class I> struct Steps {
    Divisor<I> stride;
    i64 size, pad;
};

template <class I, int S> struct Windows {
    Images<I, S> input, output;
    Steps<I> steps[S];

    // The range of input positions, along an axis, under the window of output position `at`.
    __device__ inline Range<I> under(int axis, I at) const {
        I from = at * steps[axis].stride - (I)steps[axis].pad, to = from + (I)steps[axis].size;
        I end = input.space[axis];
        return {from < 0 ? 0 : from, to > end ? end : to};
    }
    // The range of output positions, along an axis, whose windows contain input position `at`.
    __device__ inline Range<I> over(int axis, I at) const {
        const Divisor<I> &stride = steps[axis].stride;
        I reached = at + (I)steps[axis].pad, first = reached - (I)steps[axis].size + 1;
        I from = first <= 0 ? 0 : stride.in(first + stride - 1), to = reached < 0 ? 0 : stride.in(reached) + 1;
        I end = output.space[axis];
        return {from, to > end ? end : to};
    }
    __device__ inline Box<I, S> under(const Place<I, S> &at) const {
        Box<I, S> box;
#pragma unroll
        for (int axis = 0; axis < S; axis++)
            box.axes[axis] = under(axis, at.space[axis]);
        return box;
    }
    __device__ inline Box<I, S> over(const Place<I, S> &at) const {
        Box<I, S> box;
#pragma unroll
        for (int axis = 0; axis < S; axis++)
            box.axes[axis] = over(axis, at.space[axis]);
        return box;
    }
    // The number of input pixels under the window of an output pixel.
    __device__ inline I count(I plane, I row, I column) const {
        I count = under(S - 2, row).count() * under(S - 1, column).count();
        return S == 3 ? count * under(0, plane).count() : count;
    }
};

// Converts a pack of results to the element type.
template <class T, int N> __device__ inline Pack<T, N> packed(const Wide<T> (&results)[N]) {
    Pack<T, N> pack;
    EACH_OF_PACK(v) pack.at[v] = narrow<T>(results[v]);
    return pack;
}

template <class T, int N, class I, int S>
__global__ void max_pool(const Pack<T, N> *x, Pack<T, N> *y, i64 n, Windows<I, S> w) {
    EACH(i, n) {
        const auto at = w.output.place((I)i);
        Wide<T> best[N];
        EACH_OF_PACK(v) best[v] = lowest<Wide<T>>();
        w.input.each(at, w.under(at), [&](I in, I, I, I) {
            const Pack<T, N> values = x[in];
            EACH_OF_PACK(v) {
                Wide<T> value = wide(values.at[v]);
                if (value > best[v])
                    best[v] = value;
            }
        });
        y[i] = packed<T, N>(best);
    }
}

// Finds the first maximum under each window. `places` gets the index of the maximum, in the batch (`in_batch`)
// or in the image, or a number less than 0 if the window has no inputs. `y`, unless null, gets the maximum.
template <class T, int N, class I, int S, class A = I, bool in_batch = true>
__global__ void first_maxima(const Pack<T, N> *x, Pack<A, N> *places, Pack<T, N> *y, i64 n, Windows<I, S> w) {
    EACH(i, n) {
        const auto at = w.output.place((I)i);
        const I start = in_batch ? 0 : w.input.start(at);
        Wide<T> best[N];
        Pack<A, N> found;
        EACH_OF_PACK(v) {
            best[v] = 0;
            found.at[v] = -1;
        }
        w.input.each(at, w.under(at), [&](I in, I, I, I) {
            const Pack<T, N> values = x[in];
            EACH_OF_PACK(v) {
                Wide<T> value = wide(values.at[v]);
                if (found.at[v] < 0 || value > best[v]) {
                    best[v] = value;
                    found.at[v] = (A)(in - start) * N + v;
                }
            }
        });
        places[i] = found;
        if (y)
            y[i] = packed<T, N>(best);
    }
}

// The gradient of max pooling: each window's gradient is added to the element under the window whose index is
// in `places`.
template <class T, int N, class I, int S, class A = I, bool in_batch = true>
__global__ void max_pool_gradient(const Pack<A, N> *places, const Pack<T, N> *dy, Pack<T, N> *dx, i64 n,
                                  Windows<I, S> w) {
    EACH(i, n) {
        const auto at = w.input.place((I)i);
        const I start = in_batch ? 0 : w.input.start(at);
        Wide<T> sums[N];
        EACH_OF_PACK(v) sums[v] = 0;
        w.output.each(at, w.over(at), [&](I out, I, I, I) {
            const Pack<A, N> found = places[out];
            const Pack<T, N> slopes = dy[out];
            EACH_OF_PACK(v) {
                if (found.at[v] == (A)((I)i - start) * N + v)
                    sums[v] += wide(slopes.at[v]);
            }
        });
        dx[i] = packed<T, N>(sums);
    }
}

// The second gradient of max pooling: each window's result is the gradient at the first element under the
// window that equals the pooled element.
template <class T, int N, class I, int S>
__global__ void max_pool_second_gradient(const Pack<T, N> *x, const Pack<T, N> *y, const Pack<T, N> *dx,
                                         Pack<T, N> *dy, i64 n, Windows<I, S> w) {
    EACH(i, n) {
        const auto at = w.output.place((I)i);
        const Pack<T, N> pooled = y[i];
        Wide<T> taken[N];
        bool is_found[N];
        EACH_OF_PACK(v) {
            taken[v] = 0;
            is_found[v] = false;
        }
        w.input.each(at, w.under(at), [&](I in, I, I, I) {
            const Pack<T, N> values = x[in], slopes = dx[in];
            EACH_OF_PACK(v) {
                if (!is_found[v] && wide(values.at[v]) == wide(pooled.at[v])) {
                    is_found[v] = true;
                    taken[v] = wide(slopes.at[v]);
                }
            }
        });
        dy[i] = packed<T, N>(taken);
    }
}

// The gradient of max pooling for volumes: as in TensorFlow, each window's gradient is added to all elements
// under the window within 1e-5 of the maximum.
template <class T, int N, class I, int S>
__global__ void near_max_pool_gradient(const Pack<T, N> *x, const Pack<T, N> *y, const Pack<T, N> *dy,
                                       Pack<T, N> *dx, i64 n, Windows<I, S> w) {
    EACH(i, n) {
        const auto at = w.input.place((I)i);
        const Pack<T, N> values = x[i];
        Wide<T> sums[N];
        EACH_OF_PACK(v) sums[v] = 0;
        w.output.each(at, w.over(at), [&](I out, I, I, I) {
            const Pack<T, N> pooled = y[out], slopes = dy[out];
            EACH_OF_PACK(v) {
                if (fabs(wide(values.at[v]) - wide(pooled.at[v])) < (Wide<T>)1e-5)
                    sums[v] += wide(slopes.at[v]);
            }
        });
        dx[i] = packed<T, N>(sums);
    }
}

// The average of the inputs under each window, without padding.
template <class T, int N, class I, int S>
__global__ void average_pool(const Pack<T, N> *x, Pack<T, N> *y, i64 n, Windows<I, S> w) {
    EACH(i, n) {
        const auto at = w.output.place((I)i);
        const auto window = w.under(at);
        Wide<T> sums[N];
        EACH_OF_PACK(v) sums[v] = 0;
        w.input.each(at, window, [&](I in, I, I, I) {
            const Pack<T, N> values = x[in];
            EACH_OF_PACK(v) sums[v] += wide(values.at[v]);
        });
        I count = 1;
#pragma unroll
        for (int axis = 0; axis < S; axis++)
            count *= window.axes[axis].count();
        EACH_OF_PACK(v) sums[v] /= (Wide<T>)count;
        y[i] = packed<T, N>(sums);
    }
}

template <class T, int N, class I, int S>
__global__ void average_pool_gradient(const Pack<T, N> *dy, Pack<T, N> *dx, i64 n, Windows<I, S> w) {
    EACH(i, n) {
        const auto at = w.input.place((I)i);
        Wide<T> sums[N];
        EACH_OF_PACK(v) sums[v] = 0;
        w.output.each(at, w.over(at), [&](I out, I plane, I row, I column) {
            const Pack<T, N> slopes = dy[out];
            const Wide<T> count = (Wide<T>)w.count(plane, row, column);
            EACH_OF_PACK(v) sums[v] += wide(slopes.at[v]) / count;
        });
        dx[i] = packed<T, N>(sums);
    }
}
