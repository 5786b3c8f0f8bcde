"""Products, convolutions, pools and losses."""
import numpy as np

from . import Call, case


@case("MatMul")
def matmul(c):
    for m, k, n in ((3, 4, 5), (1, 7, 1), (17, 33, 9), (0, 3, 2), (2, 0, 3)):
        for ta in (False, True):
            for tb in (False, True):
                a, b = ((k, m) if ta else (m, k)), ((n, k) if tb else (k, n))
                yield Call(c.values(a, -2, 3), c.values(b, -2, 3), transpose_a=ta, transpose_b=tb, loose=10)


@case("BatchMatMul", "BatchMatMulV2")
def batches(c):
    for shape, m, k, n in (((2,), 3, 4, 5), ((2, 3), 2, 2, 2), ((0,), 2, 3, 2), ((), 3, 2, 4)):
        for ta in (False, True):
            for tb in (False, True):
                a, b = ((k, m) if ta else (m, k)), ((n, k) if tb else (k, n))
                yield Call(c.values(shape + a, -2, 3), c.values(shape + b, -2, 3), adj_x=ta, adj_y=tb, loose=10)
    if c.op == "BatchMatMulV2":
        yield Call(c.values((3, 1, 2, 4), -2, 3), c.values((5, 4, 2), -2, 3), loose=10)
        yield Call(c.values((2, 4), -2, 3), c.values((3, 4, 2), -2, 3), loose=10)


@case("BatchMatMulV3")
def mixed_batches(c):
    for ta in (False, True):
        for tb in (False, True):
            a, b = ((4, 3) if ta else (3, 4)), ((5, 4) if tb else (4, 5))
            for first, second in (((), ()), ((2, 1), (3,))):
                yield Call(c.values(first + a, -2, 3, "Ta"), c.values(second + b, -2, 3, "Tb"), adj_x=ta, adj_y=tb, loose=10)
    yield Call(c.values((2, 0), -2, 3, "Ta"), c.values((0, 2), -2, 3, "Tb"))
    if c.is_integer("Ta") and c.is_integer("Tb"):
        yield Call(c.whole((3, 40), "Ta"), c.whole((40, 2), "Tb"))


@case("BiasAdd")
def bias(c):
    for shape in ((3, 4), (2, 3, 3, 4), (0, 4), (2, 5, 4)):
        yield Call(c.values(shape, -3, 3), c.values((4,), -3, 3))
    for shape in ((2, 4, 3, 3), (2, 4), (2, 4, 5)):
        yield Call(c.values(shape, -3, 3), c.values((4,), -3, 3), data_format="NCHW")


@case("BiasAddV1")
def bias_v1(c):
    for shape in ((3, 4), (2, 3, 3, 4), (0, 4)):
        yield Call(c.values(shape, -3, 3), c.values((4,), -3, 3))


@case("BiasAddGrad")
def bias_grad(c):
    for shape in ((3, 4), (2, 3, 3, 4), (0, 4)):
        yield Call(c.values(shape, 0, 3), loose=4)
    for shape in ((2, 4, 3, 3), (2, 4, 5)):
        yield Call(c.values(shape, 0, 3), data_format="NCHW", loose=4)


# (Input, filter, strides, padding, explicit paddings, dilations).
CONVOLUTIONS = (
    ((2, 5, 6, 3), (3, 3, 3, 4), (1, 1), "SAME", (), (1, 1)),
    ((2, 5, 6, 3), (3, 2, 3, 4), (2, 1), "VALID", (), (1, 1)),
    ((1, 7, 7, 2), (3, 3, 2, 3), (1, 1), "SAME", (), (2, 2)),
    ((1, 4, 4, 2), (1, 1, 2, 3), (1, 1), "VALID", (), (1, 1)),
    ((1, 5, 5, 1), (3, 3, 1, 2), (2, 2), "SAME", (), (1, 1)),
    ((1, 5, 5, 2), (2, 3, 2, 2), (1, 2), "EXPLICIT", (0, 0, 1, 0, 2, 1, 0, 0), (1, 1)),
    ((1, 4, 4, 4), (3, 3, 2, 4), (1, 1), "SAME", (), (1, 1)),
)


def convolutions(c, grads):
    import tensorflow.compat.v1 as tf

    for x, w, strides, padding, explicit, dilations in CONVOLUTIONS:
        # Skips groups and dilations, which only the forward op supports on the CPU.
        if grads and (x[3] != w[2] or dilations != (1, 1)):
            continue
        attrs = dict(strides=[1, *strides, 1], padding=padding, explicit_paddings=list(explicit), dilations=[1, *dilations, 1])
        with tf.Graph().as_default():
            y = tf.raw_ops.Conv2D(input=np.zeros(x, np.float32), filter=np.zeros(w, np.float32), **attrs).shape.as_list()
        yield x, w, y, attrs


