"""Valid inputs for every op of the table: one generator per op, which yields calls for given types.

A call has the op's inputs in order and its attributes other than types. An input is an array, a list of arrays if the
signature has a list, or the initial value of a variable if the signature has a reference or a handle.
"""
import numpy as np
import tensorflow.compat.v1 as tf

GENERATORS = {}

FLOATS = ("half", "bfloat16", "float", "double")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
SIGNED = ("int8", "int16", "int32", "int64")
# Quantized types, with the types of the arrays that stand for their values in calls.
QUANTIZED = {"qint8": "int8", "quint8": "uint8", "qint16": "int16", "quint16": "uint16", "qint32": "int32"}


def case(*ops):
    """Registers a generator for these ops."""

    def register(generate):
        for op in ops:
            assert op not in GENERATORS, op
            GENERATORS[op] = generate
        return generate

    return register


class Call:
    """One use of an op. `steps`: the number of steps that run it; `exact`: results must have the same bits; `loose`: a
    factor of the tolerance of 16-bit floats; `unset`: indices of outputs that the peer does not initialise; `known`:
    parameters are always constants of the graph; `within`: the absolute tolerance, for results that are sums of larger
    numbers, or of single precision in a wider type."""

    def __init__(self, *inputs, steps=1, exact=False, loose=1.0, unset=(), known=False, within=0.0, **attrs):
        self.within = within
        self.unset = unset
        self.known = known
        self.inputs = inputs
        self.attrs = attrs
        self.steps = steps
        self.exact = exact
        self.loose = loose


class Context:
    """The argument of a generator: the op, its types, and a random generator of values."""

    def __init__(self, op, types, seed):
        self.op = op
        self.types = types
        self.rng = np.random.default_rng(seed)

    def is_float(self, attr="T"):
        return self.name(attr) in FLOATS

    def is_complex(self, attr="T"):
        return self.name(attr) in COMPLEX

    def is_unsigned(self, attr="T"):
        return QUANTIZED.get(self.name(attr), self.name(attr)) in UNSIGNED

    def is_integer(self, attr="T"):
        return self.name(attr) in UNSIGNED + SIGNED

    def name(self, attr):
        """The type in an attribute; an argument that names no attribute is itself returned as the type's name."""
        return self.types.get(attr, attr)

    def dtype(self, attr="T"):
        name = self.name(attr)
        return tf.as_dtype(QUANTIZED.get(name, name)).as_numpy_dtype

    def values(self, shape=(3, 4), low=-8, high=8, attr="T"):
        """Random values in [low, high), restricted to the values of the type."""
        name = self.name(attr)
        if name == "bool":
            return self.rng.integers(0, 2, shape).astype(bool)
        if name == "string":
            made = [b"s%d" % n for n in self.rng.integers(0, 50, int(np.prod(shape)))]
            return np.array(made, dtype=object).reshape(shape)
        if name in FLOATS:
            return np.asarray(self.rng.uniform(low, high, shape)).astype(self.dtype(attr))
        if name in COMPLEX:
            parts = [np.asarray(self.rng.uniform(low, high, shape)) for _ in range(2)]
            return (parts[0] + 1j * parts[1]).astype(self.dtype(attr))
        if QUANTIZED.get(name, name) in UNSIGNED:
            low = max(0, low)
            high = max(high, low + 1)
        return np.asarray(self.rng.integers(int(np.ceil(low)), int(np.ceil(high)), shape)).astype(self.dtype(attr))

    def whole(self, shape=(3, 4), attr="T"):
        """Random values over the whole range of an integer type; small values for other types."""
        if not self.is_integer(attr) and self.name(attr) not in QUANTIZED:
            return self.values(shape, attr=attr)
        info = np.iinfo(self.dtype(attr))
        return np.asarray(self.rng.integers(info.min, info.max, shape, dtype=self.dtype(attr), endpoint=True))

    def distinct(self, shape, attr="T"):
        """Distinct values, unless the type has too few."""
        size = int(np.prod(shape))
        order = self.rng.permutation(size)
        if QUANTIZED.get(self.name(attr), self.name(attr)) in UNSIGNED:
            return order.reshape(shape).astype(self.dtype(attr))
        if self.name(attr) in ("bool", "string"):
            return self.values(shape, attr=attr)
        return (order - size // 2).reshape(shape).astype(self.dtype(attr))

    def array(self, values, attr="T"):
        return np.array(values, dtype=self.dtype(attr))

    def special(self):
        """Infinities, NaN, zeros of both signs, and large and small values."""
        return self.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 60000.0, -60000.0, 1e-4])


from . import (  # noqa: E402,F401
    arrays, audio, candidate, clustering, codecs, elementwise, files, images, matrices, messages, nn, normalization, quantized, ragged, random, recurrent, reductions, regression, sequences, sets, space, sparse, state, strings, text, uniform_quantized, variants, windows,
)
