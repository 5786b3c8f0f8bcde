// Random numbers, bit for bit the same as those of the CPU's kernels, by Philox4x32-10, which makes groups of
// four 32-bit words.

struct Philox {
    u32 key[2];
    u32 counter[4];

    __device__ inline Philox(u64 k, u64 low, u64 high, u64 groups) {
        key[0] = (u32)k;
        key[1] = (u32)(k >> 32);
        u64 sum = low + groups;
        high += sum < low;
        counter[0] = (u32)sum;
        counter[1] = (u32)(sum >> 32);
        counter[2] = (u32)high;
        counter[3] = (u32)(high >> 32);
    }

    __device__ inline void next(u32 (&out)[4]) {
        u32 a[2] = {key[0], key[1]};
        for (int i = 0; i < 4; i++)
            out[i] = counter[i];
        for (int round = 0; round < 10; round++) {
            u64 x = (u64)0xD2511F53u * out[0], y = (u64)0xCD9E8D57u * out[2];
            u32 b[4] = {(u32)(y >> 32) ^ out[1] ^ a[0], (u32)y, (u32)(x >> 32) ^ out[3] ^ a[1], (u32)x};
            for (int i = 0; i < 4; i++)
                out[i] = b[i];
            a[0] += 0x9E3779B9u;
            a[1] += 0xBB67AE85u;
        }
        for (int i = 0; i < 4 && ++counter[i] == 0; i++) {
        }
    }
};

// A number in [0, 1): random mantissa bits with the exponent of 1, minus 1.
__device__ inline float unit(u32 bits) {
    return __uint_as_float(0x3f800000u | (bits & 0x7fffffu)) - 1.0f;
}
__device__ inline double unit(u32 high, u32 low) {
    return __longlong_as_double((i64)((u64)0x3ff << 52 | (u64)(high & 0xfffffu) << 32 | low)) - 1.0;
}

// Number of values that are made from a group of four words: four, or two of 64 bits.
template <class T> struct Group {
    static const int count = sizeof(T) == 8 ? 2 : 4;
};

template <class T> __device__ inline T uniform_of(u32 bits);
template <> __device__ inline float uniform_of<float>(u32 bits) {
    return unit(bits);
}
template <> __device__ inline f16 uniform_of<f16>(u32 bits) {
    f16 one = {(u16)(0x3c00 | (bits & 0x3ff))};
    return narrow<f16>(wide(one) - 1.0f);
}
template <> __device__ inline bf16 uniform_of<bf16>(u32 bits) {
    bf16 one = {(u16)(0x3f80 | (bits & 0x7f))};
    return narrow<bf16>(wide(one) - 1.0f);
}

// Makes two normal numbers of mean 0 and deviation 1 (Box and Muller, 1958).
__device__ inline void normal_pair(u32 a, u32 b, float (&out)[2]) {
    float u = fmaxf(unit(a), 1e-7f), angle = (float)(6.283185307179586 * (double)unit(b));
    float radius = sqrtf(-2.0f * logf(u));
    out[0] = sinf(angle) * radius;
    out[1] = cosf(angle) * radius;
}
__device__ inline void normal_pair(u32 a, u32 b, u32 c, u32 d, double (&out)[2]) {
    double u = fmax(unit(a, b), 1e-7), angle = 6.283185307179586 * unit(c, d);
    double radius = sqrt(-2.0 * log(u));
    out[0] = sin(angle) * radius;
    out[1] = cos(angle) * radius;
}

struct Uniform {
    template <class T> static __device__ inline void make(u32 (&bits)[4], T *out) {
        for (int i = 0; i < 4; i++)
            out[i] = uniform_of<T>(bits[i]);
    }
    static __device__ inline void make(u32 (&bits)[4], double *out) {
        out[0] = unit(bits[0], bits[1]);
        out[1] = unit(bits[2], bits[3]);
    }
};
struct Normal {
    template <class T> static __device__ inline void make(u32 (&bits)[4], T *out) {
        for (int i = 0; i < 4; i += 2) {
            float pair[2];
            normal_pair(bits[i], bits[i + 1], pair);
            out[i] = narrow<T>(pair[0]);
            out[i + 1] = narrow<T>(pair[1]);
        }
    }
    static __device__ inline void make(u32 (&bits)[4], double *out) {
        double pair[2];
        normal_pair(bits[0], bits[1], bits[2], bits[3], pair);
        out[0] = pair[0];
        out[1] = pair[1];
    }
};

struct Bits {
    template <class T> static __device__ inline void make(u32 (&bits)[4], T *out) {
        for (int i = 0; i < Group<T>::count; i++)
            out[i] = (T)(sizeof(T) == 4 ? bits[i] : bits[2 * i] | (u64)bits[2 * i + 1] << 32);
    }
};

// Fills `out` with numbers of distribution D; one thread per group.
template <class D, class T> __device__ inline void draw(T *out, i64 n, u64 key, u64 low, u64 high) {
    const int count = Group<T>::count;
    EACH(g, (n + count - 1) / count) {
        u32 bits[4];
        T numbers[4];
        Philox(key, low, high, g).next(bits);
        D::make(bits, numbers);
        for (int i = 0; i < count && g * count + i < n; i++)
            out[g * count + i] = numbers[i];
    }
}

