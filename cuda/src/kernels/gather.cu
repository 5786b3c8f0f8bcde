// Rows gathered by index. An index out of range gives zeros, because a kernel cannot report an error.

// Gathers rows of `inner` elements. The shapes are: out [batches, outer, count, inner], params [batches, outer,
// limit, inner], indices [batches, count].
template <class E, class I>
__global__ void gather(const E *params, const I *indices, E *out, i64 n, i64 outer, i64 count, i64 limit, i64 inner) {
    EACH(i, n) {
        i64 place = i / inner % count, table = i / inner / count;
        i64 index = indices[table / outer * count + place];
        E value = {};
        if (index >= 0 && index < limit)
            value = params[(table * limit + index) * inner + i % inner];
        out[i] = value;
    }
}

// The indexed axes, which are the first `depth` axes of a tensor; an index vector of `depth` elements selects a
// slice.
struct Indexed {
    i64 depth;
    i64 sizes[MOST_AXES], strides[MOST_AXES];

    // The offset of the slice that an index vector selects, or less than 0 if the vector is out of range.
    template <class I> __device__ inline i64 start(const I *vector) const {
        i64 at = 0;
        bool inside = true;
        for (i64 d = 0; d < depth; d++) {
            i64 index = vector[d];
            inside = inside && index >= 0 && index < sizes[d];
            at += index * strides[d];
        }
        return inside ? at : -1;
    }
};
template <class E, class I>
__global__ void gather_nd(const E *params, const I *indices, E *out, i64 n, i64 length, Indexed indexed) {
    EACH(i, n) {
        i64 start = indexed.start(indices + i / length * indexed.depth);
        E value = {};
        if (start >= 0)
            value = params[start + i % length];
        out[i] = value;
    }
}
