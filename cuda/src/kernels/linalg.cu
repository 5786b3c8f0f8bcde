// Linear algebra on batches of matrices in double precision; one block per matrix. A matrix without an inverse
// or a decomposition gives NaN or infinity, because a kernel cannot report an error.

// A square input matrix, optionally transposed.
template <class T> struct Given {
    const T *at;
    i64 size;
    bool is_flipped;

    __device__ inline double operator()(i64 i, i64 j) const {
        return wide(is_flipped ? at[j * size + i] : at[i * size + j]);
    }
};
// The right-hand sides of a system of equations, one per column.
template <class T> struct RightSides {
    const T *at;
    i64 columns;

    __device__ inline double operator()(i64 i, i64 j) const {
        return wide(at[i * columns + j]);
    }
};
struct Identity {
    __device__ inline double operator()(i64 i, i64 j) const {
        return i == j;
    }
};

// A row-major matrix in working memory.
struct Matrix {
    double *at;
    i64 rows, columns;

    __device__ inline double &operator()(i64 i, i64 j) const {
        return at[i * columns + j];
    }
    template <class A> __device__ inline void load(const A &from) const {
        EACH_OF_BLOCK(e, 0, rows * columns) at[e] = from(e / columns, e % columns);
        __syncthreads();
    }
    template <class T> __device__ inline void store(T *to) const {
        EACH_OF_BLOCK(e, 0, rows * columns) to[e] = narrow<T>((Wide<T>)at[e]);
    }
    __device__ inline void swap_rows(i64 a, i64 b) const {
        EACH_OF_BLOCK(j, 0, columns) {
            double before = (*this)(a, j);
            (*this)(a, j) = (*this)(b, j);
            (*this)(b, j) = before;
        }
    }
};

struct Pivot {
    double size;
    i64 row;
};
struct Largest {
    static __device__ inline Pivot combine(Pivot x, Pivot y) {
        return y.size > x.size || (y.size == x.size && y.row < x.row) ? y : x;
    }
};

// Replaces `a` by its triangular factors, with partial pivoting, and swaps the rows of `x` like those of `a`.
// Returns whether the number of swaps was odd.
__device__ inline bool factorize(const Matrix &a, const Matrix &x) {
    const i64 n = a.rows;
    bool is_odd = false;
    for (i64 k = 0; k < n; k++) {
        Pivot pivot = {fabs(a(k, k)), k};
        EACH_OF_BLOCK(i, k + 1, n) pivot = Largest::combine(pivot, Pivot{fabs(a(i, k)), i});
        pivot = over_block<Largest>(pivot);
        if (pivot.size == 0.0)
            continue;
        if (pivot.row != k) {
            is_odd = !is_odd;
            a.swap_rows(k, pivot.row);
            x.swap_rows(k, pivot.row);
        }
        __syncthreads();
        EACH_OF_BLOCK(i, k + 1, n) a(i, k) /= a(k, k);
        __syncthreads();
        const i64 rest = n - k - 1;
        EACH_OF_BLOCK(e, 0, rest * rest) {
            const i64 i = k + 1 + e / rest, j = k + 1 + e % rest;
            a(i, j) -= a(i, k) * a(k, j);
        }
        __syncthreads();
    }
    return is_odd;
}

// Solves a triangular system; the solution replaces the right-hand sides. If `is_unit` is set, the diagonal is
// taken to be ones.
template <class A>
__device__ inline void substitute(const A &a, const Matrix &x, bool is_lower, bool is_unit) {
    for (i64 step = 0; step < x.rows; step++) {
        const i64 k = is_lower ? step : x.rows - 1 - step, first = is_lower ? k + 1 : 0;
        if (!is_unit) {
            EACH_OF_BLOCK(j, 0, x.columns) x(k, j) /= a(k, k);
            __syncthreads();
        }
        EACH_OF_BLOCK(e, 0, (x.rows - 1 - step) * x.columns) {
            const i64 i = first + e / x.columns, j = e % x.columns;
            x(i, j) -= a(i, k) * x(k, j);
        }
        __syncthreads();
    }
}

