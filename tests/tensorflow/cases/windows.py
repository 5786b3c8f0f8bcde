"""3-D and depthwise convolutions, 3-D and fractional pools, dilations."""
import numpy as np
import tensorflow.compat.v1 as tf

from . import Call, case
from .special import special
from .nn import pooled, pools

# (Input, filter, stride, padding, explicit paddings).
DEPTHWISE = (
    ((2, 5, 6, 3), (3, 3, 3, 1), 1, "SAME", ()),
    ((2, 5, 6, 3), (3, 2, 3, 2), 2, "VALID", ()),
    ((1, 7, 7, 2), (3, 3, 2, 3), 2, "SAME", ()),
    ((1, 5, 5, 1), (2, 2, 1, 4), 1, "VALID", ()),
    ((1, 5, 5, 2), (2, 3, 2, 2), 1, "EXPLICIT", (0, 0, 1, 0, 2, 1, 0, 0)),
)


def depthwise(c):
    for x, w, stride, padding, explicit in DEPTHWISE:
        attrs = dict(strides=[1, stride, stride, 1], padding=padding, explicit_paddings=list(explicit))
        with tf.Graph().as_default():
            y = tf.raw_ops.DepthwiseConv2dNative(input=np.zeros(x, np.float32), filter=np.zeros(w, np.float32), **attrs)
        yield x, w, y.shape.as_list(), attrs


@case("DepthwiseConv2dNative")
def depthwise_forward(c):
    for x, w, _, attrs in depthwise(c):
        yield Call(c.values(x, -2, 3), c.values(w, -2, 3), loose=20, within=2e-5, **attrs)
    yield Call(c.values((0, 5, 5, 2)), c.values((3, 3, 2, 4)), strides=[1, 1, 1, 1], padding="SAME")


@case("DepthwiseConv2dNativeBackpropInput")
def depthwise_input(c):
    for x, w, y, attrs in depthwise(c):
        yield Call(np.array(x, np.int32), c.values(w, -2, 3), c.values(y, -2, 3), loose=20, within=2e-5, **attrs)


@case("DepthwiseConv2dNativeBackpropFilter")
def depthwise_filter(c):
    for x, w, y, attrs in depthwise(c):
        yield Call(c.values(x, -2, 3), np.array(w, np.int32), c.values(y, -2, 3), loose=40, within=2e-5, **attrs)


# (Input, filter, strides, padding).
VOLUMES = (
    ((2, 4, 5, 3, 2), (2, 3, 2, 2, 3), (1, 1, 1), "SAME"),
    ((1, 5, 4, 6, 2), (2, 2, 3, 2, 1), (2, 1, 2), "VALID"),
    ((1, 3, 3, 3, 1), (1, 1, 1, 1, 2), (1, 1, 1), "VALID"),
    ((1, 5, 5, 5, 1), (3, 3, 3, 1, 2), (2, 2, 2), "SAME"),
)


def volumes():
    for x, w, strides, padding in VOLUMES:
        attrs = dict(strides=[1, *strides, 1], padding=padding)
        with tf.Graph().as_default():
            y = tf.raw_ops.Conv3D(input=np.zeros(x, np.float32), filter=np.zeros(w, np.float32), **attrs)
        yield x, w, y.shape.as_list(), attrs


@case("Conv3D")
def volumes_forward(c):
    for x, w, _, attrs in volumes():
        yield Call(c.values(x, -2, 3), c.values(w, -2, 3), loose=30, within=2e-5, **attrs)


@case("Conv3DBackpropInputV2")
def volumes_input(c):
    for x, w, y, attrs in volumes():
        yield Call(c.array(x, "Tshape"), c.values(w, -2, 3), c.values(y, -2, 3), loose=30, within=2e-5, **attrs)


@case("Conv3DBackpropFilterV2")
def volumes_filter(c):
    for x, w, y, attrs in volumes():
        yield Call(c.values(x, -2, 3), np.array(w, np.int32), c.values(y, -2, 3), loose=60, within=2e-5, **attrs)


@case("Conv3DBackpropInput")
def first_volumes_input(c):
    for x, w, y, attrs in volumes():
        yield Call(c.values(x, -2, 3), c.values(w, -2, 3), c.values(y, -2, 3), loose=30, within=2e-5, **attrs)


@case("Conv3DBackpropFilter")
def first_volumes_filter(c):
    for x, w, y, attrs in volumes():
        yield Call(c.values(x, -2, 3), c.values(w, -2, 3), c.values(y, -2, 3), loose=60, within=2e-5, **attrs)


# Images with one element of the batch: the peer reads others from wrong places.
PADDED = (
    ((1, 4, 5, 2), (2, 2, 2, 3), [[0, 0], [1, 2], [2, 0], [0, 0]], 1, "VALID"),
    ((1, 6, 3, 1), (3, 2, 1, 2), [[0, 0], [0, 0], [1, 1], [0, 0]], 2, "SAME"),
)


