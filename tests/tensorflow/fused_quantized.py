"""Compares the fused ops of quantized values on our server (`--target`) with TensorFlow's, which oneDNN computes: run it with
TF_ENABLE_ONEDNN_OPTS=1. Where the processor lacks AVX-512 VNNI, TensorFlow has no kernels, and our values are compared with
those that are computed here in double precision."""
import argparse
import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import op_def_registry

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from differential import first_line  # noqa: E402
from probe import quantized  # noqa: E402

tf.disable_v2_behavior()
F = np.float32
STORED = {tf.quint8: np.uint8, tf.qint8: np.int8, tf.qint32: np.int32, tf.float32: np.float32}


class Use:
    """One use of an op: its inputs as pairs of type and array, its attributes, the numbers that the output stands for, and
    whether TensorFlow computes it."""

    def __init__(self, op, inputs, attrs, expected, compared=True):
        self.op, self.inputs, self.attrs, self.expected, self.compared = op, inputs, attrs, expected, compared

    def run(self, target):
        """Returns the outputs as arrays of integers, or the error."""
        with tf.Graph().as_default():
            feeds, given = {}, {}
            for arg, (dtype, value) in zip(op_def_registry.get(self.op).input_arg, self.inputs, strict=True):
                if arg.name in ("filter", "b"):
                    # oneDNN's kernels need a constant filter.
                    given[arg.name] = tf.constant(quantized(value, dtype)) if dtype.is_quantized else tf.constant(value)
                    continue
                # Some shape functions require scalars where the kernels take vectors.
                fed = tf.placeholder(STORED[dtype], value.shape if value.ndim != 1 or arg.name == "bias" else None)
                feeds[fed] = value
                given[arg.name] = tf.bitcast(fed, dtype) if dtype.is_quantized else fed
                if arg.name == "summand" and dtype == tf.quint8:
                    # TensorFlow's kernel writes into the summand's memory, which must belong to another op.
                    numbers = tf.cast(fed, tf.float32) * F(4 / 255)
                    given[arg.name] = tf.raw_ops.QuantizeV2(input=numbers, min_range=F(0), max_range=F(4), T=tf.quint8).output
            made = getattr(tf.raw_ops, self.op)(**given, **self.attrs)
            parts = [made] if isinstance(made, tf.Tensor) else list(made)
            parts = [tf.bitcast(part, STORED[part.dtype]) if part.dtype.is_quantized else part for part in parts]
            with tf.Session(target) as session:
                try:
                    return session.run(parts, feeds)
                except tf.errors.OpError as error:
                    return error


