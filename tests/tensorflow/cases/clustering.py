"""Clusters of points."""
import numpy as np

from . import Call, case


@case("NearestNeighbors")
def nearest(c):
    for points, centers, width in ((5, 4, 3), (1, 7, 2), (3, 1, 1), (2, 0, 2)):
        for k in (0, 1, 2, 4, 9):
            yield Call(c.values((points, width), attr="float"), c.values((centers, width), attr="float"), np.int64(k), within=1e-3)
    grid = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]], np.float32)
    yield Call(np.zeros((1, 2), np.float32), grid, np.int64(3))


@case("KMC2ChainInitialization")
def chain(c):
    for seed in (0, 1, 7, -3, 2**40 + 5):
        for count in (1, 2, 6, 50):
            yield Call(c.values((count,), 0, 9, "float"), np.int64(seed))


@case("KmeansPlusPlusInitialization")
def initial_centers(c):
    for rows, width in ((8, 2), (11, 3), (1, 4)):
        for seed in (1, 5, -7, 2**40 + 3):
            for count, retries in ((1, 0), (3, 0), (3, 2), (rows, 1), (min(rows, 7), -1)):
                # Sums of whole numbers are the same in every order.
                yield Call(np.round(c.values((rows, width), -50, 50, "float")), np.int64(min(count, rows)), np.int64(seed), np.int64(retries))
