"""Regressions."""
import numpy as np

from . import Call, case
from .special import special


@case("IsotonicRegression")
def isotonic(c):
    for shape in ((7,), (3, 5), (2, 2, 9), (4, 1), (2, 0)):
        yield Call(c.values(shape, -9, 9), loose=10)
    yield Call(c.array([3, 1, 2]))
    yield Call(c.array([1, 2, 2, 5, 1, 1]))
    yield Call(c.array([[2, 2, 1], [1, 1, 1]]))


@special("SdcaShrinkL1")
def shrink(c):
    for l1, l2 in ((1.0, 2.0), (0.0, 1.0), (3.0, 0.5)):

        def make(probe, run, l1=l1, l2=l2):
            values = (c.values((5,), -3, 3, "float"), c.values((2, 3), -9, 9, "float"), np.zeros((0,), np.float32))
            weights = [probe.variable(value, run, True) for value in values]
            probe.steps = 2
            probe.fetch(probe.node("SdcaShrinkL1", "", weights, num_features=3, l1=l1, l2=l2))

        yield make


@case("SdcaFprint")
def fingerprint(c):
    texts = [c.rng.bytes(length) for length in range(301)] + [c.rng.bytes(n) for n in (511, 512, 513, 4096, 5000)]
    yield Call(np.array(texts, dtype=object))
    yield Call(np.zeros(0, object))


LOSSES = ("logistic_loss", "squared_loss", "hinge_loss", "smooth_hinge_loss", "poisson_loss")
EMPTY = np.zeros(0, np.float32)


def labels_of(c, loss, count):
    if loss == "squared_loss":
        return c.values((count,), -5, 5, "float")
    if loss == "poisson_loss":
        return np.round(c.values((count,), 0, 6, "float"))
    return c.rng.integers(0, 2, count).astype(np.float32)


def duals_of(c, loss, labels):
    """Dual values of the domain of the loss."""
    share = c.values((len(labels),), 0, 1, "float")
    if loss == "squared_loss":
        return c.values((len(labels),), -2, 2, "float")
    if loss == "poisson_loss":
        return labels * share - 0.5
    return share * (2 * labels - 1)


# Examples that share no features give the same result in every order, and the peer visits them in random order. A single
# example may have features in every column.
@case("SdcaOptimizer", "SdcaOptimizerV2")
def ascent(c):
    adaptive = "adaptive" if c.op.endswith("V2") else "adaptative"
    for loss in LOSSES:
        for l1, l2, partitions in ((0.0, 1.0, 1), (0.3, 2.0, 1), (0.1, 0.5, 3)):
            attrs = dict(loss_type=loss, l1=l1, l2=l2, num_loss_partitions=partitions, num_inner_iterations=2)
            # Sparse columns, with and without values: example i has the features 2i and 2i + 1.
            count = 6
            examples = np.repeat(np.arange(count), 2).astype(np.int64)
            features = np.arange(2 * count, dtype=np.int64)
            indices = c.rng.permutation(features) * 3 - 7
            labels = labels_of(c, loss, count)
            state = c.values((count, 4), 0, 2, "float")
            state[:, 0] = duals_of(c, loss, labels)
            weights = [c.values((2 * count,), -1, 1, "float") for _ in range(2)]
            yield Call(
                [examples, examples[1::2]], [features * 3 - 7, features[::2] * 3 - 7], [c.values((2 * count,), -2, 2, "float")], [],
                c.values((count,), 0.2, 2, "float"), labels, [indices, indices], weights, [], state,
                within=1e-5, num_sparse_features=2, num_sparse_features_with_values=1, num_dense_features=0, **attrs,
            )
            # A single example with all kinds of columns.
            for is_adaptive in (False, True):
                labels = labels_of(c, loss, 1)
                state = np.concatenate([duals_of(c, loss, labels), np.ones(3, np.float32)])[None]
                yield Call(
                    [np.zeros(3, np.int64), np.zeros(0, np.int64)], [np.array([4, 9, 2]), np.zeros(0, np.int64)], [c.values((3,), -2, 2, "float")],
                    [c.values((1, 4), -1, 1, "float"), c.values((1, 1), -1, 1, "float")], c.values((1,), 0.2, 2, "float"), labels,
                    [np.array([9, 2, 4, 5]), np.array([1])], [c.values((4,), -1, 1, "float"), c.values((1,), -1, 1, "float")],
                    [c.values((4,), -1, 1, "float"), c.values((1,), -1, 1, "float")], state,
                    within=1e-5, num_sparse_features=2, num_sparse_features_with_values=1, num_dense_features=2, **{adaptive: is_adaptive}, **attrs,
                )
            # A dense column in which each example has a feature of its own.
            labels = labels_of(c, loss, 5)
            state = c.values((5, 4), 0, 2, "float")
            state[:, 0] = duals_of(c, loss, labels)
            yield Call(
                [], [], [], [np.diag(c.values((5,), -2, 2, "float"))], c.values((5,), 0.2, 2, "float"), labels, [], [], [c.values((5,), -1, 1, "float")], state,
                within=1e-5, num_sparse_features=0, num_sparse_features_with_values=0, num_dense_features=1, **attrs,
            )
    yield Call([], [], [], [np.zeros((0, 3), np.float32)], EMPTY, EMPTY, [], [], [np.ones(3, np.float32)], np.zeros((0, 4), np.float32), num_sparse_features=0, num_sparse_features_with_values=0, num_dense_features=1, **attrs)
