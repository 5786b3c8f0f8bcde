// Resizing of images and its gradients, by tables that list the input rows for each output row, and the input
// columns for each output column. Gradients with respect to one input position are added in no fixed order.

struct Images {
    i64 input[2], output[2], channels;

    // Splits the index of an element of the output into batch, row, column and channel.
    __device__ inline void at(i64 i, i64 (&place)[4]) const {
        place[3] = i % channels;
        i /= channels;
        place[2] = i % output[1];
        i /= output[1];
        place[1] = i % output[0];
        place[0] = i / output[0];
    }
    __device__ inline i64 in(i64 image, i64 row, i64 column, i64 channel) const {
        return ((image * input[0] + row) * input[1] + column) * channels + channel;
    }
};

// A table's entry for bilinear interpolation: two input positions, and the weight of the second.
struct LinearTaps {
    i64 lower, upper;
    double part;
};

template <class T>
__global__ void bilinear(const T *x, const LinearTaps *rows, const LinearTaps *columns, float *y, i64 n, Images images) {
    EACH(i, n) {
        i64 at[4];
        images.at(i, at);
        LinearTaps row = rows[at[1]], column = columns[at[2]];
        float line[2];
        for (int k = 0; k < 2; k++) {
            i64 from = k ? row.upper : row.lower;
            float left = (float)wide(x[images.in(at[0], from, column.lower, at[3])]);
            float right = (float)wide(x[images.in(at[0], from, column.upper, at[3])]);
            line[k] = left + (right - left) * (float)column.part;
        }
        y[i] = line[0] + (line[1] - line[0]) * (float)row.part;
    }
}
template <class T>
__global__ void bilinear_gradient(const float *dy, const LinearTaps *rows, const LinearTaps *columns, T *dx, i64 n,
                                  Images images) {
    EACH(i, n) {
        i64 at[4];
        images.at(i, at);
        LinearTaps row = rows[at[1]], column = columns[at[2]];
        for (int k = 0; k < 4; k++) {
            float by_row = k / 2 ? (float)row.part : 1.0f - (float)row.part;
            float by_column = k % 2 ? (float)column.part : 1.0f - (float)column.part;
            i64 to = images.in(at[0], k / 2 ? row.upper : row.lower, k % 2 ? column.upper : column.lower, at[3]);
            atomicAdd(dx + to, (T)(dy[i] * by_row * by_column));
        }
    }
}

template <class E>
__global__ void nearest(const E *x, const i64 *rows, const i64 *columns, E *y, i64 n, Images images) {
    EACH(i, n) {
        i64 at[4];
        images.at(i, at);
        y[i] = x[images.in(at[0], rows[at[1]], columns[at[2]], at[3])];
    }
}
template <class T>
__global__ void nearest_gradient(const T *dy, const i64 *rows, const i64 *columns, T *dx, i64 n, Images images) {
    EACH(i, n) {
        i64 at[4];
        images.at(i, at);
        atomicAdd(dx + images.in(at[0], rows[at[1]], columns[at[2]], at[3]), dy[i]);
    }
}

// A table with any number of input positions for each output position: the sum of the weights for one output
// position, then a pair (index of its first entry, number of entries) for each output position, then the
// entries (input position, weight).
struct Weighted {
    const i64 *table;
    i64 positions;

    __device__ inline float whole() const {
        return (float)__longlong_as_double(table[0]);
    }
    __device__ inline i64 first(i64 at) const {
        return table[1 + 2 * at];
    }
    __device__ inline i64 count(i64 at) const {
        return table[2 + 2 * at];
    }
    __device__ inline i64 place(i64 k) const {
        return table[1 + 2 * positions + 2 * k];
    }
    __device__ inline float weight(i64 k) const {
        return (float)__longlong_as_double(table[2 + 2 * positions + 2 * k]);
    }
};
template <class T>
__global__ void weighted(const T *x, const i64 *rows, const i64 *columns, float *y, i64 n, Images images) {
    Weighted down = {rows, images.output[0]}, across = {columns, images.output[1]};
    EACH(i, n) {
        i64 at[4];
        images.at(i, at);
        i64 row = down.first(at[1]), column = across.first(at[2]);
        float total = 0.0f;
        for (i64 c = column; c < column + across.count(at[2]); c++) {
            float sum = 0.0f;
            for (i64 r = row; r < row + down.count(at[1]); r++)
                sum += (float)wide(x[images.in(at[0], down.place(r), across.place(c), at[3])]) * down.weight(r);
            total += sum * across.weight(c);
        }
        y[i] = total / (down.whole() * across.whole());
    }
}
template <class T>
__global__ void weighted_gradient(const float *dy, const i64 *rows, const i64 *columns, T *dx, i64 n, Images images) {
    Weighted down = {rows, images.output[0]}, across = {columns, images.output[1]};
    EACH(i, n) {
        i64 at[4];
        images.at(i, at);
        i64 row = down.first(at[1]), column = across.first(at[2]);
        for (i64 r = row; r < row + down.count(at[1]); r++)
            for (i64 c = column; c < column + across.count(at[2]); c++) {
                i64 to = images.in(at[0], down.place(r), across.place(c), at[3]);
                atomicAdd(dx + to, (T)(dy[i] * (down.weight(r) * across.weight(c))));
            }
    }
}
