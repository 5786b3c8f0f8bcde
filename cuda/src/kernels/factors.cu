// Matrix decompositions, real or complex, in double precision; one block per matrix. The factors of a matrix
// with NaN or infinity are NaN, because a kernel cannot report an error.

template <class T> struct EntryOf {
    typedef double type;
};
template <> struct EntryOf<c64> {
    typedef c128 type;
};
template <> struct EntryOf<c128> {
    typedef c128 type;
};
template <class T> using Entry = typename EntryOf<T>::type;

__device__ inline double entry(double x) {
    return x;
}
__device__ inline c128 entry(c64 x) {
    return {x.re, x.im};
}
__device__ inline c128 entry(c128 x) {
    return x;
}
template <class T> struct Stored {
    static __device__ inline T of(double x) {
        return (T)x;
    }
};
template <class P> struct Stored<Complex<P>> {
    static __device__ inline Complex<P> of(c128 x) {
        return {(P)x.re, (P)x.im};
    }
};
template <class E> struct Real {
    static __device__ inline E of(double x) {
        return x;
    }
};
template <> struct Real<c128> {
    static __device__ inline c128 of(double x) {
        return {x, 0.0};
    }
};

__device__ inline double real(double x) {
    return x;
}
__device__ inline double real(c128 x) {
    return x.re;
}
__device__ inline bool is_real(double) {
    return true;
}
__device__ inline bool is_real(c128 x) {
    return x.im == 0.0;
}
__device__ inline double conjugate(double x) {
    return x;
}
__device__ inline c128 conjugate(c128 x) {
    return {x.re, -x.im};
}
__device__ inline double scaled(double x, double by) {
    return x * by;
}
__device__ inline c128 scaled(c128 x, double by) {
    return {x.re * by, x.im * by};
}
// The square of the absolute value.
__device__ inline double square(double x) {
    return x * x;
}
__device__ inline double square(c128 x) {
    return x.re * x.re + x.im * x.im;
}

#define EPSILON 2.220446049250313e-16
// Largest number of sweeps over all pairs of columns. Jacobi's method converges to rounding error in fewer
// sweeps.
#define SWEEPS 60

// A row-major matrix in working memory.
template <class E> struct Matrix {
    E *at;
    i64 rows, columns;

    __device__ inline E &operator()(i64 i, i64 j) const {
        return at[i * columns + j];
    }
};

// Number of threads that process a pair of columns together, and number of neighbouring columns that `reflect`
// processes at a time.
#define SHARED 32
#define GROUPS (THREADS / SHARED)

// Applies a Householder reflection, scaled by `by`, to the columns of `to` from column `first` on. The
// reflection's vector is column k of `of` from row k on, with 1 in place of row k.
template <class E> __device__ inline void reflect(const Matrix<E> &of, i64 k, i64 first, E by, const Matrix<E> &to) {
    __shared__ E dots[GROUPS][SHARED];
    const int lane = threadIdx.x % SHARED, group = threadIdx.x / SHARED;
    for (i64 start = first; start < to.columns; start += SHARED) {
        const i64 j = start + lane;
        E dot = {};
        if (j < to.columns)
            for (i64 i = k + group; i < to.rows; i += GROUPS)
                dot = dot + (i == k ? to(i, j) : conjugate(of(i, k)) * to(i, j));
        dots[group][lane] = dot;
        __syncthreads();
        dot = dots[0][lane];
        for (int other = 1; other < GROUPS; other++)
            dot = dot + dots[other][lane];
        dot = dot * by;
        if (j < to.columns)
            for (i64 i = k + group; i < to.rows; i += GROUPS)
                to(i, j) = to(i, j) - (i == k ? dot : of(i, k) * dot);
        __syncthreads();
    }
}

