"""Quantized values, whose ranges are tensors of their own."""
import numpy as np

from . import Call, case

F = np.float32
RANGES = ((-1.5, 2.25), (0, 3.3), (-7.1, 0), (-0.37, 0.91), (-1, 1), (1, 2), (-2, -1))


def ends(at):
    low, high = RANGES[at % len(RANGES)]
    return F(low), F(high)


@case("QuantizeV2")
def quantize(c):
    for at, (low, high) in enumerate(RANGES):
        for attrs in (dict(), dict(mode="MIN_FIRST"), dict(mode="SCALED"), dict(mode="SCALED", narrow_range=True, round_mode="HALF_TO_EVEN")):
            yield Call(c.values((40,), 1.5 * low, 1.5 * high, "float"), F(low), F(high), exact=True, **attrs)
    for mode in ("MIN_COMBINED", "MIN_FIRST", "SCALED"):
        special = np.array([np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 1e-30, 0.5], F)
        yield Call(special, F(-2), F(2), mode=mode, exact=True)
        yield Call(c.values((3,), 0, 1, "float"), F(0.5), F(0.5), mode=mode, exact=True, ensure_minimum_range=0.1)
        yield Call(c.values((3, 0), attr="float"), F(0), F(1), mode=mode)
    lows, highs = np.array([-1, -2, 0], F), np.array([1, 3, 0.5], F)
    for mode in ("MIN_COMBINED", "SCALED"):
        yield Call(c.values((2, 3, 4), -2, 3, "float"), lows, highs, mode=mode, axis=1, exact=True)
        yield Call(c.values((2, 3), -2, 3, "float"), lows, highs, mode=mode, axis=1, narrow_range=True, exact=True)


@case("Dequantize")
def dequantize(c):
    modes = ("MIN_COMBINED", "MIN_FIRST", "SCALED") if c.name("dtype") == "float" else ("MIN_COMBINED",)
    for at in range(len(RANGES)):
        for mode in modes:
            yield Call(c.whole((40,)), *ends(at), mode=mode, exact=True)
            yield Call(c.whole((3, 4)), *ends(at), mode=mode, narrow_range=True, exact=True)
    lows, highs = np.array([-1, -2, 0], F), np.array([1, 3, 0.5], F)
    for mode in modes:
        if mode != "MIN_FIRST":
            yield Call(c.whole((2, 3, 4)), lows, highs, mode=mode, axis=1, exact=True)
    info = np.iinfo(c.dtype())
    for mode in modes:
        yield Call(c.array([info.min, info.max, 0, 1]), F(-2), F(2), mode=mode, exact=True)
        yield Call(c.whole((0, 2)), F(-2), F(2), mode=mode)


@case("QuantizeDownAndShrinkRange", "RequantizationRange")
def shrink(c):
    for at in range(len(RANGES)):
        yield Call(c.whole((5, 10), "Tinput"), *ends(at), exact=True)
        yield Call(c.values((50,), -10000, 10000, "Tinput"), *ends(at), exact=True)
        yield Call(c.values((50,), 0, 1 << 20, "Tinput"), *ends(at), exact=True)
    yield Call(c.array([5], "Tinput"), F(-1), F(1), exact=True)


@case("Requantize")
def requantize(c):
    for at in range(len(RANGES)):
        for other in ((-1, 2), (0, 0.001), (-5, 0)):
            yield Call(c.whole((5, 10), "Tinput"), *ends(at), F(other[0]), F(other[1]), exact=True)
            yield Call(c.values((50,), -10000, 10000, "Tinput"), *ends(at), F(other[0]), F(other[1]), exact=True)


LOWS, HIGHS = np.array([-1, -2, -0.5], F), np.array([1, 1.5, 3], F)


@case("RequantizePerChannel")
def requantize_channels(c):
    for low, high in ((-1, 1.5), (-3, 1), (-0.3, 1.7)):
        yield Call(c.whole((2, 3, 4, 3)), LOWS, HIGHS, F(low), F(high), exact=True)


@case("RequantizationRangePerChannel")
def range_of_channels(c):
    for limit in (1.0, 100.0):
        yield Call(c.whole((2, 3, 4, 3)), LOWS, HIGHS, clip_value_max=limit, exact=True)
        yield Call(c.values((1, 2, 2, 3), 0, 1 << 30), LOWS, HIGHS, clip_value_max=limit, exact=True)


@case("QuantizedConcat")
def concat(c):
    for at in range(len(RANGES)):
        for axis, shapes in ((1, ((2, 3), (2, 4), (2, 1))), (0, ((20,), (1,), (5,))), (2, ((1, 2, 3), (1, 2, 3)))):
            chosen = [ends(at + i) for i in range(len(shapes))]
            yield Call(np.int32(axis), [c.whole(s) for s in shapes], [low for low, _ in chosen], [high for _, high in chosen], exact=True)
    yield Call(np.int32(0), [c.whole((3,)), c.whole((2,))], [F(0), F(0)], [F(2), F(2)], exact=True)


