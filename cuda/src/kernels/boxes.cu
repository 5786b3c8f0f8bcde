// Crops of images, resized to one size, and the gradients with respect to the images and the boxes.

struct Crops {
    // `image` and `crop` are the numbers of rows and columns of each image and of each crop.
    i64 image[2], crop[2], channels, is_nearest;

    // Sets `place` to the position in the image, along an axis, of row or column i of a crop; returns whether
    // the position is inside the image.
    __device__ inline bool at(const float *box, int axis, i64 i, float &place) const {
        float start = box[axis], end = box[axis + 2], last = (float)(image[axis] - 1);
        if (crop[axis] == 1)
            place = 0.5f * (start + end) * last;
        else
            place = start * last + (float)i * ((end - start) * last / (float)(crop[axis] - 1));
        return place >= 0.0f && place <= last;
    }
    __device__ inline i64 pixel(i64 number, i64 row, i64 column, i64 channel) const {
        return ((number * image[0] + row) * image[1] + column) * channels + channel;
    }
    // Splits the index of a crop's element into box, row, column and channel.
    __device__ inline void split(i64 i, i64 (&at)[4]) const {
        at[3] = i % channels;
        i /= channels;
        at[2] = i % crop[1];
        i /= crop[1];
        at[1] = i % crop[0];
        at[0] = i / crop[0];
    }
};

// The indices of the pixels before and after a position along an axis, and the distance of the position from
// the pixel before it.
struct Around {
    i64 lower, upper;
    float part;

    __device__ inline Around(float at) : lower((i64)floorf(at)), upper((i64)ceilf(at)), part(at - floorf(at)) {}
};

// The four pixels around a position: above left, above right, below left and below right.
template <class T> struct Corners {
    float a, b, c, d;

    __device__ inline Corners(const T *x, const Crops &crops, i64 image, const Around &down, const Around &across,
                              i64 channel)
        : a((float)wide(x[crops.pixel(image, down.lower, across.lower, channel)])),
          b((float)wide(x[crops.pixel(image, down.lower, across.upper, channel)])),
          c((float)wide(x[crops.pixel(image, down.upper, across.lower, channel)])),
          d((float)wide(x[crops.pixel(image, down.upper, across.upper, channel)])) {}
};

template <class T>
__global__ void crop(const T *x, const float *boxes, const i64 *images, float *y, i64 n, Crops crops, double outside) {
    EACH(i, n) {
        i64 at[4];
        crops.split(i, at);
        const float *box = boxes + 4 * at[0];
        i64 image = images[at[0]];
        float row, column;
        bool is_inside = crops.at(box, 0, at[1], row);
        is_inside = crops.at(box, 1, at[2], column) && is_inside;
        if (!is_inside) {
            y[i] = (float)outside;
        } else if (crops.is_nearest) {
            y[i] = (float)wide(x[crops.pixel(image, (i64)roundf(row), (i64)roundf(column), at[3])]);
        } else {
            Around down(row), across(column);
            Corners<T> near(x, crops, image, down, across, at[3]);
            float above = near.a + (near.b - near.a) * across.part;
            float below = near.c + (near.d - near.c) * across.part;
            y[i] = above + (below - above) * down.part;
        }
    }
}

template <class T>
__global__ void crop_image_gradient(const float *dy, const float *boxes, const i64 *images, T *dx, i64 n, Crops crops) {
    EACH(i, n) {
        i64 at[4];
        crops.split(i, at);
        const float *box = boxes + 4 * at[0];
        i64 image = images[at[0]];
        float row, column;
        if (!crops.at(box, 0, at[1], row) || !crops.at(box, 1, at[2], column))
            continue;
        if (crops.is_nearest) {
            atomicAdd(dx + crops.pixel(image, (i64)roundf(row), (i64)roundf(column), at[3]), (T)dy[i]);
            continue;
        }
        Around down(row), across(column);
        for (int k = 0; k < 4; k++) {
            float by_row = k / 2 ? down.part : 1.0f - down.part;
            float by_column = k % 2 ? across.part : 1.0f - across.part;
            i64 to = crops.pixel(image, k / 2 ? down.upper : down.lower, k % 2 ? across.upper : across.lower, at[3]);
            atomicAdd(dx + to, (T)(dy[i] * (by_row * by_column)));
        }
    }
}

// Sums the gradient with respect to each of a box's four sides over the crop's elements; one block per box.
template <class T>
__global__ void crop_boxes_gradient(const float *dy, const T *x, const float *boxes, const i64 *images, float *sides,
                                    i64 count, Crops crops) {
    i64 size = crops.crop[0] * crops.crop[1] * crops.channels;
    EACH_BLOCK(number, count) {
        const float *box = boxes + 4 * number;
        i64 image = images[number];
        float sums[4] = {};
        for (i64 k = threadIdx.x; k < size; k += THREADS) {
            i64 at[4];
            crops.split(number * size + k, at);
            float row, column;
            if (!crops.at(box, 0, at[1], row) || !crops.at(box, 1, at[2], column))
                continue;
            Around down(row), across(column);
            Corners<T> near(x, crops, image, down, across, at[3]);
            float slope = dy[number * size + k];
            float slopes[2] = {
                slope * ((1.0f - across.part) * (near.c - near.a) + across.part * (near.d - near.b)),
                slope * ((1.0f - down.part) * (near.b - near.a) + down.part * (near.d - near.c))};
            for (int axis = 0; axis < 2; axis++) {
                float last = (float)(crops.image[axis] - 1);
                // `end` is the derivative of the position with respect to the box's end; the derivative with
                // respect to the box's start is last - end.
                float end =
                    crops.crop[axis] == 1 ? 0.5f * last : (float)at[1 + axis] * (last / (float)(crops.crop[axis] - 1));
                sums[axis] += slopes[axis] * (last - end);
                sums[axis + 2] += slopes[axis] * end;
            }
        }
        for (int side = 0; side < 4; side++) {
            float sum = over_block<Plus>(sums[side]);
            if (threadIdx.x == 0)
                sides[4 * number + side] = sum;
        }
    }
}
