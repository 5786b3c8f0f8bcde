// Copies between a tensor with large spatial axes (the wide side) and a tensor in which blocks of the spatial
// axes are moved into the batch (the narrow side).

struct Blocks {
    i64 axes, batch, depth;
    i64 sizes[MOST_AXES], before[MOST_AXES], wide[MOST_AXES], narrow[MOST_AXES];

    // Returns the pixel of the wide side for pixel `row` of the narrow side, or a number less than 0 if the
    // pixel is in the padding.
    __device__ inline i64 wide_row(i64 row) const {
        i64 place[MOST_AXES];
        for (int i = (int)axes - 1; i >= 0; i--) {
            place[i] = row % narrow[i];
            row /= narrow[i];
        }
        i64 at = row % batch, part = row / batch;
        for (int i = (int)axes - 1; i >= 0; i--) {
            place[i] = place[i] * sizes[i] + part % sizes[i] - before[i];
            part /= sizes[i];
        }
        bool inside = true;
        for (int i = 0; i < axes; i++) {
            inside = inside && place[i] >= 0 && place[i] < wide[i];
            at = at * wide[i] + place[i];
        }
        return inside ? at : -1;
    }
};

// `to_batch` and `to_space` have one thread per element of the narrow side. For elements in the padding
// `to_batch` writes zero, and `to_space` writes nothing.
template <class E> __global__ void to_batch(const E *from, E *to, i64 n, Blocks blocks) {
    EACH(i, n) {
        i64 row = blocks.wide_row(i / blocks.depth);
        E value = {};
        if (row >= 0)
            value = from[row * blocks.depth + i % blocks.depth];
        to[i] = value;
    }
}
template <class E> __global__ void to_space(const E *from, E *to, i64 n, Blocks blocks) {
    EACH(i, n) {
        i64 row = blocks.wide_row(i / blocks.depth);
        if (row >= 0)
            to[row * blocks.depth + i % blocks.depth] = from[i];
    }
}
