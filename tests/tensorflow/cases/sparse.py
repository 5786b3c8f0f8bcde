"""Sparse tensors, and segment reductions of gathered rows."""
import numpy as np

from . import Call, case

I64 = lambda v: np.array(v, np.int64)

# (Sorted indices, shape).
SPARSE = (
    ([[0, 1], [0, 3], [2, 0]], [3, 4]),
    ([[0, 0, 1], [1, 2, 0], [1, 2, 1], [1, 2, 3]], [2, 3, 4]),
    (np.zeros([0, 2]), [3, 2]),
    ([[1], [4]], [6]),
)


def sparse(c, indices, shape, **kind):
    return I64(indices).reshape(-1, len(shape)), c.values((len(indices),), **kind), I64(shape)


@case("SparseToDense")
def to_dense(c):
    for indices, shape in SPARSE:
        at = c.array(indices, "Tindices").reshape(-1, len(shape))
        yield Call(at, c.array(shape, "Tindices"), c.values((len(indices),)), c.values(()))
    yield Call(c.array([1, 3], "Tindices"), c.array([5], "Tindices"), c.values(()), c.values(()))
    yield Call(c.array(2, "Tindices"), c.array([5], "Tindices"), c.values(()), c.values(()))
    yield Call(c.array([[3], [1], [1]], "Tindices"), c.array([5], "Tindices"), c.values((3,)), c.values(()), validate_indices=False)


@case("SparseReorder")
def reorder(c):
    for indices, shape in SPARSE:
        order = c.rng.permutation(len(indices))
        at, values, shape = sparse(c, indices, shape)
        yield Call(at[order], values, shape)


@case("SparseReshape")
def reshape(c):
    for (indices, shape), to in zip(SPARSE, ([2, 6], [4, -1], [-1], [2, 3])):
        yield Call(I64(indices).reshape(-1, len(shape)), I64(shape), I64(to))


@case("SparseConcat")
def concat(c):
    for axis in (0, 1, -1):
        parts = [sparse(c, *SPARSE[0]), sparse(c, *SPARSE[0]), sparse(c, [[1, 1], [2, 2]], [3, 4])]
        yield Call(*(list(p) for p in zip(*parts)), concat_dim=axis)


@case("SparseSplit")
def split(c):
    for (indices, shape), axis, count in ((SPARSE[0], 0, 3), (SPARSE[0], 1, 3), (SPARSE[1], -1, 2), (SPARSE[2], 0, 2)):
        yield Call(I64(axis), *sparse(c, indices, shape), num_split=count)


@case("SparseSlice")
def slices(c):
    for (indices, shape), start, size in (
        (SPARSE[0], [0, 1], [2, 2]), (SPARSE[1], [1, 0, 1], [9, 9, 9]), (SPARSE[2], [0, 0], [1, 1]), (SPARSE[3], [5], [3]),
    ):
        yield Call(*sparse(c, indices, shape), I64(start), I64(size))


@case("SparseSliceGrad")
def slice_grad(c):
    yield Call(c.values((1,)), I64(SPARSE[0][0]), I64([0, 1]), I64([[0, 0]]))
    yield Call(c.values((2,)), I64(SPARSE[0][0]), I64([0, 0]), I64([[0, 1], [0, 3]]))


@case("SparseFillEmptyRows")
def fill(c):
    for indices, shape in SPARSE + (([[1, 0], [0, 2], [3, 1]], [5, 3]),):
        yield Call(*sparse(c, indices, shape), c.values(()))


@case("SparseFillEmptyRowsGrad")
def fill_grad(c):
    yield Call(I64([0, 3, 1]), c.values((5,)), loose=4)
    yield Call(I64([]), c.values((2,)))


@case("SparseAdd")
def add(c):
    if c.name("Treal") != {"complex64": "float", "complex128": "double"}.get(c.name("T"), c.name("T")):
        return  # The peer reads the threshold as the real type that belongs to the type of the values.
    threshold = lambda v: c.array(v, "Treal")
    for indices, shape in SPARSE:
        yield Call(*sparse(c, indices, shape), *sparse(c, indices, shape), threshold(0))
    yield Call(*sparse(c, *SPARSE[0]), *sparse(c, [[0, 0], [0, 3], [2, 3]], [3, 4]), threshold(3))


