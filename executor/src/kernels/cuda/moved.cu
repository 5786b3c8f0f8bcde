// A box of elements copied from one place to another: what slices, transposes, tiles, joins and pads have in common.

template <class E> __global__ void moved(const E *from, E *to, i64 n, i64 from_start, i64 to_start, Axes<2> axes) {
    EACH(i, n) {
        i64 at[2];
        axes.at(i, at);
        to[to_start + at[1]] = from[from_start + at[0]];
    }
}

// Every element the same.
template <class E> __global__ void fill(const E *value, E *to, i64 n) {
    EACH(i, n) to[i] = *value;
}

template <class T> __global__ void ones(T *to, i64 n) {
    EACH(i, n) to[i] = narrow<T>((Wide<T>)1);
}

// `on` at the places that the indices name along an axis, `off` elsewhere: out is [outer, depth, inner].
template <class E, class I>
__global__ void one_hot(const I *indices, const E *on, const E *off, E *out, i64 n, i64 depth, i64 inner) {
    EACH(i, n) {
        i64 place = i / inner % depth, row = i / inner / depth * inner + i % inner;
        out[i] = (i64)indices[row] == place ? *on : *off;
    }
}