@special("FusedPadConv2D", "FusedResizeAndPadConv2D")
def padded(c):
    resizes = c.op == "FusedResizeAndPadConv2D"
    for x, w, paddings, stride, padding in PADDED:
        for mode in ("REFLECT", "SYMMETRIC"):
            for size, aligned in (((5, 6), False), ((3, 4), True)) if resizes else (((), False),):

                def make(probe, run, x=x, w=w, paddings=paddings, stride=stride, padding=padding, mode=mode, size=size, aligned=aligned):
                    feed = lambda shape: probe.feed(c.values(shape, -2, 3), True, probe.feeds)
                    inputs = [feed(x), *([probe.constant(np.array(size, np.int32))] if resizes else []), probe.constant(np.array(paddings, np.int32)), feed(w)]
                    attrs = dict(T=c.name("T"), mode=mode, strides=[1, stride, stride, 1], padding=padding)
                    probe.loose, probe.within = 60, 1e-4
                    probe.fetch(probe.node(c.op, "", inputs, **attrs, **(dict(resize_align_corners=aligned) if resizes else {})))

                yield make


@case("Conv")
def convolutions(c):
    for x, w, attrs in (
        ((2, 5, 6, 3), (2, 3, 3, 4), dict(strides=[1, 1, 1, 1], padding="VALID")),
        ((2, 5, 6, 3), (2, 3, 3, 4), dict(strides=[1, 2, 2, 1], padding="SAME")),
        ((1, 5, 6, 1), (3, 3, 1, 2), dict(strides=[1, 1, 1, 1], padding="EXPLICIT", explicit_paddings=[0, 0, 1, 0, 2, 1, 0, 0])),
        ((1, 7, 6, 2), (2, 2, 2, 2), dict(strides=[1, 1, 1, 1], padding="VALID", dilations=[1, 2, 2, 1])),
        ((2, 3, 5, 6, 3), (2, 3, 3, 4), dict(strides=[1, 1, 1, 1], padding="VALID", batch_dims=2)),
        ((5, 6, 3), (2, 3, 3, 4), dict(strides=[1, 1, 1, 1], padding="SAME", batch_dims=0)),
        ((1, 4, 5, 6, 2), (2, 2, 3, 2, 3), dict(strides=[1, 1, 1, 1, 1], padding="VALID")),
    ):
        if len(w) == 5 and c.name("T") == "int32":
            continue
        yield Call(c.values(x, -2, 3), c.values(w, -2, 3), loose=30, within=2e-5, **attrs)


# (Input, window, strides, padding).
POOLS_3D = (
    ((2, 4, 4, 6, 3), (2, 2, 2), (2, 2, 2), "VALID"),
    ((1, 3, 5, 5, 2), (2, 3, 2), (1, 2, 1), "SAME"),
    ((1, 4, 4, 4, 1), (1, 1, 1), (1, 1, 1), "VALID"),
    # Strides larger than the window.
    ((1, 5, 7, 3, 1), (2, 2, 2), (4, 5, 2), "SAME"),
)


def pools_3d():
    for x, window, strides, padding in POOLS_3D:
        attrs = dict(ksize=[1, *window, 1], strides=[1, *strides, 1], padding=padding)
        with tf.Graph().as_default():
            y = tf.raw_ops.MaxPool3D(input=np.zeros(x, np.float32), **attrs).shape.as_list()
        yield x, y, attrs


@case("MaxPool3D", "AvgPool3D")
def pool_3d(c):
    for x, _, attrs in pools_3d():
        yield Call(c.values(x, -3, 3), loose=2, **attrs)


@case("AvgPool3DGrad")
def average_3d_grad(c):
    for x, y, attrs in pools_3d():
        yield Call(np.array(x, np.int32), c.values(y), loose=4, **attrs)


@case("MaxPool3DGrad", "MaxPool3DGradGrad")
def max_3d_grad(c):
    for x, y, attrs in pools_3d():
        # Few distinct values, so that windows have ties.
        value = c.array(c.rng.integers(0, 9, x)) if c.op == "MaxPool3DGrad" else c.distinct(x)
        yield Call(value, pooled_3d(value, y, attrs), c.values(x if c.op == "MaxPool3DGradGrad" else y), loose=2, **attrs)


