"""Reductions, scans, segments, and other ops that reduce or sort an axis."""
import numpy as np

from . import Call, case
from .special import special


@case("Sum", "Prod", "Mean", "Max", "Min", "EuclideanNorm", "All", "Any")
def reduce(c):
    attr = "T" if "T" in c.types else "bool"
    low, high = (0.5, 2) if c.op == "Prod" else (-4, 4)
    coarse = 40 if c.name(attr) in ("half", "bfloat16") else 4
    index = lambda v: c.array(v, "Tidx")
    for shape, axes, keep in (
        ((3, 4), [0], False), ((3, 4), [1], True), ((3, 4), -1, False), ((2, 3, 4), [0, 2], False),
        ((2, 3, 4), [1], False), ((2, 3, 4), [0, 1, 2], True), ((2, 3), [], False), ((), [], False),
        ((0, 3), [0], False), ((0, 3), [1], False), ((2, 3, 4, 2), [-1, 1], True), ((2, 3, 2, 3, 2), [0, 2, 4], False),
        ((17, 33), [0], False), ((3, 1, 5), [1], False),
    ):
        yield Call(c.values(shape, low, high, attr), index(axes), keep_dims=keep, loose=coarse)
    if c.is_float(attr):
        yield Call(c.array([[1, np.nan], [np.inf, 2]]), index([1]))


@case("ArgMax", "ArgMin")
def arg(c):
    for shape, axis in (((3, 4), 0), ((3, 4), -1), ((2, 3, 4), 1), ((7,), 0), ((0, 3), 1)):
        yield Call(c.values(shape, -3, 3), c.array(axis, "Tidx"))


@case("Cumsum", "Cumprod")
def scan(c):
    low, high = (1, 2.5) if c.op == "Cumprod" else (-4, 4)
    for shape, axis, exclusive, reverse in (
        ((3, 4), 0, False, False), ((3, 4), 1, True, False), ((2, 3, 4), -2, False, True), ((7,), 0, True, True),
        ((0, 3), 0, False, False), ((2, 3, 4), 2, True, True),
    ):
        yield Call(c.values(shape, low, high), c.array(axis, "Tidx"), exclusive=exclusive, reverse=reverse, loose=2)


@case("SegmentSum", "SegmentMean", "SegmentProd", "SegmentMax", "SegmentMin")
def segments(c):
    index = lambda v: c.array(v, "Tindices")
    yield Call(c.values((5, 2), 1, 4), index([0, 0, 1, 3, 3]))
    yield Call(c.values((4,), 1, 4), index([0, 1, 2, 3]))
    yield Call(c.values((3, 2, 2), 1, 4), index([1, 1, 1]))
    yield Call(c.values((0, 2), 1, 4), index([]))


@case("UnsortedSegmentSum", "UnsortedSegmentProd", "UnsortedSegmentMax", "UnsortedSegmentMin")
def unsorted(c):
    index, count = lambda v: c.array(v, "Tindices"), lambda v: c.array(v, "Tnumsegments")
    yield Call(c.values((5, 2), 1, 4), index([2, 0, 2, -1, 0]), count(4))
    yield Call(c.values((2, 3), 1, 4), index([[0, 1, 0], [2, 2, 1]]), count(3))
    yield Call(c.values((2, 3, 2), 1, 4), index([[0, 1, 0], [2, 2, 1]]), count(5))
    yield Call(c.values((0, 2), 1, 4), index([]), count(2))


@case("TopK")
def top_k(c):
    for shape, k in (((3, 6), 2), ((5,), 5), ((2, 2, 4), 1), ((3, 4), 0)):
        yield Call(c.distinct(shape), k=k)
    yield Call(c.array([1, 3, 1, 3, 2]), k=4)


@special("ApproxTopK")
def approximate_top_k(c):
    """The peer needs the rank when the graph is built."""
    for shape, k in (((3, 6), 2), ((5,), 5), ((2, 2, 4), 1), ((3, 4), 0)):
        for aggregate in (False, True):

            def make(probe, run, shape=shape, k=k, aggregate=aggregate):
                value = probe.feed(c.distinct(shape), True, probe.feeds)
                probe.fetch(probe.node("ApproxTopK", "", [value], T=c.name("T"), k=k, aggregate_to_topk=aggregate))

            yield make


@case("TopKV2")
def top_k_v2(c):
    for shape, k in (((3, 6), 2), ((5,), 5), ((2, 2, 4), 1), ((3, 4), 0)):
        yield Call(c.distinct(shape), c.array(k, "Tk"))
    yield Call(c.array([1, 3, 1, 3, 2]), c.array(4, "Tk"))


@case("InTopK")
def in_top_k(c):
    yield Call(c.values((4, 5), attr="float"), c.array([0, 4, 2, 2]), k=2)
    yield Call(c.values((3, 2), attr="float"), c.array([0, 5, -1]), k=1)
    yield Call(c.array([[1, 2, 2], [np.inf, 0, 1], [np.nan, 0, 1]], "float"), c.array([1, 0, 1]), k=1)


@case("InTopKV2")
def in_top_k_v2(c):
    yield Call(c.values((4, 5), attr="float"), c.array([0, 4, 2, 2]), c.array(2))
    yield Call(c.array([[1, 2, 2], [np.inf, 0, 1], [np.nan, 0, 1]], "float"), c.array([1, 0, 1]), c.array(1))


@case("Unique", "UniqueWithCounts")
def unique(c):
    yield Call(c.values((20,), 0, 6, "T"))
    yield Call(c.values((0,)))
    yield Call(c.values((1,)))


@case("UniqueV2", "UniqueWithCountsV2")
def unique_v2(c):
    yield Call(c.values((20,), 0, 6), c.array([], "Taxis"))
    yield Call(c.values((20,), 0, 6), c.array([0], "Taxis"))
    yield Call(c.values((6, 2), 0, 2), c.array([0], "Taxis"))
    yield Call(c.values((2, 6), 0, 2), c.array([1], "Taxis"))
    yield Call(c.values((2, 6), 0, 2), c.array([-1], "Taxis"))


@case("Where")
def where(c):
    for shape in ((3, 4), (7,), (2, 2, 3), (0,), (2, 1, 2, 2, 1)):
        yield Call(c.values(shape, -1, 2))


@case("ListDiff")
def difference(c):
    yield Call(c.values((12,), 0, 9), c.values((4,), 0, 9))
    yield Call(c.values((3,), 0, 9), c.values((0,), 0, 9))
    yield Call(c.values((0,), 0, 9), c.values((2,), 0, 9))


@case("CumulativeLogsumexp")
def log_scan(c):
    for shape, axis, exclusive, reverse in (
        ((3, 4), 0, False, False), ((3, 4), 1, True, False), ((2, 3, 4), -2, False, True), ((7,), 0, True, True),
        ((0, 3), 0, False, False), ((2, 3, 4), 2, True, True),
    ):
        yield Call(c.values(shape), c.array(axis, "Tidx"), exclusive=exclusive, reverse=reverse, loose=4)
    yield Call(c.array([-np.inf, 1, -np.inf, 2, np.inf, 0, np.nan, 1]), c.array(0, "Tidx"))