// QR decomposition by Householder reflections, into a unitary matrix of `inner` columns and an upper triangular
// matrix.
template <class T>
__global__ void qr(const T *x, T *q, T *r, i64 n, i64 rows, i64 columns, i64 inner, Entry<T> *work) {
    typedef Entry<T> E;
    const i64 steps = rows < columns ? rows : columns;
    EACH_BLOCK(m, n) {
        E *at = work + m * (rows * columns + rows * inner + steps);
        const Matrix<E> a = {at, rows, columns}, unitary = {at + rows * columns, rows, inner};
        E *factors = unitary.at + rows * inner;
        EACH_OF_BLOCK(e, 0, rows * columns) a.at[e] = entry(x[m * rows * columns + e]);
        EACH_OF_BLOCK(e, 0, rows * inner) unitary.at[e] = Real<E>::of(e / inner == e % inner);
        __syncthreads();
        for (i64 k = 0; k < steps; k++) {
            const E head = a(k, k);
            double tail = 0.0;
            EACH_OF_BLOCK(i, k + 1, rows) tail += square(a(i, k));
            tail = over_block<Plus>(tail);
            if (tail == 0.0 && is_real(head)) {
                if (threadIdx.x == 0)
                    factors[k] = Real<E>::of(0.0);
                continue;
            }
            // The diagonal element becomes real, with the sign opposite to that of `head`, which avoids
            // cancellation.
            const double norm = sqrt(square(head) + tail), beta = real(head) >= 0.0 ? -norm : norm;
            const E scale = head - Real<E>::of(beta);
            const E factor = conjugate(scaled(Real<E>::of(beta) - head, 1.0 / beta));
            EACH_OF_BLOCK(i, k + 1, rows) a(i, k) = a(i, k) / scale;
            if (threadIdx.x == 0) {
                a(k, k) = Real<E>::of(beta);
                factors[k] = factor;
            }
            __syncthreads();
            reflect(a, k, k + 1, factor, a);
        }
        __syncthreads();
        for (i64 k = steps - 1; k >= 0; k--)
            reflect(a, k, k, conjugate(factors[k]), unitary);
        EACH_OF_BLOCK(e, 0, rows * inner) q[m * rows * inner + e] = Stored<T>::of(unitary.at[e]);
        EACH_OF_BLOCK(e, 0, inner * columns) {
            const i64 i = e / columns, j = e % columns;
            r[m * inner * columns + e] = Stored<T>::of(i <= j ? a(i, j) : Real<E>::of(0.0));
        }
    }
}

// All pairs of `size` columns, scheduled like a round-robin tournament: the pairs of a step have no column in
// common. With an odd size one column is idle in each step.
struct Rounds {
    i64 size, steps, pairs;

    __device__ inline Rounds(i64 size) : size(size), steps(size < 2 ? 0 : size - 1 + size % 2), pairs((size + 1) / 2) {}
    __device__ inline bool pair(i64 step, i64 k, i64 &p, i64 &q) const {
        const i64 a = k == 0 ? steps : (step + k) % steps, b = (step + steps - k) % steps;
        p = a < b ? a : b;
        q = a < b ? b : a;
        return q < size;
    }
};

// A rotation of two columns, by an angle and a phase.
template <class E> struct Turn {
    double cosine;
    E sine;

    // The rotation that makes an off-diagonal entry, `between`, zero. `size` is the absolute value of the
    // entry, and `difference` the second of the two columns' diagonal entries minus the first.
    __device__ inline Turn(E between, double size, double difference) {
        const double theta = difference / (2.0 * size);
        const double tangent = copysign(1.0 / (fabs(theta) + sqrt(theta * theta + 1.0)), theta);
        cosine = 1.0 / sqrt(tangent * tangent + 1.0);
        sine = scaled(between, tangent * cosine / size);
    }
    __device__ inline Turn(double cosine, E sine) : cosine(cosine), sine(sine) {}
    __device__ inline void apply(E &x, E &y) const {
        const E first = scaled(x, cosine) - conjugate(sine) * y;
        y = sine * x + scaled(y, cosine);
        x = first;
    }
};

