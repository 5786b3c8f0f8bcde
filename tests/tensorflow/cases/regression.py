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
