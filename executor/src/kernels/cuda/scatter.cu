// Rows changed by index, in no order where they come twice. An index out of range is passed over: there is nobody to
// tell.

__device__ inline void add(float *to, float by) {
    atomicAdd(to, by);
}
__device__ inline void add(double *to, double by) {
    atomicAdd(to, by);
}
__device__ inline void add(i64 *to, i64 by) {
    atomicAdd((u64 *)to, (u64)by);
}

struct Add {
    template <class T> static __device__ inline void apply(T *to, T by) {
        add(to, by);
    }
};
struct Sub {
    template <class T> static __device__ inline void apply(T *to, T by) {
        add(to, (T)-by);
    }
};
struct Update {
    template <class T> static __device__ inline void apply(T *to, T by) {
        *to = by;
    }
};

// Rows of `inner` elements; updates of `step` 0 are one for all.
template <class F, class T, class I>
__global__ void scatter(T *to, const I *indices, const T *updates, i64 n, i64 rows, i64 inner, i64 step) {
    EACH(i, n) {
        i64 row = indices[i / inner];
        if (row >= 0 && row < rows)
            F::apply(to + row * inner + i % inner, updates[i * step]);
    }
}

struct Indexed {
    i64 depth;
    i64 sizes[MOST_AXES], strides[MOST_AXES];
};
template <class F, class T, class I>
__global__ void scatter_nd(T *to, const I *indices, const T *updates, i64 n, i64 length, Indexed indexed) {
    EACH(i, n) {
        const I *vector = indices + i / length * indexed.depth;
        i64 at = 0;
        bool inside = true;
        for (i64 d = 0; d < indexed.depth; d++) {
            i64 index = vector[d];
            inside = inside && index >= 0 && index < indexed.sizes[d];
            at += index * indexed.strides[d];
        }
        if (inside)
            F::apply(to + at + i % length, updates[i]);
    }
}
