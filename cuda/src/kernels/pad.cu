// Padding with a value or with mirror images, and the gradient of mirror padding.

// The axes of a tensor, with the padding before and after each axis; the padding is passed in place of the
// strides of `Axes`.
struct Margins {
    Axes<2> axes;

    __device__ inline i64 size(int axis) const {
        return axes.sizes[axis];
    }
    __device__ inline i64 before(int axis) const {
        return axes.strides[0][axis];
    }
    __device__ inline i64 after(int axis) const {
        return axes.strides[1][axis];
    }
};

template <class E> __device__ inline void padded(const E *x, const E &around, E *y, i64 n, const Margins &m) {
    EACH(i, n) {
        i64 rest = i, from = 0, step = 1;
        bool is_within = true;
        for (int axis = (int)m.axes.rank - 1; axis >= 0; axis--) {
            i64 size = m.size(axis), whole = m.before(axis) + size + m.after(axis);
            i64 place = rest % whole - m.before(axis);
            is_within = is_within && place >= 0 && place < size;
            from += place * step;
            rest /= whole;
            step *= size;
        }
        y[i] = is_within ? x[from] : around;
    }
}

// Pads with `value`, or with zeros if `value` is null. If `in_packs` is set, packs of 16 bytes are copied, and
// all counts and sizes are in packs.
template <class E> __global__ void pad(const E *x, const E *value, E *y, i64 n, i64 in_packs, Margins m) {
    const int many = sizeof(u128) / sizeof(E);
    Pack<E, many> around = {};
    if (value)
        for (int k = 0; k < many; k++)
            around.at[k] = *value;
    if (in_packs)
        padded((const Pack<E, many> *)x, around, (Pack<E, many> *)y, n, m);
    else
        padded(x, around.at[0], y, n, m);
}

// Margins that are filled with mirror images. `offset` is 0 if an image begins with the element at the tensor's
// edge, and 1 if it begins with the next element.
struct Mirror : Margins {
    i64 offset;
};

template <class E> __global__ void mirror(const E *x, E *y, i64 n, Mirror m) {
    EACH(i, n) {
        i64 rest = i, from = 0, step = 1;
        for (int axis = (int)m.axes.rank - 1; axis >= 0; axis--) {
            i64 size = m.size(axis), whole = m.before(axis) + size + m.after(axis);
            i64 place = rest % whole - m.before(axis);
            if (place < 0)
                place = m.offset - 1 - place;
            else if (place >= size)
                place = 2 * size - 1 - m.offset - place;
            from += place * step;
            rest /= whole;
            step *= size;
        }
        y[i] = x[from];
    }
}

// Computes the gradient of each element: the sum of the gradients of its copies, up to three along each axis,
// in their order in the padded tensor.
template <class T> __global__ void mirror_gradient(const T *dy, T *dx, i64 n, Mirror m) {
    EACH(i, n) {
        i64 places[MOST_AXES][3];
        int counts[MOST_AXES];
        i64 rest = i, step = 1;
        for (int axis = (int)m.axes.rank - 1; axis >= 0; axis--) {
            i64 size = m.size(axis), before = m.before(axis), after = m.after(axis), at = rest % size;
            rest /= size;
            int count = 0;
            if (at >= m.offset && at - m.offset < before)
                places[axis][count++] = (before - 1 - (at - m.offset)) * step;
            places[axis][count++] = (before + at) * step;
            i64 back = size - 1 - m.offset - at;
            if (back >= 0 && back < after)
                places[axis][count++] = (before + size + back) * step;
            counts[axis] = count;
            step *= before + size + after;
        }
        int chosen[MOST_AXES] = {};
        Wide<T> sum = 0;
        for (bool more = true; more;) {
            i64 from = 0;
            for (int axis = 0; axis < m.axes.rank; axis++)
                from += places[axis][chosen[axis]];
            sum = wide(narrow<T>(sum + wide(dy[from])));
            int axis = (int)m.axes.rank - 1;
            while (axis >= 0 && ++chosen[axis] == counts[axis])
                chosen[axis--] = 0;
            more = axis >= 0;
        }
        dx[i] = narrow<T>(sum);
    }
}
