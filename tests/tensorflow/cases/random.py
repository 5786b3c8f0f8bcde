"""Random numbers, which are the same for the same seed."""
import numpy as np

from . import Call, case
from .special import special

SHAPES = ([3, 4], [], [0, 2], [1031], [5])


@case("RandomStandardNormal", "RandomUniform", "TruncatedNormal")
def random(c):
    for i, shape in enumerate(SHAPES):
        yield Call(c.array(shape), seed=87, seed2=5 + i, dtype=c.name("dtype"), steps=2, exact=c.op == "RandomUniform")


@case("RandomUniformInt")
def random_int(c):
    for i, shape in enumerate(SHAPES):
        yield Call(c.array(shape), c.array(-3, "Tout"), c.array(1000, "Tout"), seed=87, seed2=5 + i, steps=2, exact=True)


@case("RandomShuffle")
def shuffle(c):
    for shape in ((7,), (5, 2), (1,), (0, 3), (40,)):
        yield Call(c.distinct(shape), seed=87, seed2=5, steps=2, exact=True)


@case("Multinomial")
def multinomial(c):
    yield Call(c.values((3, 5), -3, 3), np.array(6, np.int32), seed=87, seed2=5, steps=2, exact=True)
    yield Call(c.values((1, 2), -3, 3), np.array(0, np.int32), seed=87, seed2=5, exact=True)


SEEDS = ([7, 11], [-3, 2**31 - 1], [0, 0])


def seeds(c, i, attr="Tseed"):
    return np.array(SEEDS[i % 3]).astype(c.dtype(attr))


def key(i, alg=1):
    """A key, a counter and an algorithm."""
    return np.array([2**63 + 5 * i], np.uint64), np.array([2**64 - 1 - i, i], np.uint64), np.array(alg, np.int32)


def state(i):
    return np.array([-1 - i, i, 2**62 + i], np.int64)


FILLED = ("Uniform", "Normal", "UniformFullInt")
GENERATOR = ("StatefulStandardNormalV2", "StatefulTruncatedNormal", "StatefulUniform", "StatefulUniformFullInt")
# Only uniform numbers are exact: others use sines and logarithms, which may differ in the last bit.
EXACT = lambda c: "Uniform" in c.op


@case(*(f"StatelessRandom{kind}" for kind in FILLED), "StatelessTruncatedNormal")
def of_seeds(c):
    # The peer registers kernels for unsigned seeds that always fail.
    if c.is_unsigned("Tseed"):
        return
    for i, shape in enumerate(SHAPES):
        yield Call(c.array(shape), seeds(c, i), steps=2, exact=EXACT(c))


@case(*(f"StatelessRandom{kind}V2" for kind in FILLED), "StatelessTruncatedNormalV2")
def of_key(c):
    for i, shape in enumerate(SHAPES):
        yield Call(c.array(shape, "Tshape"), *key(i, 1 + i % 2 * 2), steps=2, exact=EXACT(c))


@case("StatelessRandomUniformInt")
def int_of_seeds(c):
    for i, shape in enumerate(SHAPES):
        yield Call(c.array(shape), seeds(c, i), c.array(-3, "dtype"), c.array(1000, "dtype"), exact=True)


@case("StatelessRandomUniformIntV2")
def int_of_key(c):
    for i, shape in enumerate(SHAPES):
        yield Call(c.array(shape, "Tshape"), *key(i), c.array(-3, "dtype"), c.array(1000, "dtype"), exact=True)


@case("StatelessMultinomial")
def multinomial_of_seeds(c):
    for i, (rows, count) in enumerate(((3, 6), (1, 0), (2, 300))):
        yield Call(c.values((rows, 5), -3, 3), np.array(count, np.int32), seeds(c, i), exact=True)


@case("StatelessShuffle")
def shuffle_of_key(c):
    for i, shape in enumerate(((7,), (5, 2), (1,), (0, 3), (40,))):
        yield Call(c.distinct(shape), *key(i), exact=True)


@case("StatelessRandomGetKeyCounter", "StatelessRandomGetKeyCounterAlg")
def keys(c):
    for i in range(3):
        yield Call(seeds(c, i))


@case("StatelessRandomGetAlg")
def algorithm(c):
    yield Call()


@case(*GENERATOR)
def of_generator(c):
    if c.name("shape_dtype") not in ("int32", "int64"):
        return
    for i, shape in enumerate(SHAPES):
        yield Call(state(i), np.int64(1), c.array(shape, "shape_dtype"), steps=2, exact=EXACT(c))