@case("SparseAddGrad")
def add_grad(c):
    yield Call(c.values((3,)), I64([[0, 1], [2, 0]]), I64([[0, 1], [1, 1]]), I64([[0, 1], [1, 1], [2, 0]]))
    yield Call(c.values((1,)), I64([[0, 1], [2, 0]]), I64([[0, 1]]), I64([[2, 0]]))


@case("SparseTensorDenseAdd")
def dense_add(c):
    for indices, shape in SPARSE:
        at = c.array(indices, "Tindices").reshape(-1, len(shape))
        yield Call(at, c.values((len(indices),)), c.array(shape, "Tindices"), c.values(shape))


@case("SparseDenseCwiseAdd", "SparseDenseCwiseMul", "SparseDenseCwiseDiv")
def dense(c):
    for (indices, shape), other in zip(SPARSE, ((3, 4), (3, 1), (2,), ())):
        low = 1 if c.op.endswith("Div") else -8
        yield Call(*sparse(c, indices, shape), c.values(other, low))


@case("SparseSparseMaximum", "SparseSparseMinimum")
def extremes(c):
    for indices, shape in SPARSE:
        yield Call(*sparse(c, indices, shape), *sparse(c, indices, shape))
    yield Call(*sparse(c, *SPARSE[0]), *sparse(c, [[0, 0], [0, 3], [2, 3]], [3, 4]))


@case("SparseTensorDenseMatMul")
def products(c):
    for a, b, adjoint_a, adjoint_b in (((3, 4), (4, 2), False, False), ((3, 4), (3, 2), True, False), ((3, 4), (2, 4), False, True)):
        at = c.array(SPARSE[0][0], "Tindices")
        yield Call(at, c.values((3,)), I64(a), c.values(b), adjoint_a=adjoint_a, adjoint_b=adjoint_b)
    yield Call(c.array(SPARSE[0][0], "Tindices"), c.values((3,)), I64([4, 3]).repeat(1)[::-1].copy(), c.values((2, 3)), adjoint_a=True, adjoint_b=True)


@case("SparseMatMul")
def mostly_zero(c):
    for a, b, flips in (((3, 4), (4, 2), (False, False)), ((4, 3), (2, 4), (True, True))):
        yield Call(c.values(a, attr="Ta"), c.values(b, attr="Tb"), transpose_a=flips[0], transpose_b=flips[1], b_is_sparse=True, loose=4)


@case("SparseReduceSum", "SparseReduceMax", "SparseReduceSumSparse", "SparseReduceMaxSparse")
def reduced(c):
    for (indices, shape), axes, keep in (
        (SPARSE[0], [1], False), (SPARSE[0], [0], True), (SPARSE[1], [0, -1], False), (SPARSE[1], [1], True), (SPARSE[2], [0], False),
    ):
        yield Call(*sparse(c, indices, shape), np.array(axes, np.int32), keep_dims=keep, loose=4)


@case("SparseSoftmax")
def softmax(c):
    for indices, shape in SPARSE[:2]:
        yield Call(*sparse(c, indices, shape, low=-2, high=2))


SEGMENTS = (
    ((5, 3), [4, 0, 0, 2], [0, 0, 1, 3]), ((4,), [3, 1, 1], [0, 1, 1]), ((3, 2, 2), [0, 2], [0, 1]), ((3, 2), [], []),
)


@case(
    "SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN", "SparseSegmentSumWithNumSegments",
    "SparseSegmentMeanWithNumSegments", "SparseSegmentSqrtNWithNumSegments",
)
def segments(c):
    for shape, indices, ids in SEGMENTS:
        inputs = [c.values(shape), c.array(indices, "Tidx"), c.array(ids, "Tsegmentids")]
        if c.op.endswith("NumSegments"):
            inputs.append(c.array(5, "Tnumsegments"))
        yield Call(*inputs, loose=4)


@case(
    "SparseSegmentSumGrad", "SparseSegmentMeanGrad", "SparseSegmentSqrtNGrad", "SparseSegmentSumGradV2",
    "SparseSegmentMeanGradV2", "SparseSegmentSqrtNGradV2",
)
def segments_back(c):
    for shape, indices, ids in SEGMENTS[:3]:
        grad = c.values((max(ids) + 1, *shape[1:]))
        yield Call(grad, c.array(indices, "Tidx"), c.array(ids, "Tsegmentids"), np.array(shape[0] + 1, np.int32), loose=4)