__device__ inline bool is_finite(double x) {
    return x < highest<double>();
}

// Computes the eigenvalues of self-adjoint matrices in ascending order, and optionally the eigenvectors as
// columns, by Jacobi's method. Only the lower triangle of a matrix is read.
template <class T>
__global__ void self_adjoint(const T *x, T *values, T *vectors, i64 n, i64 size, Entry<T> *work) {
    typedef Entry<T> E;
    const Rounds rounds(size);
    EACH_BLOCK(m, n) {
        E *at = work + m * 2 * (size * size + rounds.pairs);
        const Matrix<E> a = {at, size, size}, v = {at + size * size, vectors ? size : 0, size};
        E *cosines = at + 2 * size * size, *sines = cosines + rounds.pairs;
        double norm = 0.0;
        EACH_OF_BLOCK(e, 0, size * size) {
            const i64 i = e / size, j = e % size;
            const E given = entry(x[m * size * size + (i > j ? e : j * size + i)]);
            a.at[e] = i == j ? Real<E>::of(real(given)) : i > j ? given : conjugate(given);
            norm += square(a.at[e]);
            if (vectors)
                v.at[e] = Real<E>::of(i == j);
        }
        norm = over_block<Plus>(norm);
        bool is_done = false;
        for (int sweep = 0; sweep <= SWEEPS && is_finite(norm) && !is_done; sweep++) {
            double off = 0.0;
            // The entries above the diagonal are tested, because rotations set these to zero; their mirror
            // images may differ by rounding.
            EACH_OF_BLOCK(e, 0, size * size) off += e / size < e % size ? square(a.at[e]) : 0.0;
            is_done = over_block<Plus>(off) <= EPSILON * EPSILON * norm;
            for (i64 step = 0; step < rounds.steps && !is_done; step++) {
                EACH_OF_BLOCK(k, 0, rounds.pairs) {
                    i64 p, q;
                    Turn<E> turn(1.0, Real<E>::of(0.0));
                    if (rounds.pair(step, k, p, q)) {
                        const double between = sqrt(square(a(p, q)));
                        if (between != 0.0)
                            turn = Turn<E>(a(p, q), between, real(a(q, q)) - real(a(p, p)));
                    }
                    cosines[k] = Real<E>::of(turn.cosine);
                    sines[k] = turn.sine;
                }
                __syncthreads();
                // First the columns of the matrix and of the eigenvectors are rotated, then the rows of the
                // matrix.
                EACH_OF_BLOCK(e, 0, (a.rows + v.rows) * rounds.pairs) {
                    const i64 i = e / rounds.pairs, k = e % rounds.pairs;
                    i64 p, q;
                    if (!rounds.pair(step, k, p, q))
                        continue;
                    E *row = at + i * size;
                    Turn<E>(real(cosines[k]), sines[k]).apply(row[p], row[q]);
                }
                __syncthreads();
                EACH_OF_BLOCK(e, 0, rounds.pairs * size) {
                    const i64 k = e / size, j = e % size;
                    i64 p, q;
                    if (rounds.pair(step, k, p, q))
                        Turn<E>(real(cosines[k]), conjugate(sines[k])).apply(a(p, j), a(q, j));
                }
                __syncthreads();
            }
        }
        const double none = __longlong_as_double(0x7ff8000000000000LL);
        i64 *places = (i64 *)cosines;
        EACH_OF_BLOCK(i, 0, size) {
            const double own = real(a(i, i));
            i64 place = 0;
            for (i64 j = 0; j < size; j++) {
                const double other = real(a(j, j));
                place += other < own || (other == own && j < i);
            }
            // If the iteration has not converged, all values are NaN and stay in the order of the diagonal.
            places[i] = is_done ? place : i;
            values[m * size + places[i]] = Stored<T>::of(Real<E>::of(is_done ? own : none));
        }
        __syncthreads();
        EACH_OF_BLOCK(e, 0, v.rows * size) {
            const i64 i = e / size, j = e % size;
            vectors[m * size * size + i * size + places[j]] =
                Stored<T>::of(is_done ? v.at[e] : Real<E>::of(none));
        }
        __syncthreads();
    }
}