@case("StatefulStandardNormal")
def of_old_generator(c):
    if c.name("shape_dtype") not in ("int32", "int64"):
        return
    for i, shape in enumerate(SHAPES):
        yield Call(np.concatenate([[1], state(i)]), c.array(shape, "shape_dtype"), steps=2)


@case("StatefulUniformInt")
def int_of_generator(c):
    if c.name("shape_dtype") not in ("int32", "int64"):
        return
    for i, shape in enumerate(SHAPES):
        bounds = c.array(-3, "dtype"), c.array(1000, "dtype")
        yield Call(state(i), np.int64(1), c.array(shape, "shape_dtype"), *bounds, steps=2, exact=True)


@case("RngSkip")
def skipped(c):
    for i, delta in enumerate((0, 5, 2**40)):
        yield Call(state(i), np.int64(1), np.int64(delta), steps=2)


@case("RngReadAndSkip")
def read_and_skipped(c):
    for i, delta in enumerate((0, 5, 2**63 + 1)):
        yield Call(state(i), np.int32(1 + i % 2 * 2), np.uint64(delta), steps=2)


# Shape parameters below, at and above 1, which use different sampling algorithms.
ALPHAS = [0.2, 1.0, 1.7, 30.0]


@case("RandomGamma")
def gamma(c):
    yield Call(c.array([50], "S"), c.array(ALPHAS), seed=87, seed2=5, steps=2)
    yield Call(c.array([3, 2], "S"), c.array([ALPHAS]), seed=87, seed2=6)
    yield Call(c.array([], "S"), c.array(2.5), seed=87, seed2=6)
    yield Call(c.array([0, 2], "S"), c.array(ALPHAS), seed=87, seed2=6)


@case("StatelessRandomGammaV2", "StatelessRandomGammaV3")
def stateless_gamma(c):
    shape, source = ("T", (seeds(c, 0),)) if c.op.endswith("V2") else ("shape_dtype", key(3))
    yield Call(c.array([50, 4], shape), *source, c.array(ALPHAS, "dtype"), steps=2)
    yield Call(c.array([3, 2], shape), *source, c.array(0.4, "dtype"))
    yield Call(c.array([0, 4], shape), *source, c.array(ALPHAS, "dtype"))


@case("RandomGammaGrad", "IgammaGradA")
def gamma_slopes(c):
    for a, b in (((3, 4), (3, 4)), ((), (5,)), ((2, 1), (3,)), ((0, 3), (3,))):
        yield Call(c.values(a, 0.2, 9), c.values(b, 0.1, 9), within=2e-6)


# Rates that use each of the two sampling algorithms.
RATES = [0.0, 0.7, 9.0, 12.0, 500.0]


@case("RandomPoisson", "RandomPoissonV2")
def poisson(c):
    rate = "R" if c.op.endswith("V2") else "dtype"
    yield Call(c.array([50], "S"), c.array(RATES, rate), seed=87, seed2=5, steps=2, exact=True)
    yield Call(c.array([3, 2], "S"), c.array([RATES], rate), seed=87, seed2=6, exact=True)
    yield Call(c.array([0], "S"), c.array(RATES, rate), seed=87, seed2=6, exact=True)


@case("StatelessRandomPoisson")
def stateless_poisson(c):
    yield Call(c.array([50, 5]), seeds(c, 0), c.array(RATES, "Rtype"), steps=2, exact=True)
    yield Call(c.array([3, 2]), seeds(c, 1), c.array(20, "Rtype"), exact=True)


@case("ParameterizedTruncatedNormal")
def bounded(c):
    one = lambda *values: [c.array(v, "dtype") for v in values]
    for i, (low, high) in enumerate(((-2, 2), (0.5, 0.7), (2, 9), (-9, -3), (-np.inf, 0.1), (3, np.inf))):
        yield Call(c.array([35]), *one(0.1, 1.5, low, high), seed=87, seed2=i, steps=2)
    yield Call(c.array([3, 4]), *one([0.0, 1.0, 2.0], [1.0, 2.0, 0.5], [-1.0, 0.5, 3.0], [4.0]), seed=87, seed2=9, steps=2)
    yield Call(c.array([0, 4]), *one(0.0, 1.0, -1.0, 1.0), seed=87, seed2=9)


