"""Changes of valid calls: of ranks, sizes, values and attributes. The changes do not depend on the op; TensorFlow decides
whether a changed call is still valid."""
import copy

import numpy as np
import tensorflow.compat.v1 as tf

# Sizes that an axis is changed to, besides one less and one more. The last is larger than a SIMD vector or block of
# kernels.
SIZES = (0, 1, 67)
# Largest number of elements of a changed input.
LARGEST = 1 << 16
# A rank above those for which kernels are compiled; shapes allow higher ranks.
HIGH_RANK = 9
FLOATS = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 1e-30, 3e38, 0.5)
INTEGERS = (0, 1, -1, 2, 3, -2, 100, 2**31 - 1, -(2**31), 2**40, 2**62)
TEXTS = (b"", b"\xff\xfe", b"a" * 300, b"-1", b"nan", b" 12 ", b"1e400", b"9223372036854775808")
NUMBERS = (0, 1, -1, 2, 2**31 - 1)
FRACTIONS = (0.0, -1.0, 1.0, float("nan"), float("inf"))
# Attributes that are not changed: they do not affect the result, make it random or slow, or name files.
UNCHANGED = ("debug_urls", "debug_ops_spec", "device_name", "tensor_name", "seed", "seed2", "container", "shared_name", "range_max", "num_sampled")


class TooLarge(Exception):
    """Raised by a change that would give an input more than LARGEST elements."""


def mutations(call, definition):
    """Returns the possible changes of a call: for each a description, and a function that returns the changed call."""
    made = []
    leaves = [(i, j) for i, value in enumerate(call.inputs) for j in (range(len(value)) if isinstance(value, list) else (None,))]
    for at in leaves:
        where = definition.input_arg[at[0]].name + ("" if at[1] is None else f"[{at[1]}]")
        value = leaf(call, at)
        for description, change in shape_changes(value) + value_changes(value):
            made.append((f"{where} {description}", lambda call, at=at, change=change: with_leaf(call, at, change)))
    sizes = {n for at in leaves for n in leaf(call, at).shape if n > 1}
    for old in sorted(sizes) if len(leaves) > 1 else ():
        for new in (old + 1, *SIZES):
            made.append((f"every {old} is {new}", lambda call, old=old, new=new: everywhere(call, leaves, old, new)))
    for attr in {arg.number_attr for arg in definition.input_arg} - {""}:
        lists = [i for i, arg in enumerate(definition.input_arg) if arg.number_attr == attr]
        made.append((f"{attr} is less", lambda call, lists=lists: with_lists(call, lists, lambda v: v[:-1])))
        made.append((f"{attr} is more", lambda call, lists=lists: with_lists(call, lists, lambda v: v + v[-1:])))
    for spec in definition.attr:
        if spec.name not in UNCHANGED and spec.name not in {arg.number_attr for arg in definition.input_arg}:
            made += attr_changes(call, spec, spec.name in {arg.number_attr for arg in definition.output_arg})
    return made


def leaf(call, at):
    value = call.inputs[at[0]]
    value = np.asarray(value if at[1] is None else value[at[1]])
    return value.astype(object) if value.dtype.kind == "S" else value


def with_leaf(call, at, change):
    out = copy.copy(call)
    inputs = [list(v) if isinstance(v, list) else v for v in call.inputs]
    changed = change(leaf(call, at))
    if at[1] is None:
        inputs[at[0]] = changed
    else:
        inputs[at[0]][at[1]] = changed
    out.inputs = inputs
    return out


def with_lists(call, lists, change):
    out = copy.copy(call)
    out.inputs = [change(list(v)) if i in lists else v for i, v in enumerate(call.inputs)]
    return out


def everywhere(call, leaves, old, new):
    for at in leaves:
        for axis, size in enumerate(leaf(call, at).shape):
            if size == old:
                call = with_leaf(call, at, lambda v, axis=axis: sized(v, axis, new))
    return call


def empties(call, definition):
    """Returns the ways to empty inputs of a call: one axis of one input, or every axis of one size, also where the size is an
    element of a vector of integers, such as the shape of a result. The result is like that of `mutations`."""
    made = []
    leaves = [(i, j) for i, value in enumerate(call.inputs) for j in (range(len(value)) if isinstance(value, list) else (None,))]
    for at in leaves:
        where = definition.input_arg[at[0]].name + ("" if at[1] is None else f"[{at[1]}]")
        for axis, size in enumerate(leaf(call, at).shape):
            if size:
                change = lambda v, axis=axis: sized(v, axis, 0)
                made.append((f"{where} axis {axis} of size 0", lambda call, at=at, change=change: with_leaf(call, at, change)))
    for old in sorted({size for at in leaves for size in leaf(call, at).shape if size}):
        made.append((f"every {old} is 0", lambda call, old=old: everywhere(with_sizes(call, leaves, old, 0), leaves, old, 0)))
    return made