// Fills `out` with integers from `least` to `least + range - 1`; each is `least` plus the remainder of random
// bits divided by `range`.
template <class T>
__device__ inline void draw_integers(T *out, i64 n, u64 key, u64 low, u64 high, i64 least, u64 range) {
    const int count = Group<T>::count;
    EACH(g, (n + count - 1) / count) {
        u32 bits[4];
        Philox(key, low, high, g).next(bits);
        for (int i = 0; i < count && g * count + i < n; i++) {
            u64 word = count == 4 ? bits[i] : bits[2 * i] | (u64)bits[2 * i + 1] << 32;
            out[g * count + i] = (T)((u64)least + word % range);
        }
    }
}

// Normal numbers within two deviations of the mean; numbers outside are drawn again. Each thread makes its
// values from a part of the random sequence that is reserved for it; a part begins `apart` groups of words
// after the part of the previous thread.
template <class W> struct Pairs;
template <> struct Pairs<float> {
    static const int words = 2;
    static __device__ inline void make(u32 *bits, float (&out)[2]) {
        normal_pair(bits[0], bits[1], out);
    }
};
template <> struct Pairs<double> {
    static const int words = 4;
    static __device__ inline void make(u32 *bits, double (&out)[2]) {
        normal_pair(bits[0], bits[1], bits[2], bits[3], out);
    }
};
template <class T>
__device__ inline void draw_truncated(T *out, i64 n, u64 key, u64 low, u64 high, i64 apart) {
    typedef Wide<T> W;
    const int count = Group<T>::count;
    EACH(g, (n + count - 1) / count) {
        Philox stream(key, low, high, g * apart);
        u32 bits[4];
        int used = 4, made = 0;
        while (made < count) {
            if (used == 4) {
                stream.next(bits);
                used = 0;
            }
            W pair[2];
            Pairs<W>::make(bits + used, pair);
            used += Pairs<W>::words;
            for (int i = 0; i < 2 && made < count; i++)
                if (fabs(pair[i]) < (W)2) {
                    if (g * count + made < n)
                        out[g * count + made] = narrow<T>(pair[i]);
                    made++;
                }
        }
    }
}

template <class D, class T> __global__ void random(T *out, i64 n, u64 key, u64 low, u64 high) {
    draw<D>(out, n, key, low, high);
}
template <class T>
__global__ void random_integers(T *out, i64 n, u64 key, u64 low, u64 high, i64 least, u64 range) {
    draw_integers(out, n, key, low, high, least, range);
}
template <class T> __global__ void random_truncated(T *out, i64 n, u64 key, u64 low, u64 high, i64 apart) {
    draw_truncated(out, n, key, low, high, apart);
}

// Like `random`, `random_integers` and `random_truncated`, for a generator whose state is in memory. `stood` is
// the state before the generator was advanced: the two words of the counter, and the key.
template <class D, class T> __global__ void random_from(T *out, i64 n, const u64 *stood) {
    draw<D>(out, n, stood[2], stood[0], stood[1]);
}
template <class T> __global__ void random_integers_from(T *out, i64 n, const u64 *stood, i64 least, u64 range) {
    draw_integers(out, n, stood[2], stood[0], stood[1], least, range);
}
template <class T> __global__ void random_truncated_from(T *out, i64 n, const u64 *stood, i64 apart) {
    draw_truncated(out, n, stood[2], stood[0], stood[1], apart);
}

// Copies a generator's state to `stood`, and advances the generator by `groups` groups of four words.
__global__ void move_on(u64 *state, u64 *stood, u64 groups) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        for (int i = 0; i < 3; i++)
            stood[i] = state[i];
        state[0] = stood[0] + groups;
        state[1] = stood[1] + (state[0] < groups);
    }
}

// Computes the cumulative weights of each row's classes; one block per row, whose threads handle one class each
// at a time. Non-finite logits have weight 0.
template <class T> __global__ void shares(const T *logits, double *sums, i64 rows, i64 classes) {
    __shared__ double shared[THREADS];
    EACH_BLOCK(row, rows) {
        const T *x = logits + row * classes;
        double most = -1.7976931348623157e308;
        for (i64 k = threadIdx.x; k < classes; k += THREADS) {
            double value = (double)wide(x[k]);
            if (isfinite(value) && value > most)
                most = value;
        }
        most = over_block<Larger>(most);
        double before = 0.0;
        for (i64 first = 0; first < classes; first += THREADS) {
            i64 k = first + threadIdx.x;
            double value = k < classes ? (double)wide(x[k]) : lowest<double>();
            double sum = isfinite(value) ? exp(value - most) : 0.0;
            sum = running<Plus>(sum, 0.0, shared);
            if (k < classes)
                sums[row * classes + k] = before + sum;
            before += shared[THREADS - 1];
        }
    }
}

// Samples classes: for each sample of each row, a random number in [0, 1) selects the class by the cumulative
// weights. Two samples use one group of words.
template <class O>
__global__ void choose(const double *sums, O *out, i64 n, u64 key, u64 low, u64 high, i64 classes, i64 samples) {
    EACH(i, n) {
        u32 bits[4];
        Philox(key, low, high, i / 2).next(bits);
        const double *row = sums + i / samples * classes;
        double find = (i % 2 ? unit(bits[2], bits[3]) : unit(bits[0], bits[1])) * row[classes - 1];
        i64 from = 0, to = classes;
        while (from < to) {
            i64 middle = (from + to) / 2;
            if (row[middle] <= find)
                from = middle + 1;
            else
                to = middle;
        }
        out[i] = (O)from;
    }
}