@case("StatelessParameterizedTruncatedNormal")
def bounded_by_seeds(c):
    one = lambda *values: [c.array(v, "dtype") for v in values]
    for i, (low, high) in enumerate(((-2, 2), (0.5, 0.7), (2, 9), (-9, -3), (-np.inf, 0.1), (3, np.inf))):
        yield Call(c.array([35], "S"), seeds(c, i), *one(0.1, 1.5, low, high), steps=2)
    yield Call(c.array([5, 3], "S"), seeds(c, 7), *one([0.0, 1.0, 2.0], [1.0, 2.0, 0.5], [-1.0, 0.5, 3.0], [4.0]))
    yield Call(c.array([2, 2, 3], "S"), seeds(c, 7), *one([[0.0], [1.0]], [1.0, 2.0, 0.5], -1.0, [4.0]))
    yield Call(c.array([0, 4], "S"), seeds(c, 8), *one(0.0, 1.0, -1.0, 1.0))
    for low in (-1.0, 0.9):
        yield Call(c.array([250], "S"), seeds(c, 9), *one(0.0, 1.0, low, 1.0))


# Numbers of trials and chances that use each of the two sampling algorithms, and special ones.
TRIALS, CHANCES = [0.0, 5.0, 30.0, 200.0, 7.0, 60.0, -2.0, 9.0], [0.3, 0.4, 0.5, 0.31, 0.9, 0.75, 0.5, 1.0]


@case("StatelessRandomBinomial")
def binomial_by_seeds(c):
    trials, chances = c.array(TRIALS), c.array(CHANCES)
    yield Call(c.array([50, 8], "S"), seeds(c, 0), trials, chances, steps=2, exact=True)
    yield Call(c.array([3, 2, 8], "S"), seeds(c, 1), c.array([[40.0], [5.0]]), chances, exact=True)
    yield Call(c.array([70], "S"), seeds(c, 2), c.array(20), c.array(0.2), exact=True)
    yield Call(c.array([0], "S"), seeds(c, 2), c.array(20), c.array(0.2), exact=True)


@special("StatefulRandomBinomial")
def binomial_of_a_state(c):
    for shape, trials, chances in (([6], 50, 0.3), ([40, 8], TRIALS, CHANCES), ([0], 5, 0.5), ([4, 2, 8], [[40.0], [5.0]], CHANCES)):

        def make(probe, run, shape=shape, trials=trials, chances=chances):
            # The peer changes the memory of the value that is assigned, so it must be neither fed nor a constant.
            state = probe.node("VarHandleOp", "_state", [], dtype="int64", shape=[3], shared_name=f"{run}_{probe.name}")
            parts = [probe.constant(np.array(part, np.int64)) for part in ([5], [6, 7])]
            start = probe.node("ConcatV2", "_joined", [*parts, probe.constant(np.int32(0))], N=2, T="int64", Tidx="int32")
            probe.first.append(probe.node("AssignVariableOp", "_start", [state, start], dtype="int64"))
            probe.reads.append(probe.node("ReadVariableOp", "_read", [state], dtype="int64") + ":0")
            feed = lambda value: probe.feed(value, True, probe.feeds)
            inputs = [state, feed(np.int64(1)), feed(c.array(shape, "S")), feed(c.array(trials)), feed(c.array(chances))]
            types = {name: c.name(name) for name in ("S", "T", "dtype")}
            probe.steps, probe.exact = 2, True
            probe.fetch(probe.node("StatefulRandomBinomial", "", inputs, **types))

        yield make


@case("RandomIndexShuffle")
def shuffled_indices(c):
    for most, rounds in ((4, 4), (4, 8), (0, 4), (255, 4), (65535, 6), (65536, 6), (10**6, 10), (2**31 - 1, 4)):
        index = c.array(np.arange(6) % (most + 1), "dtype")
        yield Call(index, c.array([1, 2, 3], "Tseed"), c.array(most, "dtype"), rounds=rounds)
        yield Call(index[5], c.array([99, 2**31 - 1, 3], "Tseed"), c.array(most, "dtype"), rounds=rounds)
    yield Call(c.array([1, 0, 3], "dtype"), c.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], "Tseed"), c.array([9, 1, 70000], "dtype"))
    yield Call(c.array(1, "dtype"), c.array([[1, 2, 3], [4, 5, 6]], "Tseed"), c.array(9, "dtype"))
    if c.name("dtype") in ("int64", "uint64"):
        yield Call(c.array([1, 2**40], "dtype"), c.array([1, 2, 3], "Tseed"), c.array(2**50 + 1, "dtype"))


@case("SobolSample")
def sobol(c):
    scalar = lambda v: np.array(v, np.int32)
    for dim, count, skip in ((1, 1, 0), (1, 70, 0), (3, 9, 0), (40, 1100, 0), (40, 3, 1), (7, 600, 12345), (40, 5, 2**24 - 3), (40, 4, 2**29 + 77), (21200, 2, 3), (9000, 3, 70000)):
        yield Call(scalar(dim), scalar(count), scalar(skip), exact=True)
