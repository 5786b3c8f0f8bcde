"""Uniformly quantized values, with scales and zero points."""
import numpy as np
from tensorflow.core.util.quantization import uniform_quant_ops_attr_pb2

from . import QUANTIZED, Call, case

F, I = np.float32, np.int32
PAIRS = ((0.05, 3), (0.1, -7), (0.3, 0), (1.0, 0))


def bounds(c, attr, prefix="", axis=-1):
    """The attributes of a tensor whose type is in `attr`."""
    info = np.iinfo(QUANTIZED[c.name(attr)])
    return {f"{prefix}quantization_{k}": int(v) for k, v in (("min_val", info.min), ("max_val", info.max), ("axis", axis))}


def scales(c, count):
    return c.rng.uniform(0.01, 0.2, count).astype(F), c.rng.integers(0, 9, count).astype(I)


@case("UniformQuantize")
def quantize(c):
    special = np.array([np.nan, np.inf, -np.inf, 0.25, -0.25, 0.75, 1e30, 0.0], F)
    for scale, zero in PAIRS:
        zero = abs(zero) if c.name("Tout") == "quint8" else zero
        yield Call(c.values((50,), -9, 9, "float"), F(scale), I(zero), exact=True, **bounds(c, "Tout"))
        yield Call(special, F(scale), I(zero), exact=True, **bounds(c, "Tout"))
        yield Call(c.values((50,), -9, 9, "float"), F(scale), I(zero), quantization_min_val=5, quantization_max_val=90)
    yield Call(c.values((2, 3, 4), -9, 9, "float"), *scales(c, 3), exact=True, **bounds(c, "Tout", axis=1))


@case("UniformDequantize")
def dequantize(c):
    for scale, zero in PAIRS:
        yield Call(c.whole((50,), "Tin"), F(scale), I(abs(zero)), exact=True, **bounds(c, "Tin"))
    yield Call(c.whole((2, 3, 4), "Tin"), *scales(c, 3), exact=True, **bounds(c, "Tin", axis=1))
    yield Call(c.whole((0, 3), "Tin"), *scales(c, 3), **bounds(c, "Tin", axis=1))


@case("UniformRequantize")
def requantize(c):
    factor = 1e-7 if c.name("Tin") == "qint32" else 1
    both = lambda *axes: bounds(c, "Tin", "input_", axes[0]) | bounds(c, "Tout", "output_", axes[1])
    for scale, zero in PAIRS:
        for new in (0.1, 0.07):
            yield Call(c.whole((50,), "Tin"), F(scale * factor), I(zero), F(new), I(-5), exact=True, **both(-1, -1))
    some, others = scales(c, 3), scales(c, 3)
    yield Call(c.whole((2, 3, 4), "Tin"), some[0] * F(factor), some[1], *others, exact=True, **both(1, 1))
    yield Call(c.whole((2, 3, 4), "Tin"), some[0] * F(factor), some[1], F(0.1), I(2), exact=True, **both(1, -1))
    yield Call(c.whole((2, 3, 4), "Tin"), F(0.1 * factor), I(2), *others, exact=True, **both(-1, 1))


def of_sum(c, *axes):
    return {k: v for p, axis in zip(("lhs_", "rhs_", "output_"), axes) for k, v in bounds(c, "T", p, axis).items()}


@case("UniformQuantizedAdd")
def add(c):
    for (s, z), (t, y), (u, x) in (((1.5, 3), (0.7, -2), (2.3, 5)), ((1, 0), (1, 0), (1, 0)), ((1, 3), (1, 3), (1, 3)), ((1.5, 3), (0.7, -2), (0.011, 5))):
        for most in (1000, 1 << 24, 1 << 29):
            for shapes in (((4, 5), (4, 5)), ((4, 5), (5,)), ((4, 1), (1, 5))):
                values = [c.values(shape, -most, most) for shape in shapes]
                yield Call(*values, F(s), I(z), F(t), I(y), F(u), I(x), exact=True, **of_sum(c, -1, -1, -1))
    yield Call(c.values((4, 3), -1000, 1000), c.values((4, 3), -1000, 1000), *scales(c, 3), *scales(c, 3), *scales(c, 3), exact=True, **of_sum(c, 1, 1, 1))
    yield Call(c.values((4, 3), -1000, 1000), c.values((3,), -1000, 1000), *scales(c, 3), *scales(c, 3), *scales(c, 3), exact=True, **of_sum(c, 1, 0, 1))


@case("UniformQuantizedClipByValue")
def clip(c):
    yield Call(c.values((4, 5), -50, 50), I(-20), I(30), F(1), I(0), **bounds(c, "T"))
    low, high = np.array([-20, 0, 1], I), np.array([30, 4, 5], I)
    yield Call(c.values((2, 3, 4), -50, 50), low, high, *scales(c, 3), **bounds(c, "T", axis=1))


def of_product(c, *axes):
    names = ("Tin", "Tin", "Tout")
    return {k: v for p, attr, axis in zip(("lhs_", "rhs_", "output_"), names, axes) for k, v in bounds(c, attr, p, axis).items()}


