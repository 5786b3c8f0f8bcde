"""Ops that create, move and measure arrays."""
import numpy as np

from . import Call, case
from .special import special


@case("Shape", "Size", "Rank", "ShapeN", "IdentityN", "PlaceholderWithDefault")
def measured(c):
    for shape in ((3, 4), (), (0, 3), (2, 1, 5)):
        if c.op == "ShapeN":
            yield Call([c.values(shape), c.values((2,))])
        elif c.op == "IdentityN":
            yield Call([c.values(shape), c.values((2,))])
        elif c.op == "PlaceholderWithDefault":
            yield Call(c.values(shape, attr="dtype"), shape=list(shape))
        else:
            yield Call(c.values(shape))


@case("Reshape")
def reshape(c):
    for shape, to in (((3, 4), [2, 6]), ((3, 4), [-1]), ((1,), []), ((0, 3), [3, 0]), ((), [1, 1]), ((2, 6), [4, -1])):
        yield Call(c.values(shape), c.array(to, "Tshape"))


@case("ExpandDims")
def expand(c):
    for shape, axis in (((3, 4), 0), ((3, 4), -1), ((), 0), ((3,), -2), ((0, 2), 1)):
        yield Call(c.values(shape), c.array(axis, "Tdim"))


@case("Squeeze")
def squeeze(c):
    for shape, dims in (((1, 3, 1), []), ((1, 3, 1), [0]), ((1, 3, 1), [-1]), ((1, 1), [0, 1]), ((2, 3), [])):
        yield Call(c.values(shape), squeeze_dims=dims)


@case("EnsureShape")
def ensure(c):
    for shape, expected in (((3, 4), [None, 4]), ((), []), ((0, 3), [0, 3])):
        yield Call(c.values(shape), shape=expected)


@case("Transpose", "ConjugateTranspose")
def transpose(c):
    for shape, perm in (
        ((3, 4), [1, 0]), ((2, 3, 4), [2, 0, 1]), ((2, 3, 4), [0, 2, 1]), ((), []), ((0, 3), [1, 0]), ((5,), [0]),
        ((2, 3, 1, 4), [3, 1, 0, 2]), ((33, 65), [1, 0]), ((2, 3, 4), [0, 1, 2]),
    ):
        yield Call(c.values(shape), c.array(perm, "Tperm"))


@case("InvertPermutation")
def invert(c):
    yield Call(c.array([2, 0, 1, 3]))
    yield Call(c.array([]))


@case("Reverse")
def reverse(c):
    for shape, dims in (((3, 4), [True, False]), ((2, 3, 4), [True, True, True]), ((5,), [True])):
        yield Call(c.values(shape), np.array(dims))
    yield Call(c.values(()), np.zeros([0], bool))


@case("ReverseV2")
def reverse_v2(c):
    for shape, axes in (((3, 4), [0]), ((3, 4), [-1]), ((2, 3, 4), [0, 2]), ((5,), []), ((0, 2), [1]), ((), [])):
        yield Call(c.values(shape), c.array(axes, "Tidx"))


@case("Concat")
def concat(c):
    for shapes, axis in ((((2, 3), (2, 3)), 0), (((2, 1), (2, 3), (2, 0)), 1), (((3,), (4,)), 0)):
        yield Call(np.array(axis, np.int32), [c.values(s) for s in shapes])


@case("ConcatV2")
def concat_v2(c):
    for shapes, axis in (
        (((2, 3), (2, 3)), 0), (((2, 1), (2, 3), (2, 0)), -1), (((3,), (4,)), 0), (((2, 3, 4), (2, 1, 4), (2, 2, 4)), 1),
    ):
        yield Call([c.values(s) for s in shapes], c.array(axis, "Tidx"))


@case("ConcatOffset")
def offsets(c):
    yield Call(np.array(1, np.int32), [c.array(s, "shape_type") for s in ([2, 2, 7], [2, 3, 7], [2, 9, 7])])
    yield Call(np.array(-1, np.int32), [c.array(s, "shape_type") for s in ([2, 1], [2, 3])])