// Returns the sum of `value` over the group of threads that process one pair of columns.
template <class A> __device__ inline A over_group(A value) {
    __shared__ A shared[THREADS];
    const int lane = threadIdx.x % SHARED;
    __syncthreads();
    shared[threadIdx.x] = value;
    for (int half = SHARED / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half)
            shared[threadIdx.x] = shared[threadIdx.x] + shared[threadIdx.x + half];
    }
    __syncthreads();
    return shared[threadIdx.x - lane];
}

struct Axis {
    double taken;
    i64 number;
};
struct Freest {
    static __device__ inline Axis combine(Axis x, Axis y) {
        return y.taken < x.taken || (y.taken == x.taken && y.number < x.number) ? y : x;
    }
};

// Makes row `count` of `all` a unit vector that is orthogonal to the rows before it: the coordinate axis with
// the smallest projection onto those rows, orthogonalised against them. The second pass removes the rounding
// errors of the first.
template <class E> __device__ inline void complete(const Matrix<E> &all, i64 count, E *dots) {
    Axis free = {highest<double>(), all.columns};
    EACH_OF_BLOCK(i, 0, all.columns) {
        double taken = 0.0;
        for (i64 c = 0; c < count; c++)
            taken += square(all(c, i));
        free = Freest::combine(free, Axis{taken, i});
    }
    free = over_block<Freest>(free);
    EACH_OF_BLOCK(i, 0, all.columns) all(count, i) = Real<E>::of(i == free.number);
    for (int pass = 0; pass < 2; pass++) {
        __syncthreads();
        EACH_OF_BLOCK(c, 0, count) {
            E dot = {};
            for (i64 i = 0; i < all.columns; i++)
                dot = dot + conjugate(all(c, i)) * all(count, i);
            dots[c] = dot;
        }
        __syncthreads();
        EACH_OF_BLOCK(i, 0, all.columns)
            for (i64 c = 0; c < count; c++)
                all(count, i) = all(count, i) - dots[c] * all(c, i);
    }
    double size = 0.0;
    EACH_OF_BLOCK(i, 0, all.columns) size += square(all(count, i));
    size = sqrt(over_block<Plus>(size));
    EACH_OF_BLOCK(i, 0, all.columns) all(count, i) = scaled(all(count, i), 1.0 / size);
    __syncthreads();
}

