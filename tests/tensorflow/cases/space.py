"""SpaceToBatch and BatchToSpace, and image patches."""
import numpy as np

from . import Call, case


@case("SpaceToBatchND")
def to_batch(c):
    for x, block, pads in (
        ((2, 4, 6, 3), (2, 3), ((0, 0), (0, 0))), ((1, 3, 5), (2,), ((1, 0),)), ((1, 2, 3, 4, 2), (1, 2, 3), ((0, 0), (1, 0), (0, 2))),
        ((3, 4), (), ()), ((2, 4), (2,), ((1, 1),)), ((0, 4, 4, 1), (2, 2), ((0, 0), (0, 0))),
    ):
        pads = np.array(pads).reshape(-1, 2)
        yield Call(c.values(x), c.array(block, "Tblock_shape"), c.array(pads, "Tpaddings"), known=True)


@case("BatchToSpaceND")
def to_space(c):
    for x, block, crops in (
        ((12, 2, 2, 3), (2, 3), ((0, 0), (0, 0))), ((2, 2, 5), (2,), ((1, 0),)), ((6, 2, 3, 4, 2), (1, 2, 3), ((0, 0), (1, 0), (0, 2))),
        ((3, 4), (), ()), ((4, 4), (2,), ((1, 1),)),
    ):
        crops = np.array(crops).reshape(-1, 2)
        yield Call(c.values(x), c.array(block, "Tblock_shape"), c.array(crops, "Tcrops"), known=True)


@case("SpaceToBatch")
def squares_to_batch(c):
    yield Call(c.values((2, 4, 6, 3)), c.array([[0, 0], [0, 0]], "Tpaddings"), block_size=2)
    yield Call(c.values((1, 4, 5, 2)), c.array([[1, 1], [0, 1]], "Tpaddings"), block_size=3)


@case("BatchToSpace")
def squares_to_space(c):
    yield Call(c.values((8, 2, 3, 3)), c.array([[0, 0], [0, 0]], "Tidx"), block_size=2)
    yield Call(c.values((9, 2, 2, 2)), c.array([[1, 1], [0, 1]], "Tidx"), block_size=3)


@case("ExtractImagePatches")
def image_patches(c):
    for x, ksize, stride, rate, padding in (
        ((2, 5, 6, 3), (3, 2), (1, 2), (1, 1), "SAME"), ((1, 7, 7, 2), (3, 3), (2, 2), (2, 2), "VALID"), ((1, 4, 4, 1), (1, 1), (1, 1), (1, 1), "VALID"),
    ):
        yield Call(c.values(x), ksizes=[1, *ksize, 1], strides=[1, *stride, 1], rates=[1, *rate, 1], padding=padding)


@case("ExtractVolumePatches")
def volume_patches(c):
    for x, ksize, stride, padding in (
        ((2, 3, 5, 6, 2), (2, 3, 2), (1, 1, 2), "SAME"), ((1, 4, 4, 4, 2), (2, 2, 2), (2, 1, 1), "VALID"), ((1, 5, 7, 4, 1), (2, 2, 2), (4, 5, 3), "SAME"),
    ):
        yield Call(c.values(x), ksizes=[1, *ksize, 1], strides=[1, *stride, 1], padding=padding)
