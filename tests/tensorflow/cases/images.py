"""Resizing, colours and boxes."""
import numpy as np

from . import Call, case

GRIDS = (dict(), dict(align_corners=True), dict(half_pixel_centers=True))
# (Input size, output size).
SIZES = (((4, 5), (7, 3)), ((3, 3), (3, 3)), ((6, 4), (2, 9)), ((1, 5), (4, 1)))


# Absolute tolerance of sums that are computed in single precision for all types.
SINGLE = 1e-5


@case("ResizeBilinear", "ResizeBicubic", "ResizeNearestNeighbor")
def resize(c):
    for grid in GRIDS:
        for (rows, columns), to in SIZES:
            yield Call(c.values((2, rows, columns, 3), 0, 100), np.array(to, np.int32), loose=10, within=2e-4, **grid)


@case("ResizeArea")
def resize_area(c):
    for corners in (False, True):
        for (rows, columns), to in SIZES:
            yield Call(c.values((2, rows, columns, 3), 0, 100), np.array(to, np.int32), align_corners=corners, loose=10, within=1e-4)


@case("ResizeBilinearGrad", "ResizeBicubicGrad")
def resize_grad(c):
    for grid in GRIDS:
        for (rows, columns), to in SIZES:
            yield Call(c.values((2, *to, 3), -2, 2, "float"), c.values((2, rows, columns, 3)), loose=20, within=SINGLE, **grid)


@case("ResizeNearestNeighborGrad")
def nearest_grad(c):
    for grid in GRIDS:
        for (rows, columns), to in SIZES:
            yield Call(c.values((2, *to, 3), 0, 4), np.array([rows, columns], np.int32), loose=4, **grid)


SAMPLERS = ("lanczos1", "lanczos3", "lanczos5", "gaussian", "box", "triangle", "keyscubic", "mitchellcubic")


def samplers():
    for i, kernel in enumerate(SAMPLERS):
        for antialias in (True, False):
            (rows, columns), to = SIZES[i % 3]
            scale = np.array([to[0] / rows, 0.7 * to[1] / columns], np.float32)
            yield (rows, columns), to, scale, np.array([0.3, -0.2], np.float32), dict(kernel_type=kernel, antialias=antialias)


@case("ScaleAndTranslate")
def scale(c):
    for (rows, columns), to, factor, moved, attrs in samplers():
        yield Call(c.values((2, rows, columns, 3), 0, 100), np.array(to, np.int32), factor, moved, loose=30, within=2e-4, **attrs)


@case("ScaleAndTranslateGrad")
def scale_grad(c):
    for (rows, columns), to, factor, moved, attrs in samplers():
        yield Call(c.values((2, *to, 3)), c.values((2, rows, columns, 3)), factor, moved, loose=30, within=SINGLE, **attrs)


def amount(value):
    return np.array(value, np.float32)


@case("AdjustContrastv2", "AdjustHue", "AdjustSaturation")
def adjust(c):
    for shape in ((2, 4, 5, 3), (3, 2, 3), (0, 4, 5, 3)):
        for by in (0.3, 1.7, -0.4):
            yield Call(c.values(shape, 0, 1), amount(by if c.op != "AdjustSaturation" else abs(by)), loose=20, within=2e-5)
    if c.op == "AdjustContrastv2":
        yield Call(c.values((2, 4, 5, 2), 0, 1), amount(2), loose=20, within=2e-5)
        yield Call(c.array([60000, -60000, 3e38]).reshape(1, 1, 3, 1), amount(2))


@case("AdjustContrast")
def adjust_within(c):
    for shape in ((2, 4, 5, 3), (3, 2, 3), (0, 4, 5, 3)):
        for by, low, high in ((0.3, 0, 100), (1.7, -5, 60), (-0.4, 20, 10)):
            yield Call(c.values(shape, 0, 100), amount(by), amount(low), amount(high), within=1e-4)