@case("UniformQuantizedDot")
def dot(c):
    for zeros, scale in (((3, -2, 5), 0.01), ((0, 0, 0), 3e-4), ((-5, 0, 1), 0.5)):
        pairs = [F(0.05), I(zeros[0]), F(0.02), I(zeros[1]), F(scale), I(zeros[2])]
        yield Call(c.whole((5, 7), "Tin"), c.whole((7, 6), "Tin"), *pairs, exact=True, **of_product(c, -1, -1, -1))
    of_rhs, of_out = scales(c, 6), scales(c, 6)
    yield Call(c.whole((5, 7), "Tin"), c.whole((7, 6), "Tin"), F(0.05), I(1), *of_rhs, F(0.1), I(2), exact=True, **of_product(c, -1, 1, -1))
    yield Call(c.whole((5, 7), "Tin"), c.whole((7, 6), "Tin"), F(0.05), I(1), *of_rhs, *of_out, exact=True, **of_product(c, -1, 1, 1))


@case("UniformQuantizedDotHybrid")
def hybrid_dot(c):
    for low, high in ((-3, 4), (1, 2), (-2, -1)):
        yield Call(c.values((5, 7), low, high, "Tlhs"), c.whole((7, 6), "Trhs"), F(0.05), I(3), **bounds(c, "Trhs", "rhs_"))
    yield Call(c.values((5, 7), -3, 4, "Tlhs"), c.whole((7, 6), "Trhs"), *scales(c, 6), **bounds(c, "Trhs", "rhs_", 1))
    yield Call(np.zeros((2, 3), F), c.whole((3, 2), "Trhs"), F(0.05), I(3), **bounds(c, "Trhs", "rhs_"))


def numbers(lhs, rhs, out):
    """The serialized order of axes, each given as two axes and the spatial ones."""
    return uniform_quant_ops_attr_pb2.UniformQuantizedConvolutionDimensionNumbersAttr(
        input_batch_dimension=lhs[0], input_feature_dimension=lhs[1], input_spatial_dimensions=lhs[2:],
        kernel_output_feature_dimension=rhs[0], kernel_input_feature_dimension=rhs[1], kernel_spatial_dimensions=rhs[2:],
        output_batch_dimension=out[0], output_feature_dimension=out[1], output_spatial_dimensions=out[2:],
    ).SerializeToString()


LAST = numbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
CONVOLUTIONS = (
    ((2, 2, 4, 5), (3, 2, 2, 3), dict(padding="VALID")),
    ((2, 2, 4, 5), (3, 2, 2, 3), dict(padding="SAME", window_strides=[2, 2])),
    ((2, 2, 4, 5), (3, 2, 2, 3), dict(padding="EXPLICIT", explicit_padding=[1, 2, 0, 1], window_strides=[2, 1], lhs_dilation=[2, 1], rhs_dilation=[1, 2])),
    ((2, 4, 4, 5), (6, 2, 2, 3), dict(padding="SAME", feature_group_count=2)),
    ((4, 2, 4, 5), (6, 2, 2, 3), dict(padding="VALID", batch_group_count=2)),
    ((2, 4, 5, 2), (2, 3, 2, 3), dict(padding="VALID", dimension_numbers=LAST)),
    ((2, 2, 9), (3, 2, 4), dict(padding="SAME")),
    ((1, 2, 3, 4, 5), (3, 2, 2, 2, 2), dict(padding="VALID", window_strides=[1, 2, 1])),
)


@case("UniformQuantizedConvolution")
def convolution(c):
    for lhs, rhs, attrs in CONVOLUTIONS:
        for zeros in ((3, -2, 7), (0, 0, 0)):
            pairs = [F(0.05), I(zeros[0]), F(0.02), I(zeros[1]), F(0.003), I(zeros[2])]
            yield Call(c.whole(lhs, "Tin"), c.whole(rhs, "Tin"), *pairs, exact=True, **attrs, **of_product(c, -1, -1, -1))
    lhs, rhs, attrs = CONVOLUTIONS[0]
    yield Call(c.whole(lhs, "Tin"), c.whole(rhs, "Tin"), F(0.05), I(1), *scales(c, 3), F(0.1), I(2), exact=True, **attrs, **of_product(c, -1, 0, -1))
    yield Call(c.whole(lhs, "Tin"), c.whole(rhs, "Tin"), F(0.05), I(1), *scales(c, 3), *scales(c, 3), exact=True, **attrs, **of_product(c, -1, 0, 1))


@case("UniformQuantizedConvolutionHybrid")
def hybrid_convolution(c):
    for lhs, rhs, attrs in CONVOLUTIONS:
        yield Call(c.values(lhs, -3, 4, "Tlhs"), c.whole(rhs, "Trhs"), F(0.05), I(3), **attrs, **bounds(c, "Trhs", "rhs_"))
    lhs, rhs, attrs = CONVOLUTIONS[0]
    yield Call(c.values(lhs, -3, 4, "Tlhs"), c.whole(rhs, "Trhs"), *scales(c, 3), **attrs, **bounds(c, "Trhs", "rhs_", 0))
