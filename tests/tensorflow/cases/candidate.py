"""Candidate samplers, which sample the same classes for the same seed."""
import numpy as np

from . import Call, case

CLASSES = np.array([[0, 3], [5, 1], [2, 2]], np.int64)


@case("UniformCandidateSampler", "LogUniformCandidateSampler", "LearnedUnigramCandidateSampler", "ThreadUnsafeUnigramCandidateSampler")
def samplers(c):
    for unique in (False, True):
        for range_max in (16, 37, 4):
            if range_max == 4 and unique and c.op == "LogUniformCandidateSampler":
                continue
            classes = CLASSES % range_max
            yield Call(classes, num_true=2, num_sampled=4 if range_max == 4 else 9, unique=unique, range_max=range_max, seed=7, seed2=3, steps=3)
    yield Call(CLASSES[:, :1], num_true=1, num_sampled=64, unique=True, range_max=10007, seed=0, seed2=5, steps=2)


@case("FixedUnigramCandidateSampler")
def fixed(c):
    weights = [1.0, 4.0, 2.0, 8.0, 0.5, 3.0]
    for unique, more in ((False, {}), (True, {}), (False, dict(distortion=0.75, num_reserved_ids=2)), (False, dict(num_shards=2, shard=1))):
        range_max = {2: 8}.get(more.get("num_reserved_ids"), 3 if more.get("num_shards") else 6)
        yield Call(CLASSES % range_max, num_true=2, num_sampled=3, unique=unique, range_max=range_max, unigrams=weights, seed=7, seed2=3, steps=3, **more)


@case("AllCandidateSampler")
def everything(c):
    for unique in (False, True):
        yield Call(CLASSES, num_true=2, num_sampled=6, unique=unique)


@case("ComputeAccidentalHits")
def hits(c):
    for sampled in ([1, 7, 2, 3], [9], [2, 2, 2]):
        yield Call(CLASSES, np.array(sampled, np.int64), num_true=2)
