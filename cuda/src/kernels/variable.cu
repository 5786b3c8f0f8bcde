// In-place updates of variables by tensors of the same size.

template <class T> struct Change {
    T *value;
    const T *by;
};

struct Add {
    template <class W> static __device__ inline W of(W x, W y) {
        return x + y;
    }
};
struct Sub {
    template <class W> static __device__ inline W of(W x, W y) {
        return x - y;
    }
};
template <class F, class T> __global__ void update(Pieces<Change<T>> pieces) {
    pieces.each([](const Change<T> &piece, i64 i) {
        piece.value[i] = narrow<T>(F::of(wide(piece.value[i]), wide(piece.by[i])));
    });
}

template <class E> __global__ void put(Pieces<Change<E>> pieces) {
    pieces.each([](const Change<E> &piece, i64 i) { piece.value[i] = piece.by[i]; });
}
