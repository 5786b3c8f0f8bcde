// Non-maximum suppression: boxes are chosen in the order of their scores, except boxes that overlap a box
// chosen before.

// Rounds to type T, so that each step has the precision of the CPU's kernel.
template <class T> __device__ inline float rounded(float x) {
    return wide(narrow<T>(x));
}

__device__ inline float least(float x, float y) {
    return y < x ? y : x;
}
__device__ inline float most(float x, float y) {
    return x < y ? y : x;
}

// A box with top <= bottom and left <= right.
template <class T> struct Box {
    float top, left, bottom, right;

    __device__ inline Box(const T *at) {
        const float a = wide(at[0]), b = wide(at[1]), c = wide(at[2]), d = wide(at[3]);
        top = least(a, c);
        left = least(b, d);
        bottom = most(a, c);
        right = most(b, d);
    }
    __device__ inline float area() const {
        return rounded<T>(rounded<T>(bottom - top) * rounded<T>(right - left));
    }
    // Returns the area of the intersection with another box, divided by the area of the union.
    __device__ inline float overlap(const Box &other) const {
        const float own = area(), its = other.area();
        if (own <= 0.0f || its <= 0.0f)
            return 0.0f;
        const float height = most(rounded<T>(least(bottom, other.bottom) - most(top, other.top)), 0.0f);
        const float width = most(rounded<T>(least(right, other.right) - most(left, other.left)), 0.0f);
        const float common = rounded<T>(height * width);
        return rounded<T>(common / rounded<T>(rounded<T>(own + its) - common));
    }
};

// A candidate box encoded as one number: larger for a larger score, and for equal scores larger for a smaller
// index. 0 means no box.
struct Candidate {
    static __device__ inline u64 of(float score, i64 box) {
        const u32 bits = __float_as_uint(score);
        const u32 order = bits >> 31 ? ~bits : bits | 0x80000000u;
        return (u64)order << 32 | (0xffffffffu - (u32)box);
    }
    static __device__ inline i64 box(u64 candidate) {
        return 0xffffffffu - (u32)candidate;
    }
    static __device__ inline float score(u64 candidate) {
        const u32 order = (u32)(candidate >> 32);
        return __uint_as_float(order >> 31 ? order & 0x7fffffffu : ~order);
    }
};

struct Rules {
    i64 most;
    double overlap, score;
    // With soft suppression, an overlap multiplies a score by exp(scale * overlap^2). 0 means no soft
    // suppression: an overlapping box is excluded.
    double scale;
};

// Returns the score of a box, lowered for each overlap with the chosen boxes, from the box chosen last back to
// the one of index `first`. Returns early when the score is too low. All threads of the block must call the
// function, and all get the result.
template <class T>
__device__ inline float lowered(const T *boxes, i64 box, float score, const i32 *numbers, i64 first, i64 chosen,
                                const Rules &rules) {
    __shared__ float weights[THREADS];
    const float scale = (float)rules.scale;
    const Box<T> own(boxes + 4 * box);
    for (i64 last = chosen - 1; last >= first; last -= THREADS) {
        const i64 k = last - threadIdx.x;
        if (k >= first) {
            const float common = own.overlap(Box<T>(boxes + 4 * (i64)numbers[k]));
            weights[threadIdx.x] = rounded<T>(expf(rounded<T>(rounded<T>(scale * common) * common)));
        }
        __syncthreads();
        for (int i = 0; i < THREADS && last - i >= first; i++) {
            score = rounded<T>(score * weights[i]);
            if (score <= (float)rules.score)
                return score;
        }
        __syncthreads();
    }
    return score;
}

// Writes the chosen boxes and their scores, followed by zeros. Runs as one block, each thread of which handles
// some of the boxes. `left` is the current score of each box, NaN if the box cannot be chosen. The box with the
// largest score is tried next: its score is updated for the boxes chosen since its last update; if the score
// changes, the box is tried again later. With soft suppression `known` is the number of chosen boxes that the
// score of a box already accounts for. Without soft suppression `known` is 1 if the overlap with a chosen box
// is NaN, which makes the score NaN or 0 when the box is tried.
template <class T>
__global__ void choose(const T *boxes, const T *scores, float *left, i32 *known, i32 *numbers, T *values, i32 *count,
                       i64 n, i64 length, Rules rules) {
    const float none = __int_as_float(0x7fc00000), least_score = (float)rules.score;
    const bool is_soft = rules.scale != 0.0;
    u64 best = 0;
    EACH_OF_BLOCK(i, 0, n) {
        const float score = wide(scores[i]);
        const bool is_left = score > least_score;
        left[i] = is_left ? score : none;
        known[i] = 0;
        if (is_left)
            best = Larger::combine(best, Candidate::of(score, i));
    }
    best = over_block<Larger>(best);
    i64 chosen = 0;
    while (chosen < rules.most && best) {
        const i64 number = Candidate::box(best);
        const float score = Candidate::score(best);
        const i32 of_it = known[number];
        __syncthreads();
        float now = score;
        if (is_soft)
            now = lowered(boxes, number, score, numbers, of_it, chosen, rules);
        else if (of_it)
            now = rounded<T>(score * 0.0f);
        const bool is_chosen = now == score;
        if (is_chosen && threadIdx.x == 0) {
            numbers[chosen] = (i32)number;
            values[chosen] = narrow<T>(score);
        }
        const Box<T> last(boxes + 4 * number);
        best = 0;
        EACH_OF_BLOCK(i, 0, n) {
            float own = left[i];
            if (i == number) {
                own = is_chosen || !(now > least_score) ? none : now;
                known[i] = is_soft ? (i32)chosen : 0;
            } else if (is_chosen && !is_soft && own == own) {
                const float common = Box<T>(boxes + 4 * i).overlap(last);
                if (common > (float)rules.overlap)
                    own = none;
                else if (common != common)
                    known[i] = 1;
            }
            left[i] = own;
            if (own == own)
                best = Larger::combine(best, Candidate::of(own, i));
        }
        chosen += is_chosen;
        best = over_block<Larger>(best);
    }
    EACH_OF_BLOCK(i, chosen, length) {
        numbers[i] = 0;
        values[i] = narrow<T>(0.0f);
    }
    if (threadIdx.x == 0)
        *count = (i32)chosen;
}
