"""Image files and quantisation."""
import struct

import numpy as np
import tensorflow.compat.v1 as tf

from . import Call, case
from .image_files import JXL, WEBP, decoded
from .jpeg_scans import with_a_scan_per_component
from .special import special


def eagerly(make):
    """Computes the value of `make()` with the peer's own kernels, in a separate graph."""
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(make())


def smooth(c, shape=(19, 22, 3)):
    """An image without noise, which JPEG compresses with little loss."""
    rows, columns, channels = np.meshgrid(*(np.arange(n) for n in shape), indexing="ij")
    return (127 + 100 * np.sin(rows / 5 + channels) * np.cos(columns / 7)).astype(np.uint8)


def text(data):
    return np.array(data, dtype=object)


def bmp(image, upwards=True):
    rows, columns, channels = image.shape
    line = -(-columns * channels // 4) * 4
    order = [2, 1, 0, 3][:channels] if channels > 1 else [0]
    lines = [r[:, order].tobytes().ljust(line, b"\0") for r in (image[::-1] if upwards else image)]
    header = struct.pack("<2sIHHI", b"BM", 54 + line * rows, 0, 0, 54)
    return header + struct.pack("<IiiHHIIiiII", 40, columns, rows if upwards else -rows, 1, 8 * channels, 0, 0, 0, 0, 0, 0) + b"".join(lines)


@case("DecodeBmp")
def decode_bmp(c):
    for channels in (1, 3, 4):
        image = c.values((5, 3, channels), 0, 256, "uint8")
        for upwards in (True, False):
            yield Call(text(bmp(image, upwards)), channels=channels if upwards and channels > 1 else 0)


def png_files(c):
    for channels in (1, 2, 3, 4):
        for dtype in ("uint8", "uint16"):
            image = c.values((7, 5, channels), 0, 256 if dtype == "uint8" else 65536, dtype)
            yield text(eagerly(lambda: tf.raw_ops.EncodePng(image=tf.constant(image))))


@case("DecodePng")
def decode_png(c):
    for file in png_files(c):
        for channels in (0, 1, 3, 4):
            yield Call(file, channels=channels)


def gif(first=True):
    """A GIF file of two frames, of which the second covers a part; one frame if `first`."""
    colours = bytes([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255])
    head = b"GIF89a" + struct.pack("<HHBBB", 3, 2, 0x81, 0, 0) + colours
    control = b"\x21\xf9\x04\x01\x00\x00\x03\x00"
    whole = b"\x2c" + struct.pack("<HHHHB", 0, 0, 3, 2, 0) + b"\x02" + lzw([1, 2, 3, 0, 1, 2])
    part = control + b"\x2c" + struct.pack("<HHHHB", 1, 0, 2, 1, 0) + b"\x02" + lzw([3, 1])
    return head + whole + (part if not first else b"") + b"\x3b"


def lzw(indices):
    """LZW codes of three bits, whose width never grows because the table is cleared before each code."""
    bits = "".join(f"{n:03b}"[::-1] for i in indices for n in (4, i)) + f"{5:03b}"[::-1]
    bits = bits.ljust(-(-len(bits) // 8) * 8, "0")
    data = bytes(int(bits[i:i + 8][::-1], 2) for i in range(0, len(bits), 8))
    return bytes([len(data)]) + data + b"\0"


@case("DecodeGif")
def decode_gif(c):
    yield Call(text(gif()))
    yield Call(text(gif(False)))


@case("DecodeImage")
def decode_image(c):
    for file in [*png_files(c), text(gif()), text(gif(False)), text(bmp(c.values((5, 3, 3), 0, 256, "uint8")))]:
        yield Call(file)
        yield Call(file, expand_animations=False, channels=3 if not file.item().startswith(b"BM") else 0)
    if c.name("dtype") == "uint8":
        for file in [*decoded(WEBP).values(), *lossless_jxl()]:
            for expands in (True, False):
                yield Call(text(file), expand_animations=expands)


def lossless_jxl():
    return [file for name, file in decoded(JXL).items() if "lossy" not in name]


@case("DecodeWebP")
def decode_webp(c):
    for name, file in decoded(WEBP).items():
        yield Call(text(file))
        yield Call(text(file), channels=3 if "3" in name else 4)
    yield Call(next(png_files(c)))


@case("DecodeJxl")
def decode_jxl(c):
    for file in lossless_jxl():
        yield Call(text(file))
    yield Call(text(decoded(JXL)["lossless, 4 channels"]), channels=4)
    yield Call(text(decoded(WEBP)["lossless, 4 channels"]))


def jpeg_files(c):
    for channels in (1, 3):
        for downsampled in (False, True):
            for progressive in (False, True):
                image = smooth(c, (19, 22, channels))
                file = eagerly(lambda: tf.raw_ops.EncodeJpeg(image=tf.constant(image), chroma_downsampling=downsampled, progressive=progressive))
                yield text(file)
                if channels == 3 and not progressive:
                    yield text(with_a_scan_per_component(file))


@case("ExtractJpegShape")
def jpeg_shape(c):
    for file in jpeg_files(c):
        yield Call(file)


def near(probe, op, inputs, levels, **attrs):
    """Adds nodes that compute pixels as floats, which may differ by `levels`."""
    node = probe.node(op, "", inputs, **attrs)
    probe.fetch(probe.node("Cast", "_out", [node], SrcT="uint8", DstT="float"))
    probe.within = levels


@special("DecodeJpeg")
def decode_jpeg(c):
    for file in jpeg_files(c):
        for attrs in (dict(), dict(channels=1), dict(channels=3), dict(dct_method="INTEGER_ACCURATE")):

            def make(probe, run, file=file, attrs=attrs):
                # Without a method, the peer uses its fastest one, which is the least exact.
                near(probe, "DecodeJpeg", [probe.constant(file)], 3 if attrs.get("dct_method") else 9, **attrs)

            yield make
    for name, file in decoded(JXL).items():
        if "lossy" in name:
            # The decoders compute with floating-point numbers.
            yield lambda probe, run, file=file: near(probe, "DecodeJpeg", [probe.constant(text(file))], 1)


@special("DecodeAndCropJpeg")
def decode_crop(c):
    for file in jpeg_files(c):

        def make(probe, run, file=file):
            near(probe, "DecodeAndCropJpeg", [probe.constant(file), probe.constant(np.array([3, 2, 11, 9], np.int32))], 9)

        yield make


@special("EncodeJpeg", "EncodeJpegVariableQuality")
def encode_jpeg(c):
    for channels in (1, 3):
        for attrs in (dict(), dict(quality=70), dict(chroma_downsampling=False, progressive=True), dict(optimize_size=True, xmp_metadata="<x/>")):

            def make(probe, run, channels=channels, attrs=dict(attrs)):
                inputs = [probe.constant(smooth(c, (19, 22, channels)))]
                if c.op == "EncodeJpegVariableQuality":
                    inputs.append(probe.constant(np.int32(attrs.get("quality", 90))))
                    attrs = {}
                file = probe.node(c.op, "_file", inputs, **attrs)
                near(probe, "DecodeJpeg", [file], 24)

            yield make


@special("EncodePng")
def encode_png(c):
    for shape in ((5, 7, 1), (5, 7, 2), (5, 7, 3), (5, 7, 4)):
        for compression in (-1, 0, 9):

            def make(probe, run, shape=shape, compression=compression):
                name = c.name("T")
                image = probe.constant(c.values(shape, 0, 256 if name == "uint8" else 65536))
                file = probe.node("EncodePng", "_file", [image], T=name, compression=compression)
                probe.fetch(probe.node("DecodePng", "_out", [file], dtype=name, channels=0 if shape[2] != 2 else 4))

            yield make


def spread(c, shape, low=-8, high=8):
    return c.values(shape, low, high, "float")


BITS = (dict(), dict(num_bits=4, narrow_range=True), dict(num_bits=16))


@case("FakeQuantWithMinMaxArgs")
def fake_args(c):
    for attrs in BITS:
        for low, high in ((-6.0, 6.0), (-0.1, 5.3), (1.0, 3.0), (-3.0, -1.0)):
            yield Call(spread(c, (40,)), min=low, max=high, loose=4, **attrs)


@case("FakeQuantWithMinMaxArgsGradient")
def fake_args_grad(c):
    for attrs in BITS:
        yield Call(spread(c, (40,)), spread(c, (40,)), min=-2.5, max=4.0, **attrs)


@case("FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsGradient")
def fake_vars(c):
    for attrs in BITS:
        for low, high in ((-6.0, 6.0), (-0.1, 5.3), (1.0, 3.0), (0.0, 0.0)):
            more = [spread(c, (4, 10))] if c.op.endswith("Gradient") else []
            yield Call(*more, spread(c, (4, 10)), np.float32(low), np.float32(high), loose=20, within=2e-5, **attrs)


@case("FakeQuantWithMinMaxVarsPerChannel", "FakeQuantWithMinMaxVarsPerChannelGradient")
def fake_channels(c):
    low, high = np.array([-6, -0.1, 1, 0], np.float32), np.array([6, 5.3, 3, 0], np.float32)
    for attrs in BITS:
        for shape in ((4,), (5, 4), (2, 3, 2, 4)):
            more = [spread(c, shape)] if c.op.endswith("Gradient") else []
            yield Call(*more, spread(c, shape), low, high, loose=20, within=2e-5, **attrs)


ROUND_TRIPS = (dict(), dict(range_given=True), dict(signed_input=False, num_bits=5, range_given=True), dict(narrow_range=True), dict(axis=1))


@case("QuantizeAndDequantizeV2", "QuantizeAndDequantizeV3", "QuantizeAndDequantizeV4")
def round_trip(c):
    for attrs in ROUND_TRIPS:
        for mode in ("HALF_TO_EVEN", "HALF_UP"):
            attrs = dict(attrs)
            bounds = [c.array([-2, -4, -1]), c.array([3, 1, 5])] if "axis" in attrs else [c.array(-3), c.array(4)]
            if c.op.endswith("V3"):
                attrs.setdefault("range_given", False)
                bounds.append(np.int32(attrs.pop("num_bits", 8)))
            else:
                attrs["round_mode"] = mode
            yield Call(c.values((4, 3, 5)), *bounds, loose=4, **attrs)


@case("QuantizeAndDequantizeV4Grad")
def round_trip_grad(c):
    yield Call(c.values((4, 3)), c.values((4, 3)), c.array(-3), c.array(4))
    yield Call(c.values((4, 3)), c.values((4, 3)), c.array([-2, -4, -1]), c.array([3, 1, 5]), axis=1)