// Computes singular values in descending order and, optionally, the left and right singular vectors as columns:
// `count` vectors for the longer side of the matrix, all vectors for the shorter side. Jacobi's method rotates
// the columns of the matrix, or of its adjoint if the adjoint has fewer columns.
template <class T>
__global__ void singular(const T *x, T *values, T *u, T *v, i64 n, i64 rows, i64 columns, i64 count, i64 has_vectors,
                         Entry<T> *work) {
    typedef Entry<T> E;
    const bool is_tall = rows >= columns;
    const i64 length = is_tall ? rows : columns, size = is_tall ? columns : rows;
    const int lane = threadIdx.x % SHARED, group = threadIdx.x / SHARED;
    const Rounds rounds(size);
    const double enough = EPSILON * sqrt((double)length);
    EACH_BLOCK(m, n) {
        E *at = work + m * (size * length + size * size + count * length + count + 2 * size);
        // Each row of these matrices holds one column: of the matrix being rotated (`w`), of the singular
        // vectors of the shorter side (`turns`), and of the singular vectors of the longer side (`all`).
        const Matrix<E> w = {at, size, length}, turns = {at + size * length, has_vectors ? size : 0, size};
        const Matrix<E> all = {at + size * length + size * size, count, length};
        E *dots = all.at + count * length;
        double *sizes = (double *)(dots + count);
        i64 *places = (i64 *)(dots + count + size);
        double norm = 0.0;
        EACH_OF_BLOCK(e, 0, size * length) {
            const i64 j = e / length, i = e % length;
            const T *from = x + m * size * length;
            w.at[e] = is_tall ? entry(from[i * size + j]) : conjugate(entry(from[e]));
            norm += square(w.at[e]);
        }
        EACH_OF_BLOCK(e, 0, turns.rows * size) turns.at[e] = Real<E>::of(e / size == e % size);
        norm = over_block<Plus>(norm);
        bool is_done = false;
        for (int sweep = 0; sweep < SWEEPS && is_finite(norm) && !is_done; sweep++) {
            i64 turned = 0;
            for (i64 step = 0; step < rounds.steps; step++) {
                for (i64 first = 0; first < rounds.pairs; first += GROUPS) {
                    i64 p, q;
                    const bool is_pair = first + group < rounds.pairs && rounds.pair(step, first + group, p, q);
                    double alpha = 0.0, beta = 0.0;
                    E gamma = {};
                    for (i64 i = lane; is_pair && i < length; i += SHARED) {
                        alpha += square(w(p, i));
                        beta += square(w(q, i));
                        gamma = gamma + conjugate(w(p, i)) * w(q, i);
                    }
                    alpha = over_group(alpha);
                    beta = over_group(beta);
                    gamma = over_group(gamma);
                    const double between = sqrt(square(gamma));
                    if (!is_pair || between <= enough * sqrt(alpha) * sqrt(beta) ||
                        between <= EPSILON * EPSILON * norm)
                        continue;
                    turned = 1;
                    const Turn<E> turn(gamma, between, beta - alpha);
                    for (i64 i = lane; i < length; i += SHARED)
                        turn.apply(w(p, i), w(q, i));
                    for (i64 i = lane; i < turns.columns && turns.rows; i += SHARED)
                        turn.apply(turns(p, i), turns(q, i));
                }
                __syncthreads();
            }
            is_done = over_block<Plus>(turned) == 0;
        }
        double largest = 0.0;
        EACH_OF_BLOCK(j, 0, size) {
            double sum = 0.0;
            for (i64 i = 0; i < length; i++)
                sum += square(w(j, i));
            sizes[j] = sqrt(sum);
            largest = sizes[j] > largest ? sizes[j] : largest;
        }
        largest = over_block<Larger>(largest);
        const double none = __longlong_as_double(0x7ff8000000000000LL);
        i64 whole = 0;
        EACH_OF_BLOCK(j, 0, size) {
            i64 place = 0;
            for (i64 other = 0; other < size; other++)
                place += sizes[other] > sizes[j] || (sizes[other] == sizes[j] && other < j);
            places[j] = is_done ? place : j;
            values[m * size + places[j]] = Stored<T>::of(Real<E>::of(is_done ? sizes[j] : none));
            whole += is_done && sizes[j] > largest * EPSILON;
        }
        whole = over_block<Plus>(whole);
        if (!has_vectors)
            continue;
        EACH_OF_BLOCK(e, 0, size * length) {
            const i64 j = e / length;
            if (places[j] < whole)
                all(places[j], e % length) = scaled(w.at[e], 1.0 / sizes[j]);
        }
        __syncthreads();
        for (i64 c = whole; c < count && is_done; c++)
            complete(all, c, dots);
        T *longer = (is_tall ? u : v) + m * length * count, *shorter = (is_tall ? v : u) + m * size * size;
        EACH_OF_BLOCK(e, 0, length * count)
            longer[e] = Stored<T>::of(is_done ? all(e % count, e / count) : Real<E>::of(none));
        EACH_OF_BLOCK(e, 0, size * size)
            shorter[e % size * size + places[e / size]] =
                Stored<T>::of(is_done ? turns.at[e] : Real<E>::of(none));
        __syncthreads();
    }
}
