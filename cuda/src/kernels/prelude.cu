// The prelude of each .cu file: types, loops over elements, reductions over a block. There are no includes, so
// the files compile without CUDA's headers.

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};
struct alignas(16) u128 {
    u64 low, high;
};

template <class P> struct alignas(2 * sizeof(P)) Complex {
    P re, im;
};
typedef Complex<float> c64;
typedef Complex<double> c128;

template <class P> __device__ inline Complex<P> operator-(Complex<P> x) {
    return {-x.re, -x.im};
}
template <class P> __device__ inline Complex<P> operator+(Complex<P> x, Complex<P> y) {
    return {x.re + y.re, x.im + y.im};
}
template <class P> __device__ inline Complex<P> operator-(Complex<P> x, Complex<P> y) {
    return {x.re - y.re, x.im - y.im};
}
template <class P> __device__ inline Complex<P> operator*(Complex<P> x, Complex<P> y) {
    return {x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
}
template <class P> __device__ inline Complex<P> operator/(Complex<P> x, Complex<P> y) {
    P square = y.re * y.re + y.im * y.im;
    return {(x.re * y.re + x.im * y.im) / square, (x.im * y.re - x.re * y.im) / square};
}

template <class W> __device__ inline W zero() {
    return {};
}
template <class W> struct One {
    static __device__ inline W get() {
        return (W)1;
    }
};
template <class P> struct One<Complex<P>> {
    static __device__ inline Complex<P> get() {
        return {(P)1, (P)0};
    }
};
template <class W> __device__ inline W one() {
    return One<W>::get();
}

// Consecutive elements that are read and written as one value; packs are aligned, because tensors begin at
// multiples of 16 bytes.
template <class T, int N> struct alignas(sizeof(T) * N) Pack {
    T at[N];
};

// The type that kernels compute in: 16-bit floats are widened to float, as on the CPU.
template <class T> struct WideOf {
    typedef T type;
};
template <> struct WideOf<f16> {
    typedef float type;
};
template <> struct WideOf<bf16> {
    typedef float type;
};
template <class T> using Wide = typename WideOf<T>::type;

template <class T> __device__ inline T wide(T x) {
    return x;
}
__device__ inline float wide(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
__device__ inline float wide(bf16 x) {
    return __uint_as_float((u32)x.bits << 16);
}

template <class T> struct Narrow {
    static __device__ inline T of(T x) {
        return x;
    }
};
template <> struct Narrow<f16> {
    static __device__ inline f16 of(float x) {
        f16 y;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
        return y;
    }
};
template <> struct Narrow<bf16> {
    static __device__ inline bf16 of(float x) {
        u32 bits = __float_as_uint(x);
        bf16 y;
        // Rounds to nearest, ties to even; NaN stays NaN.
        y.bits = x != x ? (bits >> 16 | 0x40) : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        return y;
    }
};
template <class T> __device__ inline T narrow(Wide<T> x) {
    return Narrow<T>::of(x);
}

template <class T> struct IsFloat {
    static const bool value = false;
};
template <> struct IsFloat<float> {
    static const bool value = true;
};
template <> struct IsFloat<double> {
    static const bool value = true;
};
template <> struct IsFloat<f16> {
    static const bool value = true;
};
template <> struct IsFloat<bf16> {
    static const bool value = true;
};

// Iterates over n elements with all threads of the grid.
#define EACH(i, n)                                                                                                     \
    for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < (n); i += (i64)gridDim.x * blockDim.x)

// Iterates over n items of work with all blocks of the grid.
#define EACH_BLOCK(i, n) for (i64 i = blockIdx.x; i < (n); i += gridDim.x)

// Joint iteration over N tensors: the sizes of the axes, outermost first, and the strides of each tensor along
// them.
#define MOST_AXES 8
template <int N> struct Axes {
    i64 rank;
    i64 sizes[MOST_AXES];
    i64 strides[N][MOST_AXES];

    __device__ inline void at(i64 i, i64 (&offsets)[N]) const {
        for (int t = 0; t < N; t++)
            offsets[t] = 0;
        for (int axis = (int)rank - 1; axis >= 0; axis--) {
            i64 index = i % sizes[axis];
            i /= sizes[axis];
            for (int t = 0; t < N; t++)
                offsets[t] += index * strides[t][axis];
        }
    }
};

// The arguments of a batched launch over several tensors, called pieces: for each piece the kernel's arguments,
// the number of elements, and the number of chunks in this and earlier pieces. A block handles a chunk of
// elements at a time.
#define MOST_PIECES 16
#define CHUNK 1024
template <class P> struct Pieces {
    i64 count;
    P of[MOST_PIECES];
    i64 sizes[MOST_PIECES], ends[MOST_PIECES];

    // Calls `use` with the arguments of each piece and the index of each element of the piece that this thread
    // handles.
    template <class F> __device__ inline void each(F use) const {
        for (i64 chunk = blockIdx.x; chunk < ends[count - 1]; chunk += gridDim.x) {
            i64 k = 0;
            while (chunk >= ends[k])
                k++;
            i64 first = (chunk - (k ? ends[k - 1] : 0)) * CHUNK;
#pragma unroll 4
            for (i64 i = first + threadIdx.x; i < first + CHUNK && i < sizes[k]; i += blockDim.x)
                use(of[k], i);
        }
    }
};

// y = F(x), element by element.
template <class F, class T, class U> __global__ void map(const T *x, U *y, i64 n, double parameter) {
    EACH(i, n) y[i] = narrow<U>(F::template apply<T>(wide(x[i]), parameter));
}

// z = F(x, y), element by element, without broadcasting.
template <class F, class T, class U> __global__ void zip(const T *x, const T *y, U *z, i64 n, double parameter) {
    EACH(i, n) z[i] = narrow<U>(F::template apply<T>(wide(x[i]), wide(y[i]), parameter));
}

// z = F(x, y), element by element, with broadcasting.
template <class F, class T, class U>
__global__ void zip_axes(const T *x, const T *y, U *z, i64 n, double parameter, Axes<2> axes) {
    EACH(i, n) {
        i64 at[2];
        axes.at(i, at);
        z[i] = narrow<U>(F::template apply<T>(wide(x[at[0]]), wide(y[at[1]]), parameter));
    }
}

// Threads per block in all launches: `THREADS` of `kernel_stream.rs`.
#define THREADS 256

// Iterates over the items of a block's work with the block's threads.
#define EACH_OF_BLOCK(i, from, to) for (i64 i = (from) + threadIdx.x; i < (to); i += THREADS)

// Reduces the values of all threads of the block to one; all threads get the result.
template <class F, class A> __device__ inline A over_block(A value) {
    __shared__ A shared[THREADS];
    __syncthreads();
    shared[threadIdx.x] = value;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            shared[threadIdx.x] = F::combine(shared[threadIdx.x], shared[threadIdx.x + half]);
    }
    __syncthreads();
    return shared[0];
}

