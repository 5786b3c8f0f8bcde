"""Ragged tensors."""
import numpy as np

from . import Call, case
from .special import special


@case("RaggedRange")
def ranges(c):
    for starts, limits, deltas in (
        ([0, 5, 8], [3, 5, 12], 1), (0, [3, -2, 5], [1, -1, 2]), (0, 7, 2), ([], [], []), (5, 0, 1), ([9, 1], 0, [-4, -1]),
    ):
        yield Call(c.array(starts), c.array(limits), c.array(deltas))
    if c.is_float():
        yield Call(c.array(0), c.array([1, 2.5]), c.array(0.3))


@case("RaggedGather")
def rows(c):
    flat, deep = [[0, 2, 2, 5]], [[0, 2, 3], [0, 1, 4, 5]]
    for splits, values, indices in (
        (flat, (5,), [2, 0, 1]), (flat, (5, 2), [[2, 0], [1, 1]]), (flat, (5,), 2), (deep, (5,), [1, 0, 1]), (deep, (5, 3), 0),
        (flat, (5,), np.zeros((0,))), (deep, (5,), [[[1, 0]], [[0, 0]]]), ([[0, 0]], (0,), [0]),
    ):
        indices = c.array(indices, "Tindices")
        splits = [c.array(s, "Tsplits") for s in splits]
        yield Call(splits, c.values(values, attr="Tvalues"), indices, OUTPUT_RAGGED_RANK=len(splits) + indices.ndim - 1)


@case("RaggedTensorToSparse")
def sparse(c):
    for splits, values in (
        ([[0, 2, 2, 5]], (5,)), ([[0, 2, 3], [0, 1, 4, 5]], (5,)), ([[0, 2, 2, 5]], (5, 2)), ([[0]], (0,)), ([[0, 0]], (0, 2)),
        ([[0, 0, 0, 2], [0, 0, 3]], (3, 2, 2)),
    ):
        yield Call([c.array(s, "Tsplits") for s in splits], c.values(values))


SPLITS, IDS, SIZE = "ROW_SPLITS", "VALUE_ROWIDS", "FIRST_DIM_SIZE"


@case("RaggedTensorToTensor")
def dense(c):
    for shape, values, partitions, kinds, default in (
        ([-1, -1], (5,), ([0, 2, 2, 5],), (SPLITS,), ()),
        ([4, 4], (5,), ([0, 2, 2, 5],), (SPLITS,), ()),
        ([2, 2], (5,), ([0, 2, 2, 5],), (SPLITS,), ()),
        (-1, (5,), ([0, 2, 2, 5],), (SPLITS,), ()),
        ([-1, -1], (5,), (4, [0, 0, 2, 2, 3]), (SIZE, IDS), ()),
        ([-1, -1, 2], (5, 2), ([0, 2, 2, 5],), (SPLITS,), (2,)),
        ([-1, 5, -1], (5, 2), ([0, 2, 2, 5],), (SPLITS,), ()),
        ([-1, -1, -1], (5,), ([0, 2, 3], [0, 1, 4, 5]), (SPLITS, SPLITS), ()),
        ([3, 1, 2], (5,), ([0, 2, 3], [0, 1, 4, 5]), (SPLITS, SPLITS), ()),
        ([-1, -1, -1], (5,), (4, [0, 0, 2], [0, 1, 2, 2, 2]), (SIZE, IDS, IDS), ()),
        ([-1, -1], (0,), ([0],), (SPLITS,), ()),
    ):
        yield Call(
            c.array(shape, "Tshape"), c.values(values), c.values(default), [c.array(p, "Tindex") for p in partitions],
            row_partition_types=list(kinds),
        )


RAGGED = (
    ([[0, 2, 2, 5]], (5,)), ([[0, 2, 3], [0, 1, 4, 5]], (5,)), ([[0, 2, 2, 5]], (5, 2)), ([[0]], (0,)), ([[0, 0]], (0, 2)),
    ([[0, 0, 0, 2], [0, 0, 3]], (3, 2, 2)), ([], (3, 2)),
)


