// Selects elements of `yes` or `no` by a condition; all three tensors may broadcast. Elements are only copied.

template <class E>
__global__ void select(const bool *condition, const E *yes, const E *no, E *out, i64 n, Axes<3> axes) {
    EACH(i, n) {
        i64 at[3];
        axes.at(i, at);
        out[i] = condition[at[0]] ? yes[at[1]] : no[at[2]];
    }
}

// Clips elements to two bounds; each bound is one value for all elements, or one per element. NaN stays; if the
// bounds cross, the lower one is used.
template <class T>
__global__ void clip(const T *x, const T *low, const T *high, T *y, i64 n, i64 low_step, i64 high_step) {
    EACH(i, n) {
        const Wide<T> value = wide(x[i]), least = wide(low[i * low_step]), most = wide(high[i * high_step]);
        const Wide<T> lowered = value > most ? most : value;
        y[i] = narrow<T>(lowered < least ? least : lowered);
    }
}
