// Sparse tensors as indices, values and a dense shape. An index out of range is skipped, because a kernel
// cannot report an error.

// The product of a sparse and a dense matrix: each element of the sparse matrix is multiplied with a row of the
// dense matrix, and the products are added in no fixed order.
template <class T, class I>
__global__ void sparse_product(const I *indices, const T *values, const T *dense, T *out, i64 n, i64 rows, i64 inner,
                               i64 columns, i64 flip_sparse, i64 flip_dense) {
    EACH(i, n) {
        i64 e = i / columns, j = i % columns;
        i64 row = indices[2 * e + (flip_sparse ? 1 : 0)], k = indices[2 * e + (flip_sparse ? 0 : 1)];
        if (row >= 0 && row < rows && k >= 0 && k < inner)
            atomicAdd(out + row * columns + j, values[e] * dense[flip_dense ? j * inner + k : k * columns + j]);
    }
}

struct Sizes {
    i64 rank;
    i64 sizes[MOST_AXES];
};

// Writes `values` to the positions of the dense tensor that the indices select. If `step` is 0, the first value
// is used for all positions.
template <class E, class I>
__global__ void to_dense(const I *indices, const E *values, E *out, i64 n, i64 step, Sizes whole) {
    EACH(i, n) {
        i64 at = 0;
        bool inside = true;
        for (i64 axis = 0; axis < whole.rank; axis++) {
            i64 index = indices[i * whole.rank + axis];
            inside = inside && index >= 0 && index < whole.sizes[axis];
            at = at * whole.sizes[axis] + index;
        }
        if (inside)
            out[at] = values[i * step];
    }
}