def encoded(c, probe, splits, values, is_batch):
    parts = [probe.constant(c.array(s, "Tsplits")) for s in splits] + [probe.constant(values)]
    types = dict(Tvalues=c.name("Tvalues"), Tsplits=c.name("Tsplits"))
    return probe.node("RaggedTensorToVariant", "_encoded", parts, RAGGED_RANK=len(splits), batched_input=is_batch, **types)


@special("RaggedTensorToVariant", "RaggedTensorFromVariant")
def through_variant(c):
    for splits, shape in RAGGED:
        for is_batch in (False, True):
            for given in (len(splits) - is_batch, -1):
                if not splits and is_batch:
                    continue

                def make(probe, run, splits=splits, shape=shape, is_batch=is_batch, given=given):
                    variant = encoded(c, probe, splits, c.values(shape, attr="Tvalues"), is_batch)
                    ranks = dict(input_ragged_rank=given, output_ragged_rank=len(splits))
                    out = probe.node("RaggedTensorFromVariant", "_out", [variant], Tvalues=c.name("Tvalues"), Tsplits=c.name("Tsplits"), **ranks)
                    probe.fetch(out)

                yield make


@special("RaggedTensorToVariantGradient")
def variant_gradient(c):
    for splits, shape in RAGGED[:1] + RAGGED[2:3] + RAGGED[6:]:

        def make(probe, run, splits=splits, shape=shape):
            variant = encoded(c, probe, splits, c.values(shape, attr="Tvalues"), True)
            first = probe.constant(c.array(splits[0] if splits else 0, "Tsplits"))
            sizes = probe.constant(np.array(shape, np.int32))
            probe.fetch(probe.node("RaggedTensorToVariantGradient", "_out", [variant, first, sizes], Tvalues=c.name("Tvalues"), Tsplits=c.name("Tsplits")))

        yield make


@case("RaggedFillEmptyRows")
def fill(c):
    for ids, rows in (([0, 0, 2], 4), ([], 3), ([0, 1], 2), ([2, 0, 2], 4)):
        yield Call(np.array(ids, np.int64), c.values((len(ids),)), np.int64(rows), c.values(()))


@case("RaggedFillEmptyRowsGrad")
def fill_grad(c):
    yield Call(np.array([0, 3, 1], np.int64), c.values((5,)), loose=4)
    yield Call(np.array([], np.int64), c.values((2,)), loose=4)


@case("RaggedCross")
def cross(c):
    kinds = [c.name(f"{part}_types") for part in ("ragged_values", "sparse_values", "dense")]
    # The peer reads all splits as the type of the output's.
    if c.name("ragged_splits_types") != c.name("out_row_splits_type"):
        return
    splits = lambda v: c.array(v, "out_row_splits_type")
    ragged = c.values((3,), -20, 20, kinds[0]), splits([0, 2, 2, 3])
    wide = c.values((4,), -20, 20, kinds[0]), splits([0, 1, 3, 4])
    sparse = np.array([[0, 0], [0, 1], [2, 0]]), c.values((3,), -20, 20, kinds[1]), np.array([3, 2])
    dense = c.values((3, 2), -20, 20, kinds[2])
    for order in ("R", "RR", "RSD", "DSR", "SDDR", "D", "S", ""):
        counts = {letter: order.count(letter) for letter in "RSD"}
        raggeds, sparses = [ragged, wide][: counts["R"]], [sparse] * counts["S"]
        for buckets in (0, 100):
            types = dict(
                ragged_values_types=kinds[:1] * counts["R"], ragged_splits_types=[c.name("out_row_splits_type")] * counts["R"],
                sparse_values_types=kinds[1:2] * counts["S"], dense_types=kinds[2:] * counts["D"],
            )
            yield Call(
                [r[0] for r in raggeds], [r[1] for r in raggeds], *([s[i] for s in sparses] for i in range(3)), [dense] * counts["D"],
                input_order=order, hashed_output=c.name("out_values_type") == "int64", num_buckets=buckets, hash_key=956888297470, Nsparse=len(sparses), **types,
            )