def pooled_3d(x, shape, attrs):
    """The maximum pool of a volume, computed with numpy."""
    ksize, strides = attrs["ksize"][1:4], attrs["strides"][1:4]
    before = [0, 0, 0]
    if attrs["padding"] == "SAME":
        before = [max(0, (shape[i + 1] - 1) * strides[i] + ksize[i] - x.shape[i + 1]) // 2 for i in range(3)]
    out = np.zeros(shape, x.dtype)
    for place in np.ndindex(*shape[1:4]):
        first = [place[i] * strides[i] - before[i] for i in range(3)]
        parts = tuple(slice(max(first[i], 0), first[i] + ksize[i]) for i in range(3))
        out[(slice(None), *place)] = x[(slice(None), *parts)].max(axis=(1, 2, 3))
    return out


def window_inputs(attrs):
    return np.array(attrs["ksize"], np.int32), np.array(attrs["strides"], np.int32), dict(padding=attrs["padding"])


@case("MaxPoolV2")
def max_v2(c):
    for x, _, attrs in pools(c):
        ksize, strides, attrs = window_inputs(attrs)
        yield Call(c.values(x, -3, 3), ksize, strides, **attrs)


@case("MaxPoolGradV2", "MaxPoolGradGradV2")
def max_grad_v2(c):
    for x, y, attrs in pools(c):
        value = c.distinct(x)
        out = pooled(value, y, attrs)
        ksize, strides, attrs = window_inputs(attrs)
        yield Call(value, out, c.values(x if c.op == "MaxPoolGradGradV2" else y), ksize, strides, **attrs)


@case("MaxPoolWithArgmax")
def with_argmax(c):
    for x, _, attrs in pools(c):
        for in_batch in (False, True) if all(x) else ():
            yield Call(c.distinct(x), include_batch_in_index=in_batch, **attrs)


@case("MaxPoolGradWithArgmax")
def argmax_grad(c):
    for x, y, attrs in pools(c):
        for in_batch in (False, True):
            size = int(np.prod(x if in_batch else x[1:]))
            at = c.rng.integers(0, max(size, 1), y).astype(c.dtype("Targmax"))
            yield Call(c.values(x), c.values(y), at, include_batch_in_index=in_batch, **attrs)


@case("FractionalMaxPool", "FractionalAvgPool")
def fractional(c):
    for x, rows, columns in (((2, 5, 7, 2), 1.44, 1.73), ((1, 10, 9, 3), 1.3, 2.7), ((1, 6, 6, 1), 2.0, 1.0)):
        for pseudo in (False, True):
            for overlapping in (False, True):
                yield Call(c.values(x), pooling_ratio=[1.0, rows, columns, 1.0], pseudo_random=pseudo, overlapping=overlapping,
                           deterministic=True, seed=5, seed2=7, steps=2)


ROWS, COLUMNS = np.array([0, 2, 3, 5], np.int64), np.array([0, 1, 3, 5, 7], np.int64)


@case("FractionalMaxPoolGrad")
def fractional_max_grad(c):
    for overlapping in (False, True):
        x = c.distinct((2, 5, 7, 2))
        reach = int(overlapping)
        out = np.stack([np.stack([x[:, a:b + reach, d:e + reach].max(axis=(1, 2)) for d, e in zip(COLUMNS, COLUMNS[1:])], 1)
                        for a, b in zip(ROWS, ROWS[1:])], 1)
        yield Call(x, out, c.values(out.shape), ROWS, COLUMNS, overlapping=overlapping)


@case("FractionalAvgPoolGrad")
def fractional_mean_grad(c):
    for overlapping in (False, True):
        yield Call(np.array([2, 5, 7, 2], np.int64), c.values((2, 3, 4, 2)), ROWS, COLUMNS, overlapping=overlapping)


# (Input, filter, strides, rates, padding).
DILATIONS = (
    ((2, 5, 6, 3), (3, 2, 3), (1, 2), (1, 1), "SAME"),
    ((1, 7, 7, 2), (3, 3, 2), (2, 1), (2, 3), "VALID"),
    ((2, 4, 5, 1), (1, 1, 1), (3, 3), (1, 1), "SAME"),
    ((1, 4, 4, 2), (3, 2, 2), (1, 1), (2, 2), "SAME"),
)


def dilations():
    for x, w, strides, rates, padding in DILATIONS:
        attrs = dict(strides=[1, *strides, 1], rates=[1, *rates, 1], padding=padding)
        with tf.Graph().as_default():
            y = tf.raw_ops.Dilation2D(input=np.zeros(x, np.float32), filter=np.zeros(w, np.float32), **attrs)
        yield x, w, y.shape.as_list(), attrs


@case("Dilation2D")
def dilated(c):
    for x, w, _, attrs in dilations():
        yield Call(c.values(x), c.values(w), **attrs)
    yield Call(c.whole((1, 3, 3, 1)), c.whole((2, 2, 1)), strides=[1] * 4, rates=[1] * 4, padding="VALID")


@case("Dilation2DBackpropInput", "Dilation2DBackpropFilter")
def dilated_back(c):
    for x, w, y, attrs in dilations():
        yield Call(c.values(x), c.values(w), c.values(y), loose=10, **attrs)
    # If all elements of a window are the smallest number, the gradient goes to the first.
    least = np.full((1, 3, 3, 1), -np.inf, c.dtype()) if c.is_float() else c.values((1, 3, 3, 1))
    yield Call(least, c.values((2, 2, 1)), c.values((1, 3, 3, 1)), strides=[1] * 4, rates=[1] * 4, padding="SAME")