@case("RGBToHSV", "HSVToRGB")
def convert(c):
    yield Call(c.values((2, 4, 5, 3), 0, 1), loose=10)
    yield Call(c.array([[0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5], [1, 0, 0], [0, 1, 0], [0, 0, 1]]), loose=10)


# The last box is partly outside of the image.
BOXES = np.array([[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.9], [0.8, 0.9, 0.3, 0.1], [-0.2, 0.3, 0.6, 1.4]], np.float32)
INDEX = np.array([0, 1, 0, 1], np.int32)


@case("CropAndResize")
def crop(c):
    for method in ("bilinear", "nearest"):
        for to in ((3, 4), (1, 1), (6, 2)):
            yield Call(c.values((2, 5, 6, 3), 0, 100), BOXES, INDEX, np.array(to, np.int32), method=method, extrapolation_value=7.0, loose=10)


@case("CropAndResizeGradImage")
def crop_image(c):
    for method in ("bilinear", "nearest"):
        for to in ((3, 4), (1, 1)):
            yield Call(c.values((4, *to, 3), -2, 2, "float"), BOXES, INDEX, np.array([2, 5, 6, 3], np.int32), method=method, loose=20, within=SINGLE)


@case("CropAndResizeGradBoxes")
def crop_boxes(c):
    for to in ((3, 4), (1, 1)):
        yield Call(c.values((4, *to, 3), -2, 2, "float"), c.values((2, 5, 6, 3), 0, 8), BOXES, INDEX, loose=30, within=2e-5)


@case("CombinedNonMaxSuppression")
def combined(c):
    count = lambda n: np.int32(n)
    for boxed, classes in ((1, 1), (1, 3), (3, 3)):
        low = c.values((2, 7, boxed, 2), 0, 1, "float")
        boxes = np.concatenate([low, low + c.values((2, 7, boxed, 2), 0, 1, "float")], axis=-1)
        scores = c.values((2, 7, classes), 0, 1, "float")
        for pads in (False, True):
            for clips in (False, True):
                for most, total in ((2, 5), (9, 30), (1, 1)):
                    yield Call(boxes, scores, count(most), count(total), amount(0.3), amount(0.2), pad_per_class=pads, clip_boxes=clips)
    yield Call(boxes[:, :0], scores[:, :0], count(3), count(4), amount(0.5), amount(0.1))


@case("StatelessSampleDistortedBoundingBox")
def sample_by_seeds(c):
    objects = np.array([[[0.1, 0.2, 0.5, 0.9], [0.4, 0.0, 0.8, 0.6]]], np.float32)
    for i, (size, attrs) in enumerate((([60, 90, 3], dict()), ([33, 20, 1], dict(area_range=[0.3, 0.9])), ([17, 50, 3], dict(aspect_ratio_range=[0.3, 3.0])), ([4, 4, 3], dict(max_attempts=1)))):
        yield Call(c.array(size), objects, amount(0.2), c.array([3 - i, i], "Tseed"), **attrs)
    yield Call(c.array([9, 8, 3]), objects[:, :0], amount(0.2), c.array([3, 4], "Tseed"), use_image_if_no_bounding_boxes=True)


@case("DrawBoundingBoxes")
def draw(c):
    for depth in (1, 3, 4):
        yield Call(c.values((2, 7, 9, depth), 0, 1), np.stack([BOXES, BOXES[::-1]]))


@case("DrawBoundingBoxesV2")
def draw_coloured(c):
    for depth in (1, 3, 4):
        for colours in (0, 3):
            yield Call(c.values((2, 7, 9, depth), 0, 1), np.stack([BOXES, BOXES[::-1]]), c.values((colours, 4), 0, 1, "float"))


