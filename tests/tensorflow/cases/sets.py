"""Set operations, edit distances and feature crosses on the rows of sparse tensors."""
import numpy as np

from . import Call, case

INDEX = lambda v, rank=2: np.array(v, np.int64).reshape(-1, rank)
SHAPE = lambda *v: np.array(v, np.int64)


@case("SetSize")
def size(c):
    yield Call(INDEX([[0, 0], [0, 1], [0, 2], [2, 0]]), c.array(c.values((4,), 0, 3)), SHAPE(3, 4))
    yield Call(INDEX([[0, 1, 0], [1, 0, 1]], 3), c.values((2,), 0, 3), SHAPE(2, 2, 3), validate_indices=False)
    yield Call(INDEX([]), c.values((0,)), SHAPE(2, 0))


@case("DenseToDenseSetOperation")
def dense(c):
    for kind in ("a-b", "B-A", "intersection", "union"):
        yield Call(c.values((3, 5), 0, 6), c.values((3, 4), 0, 6), set_operation=kind)
        yield Call(c.values((2, 2, 3), 0, 4), c.values((2, 2, 2), 0, 4), set_operation=kind)
        yield Call(c.values((2, 0), 0, 4), c.values((2, 3), 0, 4), set_operation=kind)


@case("DenseToSparseSetOperation")
def mixed(c):
    for kind in ("a-b", "b-a", "intersection", "union"):
        rows = INDEX([[0, 0], [0, 3], [2, 1], [2, 2], [2, 3]])
        yield Call(c.values((3, 5), 0, 6), rows, c.values((5,), 0, 6), SHAPE(3, 4), set_operation=kind)


@case("SparseToSparseSetOperation")
def sparse(c):
    for kind in ("a-b", "b-a", "intersection", "union"):
        first, second = INDEX([[0, 0], [0, 3], [2, 1], [2, 2]]), INDEX([[1, 0], [2, 0], [2, 1], [2, 4]])
        values = lambda: c.values((4,), 0, 3)
        yield Call(first, values(), SHAPE(3, 4), second, values(), SHAPE(3, 5), set_operation=kind)


@case("EditDistance")
def distance(c):
    first = INDEX([[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 0], [1, 0, 0]], 3)
    second = INDEX([[0, 0, 0], [0, 0, 1], [1, 1, 0], [1, 1, 1]], 3)
    for normalize in (True, False):
        for low in (0, 3):
            values = c.values((5,), low, 4), c.values((4,), low, 4)
            yield Call(first, values[0], SHAPE(2, 2, 4), second, values[1], SHAPE(2, 2, 3), normalize=normalize)
        yield Call(INDEX([]), c.values((0,)), SHAPE(2, 0), INDEX([[1, 0]]), c.values((1,)), SHAPE(2, 1), normalize=normalize)


@case("SparseCross", "SparseCrossV2", "SparseCrossHashed")
def cross(c):
    kinds = [c.name("sparse_types"), c.name("dense_types")]
    internal = c.types.get("internal_type")
    # The first version of the op supports only columns of its internal type.
    if internal and set(kinds) != {internal}:
        return
    values = lambda shape, kind: c.values(shape, -20, 20, kind)
    first = INDEX([[0, 0], [1, 0], [1, 1]]), values((3,), kinds[0]), SHAPE(2, 2)
    second = INDEX([[0, 0], [1, 0], [1, 2]]), values((3,), kinds[0]), SHAPE(2, 3)
    dense = lambda: values((2, 3), kinds[1])
    for columns, others in (([first, second], [dense()]), ([first], []), ([], [dense(), dense()]), ([second, first], [])):
        indices, sparse, shapes = ([column[i] for column in columns] for i in range(3))
        for buckets in (0, 100):
            if c.op == "SparseCross":
                attrs = dict(hashed_output=c.name("out_type") == "int64", num_buckets=buckets, hash_key=956888297470)
                yield Call(indices, sparse, shapes, others, **attrs)
            elif c.op == "SparseCrossV2":
                yield Call(indices, sparse, shapes, others, np.array(b"_and_", object))
            else:
                # The process of the peer ends at a strong hash of dense numbers.
                for strong in (False, True) if kinds[1] == "string" else (False,):
                    yield Call(indices, sparse, shapes, others, np.int64(buckets), np.bool_(strong), SHAPE(11, -12))