template <class T> __global__ void cholesky(const T *x, T *y, i64 n, i64 size, double *work) {
    EACH_BLOCK(m, n) {
        const i64 start = m * size * size;
        const Given<T> a = {x + start, size, false};
        const Matrix l = {work + start, size, size};
        bool is_positive = true;
        for (i64 j = 0; j < size && is_positive; j++) {
            EACH_OF_BLOCK(i, j, size) {
                double sum = a(i, j);
                for (i64 k = 0; k < j; k++)
                    sum -= l(i, k) * l(j, k);
                l(i, j) = sum;
            }
            __syncthreads();
            const double root = sqrt(l(j, j));
            is_positive = root > 0.0;
            __syncthreads();
            EACH_OF_BLOCK(i, j, size) l(i, j) = i == j ? root : l(i, j) / root;
            __syncthreads();
        }
        EACH_OF_BLOCK(e, 0, size * size) {
            double value = 0.0;
            if (e % size <= e / size)
                value = is_positive ? l.at[e] : __longlong_as_double(0x7ff8000000000000LL);
            y[start + e] = narrow<T>((Wide<T>)value);
        }
    }
}

template <class T> __global__ void determinant(const T *x, T *y, i64 n, i64 size, double *work) {
    EACH_BLOCK(m, n) {
        const Matrix a = {work + m * size * size, size, size}, none = {};
        a.load(Given<T>{x + m * size * size, size, false});
        double product = factorize(a, none) ? -1.0 : 1.0;
        for (i64 i = 0; i < size; i++)
            product *= a(i, i);
        if (threadIdx.x == 0)
            y[m] = narrow<T>((Wide<T>)product);
    }
}

// Computes each determinant as its sign, which is 0 or has the absolute value 1, and the logarithm of its
// absolute value.
template <class T> __global__ void log_determinant(const T *x, T *signs, T *logs, i64 n, i64 size, double *work) {
    EACH_BLOCK(m, n) {
        const Matrix a = {work + m * size * size, size, size}, none = {};
        a.load(Given<T>{x + m * size * size, size, false});
        double sign = factorize(a, none) ? -1.0 : 1.0, sum = 0.0;
        for (i64 i = 0; i < size; i++) {
            const double pivot = a(i, i);
            sign *= pivot == 0.0 || pivot != pivot ? pivot : copysign(1.0, pivot);
            sum += log(fabs(pivot));
        }
        if (threadIdx.x == 0) {
            signs[m] = narrow<T>((Wide<T>)sign);
            logs[m] = narrow<T>((Wide<T>)sum);
        }
    }
}

struct RowNumbers {
    __device__ inline double operator()(i64 i, i64) const {
        return i;
    }
};
// Computes the LU decomposition of each matrix: both triangular factors in one matrix, and the permutation of
// the rows.
template <class T, class I>
__global__ void lu(const T *x, T *y, I *order, i64 n, i64 size, double *work, double *numbers) {
    EACH_BLOCK(m, n) {
        const i64 start = m * size * size;
        const Matrix a = {work + start, size, size}, rows = {numbers + m * size, size, 1};
        a.load(Given<T>{x + start, size, false});
        rows.load(RowNumbers());
        factorize(a, rows);
        a.store(y + start);
        EACH_OF_BLOCK(i, 0, size) order[m * size + i] = (I)rows(i, 0);
    }
}

// Solves systems of equations; without right-hand sides, computes the inverse of each matrix.
template <class T>
__global__ void solve(const T *x, const T *right, T *y, i64 n, i64 size, i64 columns, i64 is_adjoint, double *work,
                      double *solutions) {
    EACH_BLOCK(m, n) {
        const i64 start = m * size * columns;
        const Matrix a = {work + m * size * size, size, size}, solution = {solutions + start, size, columns};
        a.load(Given<T>{x + m * size * size, size, is_adjoint != 0});
        if (right)
            solution.load(RightSides<T>{right + start, columns});
        else
            solution.load(Identity());
        factorize(a, solution);
        substitute(a, solution, true, true);
        substitute(a, solution, false, false);
        solution.store(y + start);
    }
}

template <class T>
__global__ void triangular_solve(const T *x, const T *right, T *y, i64 n, i64 size, i64 columns, i64 is_lower,
                                 i64 is_adjoint, double *solutions, Axes<2> batch) {
    EACH_BLOCK(m, n) {
        i64 at[2];
        batch.at(m, at);
        const Matrix solution = {solutions + m * size * columns, size, columns};
        solution.load(RightSides<T>{right + at[1] * size * columns, columns});
        const Given<T> a = {x + at[0] * size * size, size, is_adjoint != 0};
        substitute(a, solution, (is_lower != 0) != (is_adjoint != 0), false);
        solution.store(y + m * size * columns);
    }
}