@case("SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2")
def sample(c):
    objects = np.array([[[0.1, 0.2, 0.5, 0.9], [0.4, 0.0, 0.8, 0.6]]], np.float32)
    for i, (size, boxes, attrs) in enumerate((
        ([60, 90, 3], objects, dict()), ([33, 20, 1], objects, dict(area_range=[0.3, 0.9])), ([120, 120, 3], objects[:, :0], dict()),
        ([17, 50, 3], objects, dict(aspect_ratio_range=[0.3, 3.0], area_range=[0.05, 0.4])), ([4, 4, 3], objects, dict(max_attempts=1)),
    )):
        more = [amount(0.3)] if c.op.endswith("V2") else []
        yield Call(c.array(size), boxes, *more, seed=11, seed2=3 + i, use_image_if_no_bounding_boxes=True, steps=4, exact=True, **attrs)


@case("RandomCrop")
def random_crop(c):
    for i, (shape, size) in enumerate((((9, 7, 3), (4, 5)), ((5, 5, 1), (5, 2)), ((3, 3, 2), (3, 3)))):
        yield Call(c.distinct(shape), np.array(size, np.int64), seed=11, seed2=3 + i, steps=3, exact=True)


def candidates(c, boxes, scores="T"):
    corners = c.values((12, 4), 0, 1, boxes)
    return corners, (c.rng.permutation(12) / 12).astype(c.dtype(scores))


@case("NonMaxSuppression", "NonMaxSuppressionV2", "NonMaxSuppressionV3", "NonMaxSuppressionV4", "NonMaxSuppressionV5")
def suppress(c):
    kind = "float" if c.op == "NonMaxSuppression" else "T"
    limit = "T" if c.op.endswith("V5") else "T_threshold"
    for most in (3, 20, 0):
        for overlap in (0.2, 0.5):
            boxes, scores = candidates(c, kind, kind)
            inputs, attrs = [boxes, scores, np.array(most, np.int32)], {}
            if c.op == "NonMaxSuppression":
                yield Call(*inputs, iou_threshold=overlap)
                continue
            inputs.append(c.array(overlap, limit))
            if c.op[-1] in "345":
                inputs.append(c.array(0.3, limit))
            if c.op[-1] in "45":
                attrs["pad_to_max_output_size"] = overlap == 0.5
            for sigma in (0.0, 0.5) if c.op[-1] == "5" else (None,):
                yield Call(*inputs, *([] if sigma is None else [c.array(sigma)]), loose=10, **attrs)


@case("NonMaxSuppressionWithOverlaps")
def suppress_overlaps(c):
    overlaps = c.values((12, 12), 0, 1, "float")
    yield Call((overlaps + overlaps.T) / 2, candidates(c, "float", "float")[1], np.array(6, np.int32), amount(0.6), amount(0.1))


@case("ImageProjectiveTransformV2", "ImageProjectiveTransformV3")
def projective(c):
    turned, wide = [0.8, -0.6, 1.0, 0.6, 0.8, -1.0, 0.0, 0.0], [1.3, 0.2, -4.0, -0.1, 0.7, 6.0, 0.02, 0.01]
    for interpolation in ("NEAREST", "BILINEAR"):
        for fill in ("CONSTANT", "REFLECT", "WRAP", "NEAREST"):
            for transforms, size in (([turned], (5, 4)), ([turned, wide], (3, 7)), ([wide], (2, 2))):
                more = [np.float32(3)] if c.op.endswith("V3") else []
                transforms = np.array(transforms, np.float32)
                yield Call(c.values((2, 4, 5, 3), 0, 100, "dtype"), transforms, np.array(size, np.int32), *more, interpolation=interpolation, fill_mode=fill, loose=4, within=1e-4)


@case("ExtractGlimpse", "ExtractGlimpseV2")
def glimpse(c):
    for centered in (False, True):
        for normalized in (False, True):
            for size in ((2, 3), (6, 7)):
                offsets = c.values((2, 2), -1.2, 1.2, "float") if normalized else c.values((2, 2), -5, 5, "float")
                attrs = dict(centered=centered, normalized=normalized, uniform_noise=False, noise="zero")
                yield Call(c.values((2, 4, 5, 3), attr="float"), np.array(size, np.int32), offsets, **attrs)