def factors(c):
    """Yields generators of convolution operands, each with the tolerance of the sums: multiples of 1/8, whose sums are
    exact in any order, and reals, whose sums may be far smaller than their terms."""
    wide = c.name("T") in ("float", "double")
    yield lambda shape: np.round(c.values(shape, -2, 3) * 8) / 8 if wide else c.values(shape, -2, 3), dict(exact=wide, loose=20)
    if wide:
        yield lambda shape: c.values(shape, -2, 3), dict(within=1e-5 if c.name("T") == "float" else 1e-13)


@case("Conv2D")
def conv(c):
    for x, w, _, attrs in convolutions(c, False):
        for make, close in factors(c):
            yield Call(make(x), make(w), **close, **attrs)
    yield Call(c.values((0, 5, 5, 2)), c.values((3, 3, 2, 4)), strides=[1, 1, 1, 1], padding="SAME")


@case("Conv2DBackpropInput")
def conv_input(c):
    for x, w, y, attrs in convolutions(c, True):
        for make, close in factors(c):
            yield Call(np.array(x, np.int32), make(w), make(y), **close, **attrs)


@case("Conv2DBackpropFilter")
def conv_filter(c):
    for x, w, y, attrs in convolutions(c, True):
        for make, close in factors(c):
            yield Call(make(x), np.array(w, np.int32), make(y), **close, **attrs)


# (Input, window, strides, padding).
POOLS = (
    ((2, 4, 6, 3), (2, 2), (2, 2), "VALID"), ((1, 5, 5, 2), (3, 2), (2, 1), "SAME"), ((1, 5, 5, 1), (3, 3), (1, 1), "SAME"),
    ((1, 4, 4, 2), (1, 1), (1, 1), "VALID"), ((0, 4, 4, 2), (2, 2), (1, 1), "VALID"),
)


def pools(c, function="MaxPool"):
    import tensorflow.compat.v1 as tf

    for x, window, strides, padding in POOLS:
        attrs = dict(ksize=[1, *window, 1], strides=[1, *strides, 1], padding=padding)
        with tf.Graph().as_default():
            y = tf.raw_ops.MaxPool(input=np.zeros(x, np.float32), **attrs).shape.as_list()
        yield x, y, attrs


@case("MaxPool", "AvgPool")
def pool(c):
    for x, _, attrs in pools(c):
        yield Call(c.values(x, -3, 3), **attrs)
    if c.op == "MaxPool":
        yield Call(c.values((1, 5, 5, 2), -3, 3), ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding="EXPLICIT",
                   explicit_paddings=[0, 0, 1, 1, 0, 1, 0, 0])


@case("AvgPoolGrad")
def average_grad(c):
    for x, y, attrs in pools(c):
        yield Call(np.array(x, np.int32), c.values(y), **attrs)


@case("MaxPoolGrad", "MaxPoolGradGrad")
def max_grad(c):
    for x, y, attrs in pools(c):
        value = c.distinct(x)
        yield Call(value, pooled(value, y, attrs), c.values(x if c.op == "MaxPoolGradGrad" else y), **attrs)


def pooled(x, shape, attrs):
    """The maximum pool of x, computed with numpy."""
    (_, kh, kw, _), (_, sh, sw, _) = attrs["ksize"], attrs["strides"]
    out = np.zeros(shape, x.dtype)
    top = left = 0
    if attrs["padding"] == "SAME":
        top = max(0, (shape[1] - 1) * sh + kh - x.shape[1]) // 2
        left = max(0, (shape[2] - 1) * sw + kw - x.shape[2]) // 2
    for i in range(shape[1]):
        for j in range(shape[2]):
            i0, j0 = i * sh - top, j * sw - left
            window = x[:, max(i0, 0):i0 + kh, max(j0, 0):j0 + kw, :]
            out[:, i, j, :] = window.max(axis=(1, 2)) if window.size else 0
    return out


@case("Softmax", "LogSoftmax")
def softmax(c):
    for shape in ((3, 4), (7,), (2, 3, 5), (0, 3), (5, 131)):
        yield Call(c.values(shape, -4, 4))
    yield Call(c.array([[50, 1, -50], [0, 0, 0]]))


@case("SoftmaxCrossEntropyWithLogits")
def cross_entropy(c):
    for shape in ((3, 4), (1, 7), (0, 3), (5, 131)):
        labels = np.abs(c.values(shape, 0.1, 1, "float"))
        yield Call(c.values(shape, -4, 4), (labels / labels.sum(axis=1, keepdims=True)).astype(c.dtype()), loose=4)


@case("SparseSoftmaxCrossEntropyWithLogits")
def sparse_cross_entropy(c):
    for rows, classes in ((3, 4), (1, 7), (0, 3), (5, 131)):
        yield Call(c.values((rows, classes), -4, 4), c.rng.integers(0, classes, [rows]).astype(c.dtype("Tlabels")), loose=4)