@case("Split")
def split(c):
    for shape, axis, n in (((4, 6), 0, 2), ((4, 6), -1, 3), ((2, 6, 2), 1, 6), ((0, 4), 1, 2), ((3,), 0, 1)):
        yield Call(np.array(axis, np.int32), c.values(shape), num_split=n)


@case("SplitV")
def split_v(c):
    for shape, sizes, axis in (((4, 6), [1, 3], 0), ((4, 6), [2, -1, 1], 1), ((2, 5, 2), [0, 5], -2), ((5,), [5], 0)):
        yield Call(c.values(shape), c.array(sizes, "Tlen"), np.array(axis, np.int32), num_split=len(sizes))


@case("Pack")
def pack(c):
    for shape, n, axis in (((2, 3), 2, 0), ((2, 3), 3, -1), ((), 4, 0), ((0, 2), 2, 1), ((3,), 1, 1)):
        yield Call([c.values(shape) for _ in range(n)], axis=axis)


@case("Unpack")
def unpack(c):
    for shape, axis in (((2, 3), 0), ((2, 3), -1), ((4,), 0), ((3, 0), 0), ((2, 3, 4), 1)):
        yield Call(c.values(shape), num=shape[axis], axis=axis)


@case("Tile")
def tile(c):
    for shape, multiples in (((3, 4), [2, 1]), ((2,), [3]), ((), []), ((2, 3), [0, 2]), ((2, 1, 3), [1, 4, 2])):
        yield Call(c.values(shape), c.array(multiples, "Tmultiples"))


@case("BroadcastTo")
def broadcast_to(c):
    for shape, to in (((3, 1), [3, 4]), ((), [2, 3]), ((3,), [2, 3]), ((1, 0), [2, 0]), ((2, 1, 3), [2, 2, 4, 3])):
        yield Call(c.values(shape), c.array(to, "Tidx"))


@case("BroadcastArgs", "BroadcastGradientArgs")
def broadcast_args(c):
    for a, b in (([3, 1], [3, 4]), ([], [2, 3]), ([2, 3], [3]), ([1, 5], [4, 1]), ([2, 2], [2, 2]), ([1], [1])):
        yield Call(c.array(a), c.array(b))


@case("Pad")
def pad(c):
    for shape, paddings in PADDINGS:
        yield Call(c.values(shape), c.array(paddings, "Tpaddings").reshape(-1, 2))


@case("PadV2")
def pad_v2(c):
    for shape, paddings in PADDINGS:
        yield Call(c.values(shape), c.array(paddings, "Tpaddings").reshape(-1, 2), c.values(()))


PADDINGS = (
    ((3, 4), [[1, 2], [0, 1]]), ((2,), [[0, 0]]), ((), []), ((0, 2), [[1, 1], [0, 0]]),
    ((2, 1, 3), [[0, 1], [2, 0], [1, 1]]),
)


@case("MirrorPad")
def mirror(c):
    for shape, paddings in (((3, 4), [[1, 2], [0, 3]]), ((2,), [[1, 1]]), ((2, 2, 3), [[0, 1], [1, 0], [2, 2]])):
        yield Call(c.values(shape), c.array(paddings, "Tpaddings"), mode="REFLECT")
        yield Call(c.values(shape), c.array(paddings, "Tpaddings"), mode="SYMMETRIC")


@case("MirrorPadGrad")
def mirror_grad(c):
    for shape, paddings in (((6, 7), [[1, 2], [0, 3]]), ((4,), [[1, 1]]), ((3, 3, 7), [[0, 1], [1, 0], [2, 2]])):
        yield Call(c.values(shape), c.array(paddings, "Tpaddings"), mode="REFLECT", loose=8)
        yield Call(c.values(shape), c.array(paddings, "Tpaddings"), mode="SYMMETRIC", loose=8)