@case("QuantizedReshape")
def reshape(c):
    sizes = np.int32 if c.name("Tshape") == "int32" else np.int64
    for shape in ((4, 6), (-1,), (2, 3, 4)):
        yield Call(c.whole((2, 12)), np.array(shape, sizes), F(-1), F(2))


@case("QuantizedAdd", "QuantizedMul")
def pairs(c):
    for at in range(len(RANGES)):
        for first, second in (((3, 4), (3, 4)), ((3, 4), ()), ((), (3, 4)), ((3, 4), (4,)), ((4,), (2, 3, 4)), ((1,), (3, 4)), ((40,), (40,))):
            yield Call(c.whole(first, "T1"), c.whole(second, "T2"), *ends(at), *ends(at + 2), exact=True)
    yield Call(c.whole((), "T1"), c.whole((), "T2"), F(-1), F(2), F(0), F(3), exact=True)


@case("QuantizedBiasAdd")
def bias(c):
    for at in range(len(RANGES)):
        yield Call(c.whole((2, 3, 4), "T1"), c.whole((4,), "T2"), *ends(at), *ends(at + 3), exact=True)
        yield Call(c.whole((1, 50), "T1"), c.whole((50,), "T2"), *ends(at), *ends(at + 3), exact=True)


@case("QuantizedRelu", "QuantizedRelu6")
def rectify(c):
    for at in range(len(RANGES)):
        yield Call(c.whole((5, 10), "Tinput"), *ends(at), exact=True)
    yield Call(c.whole((5, 10), "Tinput"), F(-10), F(30), exact=True)
    yield Call(c.whole((0, 3), "Tinput"), F(-10), F(30))


@case("QuantizedMatMul")
def matmul(c):
    for at, (ta, tb) in enumerate(((False, False), (True, False), (False, True), (True, True))):
        for more in (0, 2, 4):
            a, b = ((7, 5) if ta else (5, 7)), ((6, 7) if tb else (7, 6))
            yield Call(c.whole(a, "T1"), c.whole(b, "T2"), *ends(at + more), *ends(at + 3), transpose_a=ta, transpose_b=tb, exact=True)
    yield Call(c.whole((1, 300), "T1"), c.whole((300, 1), "T2"), F(0), F(1), F(0), F(1), exact=True)


@case("QuantizedConv2D")
def convolution(c):
    for at in range(len(RANGES)):
        for padding in ("SAME", "VALID"):
            for stride in (1, 2):
                yield Call(
                    c.whole((2, 5, 6, 3), "Tinput"), c.whole((3, 2, 3, 4), "Tfilter"), *ends(at), *ends(at + 2),
                    strides=[1, stride, stride, 1], padding=padding, exact=True,
                )


@case("QuantizedMaxPool", "QuantizedAvgPool")
def pools(c):
    for padding in ("SAME", "VALID"):
        for size, stride in (((2, 3), (2, 2)), ((1, 1), (1, 1)), ((3, 3), (1, 2))):
            for shape in ((1, 4, 5, 2), (2, 6, 5, 33)):
                yield Call(
                    c.whole(shape), F(-1), F(2), ksize=[1, *size, 1], strides=[1, *stride, 1], padding=padding, exact=True,
                )


@case("QuantizedInstanceNorm")
def instances(c):
    for low, high in ((-1, 2), (0, 5)):
        for attrs in (dict(), dict(output_range_given=True, given_y_min=-1.5, given_y_max=2.0), dict(min_separation=10.0), dict(variance_epsilon=0.5)):
            yield Call(c.whole((2, 3, 4, 2)), F(low), F(high), **attrs)


@case("QuantizedBatchNormWithGlobalNormalization")
def batches(c):
    for at in range(4):
        for scales in (False, True):
            vector = lambda low, high: (c.whole((5,), "Tinput"), F(low), F(high))
            yield Call(
                c.whole((2, 3, 4, 5), "Tinput"), *ends(at), *vector(-1, 1), *vector(0.1, 3), *vector(-2, 2), *vector(0.5, 4),
                variance_epsilon=0.001, scale_after_normalization=scales, exact=True,
            )


@case("QuantizedResizeBilinear")
def resize(c):
    for align, centers in ((False, False), (True, False), (False, True)):
        for shape, size in (((1, 3, 4, 1), (6, 7)), ((2, 9, 7, 3), (13, 18)), ((1, 6, 8, 2), (3, 4)), ((1, 5, 4, 3), (5, 4))):
            images = c.values(shape, -3, 3) if c.is_float() else c.whole(shape)
            yield Call(images, np.array(size, np.int32), F(-1.5), F(2.25), align_corners=align, half_pixel_centers=centers)


@case("QuantizeAndDequantize")
def old_round_trip(c):
    for attrs in (dict(), dict(range_given=True, input_min=-3.0, input_max=4.0), dict(signed_input=False, num_bits=5, range_given=True, input_min=0.0, input_max=5.0), dict(num_bits=4)):
        yield Call(c.values((4, 3, 5)), **attrs)
