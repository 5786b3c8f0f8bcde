// One of two elements by a third, each with axes that may repeat. Elements are only moved.

template <class E>
__global__ void select(const bool *condition, const E *yes, const E *no, E *out, i64 n, Axes<3> axes) {
    EACH(i, n) {
        i64 at[3];
        axes.at(i, at);
        out[i] = condition[at[0]] ? yes[at[1]] : no[at[2]];
    }
}