@case("Slice")
def slices(c):
    for shape, begin, size in (
        ((3, 4), [1, 0], [2, 3]), ((3, 4), [0, 1], [-1, -1]), ((5,), [2], [0]), ((), [], []), ((2, 3, 4), [1, 1, 1], [1, 2, 3]),
        ((0, 3), [0, 1], [0, 2]),
    ):
        yield Call(c.values(shape), c.array(begin, "Index"), c.array(size, "Index"))


# (Shape, begin, end, strides, masks: begin, end, ellipsis, new axis, shrink axis).
STRIDED = (
    ((5, 6), [1, 2], [4, 6], [1, 2], {}),
    ((5, 6), [4, 5], [0, 0], [-1, -2], {}),
    ((5, 6), [0, 0], [0, 0], [1, 1], dict(begin_mask=3, end_mask=3)),
    ((5, 6), [-2, 1], [5, 2], [1, 1], dict(shrink_axis_mask=2)),
    ((5, 6), [0, 2], [0, 3], [1, 1], dict(ellipsis_mask=1, shrink_axis_mask=2)),
    ((2, 3, 4), [0, 0, 1], [0, 0, 3], [1, 1, 1], dict(ellipsis_mask=1, new_axis_mask=2)),
    ((2, 3, 4), [1], [2], [1], {}),
    ((2, 3, 4), [0, 0], [0, 2], [1, 1], dict(new_axis_mask=1)),
    ((5,), [3], [1], [1], {}),
    ((), [], [], [], {}),
    ((5, 6), [-9, 0], [99, 99], [2, 5], dict(end_mask=2)),
    ((0, 3), [0, 0], [0, 2], [1, 1], {}),
)


@case("StridedSlice")
def strided(c):
    for shape, *bounds, masks in STRIDED:
        yield Call(c.values(shape), *(c.array(b, "Index") for b in bounds), **masks)


@case("StridedSliceGrad")
def strided_grad(c):
    import tensorflow.compat.v1 as tf

    for shape, begin, end, strides, masks in STRIDED:
        piece = tf.raw_ops.StridedSlice
        with tf.Graph().as_default():
            sliced = piece(input=np.zeros(shape, np.float32), begin=np.array(begin, np.int32), end=np.array(end, np.int32),
                           strides=np.array(strides, np.int32), **masks).shape.as_list()
        bounds = [c.array(b, "Index") for b in (shape, begin, end, strides)]
        yield Call(*bounds, c.values(sliced), **masks)


@case("Gather")
def gather(c):
    index = lambda v: c.array(v, "Tindices")
    yield Call(c.values((5, 3), attr="Tparams"), index([4, 0, 0]))
    yield Call(c.values((5,), attr="Tparams"), index([[1, 2], [3, 4]]))
    yield Call(c.values((5, 2, 2), attr="Tparams"), index(2))
    yield Call(c.values((5, 2), attr="Tparams"), index([]))


@case("GatherV2")
def gather_v2(c):
    for shape, indices, axis, batch in (
        ((5, 3), [4, 0, 0], 0, 0), ((2, 5), [[1, 2], [3, 4]], 1, 0), ((2, 5, 3), 2, -2, 0), ((5, 2), [], 0, 0),
        ((2, 5, 3), [[1, 2], [4, 0]], 1, 1), ((2, 3, 4), [[0, 3], [1, 2]], 2, 1), ((4,), [0, 3, 2], 0, 0),
        ((3, 0), [1, 2], 0, 0),
    ):
        yield Call(c.values(shape, attr="Tparams"), c.array(indices, "Tindices"), c.array(axis, "Taxis"), batch_dims=batch)


@case("GatherNd")
def gather_nd(c):
    for shape, indices in (
        ((3, 4), [[0, 1], [2, 3]]), ((3, 4), [[2], [0]]), ((3, 4), [1, 2]), ((2, 3, 4), [[[0, 1]], [[1, 2]]]),
        ((5,), [[4]]), ((3, 4), np.zeros([0, 2])),
    ):
        yield Call(c.values(shape, attr="Tparams"), c.array(indices, "Tindices"))


