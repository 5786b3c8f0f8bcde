"""Batch normalisation and local response normalisation."""
import numpy as np

from . import Call, case

NONE = np.zeros(0, np.float32)


def moved(x, data_format):
    return np.moveaxis(x, -1, 1) if data_format.startswith("NC") else x


def batches(c):
    """Yields images with the attributes for their format."""
    yield c.values((2, 4, 3, 5), -2, 3), dict()
    yield c.values((3, 2, 2, 1), -2, 3), dict(epsilon=0.1)
    yield moved(c.values((2, 3, 4, 2), -2, 3), "NCHW"), dict(data_format="NCHW")
    yield c.values((1, 1, 1, 4), -2, 3), dict()
    if c.op.endswith("V3"):
        yield c.values((2, 2, 3, 2, 3), -2, 3), dict(data_format="NDHWC")
        yield moved(c.values((2, 2, 3, 2, 3), -2, 3), "NCDHW"), dict(data_format="NCDHW")


def channels(x, attrs):
    return x.shape[1 if attrs.get("data_format", "NHWC").startswith("NC") else -1]


@case("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def batch_norm(c):
    for x, attrs in batches(c):
        n = channels(x, attrs)
        vector = lambda low, high: c.values((n,), low, high, "float")
        yield Call(x, vector(-2, 2), vector(-2, 2), NONE, NONE, loose=20, within=2e-5, **attrs)
        yield Call(x, vector(-2, 2), vector(-2, 2), vector(-1, 1), vector(0.5, 2), is_training=False, loose=20, within=2e-5, unset=(3, 4), **attrs)
        yield Call(x, vector(-2, 2), vector(-2, 2), vector(-1, 1), vector(0.5, 2), exponential_avg_factor=0.25, loose=20, within=2e-5, **attrs)


@case("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")
def batch_norm_grad(c):
    for x, attrs in batches(c):
        n = channels(x, attrs)
        vector = lambda low, high: c.values((n,), low, high, "float")
        more = [NONE] if c.op.endswith("V3") else []
        for training in (True, False):
            if not training and attrs.get("data_format", "NHWC").startswith("NC"):
                continue
            yield Call(c.values(x.shape), x, vector(-2, 2), vector(-1, 1), vector(0.5, 2), *more, is_training=training, loose=40, within=2e-5, **attrs)


LOCAL = (dict(), dict(depth_radius=1, bias=2.0, alpha=0.5, beta=0.75), dict(depth_radius=3, alpha=0.2, beta=1.0), dict(beta=0.3, depth_radius=2))


@case("LRN")
def local(c):
    for attrs in LOCAL:
        yield Call(c.values((2, 3, 2, 9), -2, 3), loose=10, **attrs)
    yield Call(c.values((0, 3, 2, 9)))


@case("LRNGrad")
def local_grad(c):
    for attrs in LOCAL:
        x = c.values((2, 3, 2, 9), 0.5, 3, "float")
        r, bias, alpha, beta = (attrs.get(k, v) for k, v in (("depth_radius", 5), ("bias", 1.0), ("alpha", 1.0), ("beta", 0.5)))
        norm = np.stack([(x[..., max(0, i - r):i + r + 1] ** 2).sum(-1) for i in range(9)], -1) * alpha + bias
        yield Call(c.values(x.shape, -2, 3), x.astype(c.dtype()), (x * norm ** -beta).astype(c.dtype()), loose=20, within=2e-5, **attrs)


@case("BatchNormWithGlobalNormalization")
def global_norm(c):
    for scaled in (False, True):
        vector = lambda low, high: c.values((4,), low, high)
        yield Call(c.values((2, 3, 2, 4), -2, 3), vector(-1, 1), vector(0.5, 2), vector(-1, 1), vector(-1, 1),
                   variance_epsilon=0.01, scale_after_normalization=scaled, loose=10)


@case("BatchNormWithGlobalNormalizationGrad")
def global_norm_grad(c):
    for scaled in (False, True):
        vector = lambda low, high: c.values((4,), low, high)
        yield Call(c.values((2, 3, 2, 4), -2, 3), vector(-1, 1), vector(0.5, 2), vector(-1, 1), c.values((2, 3, 2, 4), -2, 3),
                   variance_epsilon=0.01, scale_after_normalization=scaled, loose=20, within=2e-5)
