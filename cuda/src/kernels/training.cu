// Optimizer steps: the update of one element of a variable and its slots by its gradient. `State` holds the
// variable and its slots, `Scalars` the scalar inputs, both in the op's order.

template <class T> struct State {
    T *of[4];
};
// The arguments of an optimizer step for one variable: the variable with its slots, and the gradient.
template <class T> struct Stepped {
    State<T> state;
    const T *gradient;
};
template <class T> struct Scalars {
    const T *of[8];

    __device__ inline Wide<T> operator[](int i) const {
        return wide(*of[i]);
    }
};

// Defines the rule of an optimizer: `count` is the number of states (the variable and its slots), and `change`
// updates them.
#define STEP(NAME, COUNT, ...)                                                                                         \
    template <class T> struct NAME {                                                                                   \
        typedef Wide<T> W;                                                                                             \
        static const int count = COUNT;                                                                                \
        static __device__ inline void change(W(&s)[COUNT], W g, const Scalars<T> &scalar, bool flag) {                 \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    };

template <class W> __device__ inline W sign_of(W x) {
    return x != x ? x : (W)((x > (W)0) - (x < (W)0));
}

STEP(GradientDescent, 1, s[0] -= scalar[0] * g;)
STEP(Momentum, 2, {
    W lr = scalar[0], momentum = scalar[1];
    s[1] = s[1] * momentum + g;
    s[0] -= flag ? g * lr + s[1] * momentum * lr : s[1] * lr;
})
STEP(KerasMomentum, 2, {
    W lr = scalar[0], momentum = scalar[1];
    s[1] = s[1] * momentum - g * lr;
    s[0] += flag ? s[1] * momentum - g * lr : s[1];
})
STEP(Adam, 3, {
    W lr = scalar[2], beta1 = scalar[3], beta2 = scalar[4], epsilon = scalar[5];
    W alpha = lr * sqrt((W)1 - scalar[1]) / ((W)1 - scalar[0]);
    s[1] += (g - s[1]) * ((W)1 - beta1);
    s[2] += (g * g - s[2]) * ((W)1 - beta2);
    W ahead = flag ? g * ((W)1 - beta1) + beta1 * s[1] : s[1];
    s[0] -= ahead * alpha / (sqrt(s[2]) + epsilon);
})
STEP(Adagrad, 2, {
    if (flag)
        s[1] += g * g;
    s[0] -= g * scalar[0] / sqrt(s[1]);
})
STEP(AdagradV2, 2, {
    if (flag)
        s[1] += g * g;
    s[0] -= g * scalar[0] / (sqrt(s[1]) + scalar[1]);
})
STEP(RmsProp, 3, {
    W lr = scalar[0], rho = scalar[1], momentum = scalar[2], epsilon = scalar[3];
    s[1] += (g * g - s[1]) * ((W)1 - rho);
    s[2] = s[2] * momentum + g * lr / sqrt(s[1] + epsilon);
    s[0] -= s[2];
})
STEP(CenteredRmsProp, 4, {
    W lr = scalar[0], rho = scalar[1], momentum = scalar[2], epsilon = scalar[3];
    s[2] += (g * g - s[2]) * ((W)1 - rho);
    s[1] += (g - s[1]) * ((W)1 - rho);
    s[3] = s[3] * momentum + g * lr / sqrt(s[2] - s[1] * s[1] + epsilon);
    s[0] -= s[3];
})
STEP(Adadelta, 3, {
    W lr = scalar[0], rho = scalar[1], epsilon = scalar[2];
    s[1] = s[1] * rho + g * g * ((W)1 - rho);
    W update = sqrt(s[2] + epsilon) / sqrt(s[1] + epsilon) * g;
    s[2] = s[2] * rho + update * update * ((W)1 - rho);
    s[0] -= update * lr;
})

STEP(AdamWithAmsgrad, 4, {
    W lr = scalar[2], beta1 = scalar[3], beta2 = scalar[4], epsilon = scalar[5];
    W alpha = lr * sqrt((W)1 - scalar[1]) / ((W)1 - scalar[0]);
    s[1] += (g - s[1]) * ((W)1 - beta1);
    s[2] += (g * g - s[2]) * ((W)1 - beta2);
    s[3] = s[3] < s[2] ? s[2] : s[3];
    s[0] -= s[1] * alpha / (sqrt(s[3]) + epsilon);
})
STEP(AdaMax, 3, {
    W lr = scalar[1], beta1 = scalar[2], beta2 = scalar[3], epsilon = scalar[4];
    W alpha = lr / ((W)1 - scalar[0]), decayed = beta2 * s[2];
    s[1] += (g - s[1]) * ((W)1 - beta1);
    s[2] = decayed < fabs(g) ? fabs(g) : decayed;
    s[0] -= alpha * (s[1] / (s[2] + epsilon));
})
STEP(AddSign, 2, {
    W lr = scalar[0], alpha = scalar[1], decay = scalar[2], beta = scalar[3];
    s[1] = s[1] * beta + g * ((W)1 - beta);
    s[0] -= lr * (alpha + decay * (sign_of(g) * sign_of(s[1]))) * g;
})
STEP(PowerSign, 2, {
    W lr = scalar[0], base = scalar[1], decay = scalar[2], beta = scalar[3];
    s[1] = s[1] * beta + g * ((W)1 - beta);
    s[0] -= lr * exp(base * decay * (sign_of(g) * sign_of(s[1]))) * g;
})

// Returns x moved towards zero by `times * l1`, but not beyond zero.
template <class W> __device__ inline W shrunk(W x, W times, W l1) {
    W rest = fabs(x) - times * l1;
    return l1 > (W)0 ? sign_of(x) * (rest < (W)0 ? (W)0 : rest) : x;
}
STEP(AdagradDA, 3, {
    W lr = scalar[0], steps = (W)*(const i64 *)scalar.of[3];
    s[1] += g;
    s[2] += g * g;
    s[0] = -lr * shrunk<W>(s[1], steps, scalar[1]) / (scalar[2] * steps * lr + sqrt(s[2]));
})

// The proximal operator: the point that minimises the squared distance to `x` plus the L1 and the L2 penalty.
template <class W> __device__ inline W proximal(W x, W lr, W l1, W l2) {
    return shrunk(x, lr, l1) / ((W)1 + l2 * lr);
}
STEP(ProximalGradientDescent, 1, s[0] = proximal<W>(s[0] - scalar[0] * g, scalar[0], scalar[1], scalar[2]);)
STEP(ProximalAdagrad, 2, {
    s[1] += g * g;
    W lr = scalar[0] / sqrt(s[1]);
    s[0] = proximal<W>(s[0] - g * lr, lr, scalar[1], scalar[2]);
})

// The rule of FTRL. If `flag` is set, the third state, the linear slot, is scaled by the learning rate. If the
// linear slot is NaN, the variable becomes NaN if `keeps_nan` is set, else zero.
template <class W>
__device__ inline void ftrl(W (&s)[3], W g, W lr, W l1, W l2, W shrinkage, W lr_power, bool flag,
                            bool keeps_nan = false) {
    bool is_root = lr_power == (W)-0.5;
    W scale = flag ? lr : (W)1, per = flag ? (W)1 : lr;
    W shrunk = g + (W)2 * shrinkage * s[0], grown = s[1] + g * g;
    W root = is_root ? sqrt(grown) : pow(grown, -lr_power), old = is_root ? sqrt(s[1]) : pow(s[1], -lr_power);
    s[2] += shrunk * scale - (root - old) / per * s[0];
    W bound = l1 * scale;
    bool is_beyond = fabs(s[2]) > bound || (keeps_nan && s[2] != s[2]);
    s[0] = is_beyond ? (sign_of(s[2]) * bound - s[2]) / (root / per + (W)2 * l2 * scale) : (W)0;
    s[1] = grown;
}
STEP(Ftrl, 3, ftrl<W>(s, g, scalar[0], scalar[1], scalar[2], (W)0, scalar[3], flag);)
STEP(FtrlV2, 3, ftrl<W>(s, g, scalar[0], scalar[1], scalar[2], scalar[3], scalar[4], flag);)

STEP(SparseFtrl, 3, ftrl<W>(s, g, scalar[0], scalar[1], scalar[2], (W)0, scalar[3], flag, true);)
STEP(SparseFtrlV2, 3, ftrl<W>(s, g, scalar[0], scalar[1], scalar[2], scalar[3], scalar[4], flag, true);)

template <template <class> class Step, class T>
__device__ inline void step_one(const State<T> &state, i64 i, T gradient, const Scalars<T> &scalars, bool flag) {
    Wide<T> s[Step<T>::count];
    for (int k = 0; k < Step<T>::count; k++)
        s[k] = wide(state.of[k][i]);
    Step<T>::change(s, wide(gradient), scalars, flag);
    for (int k = 0; k < Step<T>::count; k++)
        state.of[k][i] = narrow<T>(s[k]);
}

template <template <class> class Step, class T>
__global__ void step(Pieces<Stepped<T>> pieces, i64 flag, Scalars<T> scalars) {
    pieces.each([&](const Stepped<T> &piece, i64 i) {
        step_one<Step>(piece.state, i, piece.gradient[i], scalars, flag);
    });
}

// An optimizer step with a gradient of some rows; one block per row of the gradient. Updates of one row of the
// variable run one after the other, in no fixed order: each row of the variable maps to a lock, and a block
// holds at most one lock. An index out of range is skipped.
#define LOCKS 4096
template <template <class> class Step, class T, class I>
__global__ void sparse_step(State<T> state, const T *gradient, i64 count, i64 flag, Scalars<T> scalars,
                            const I *indices, u32 *locks, i64 rows, i64 inner) {
    EACH_BLOCK(k, count) {
        i64 row = indices[k];
        if (row < 0 || row >= rows)
            continue;
        u32 *lock = locks + row % LOCKS;
        if (threadIdx.x == 0) {
            while (atomicCAS(lock, 0u, 1u) != 0u) {
            }
            __threadfence();
        }
        __syncthreads();
        for (i64 c = threadIdx.x; c < inner; c += THREADS)
            step_one<Step>(state, row * inner + c, gradient[k * inner + c], scalars, flag);
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0)
            atomicExch(lock, 0u);
    }
}