// The inclusive prefix reduction over the values of the block's threads; `shared` holds the results of all
// threads until the next call.
template <class F, class A> __device__ inline A running(A value, A start, A (&shared)[THREADS]) {
    __syncthreads();
    shared[threadIdx.x] = value;
    for (int reach = 1; reach < THREADS; reach *= 2) {
        __syncthreads();
        A other = threadIdx.x >= reach ? shared[threadIdx.x - reach] : start;
        __syncthreads();
        value = F::combine(other, value);
        shared[threadIdx.x] = value;
    }
    __syncthreads();
    return value;
}

// A thread's share of a block's work. A block handles one of `parts` parts of the elements of `width` channels.
// Neighbouring threads have neighbouring channels, and each thread handles every `rows`-th element of its
// channel's part.
struct Share {
    i64 channel, place, first, end;
    int row, rows;

    __device__ inline Share(i64 i, i64 width, i64 parts, i64 channels, i64 count) {
        i64 size = (count + parts - 1) / parts;
        channel = i / parts * width + threadIdx.x % width;
        place = channel * parts + i % parts;
        row = threadIdx.x / width;
        rows = THREADS / width;
        first = i % parts * size;
        end = first + size < count ? first + size : count;
        // A thread whose channel would be beyond the last has no elements.
        if (channel >= channels)
            end = first;
    }
};

// For each channel of a block, reduces the values of the threads that share the channel; these threads all get
// the result.
template <class F, class A> __device__ inline A over_rows(A value, int width) {
    __shared__ A shared[THREADS];
    __syncthreads();
    shared[threadIdx.x] = value;
    for (int half = THREADS / width / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x / width < half)
            shared[threadIdx.x] = F::combine(shared[threadIdx.x], shared[threadIdx.x + half * width]);
    }
    __syncthreads();
    return shared[threadIdx.x % width];
}

struct Plus {
    template <class A> static __device__ inline A combine(A x, A y) {
        return x + y;
    }
};
struct Larger {
    template <class A> static __device__ inline A combine(A x, A y) {
        return y > x || y != y ? y : x;
    }
};
template <class A> __device__ inline A lowest();
template <> __device__ inline float lowest<float>() {
    return __int_as_float(0xff800000);
}
template <> __device__ inline double lowest<double>() {
    return __longlong_as_double(0xfff0000000000000LL);
}
template <> __device__ inline i64 lowest<i64>() {
    return (i64)0x8000000000000000ULL;
}
template <class A> __device__ inline A highest();
template <> __device__ inline float highest<float>() {
    return __int_as_float(0x7f800000);
}
template <> __device__ inline double highest<double>() {
    return __longlong_as_double(0x7ff0000000000000LL);
}
template <> __device__ inline i64 highest<i64>() {
    return 0x7fffffffffffffffLL;
}