@case("ScatterNd")
def scatter_nd(c):
    for indices, updates, shape in (
        ([[1], [3], [1]], (3,), [5]), ([[0, 1], [2, 2]], (2,), [3, 3]), ([[1], [0]], (2, 4), [3, 4]),
        ([[[0], [1]]], (1, 2, 2), [2, 2]), (np.zeros([0, 1]), (0,), [4]),
    ):
        yield Call(c.array(indices, "Tindices"), c.values(updates), c.array(shape, "Tindices"))


@case("DynamicPartition")
def partition(c):
    part = lambda v: np.array(v, np.int32)
    yield Call(c.values((6,)), part([0, 2, 1, 0, 2, 2]), num_partitions=3)
    yield Call(c.values((4, 2)), part([1, 1, 0, 1]), num_partitions=3)
    yield Call(c.values((2, 3)), part([[0, 1, 0], [1, 1, 1]]), num_partitions=2)
    yield Call(c.values((0, 2)), part([]), num_partitions=2)
    yield Call(c.values((3,)), part(1), num_partitions=2)


@case("DynamicStitch", "ParallelDynamicStitch")
def stitch(c):
    index = lambda v: np.array(v, np.int32)
    yield Call([index([0, 2]), index([1, 3, 4])], [c.values((2, 2)), c.values((3, 2))])
    yield Call([index(1), index([[0, 2], [3, 4]])], [c.values((3,)), c.values((2, 2, 3))])
    yield Call([index([1, 0])], [c.values((2,))])
    if c.op == "DynamicStitch":
        yield Call([index([0, 1]), index([1, 2])], [c.values((2,)), c.values((2,))])


@case("Fill")
def fill(c):
    for dims in ([2, 3], [], [0, 2], [1031]):
        yield Call(c.array(dims, "index_type"), c.values(()))


@case("Range")
def ranges(c):
    for start, limit, delta in ((0, 5, 1), (2, 11, 3), (3, 3, 1)) + (() if c.is_unsigned("Tidx") else ((5, -4, -2),)):
        yield Call(*(c.array(v, "Tidx") for v in (start, limit, delta)))
    if c.is_float("Tidx"):
        yield Call(*(c.array(v, "Tidx") for v in (0, 1, 0.25)))


@case("LinSpace")
def line(c):
    for start, stop, num in ((0, 1, 5), (2, -3, 4), (1.5, 9, 1), (0, 100, 33)):
        yield Call(c.array(start), c.array(stop), c.array(num, "Tidx"))


@case("OneHot")
def one_hot(c):
    index = lambda v: c.array(v, "TI")
    depth = np.array(3, np.int32)
    yield Call(index([0, 2, 1]), depth, c.values(()), c.values(()))
    yield Call(index([[0, 5], [1, 2]]), depth, c.values(()), c.values(()), axis=0)
    yield Call(index([[0, 1], [1, 2]]), depth, c.values(()), c.values(()), axis=1)
    yield Call(index(1), depth, c.values(()), c.values(()))
    yield Call(index([]), depth, c.values(()), c.values(()))


@case("Diag")
def diagonal(c):
    for shape in ((3,), (2, 2), (1,), (0,)):
        yield Call(c.values(shape))


@case("DiagPart")
def diagonal_part(c):
    for shape in ((3, 3), (2, 3, 2, 3), (1, 1)):
        yield Call(c.values(shape))


@case("MatrixBandPart")
def band(c):
    for shape, low, high in (((4, 5), 1, 1), ((4, 4), -1, 0), ((2, 3, 3), 0, -1), ((3, 3), 0, 0), ((0, 3, 3), 1, 1)):
        yield Call(c.values(shape), c.array(low, "Tindex"), c.array(high, "Tindex"))


