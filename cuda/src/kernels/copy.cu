// Copies of strided boxes, which slices, transposes, tiles, joins and pads use.

template <class E>
__device__ inline void move(const E *from, E *to, i64 n, i64 from_start, i64 to_start, const Axes<2> &axes) {
    EACH(i, n) {
        i64 at[2];
        axes.at(i, at);
        to[to_start + at[1]] = from[from_start + at[0]];
    }
}

// Copies a box of elements. If `in_packs` is set, packs of 16 bytes are copied, and all counts, offsets and
// strides are in packs.
template <class E>
__global__ void moved(const E *from, E *to, i64 n, i64 from_start, i64 to_start, i64 in_packs, Axes<2> axes) {
    if (in_packs)
        move((const u128 *)from, (u128 *)to, n, from_start, to_start, axes);
    else
        move(from, to, n, from_start, to_start, axes);
}

// Matrices that are joined side by side: the address of each part, and its last column + 1, counted from the
// first column of the first part.
#define MOST_PARTS 16
struct Parts {
    i64 count, at[MOST_PARTS], ends[MOST_PARTS];
};

template <class E>
__device__ inline void move_parts(E *joined, i64 n, i64 total, i64 first, bool joins, const Parts &parts) {
    i64 width = parts.ends[parts.count - 1];
    EACH(i, n) {
        i64 row = i / width, column = i % width, start = 0;
        int part = 0;
        for (; column >= parts.ends[part]; part++)
            start = parts.ends[part];
        E *whole = joined + row * total + first + column;
        E *own = (E *)parts.at[part] + row * (parts.ends[part] - start) + column - start;
        if (joins)
            *whole = *own;
        else
            *own = *whole;
    }
}

// Joins parts side by side, or splits the joined matrix. If `in_packs` is set, packs of 16 bytes are copied,
// and all counts and column numbers are in packs.
template <class E>
__global__ void side_by_side(E *joined, i64 n, i64 total, i64 first, i64 joins, i64 in_packs, Parts parts) {
    if (in_packs)
        move_parts((u128 *)joined, n, total, first, joins, parts);
    else
        move_parts(joined, n, total, first, joins, parts);
}

// Sets all elements of `to` to the element that `value` points to.
template <class E> __global__ void fill(const E *value, E *to, i64 n) {
    EACH(i, n) to[i] = *value;
}

template <class T> __global__ void ones(T *to, i64 n) {
    EACH(i, n) to[i] = narrow<T>((Wide<T>)1);
}

// Writes `on` where the position along the axis of size `depth` equals the index, and `off` elsewhere; out is
// [outer, depth, inner].
template <class E, class I>
__global__ void one_hot(const I *indices, const E *on, const E *off, E *out, i64 n, i64 depth, i64 inner) {
    EACH(i, n) {
        i64 place = i / inner % depth, row = i / inner / depth * inner + i % inner;
        out[i] = (i64)indices[row] == place ? *on : *off;
    }
}

// Copies slices of `inner` elements by a table of pairs (index in source, index in target). The table applies
// to each of several batches, which are `from_step` elements apart in the source and `to_step` in the target.
template <class E>
__global__ void placed(const E *from, E *to, const i64 *table, i64 n, i64 count, i64 inner, i64 from_step, i64 to_step) {
    EACH(i, n) {
        i64 pair = i / inner % count, batch = i / inner / count, k = i % inner;
        to[batch * to_step + table[2 * pair + 1] * inner + k] = from[batch * from_step + table[2 * pair] * inner + k];
    }
}

// Copies [rows, columns] matrices, with zeros on the diagonals that are more than `lower` below or more than
// `upper` above the main diagonal.
template <class E> __global__ void band(const E *x, E *y, i64 n, i64 rows, i64 columns, i64 lower, i64 upper) {
    EACH(i, n) {
        i64 row = i / columns % rows, column = i % columns;
        E value = {};
        if (row - column <= lower && column - row <= upper)
            value = x[i];
        y[i] = value;
    }
}