def convolved(images, filters, strides, dilations, padding, is_depthwise):
    """Returns the sums of a convolution. `padding`: SAME, VALID, or the numbers of rows and columns around the images."""
    _, height, width, _ = images.shape
    rows, columns, _, _ = filters.shape
    reach = [(rows - 1) * dilations[0] + 1, (columns - 1) * dilations[1] + 1]
    if padding == "SAME":
        counts = [-(-height // strides[0]), -(-width // strides[1])]
        missing = [max(0, (n - 1) * s + r - size) for n, s, r, size in zip(counts, strides, reach, (height, width))]
        padding = [(m // 2, m - m // 2) for m in missing]
    elif padding == "VALID":
        padding = [(0, 0), (0, 0)]
    images = np.pad(images.astype(np.int64), ((0, 0), *padding, (0, 0)))
    high, wide = ((images.shape[axis + 1] - reach[axis]) // strides[axis] + 1 for axis in range(2))
    total = 0
    for i in range(rows):
        for j in range(columns):
            y, x = i * dilations[0], j * dilations[1]
            seen = images[:, y:y + (high - 1) * strides[0] + 1:strides[0], x:x + (wide - 1) * strides[1] + 1:strides[1]]
            taps = filters[i, j].astype(np.int64)
            total = total + ((seen[..., None] * taps).reshape(*seen.shape[:3], -1) if is_depthwise else seen @ taps)
    return total


def magnitude(ends):
    return np.maximum(np.abs(np.asarray(ends[0], np.float64)), np.abs(np.asarray(ends[1], np.float64)))


def rounded(numbers, one, dtype):
    info = np.iinfo(STORED[dtype])
    return np.clip(np.rint(numbers / one), info.min, info.max)


FILTER_RANGES = ((F(-1.2), F(0.9)), (np.array([-1, -2, -3, -0.5], F), np.array([1, 0.5, 2, 1], F)), (F(-0.3), F(0.7)))
INPUT_RANGES = ((F(-0.5), F(3.3)), (F(0), F(6)), (F(-2), F(1)))
OUTPUT_RANGES = ((F(-7), F(9)), (F(0), F(30)), (F(-90), F(20)))
WINDOWS = (
    dict(strides=[1, 1, 1, 1], padding="SAME"),
    dict(strides=[1, 2, 2, 1], padding="VALID"),
    dict(strides=[1, 2, 1, 1], padding="SAME"),
    dict(strides=[1, 1, 1, 1], padding="SAME", dilations=[1, 2, 2, 1]),
    dict(strides=[1, 1, 1, 1], padding="VALID", padding_list=[0, 0, 1, 1, 1, 0, 0, 0]),
)


def convolutions(op, rng):
    definition = op_def_registry.get(op)
    names = [a.name for a in definition.input_arg]
    has_attr = {a.name for a in definition.attr}
    is_depthwise = "Depthwise" in op
    is_float_sum, is_signed = "SumAndRelu" in op and "summand" in names and "min_summand" not in names, "SignedSum" in op
    out = tf.as_dtype(next(a for a in definition.attr if a.name == "out_type").default_value.type)
    plain = {"QuantizedConv2D", "QuantizedConv2DPerChannel"} | {n for n in (op,) if "Bias" not in n} | {n for n in (op,) if is_depthwise or "summand" in names}
    inputs = (tf.quint8,) if op in plain else (tf.quint8, tf.qint8)
    for number, window in enumerate(WINDOWS):
        if "padding_list" in window and "padding_list" not in has_attr:
            continue
        for kind in inputs:
            for bias_type in (tf.float32, tf.qint32) if "Tbias" in has_attr else (tf.float32,):
                low = 0 if kind == tf.quint8 else -128
                images = rng.integers(low, low + 256, (2, 5, 6, 3)).astype(STORED[kind])
                filters = rng.integers(-127, 128, (3, 2, 3, 2 if is_depthwise else 4)).astype(np.int8)
                channels = 6 if is_depthwise else 4
                input_range, filter_range = INPUT_RANGES[number % 3], FILTER_RANGES[number % 3]
                if is_depthwise and np.ndim(filter_range[0]):
                    filter_range = FILTER_RANGES[0]
                output_range = OUTPUT_RANGES[(number + 1) % 3] if is_signed else OUTPUT_RANGES[number % 3]
                around = window.get("padding_list")
                padding = [(around[2], around[3]), (around[4], around[5])] if around else window["padding"]
                dilations = window.get("dilations", [1, 1, 1, 1])
                sums = convolved(images, filters, window["strides"][1:3], dilations[1:3], padding, is_depthwise)
                one = magnitude(input_range) / (255 if kind == tf.quint8 else 127) * magnitude(filter_range) / 127
                numbers = sums * one
                given = {"input": (kind, images), "filter": (tf.qint8, filters)}
                if "bias" in names:
                    if bias_type == tf.float32:
                        bias = rng.uniform(-4, 4, channels).astype(F)
                        numbers = numbers + bias
                    else:
                        bias = rng.integers(-30000, 30000, channels).astype(np.int32)
                        numbers = numbers + bias * one
                    given["bias"] = bias_type, bias
                if is_float_sum:
                    summand = rng.uniform(-5, 5, sums.shape).astype(F)
                    given["summand"] = tf.float32, summand
                    numbers = numbers + summand
                elif "summand" in names:
                    summand_type = tf.qint8 if is_signed else tf.quint8
                    low = -128 if is_signed else 0
                    summand = rng.integers(low, low + 256, sums.shape).astype(STORED[summand_type])
                    given["summand"] = summand_type, summand
                    given["min_summand"], given["max_summand"] = ((tf.float32, F(v)) for v in ((-4, 4) if is_signed else (0, 4)))
                    numbers = numbers + summand * 4.0 / (127 if is_signed else 255)
                if "Relu" in op:
                    numbers = np.maximum(numbers, 0)
                for name, ends in (("input", input_range), ("filter", filter_range), ("freezed_output", output_range)):
                    for prefix, end in zip(("min_", "max_"), ends):
                        if prefix + name in names:
                            given[prefix + name] = tf.float32, end
                if out == tf.qint32:
                    low, high = np.min(filter_range[0]), np.max(filter_range[1])
                    level = magnitude(input_range) / (255 if kind == tf.quint8 else 127) * magnitude((low, high)) / 127
                else:
                    level = magnitude(output_range) / (255 if out == tf.quint8 else 127)
                attrs = {k: v for k, v in {"out_type": out, **window}.items() if k in has_attr}
                # TensorFlow's process ends at a sum of floats, and its kernel of signed sums rounds to 7 bits.
                yield Use(op, [given[n] for n in names], attrs, rounded(numbers, level, out), not is_float_sum and not is_signed)


def products(op, rng):
    definition = op_def_registry.get(op)
    names = [a.name for a in definition.input_arg]
    has_attr = {a.name for a in definition.attr}
    out = tf.float32 if "Dequantize" in op else tf.quint8 if "Requantize" in op else tf.qint32
    for number, (mode, input_range) in enumerate((m, r) for m in ("MIN_FIRST", "SCALED") for r in INPUT_RANGES):
        for bias_type in (tf.float32, tf.qint32) if "Tbias" in has_attr else (tf.float32,):
            for flips in ((False, False), (True, False), (False, True), (True, True)):
                a = rng.integers(0, 256, (7, 5) if flips[0] else (5, 7)).astype(np.uint8)
                b = rng.integers(-127, 128, (4, 7) if flips[1] else (7, 4)).astype(np.int8)
                filter_range, output_range = (F(-1.2), F(0.9)), OUTPUT_RANGES[number % 3]
                is_offset = mode == "MIN_FIRST"
                span = float(input_range[1]) - float(input_range[0]) if is_offset else magnitude(input_range)
                scales = span / 255, magnitude(filter_range) / 127
                left, right = (x.astype(np.int64).T if flip else x.astype(np.int64) for x, flip in zip((a, b), flips))
                numbers = left @ right * scales[0] * scales[1]
                if bias_type == tf.float32:
                    bias = rng.uniform(-4, 4, 4).astype(F)
                    numbers = numbers + bias
                    if is_offset:
                        numbers = numbers + float(input_range[0]) * scales[1] * right.sum(0)
                else:
                    bias = rng.integers(-30000, 30000, 4).astype(np.int32)
                    numbers = numbers + bias * scales[0] * scales[1]
                if "Relu" in op:
                    numbers = np.maximum(numbers, 0)
                given = {"a": (tf.quint8, a), "b": (tf.qint8, b), "bias": (bias_type, bias)}
                for name, ends in (("a", input_range), ("b", filter_range), ("freezed_output", output_range)):
                    for prefix, end in zip(("min_", "max_"), ends):
                        given[prefix + name] = tf.float32, end
                attrs = {"Toutput": out, "input_quant_mode": mode, "transpose_a": flips[0], "transpose_b": flips[1]}
                level = {tf.qint32: scales[0] * scales[1], tf.quint8: magnitude(output_range) / 255, tf.float32: 1}[out]
                expected = numbers if out == tf.float32 else rounded(numbers, level, out)
                # TensorFlow ignores the mode of most of these ops, adds the offset in a wrong unit, and refuses to transpose.
                compared = input_range[0] == 0 and flips == (False, False)
                yield Use(op, [given[n] for n in names], attrs, expected, compared)


def wrong(rng):
    """Yields uses that must fail."""
    images, filters = rng.integers(0, 256, (1, 4, 4, 2)).astype(np.uint8), rng.integers(-127, 128, (2, 2, 2, 3)).astype(np.int8)
    number = lambda value: (tf.float32, F(value))
    ends = [number(0), number(3), number(-1), number(1)]
    window = dict(strides=[1, 1, 1, 1], padding="SAME")
    fine = (tf.quint8, images), (tf.qint8, filters)
    yield Use("QuantizedConv2DAndRelu", [*fine, *ends], dict(window, strides=[2, 1, 1, 1]), None)
    yield Use("QuantizedConv2DAndRelu", [*fine, *ends[:2], (tf.float32, np.zeros(2, F)), (tf.float32, np.ones(3, F))], window, None)
    yield Use("QuantizedConv2DWithBias", [*fine, (tf.float32, np.zeros(5, F)), *ends], window, None, False)
    matrices = (tf.quint8, images[0, :, :, 0]), (tf.qint8, filters[0, :, :, 0].reshape(4, 1))
    yield Use("QuantizedMatMulWithBias", [*matrices, (tf.float32, np.zeros(2, F)), *ends], {}, None, False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    rng = np.random.default_rng(5)
    ops = [f"QuantizedConv2D{end}" for end in ("", "PerChannel", "AndRelu", "AndReluAndRequantize", "AndRequantize")]
    ops += [f"QuantizedConv2DWithBias{end}" for end in ("", "AndRelu", "AndReluAndRequantize", "AndRequantize", "SumAndRelu", "SumAndReluAndRequantize", "SignedSumAndReluAndRequantize")]
    ops += [f"QuantizedDepthwiseConv2D{end}" for end in ("", "WithBias", "WithBiasAndRelu", "WithBiasAndReluAndRequantize")]
    matmuls = [f"QuantizedMatMulWithBias{end}" for end in ("", "AndRelu", "AndReluAndRequantize", "AndRequantize", "AndDequantize")]
    uses = [use for op in ops for use in convolutions(op, rng)] + [use for op in matmuls for use in products(op, rng)]
    with open("/proc/cpuinfo") as cpu:
        has_kernels = "avx512_vnni" in cpu.read()
    compared, differences = 0, []
    for use in uses:
        if options.only not in use.op:
            continue
        ours = use.run(options.target)
        label = f"{use.op} {use.attrs} {[dtype.name for dtype, _ in use.inputs]}"
        if isinstance(ours, Exception):
            differences.append(f"{label}: ours fails: {first_line(ours)}")
            continue
        # Single precision may round a number between two levels to the other one.
        far = np.abs(ours[0] - use.expected) > (1e-4 * np.abs(use.expected) + 1e-4 if ours[0].dtype == F else 1)
        if far.any():
            differences.append(f"{label}: {ours[0][far][:3]}, not {use.expected[far][:3]} ({far.sum()} of {far.size} differ)")
        if not (use.compared and has_kernels):
            continue
        compared += 1
        theirs = use.run("")
        if isinstance(theirs, Exception):
            differences.append(f"{label}: the peer fails: {first_line(theirs)}")
            continue
        for i, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            near = np.abs(mine.astype(np.float64) - other) <= (1e-5 * np.abs(other) + 1e-5 if mine.dtype == F else 0)
            if mine.shape != other.shape or mine.dtype != other.dtype or not near.all():
                differences.append(f"{label}: output {i}: {mine.ravel()[:5]}, not {other.ravel()[:5]}")
    failures = [use for use in wrong(rng) if options.only in use.op]
    for use in failures:
        ours = use.run(options.target)
        theirs = use.run("") if use.compared and has_kernels else tf.errors.InvalidArgumentError(None, None, "")
        if type(ours) is not type(theirs):
            differences.append(f"{use.op} {use.attrs}: {ours}, not {theirs}")
    for line in differences:
        print(line)
    print(f"{len(uses)} uses, {compared} of them compared with TensorFlow, {len(failures)} failures, {len(differences)} differences")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