@case("BatchMatrixBandPart")
def batch_band(c):
    for shape, low, high in (((4, 5), 1, 1), ((4, 4), -1, 0), ((2, 3, 3), 0, -1), ((0, 3, 3), 1, 1)):
        yield Call(c.values(shape), np.int64(low), np.int64(high))


@case("SpaceToDepth")
def space_to_depth(c):
    for shape, size in (((1, 4, 4, 3), 2), ((2, 6, 3, 1), 3)):
        yield Call(c.values(shape), block_size=size)


@case("DepthToSpace")
def depth_to_space(c):
    for shape, size in (((1, 2, 2, 12), 2), ((2, 2, 1, 9), 3)):
        yield Call(c.values(shape), block_size=size)


@case("StringFormat")
def string_format(c):
    if c.is_complex("T"):
        return  # The peer does not format complex numbers.
    yield Call([c.values((3,)), c.values((2, 2))], template="a %s b %s", placeholder="%s")
    yield Call([c.values((9,)), c.values(())], template="{} and {}", placeholder="{}", summarize=2)


@case("Print")
def prints(c):
    yield Call(c.values((2, 3)), [c.values((3,)), c.values(())], message="of a test: ")


@case("PrintV2")
def prints_text(c):
    yield Call(np.array(b"of a test", dtype=object))


@case("Assert")
def asserts(c):
    yield Call(np.array(True), [c.values((3,)), c.values(())])


@special("ParallelConcat")
def parallel_concat(c):
    for count, row in ((2, (3, 4)), (1, ()), (3, (0, 2))):

        def make(probe, run, count=count, row=row):
            # The shapes must be known when the graph is built.
            rows = [probe.feed(c.values((1, *row)), True, probe.feeds) for _ in range(count)]
            probe.fetch(probe.node("ParallelConcat", "", rows, N=count, T=c.name("T"), shape=[count, *row]))

        yield make


@special("InplaceUpdate", "InplaceAdd", "InplaceSub")
def inplace(c):
    if c.op != "InplaceUpdate" and c.name("T") in ("bool", "string"):
        return
    for rows, indices in (((4, 3), [2, 0]), ((3,), [1]), ((3, 2, 2), [-1, 4, 1]), ((3, 2), [1, 1]), ((3, 2), [])):

        def make(probe, run, rows=rows, indices=indices):
            # The peer changes the memory of the fed array.
            copied = probe.node("DeepCopy", "_copy", [probe.feed(c.values(rows), True, probe.feeds)], T=c.name("T"))
            inputs = [np.array(indices, np.int32), c.values((len(indices), *rows[1:]))]
            probe.fetch(probe.node(c.op, "", [copied, *(probe.feed(v, False, probe.feeds) for v in inputs)], T=c.name("T")))

        yield make


@special("Empty")
def empty(c):
    for shape in ((2, 3), (), (0, 2)):

        def make(probe, run, shape=shape):
            # Without `init`, the peer's values are those of any memory.
            size = probe.feed(np.array(shape, np.int32), True, probe.feeds)
            probe.fetch(probe.node("Empty", "", [size], dtype=c.name("dtype"), init=True))

        yield make


FORMATS = (dict(), dict(src_format="NCHW", dst_format="NHWC"), dict(src_format="NHWC", dst_format="HWNC"), dict(src_format="NDHWC", dst_format="NCDHW"))


@case("DataFormatDimMap")
def dim_map(c):
    for attrs in FORMATS:
        yield Call(c.array([0, 1, -1, 3, 2, -2]), **attrs)
        yield Call(c.array([[2], [0]]), **attrs)


@case("DataFormatVecPermute")
def vec_permute(c):
    for attrs in FORMATS:
        axes = len(attrs.get("src_format", "NHWC"))
        for shape in ((axes,), (axes - 2,), (axes, 2), (axes - 2, 2)):
            yield Call(c.values(shape), **attrs)