def with_sizes(call, leaves, old, new):
    """Replaces a size in the vectors of integers of a call."""
    for at in leaves:
        value = leaf(call, at)
        if value.ndim == 1 and value.dtype.kind == "i":
            call = with_leaf(call, at, lambda v: np.where(v == old, np.array(new, v.dtype), v))
    return call


def sized(value, axis, size):
    """Returns the value with another size along an axis: truncated, or with repeated elements."""
    if np.prod([n for i, n in enumerate(value.shape) if i != axis]) * size > LARGEST:
        raise TooLarge
    if value.size == 0 and size:
        return filled(value, value.shape[:axis] + (size,) + value.shape[axis + 1 :])
    return np.take(value, np.arange(size) % max(value.shape[axis], 1), axis)


def filled(value, shape):
    return np.full(shape, b"", object) if value.dtype == object else np.zeros(shape, value.dtype)


def first_of(value):
    return np.asarray(value.reshape(-1)[0] if value.size else filled(value, ()), value.dtype)


def shape_changes(value):
    made = []
    for axis, size in enumerate(value.shape):
        for other in dict.fromkeys((size + 1, size - 1, *SIZES)):
            if other not in (size, -1):
                made.append((f"axis {axis} of size {other}", lambda v, a=axis, n=other: sized(v, a, n)))
    if value.ndim:
        made.append(("without its first axis", lambda v: np.take(v, 0, 0) if v.shape[0] else filled(v, v.shape[1:])))
        made.append(("without its last axis", lambda v: np.take(v, 0, -1) if v.shape[-1] else filled(v, v.shape[:-1])))
        made.append(("a scalar", first_of))
    made.append(("with an axis before", lambda v: v[np.newaxis]))
    made.append(("with an axis behind", lambda v: v[..., np.newaxis]))
    made.append(("twice", lambda v: np.stack([v, v])))
    made.append(("an empty vector", lambda v: filled(v, (0,))))
    made.append((f"of rank {HIGH_RANK}", lambda v: v.reshape((1,) * (HIGH_RANK - v.ndim) + v.shape)))
    return made


def value_changes(value):
    """Returns changes of all elements, of the first and of the last element."""
    kind = value.dtype.kind
    if value.dtype == object:
        special = TEXTS
    elif kind == "b":
        special = (False, True)
    elif kind in "iu":
        info = np.iinfo(value.dtype)
        special = dict.fromkeys([n for n in INTEGERS if info.min <= n <= info.max] + [info.min, info.max])
    elif kind == "c":
        special = [complex(x, y) for x, y in ((np.nan, 1), (np.inf, 0), (0, -np.inf), (-0.0, 0), (0, 0), (-1, 0))]
    else:
        special = FLOATS
    made = []
    for x in special if value.size else ():
        text = repr(x)[:24]
        made.append((f"all {text}", lambda v, x=x: replaced(v, slice(None), x)))
        if value.size > 1:
            made.append((f"first {text}", lambda v, x=x: replaced(v, slice(1), x)))
            made.append((f"last {text}", lambda v, x=x: replaced(v, slice(-1, None), x)))
    if value.size > 1:
        made.append(("all alike", lambda v: np.broadcast_to(first_of(v), v.shape).copy()))
        made.append(("backwards", lambda v: v.reshape(-1)[::-1].reshape(v.shape)))
    if kind not in "Ob" and value.size:
        made.append(("negated", lambda v: (-v.astype(v.dtype)).astype(v.dtype)))
    return made


def replaced(value, where, x):
    out = np.array(value, copy=True).reshape(-1)
    with np.errstate(all="ignore"):
        out[where] = x if value.dtype == object else np.asarray(x).astype(value.dtype)
    return out.reshape(value.shape)


def attr_changes(call, spec, counts_outputs):
    values = call.attrs.get(spec.name)
    if values is None:
        if not spec.HasField("default_value"):
            return []
        values = default_of(spec)
    if spec.type == "bool":
        others = [not values]
    elif spec.type == "int":
        # A huge number of outputs would make the graph too large to send.
        others = [n for n in (*NUMBERS, values + 1) if n <= values + 1 or not counts_outputs]
    elif spec.type == "float":
        others = FRACTIONS
    elif spec.type == "string":
        others = [s.decode() for s in spec.allowed_values.list.s]
    elif spec.type == "list(int)":
        others = [values[:-1], [*values, 1], [], *(values[:i] + [n] + values[i + 1 :] for i in range(len(values)) for n in NUMBERS)]
    else:
        others = []
    return [(f"{spec.name}={other}", lambda call, other=other: with_attr(call, spec.name, other)) for other in others if other != values]


def default_of(spec):
    value = spec.default_value
    if spec.type.startswith("list("):
        return list(value.list.i)
    if spec.type == "string":
        return value.s.decode()
    return getattr(value, {"bool": "b", "int": "i", "float": "f"}.get(spec.type, "i"))


def with_attr(call, name, value):
    out = copy.copy(call)
    out.attrs = {**call.attrs, name: value}
    return out
