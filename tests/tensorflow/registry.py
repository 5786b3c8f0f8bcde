"""Compares our op table (a JSON file, the argument) with TensorFlow's registry, in every field that clients see."""
import json
import math
import sys

from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework import tensor_util


def dtype(number):
    return types_pb2.DataType.Name(number).removeprefix("DT_").lower()


def shape(proto):
    return None if proto.unknown_rank else [d.size for d in proto.dim]


def value(proto, kind):
    """Converts an AttrValue to JSON. `kind` is the attribute's type, which an empty list does not contain."""
    which = proto.WhichOneof("value")
    if which == "list":
        inner = kind.removeprefix("list(").removesuffix(")")
        field = {"string": "s", "int": "i", "float": "f", "bool": "b", "type": "type", "shape": "shape"}[inner]
        items = getattr(proto.list, field)
        return [item(field, x) for x in items]
    return None if which is None else item(which, getattr(proto, which))


def item(field, x):
    return {"s": lambda: x.decode(), "f": lambda: x if math.isfinite(x) else str(x), "type": lambda: dtype(x), "shape": lambda: shape(x), "tensor": lambda: str(tensor_util.MakeNdarray(x).tolist())}.get(field, lambda: x)()


def arg(proto):
    out = {"name": proto.name, "number_attr": proto.number_attr, "is_ref": proto.is_ref}
    if proto.type_list_attr:
        out["type_list_attr"] = proto.type_list_attr
    elif proto.type_attr:
        out["type_attr"] = proto.type_attr
    else:
        out["type"] = dtype(proto.type)
    return out


def attr(proto):
    has_default = proto.HasField("default_value")
    allowed = value(proto.allowed_values, f"list({proto.type.removeprefix('list(').removesuffix(')')})")
    return {
        "name": proto.name,
        "type": proto.type,
        "minimum": proto.minimum if proto.has_minimum else None,
        "allowed": sorted(allowed or []),
        "default": value(proto.default_value, proto.type) if has_default else None,
        "has_default": has_default,
    }


def op(proto):
    return {
        "inputs": [arg(a) for a in proto.input_arg],
        "outputs": [arg(a) for a in proto.output_arg],
        "attrs": [attr(a) for a in proto.attr],
        "stateful": proto.is_stateful,
        "commutative": proto.is_commutative,
        "aggregate": proto.is_aggregate,
        "allows_uninitialized_input": proto.allows_uninitialized_input,
    }


def main():
    ours = json.load(open(sys.argv[1]))
    wrong = 0
    for name, mine in sorted(ours.items()):
        registered = op_def_registry.get(name)
        if registered is None:
            print(f"{name}: TensorFlow has no such op")
            wrong += 1
            continue
        theirs = op(registered)
        for a in mine["attrs"]:
            a["allowed"] = sorted(a["allowed"])
            # A default that is a shape of unknown rank is null in our JSON, like a missing default.
            twin = next((t for t in theirs["attrs"] if t["name"] == a["name"]), None)
            a["has_default"] = a["default"] is not None or bool(a["type"] == "shape" and twin and twin["has_default"])
        for field in theirs:
            if mine[field] != theirs[field]:
                print(f"{name}.{field}:\n  ours   {mine[field]}\n  theirs {theirs[field]}")
                wrong += 1
    print(f"{len(ours)} ops compared, {wrong} differences")
    sys.exit(1 if wrong else 0)


main()
