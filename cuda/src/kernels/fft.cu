// Fourier transforms along an axis, in double precision, by Stockham's algorithm: one pass over memory for each
// factor of the length, from one buffer to the other; the result is in natural order.

__device__ inline c128 widened(float x) {
    return {x, 0.0};
}
__device__ inline c128 widened(double x) {
    return {x, 0.0};
}
template <class P> __device__ inline c128 widened(Complex<P> x) {
    return {x.re, x.im};
}

template <class T> struct Given {
    static __device__ inline T of(c128 x) {
        return (T)x.re;
    }
};
template <class P> struct Given<Complex<P>> {
    static __device__ inline Complex<P> of(c128 x) {
        return {(P)x.re, (P)x.im};
    }
};

// `take` copies a box of the input to working memory; `give` copies a box of the working memory, divided by
// `by`, to the output.
template <class T> __global__ void take(const T *x, c128 *y, i64 n, Axes<1> axes) {
    EACH(i, n) {
        i64 at[1];
        axes.at(i, at);
        y[i] = widened(x[at[0]]);
    }
}
template <class T> __global__ void give(const c128 *x, T *y, i64 n, double by, Axes<1> axes) {
    EACH(i, n) {
        i64 at[1];
        axes.at(i, at);
        y[i] = Given<T>::of({x[at[0]].re / by, x[at[0]].im / by});
    }
}

// Does one pass, for one factor of the length. `done` is the product of the factors of earlier passes; `turns`
// is the sign of the exponent, -1 for a forward transform and 1 for an inverse transform.
__global__ void pass(const c128 *x, c128 *y, i64 n, i64 length, i64 inner, i64 factor, i64 done, double turns) {
    const i64 span = done * factor, step = length / factor * inner;
    EACH(i, n) {
        const i64 to = i / inner % length, from = to / span * done + to % done;
        const c128 *at = x + i + (from - to) * inner;
        c128 sum = at[0], root, power = {1.0, 0.0};
        sincospi(turns * 2.0 * (double)(to % span) / (double)span, &root.im, &root.re);
        for (i64 k = 1; k < factor; k++) {
            power = power * root;
            sum = sum + at[k * step] * power;
        }
        y[i] = sum;
    }
}

// Completes the rows of a transform whose first halves are given; the second half of a row is the conjugate
// mirror image of the first.
__global__ void mirror(const c128 *x, c128 *y, i64 n, i64 length, i64 half) {
    EACH(i, n) {
        const i64 at = i % length;
        const c128 *row = x + i / length * half;
        if (at < half)
            y[i] = row[at];
        else
            y[i] = {row[length - at].re, -row[length - at].im};
    }
}
