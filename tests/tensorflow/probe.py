"""Probes: uses of an op as nodes of a graph, which run in batches in a session."""
import re

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework import tensor_util

# The producer version of graphs. A deprecated op gets the last version that has it.
PRODUCER = 1882


def attr_value(value, kind):
    """Converts a Python value to an AttrValue of the type `kind`."""
    out = tf.AttrValue()
    if kind.startswith("list("):
        items = [attr_value(v, kind[5:-1]) for v in value]
        out.list.SetInParent()
        for item in items:
            field = item.WhichOneof("value")
            if field in ("tensor", "shape"):
                getattr(out.list, field).add().CopyFrom(getattr(item, field))
            else:
                getattr(out.list, field).append(getattr(item, field))
    elif kind == "type":
        out.type = tf.as_dtype(value).as_datatype_enum
    elif kind == "shape":
        out.shape.CopyFrom(tf.TensorShape(value).as_proto())
    elif kind == "tensor":
        out.tensor.CopyFrom(value)
    elif kind == "string":
        out.s = value.encode() if isinstance(value, str) else value
    else:
        setattr(out, {"int": "i", "float": "f", "bool": "b"}[kind], value)
    return out


def dtype_of(array):
    if array.dtype.names:
        return tf.as_dtype(array.dtype.names[0])
    return tf.string if array.dtype == object else tf.as_dtype(array.dtype)


def quantized(value, dtype):
    """Returns an array of integers as one of the quantized type `dtype`; `None` and other types change nothing."""
    if dtype is None or not tf.as_dtype(dtype).is_quantized:
        return value
    out = np.empty(np.shape(value), np.dtype(tf.as_dtype(dtype).as_numpy_dtype))
    out[out.dtype.names[0]] = value
    return out


class Probe:
    """One use of an op: its nodes and feeds, the nodes to run once at first (`first`), the tensors to fetch in each step
    (`fetches`), and the variables to read after each step (`reads`)."""

    def __init__(self, number, op, label):
        self.name = f"p{number}"
        self.op = op
        self.label = label
        self.nodes = []
        self.feeds = {}
        self.first_feeds = {}
        self.first = []
        self.fetches = []
        self.reads = []
        self.steps = 1
        self.exact = False
        self.loose = 1.0
        self.within = 0.0
        definition = op_def_registry.get(op)
        self.producer = min(PRODUCER, definition.deprecation.version - 1) if definition.HasField("deprecation") else PRODUCER
        self.shapes = ""

    def node(self, op, name, inputs, **attrs):
        """Adds a node and returns its name. Attributes are Python values, converted by the op's definition."""
        definition = op_def_registry.get(op)
        node = tf.NodeDef(name=f"{self.name}{name}", op=op, input=inputs)
        for spec in definition.attr:
            if spec.name in attrs:
                node.attr[spec.name].CopyFrom(attr_value(attrs.pop(spec.name), spec.type))
            elif spec.HasField("default_value"):
                node.attr[spec.name].CopyFrom(spec.default_value)
        assert not attrs, f"{op} has no {list(attrs)}"
        self.nodes.append(node)
        return node.name

    def feed(self, value, static, feeds):
        shape = value.shape if static else None
        name = self.node("Placeholder", f"_in{len(self.nodes)}", [], dtype=dtype_of(value), shape=shape)
        feeds[f"{name}:0"] = value
        return name

    def constant(self, value):
        return self.node("Const", f"_in{len(self.nodes)}", [], dtype=dtype_of(value), value=tensor_util.make_tensor_proto(value))

    def variable(self, value, run, static):
        """Adds a reference variable with the initial value `value`."""
        shared = f"{run}_{self.name}_{len(self.nodes)}"
        name = self.node("VariableV2", f"_var{len(self.nodes)}", [], dtype=dtype_of(value), shape=value.shape, shared_name=shared)
        start = self.feed(value, static, self.first_feeds)
        self.first.append(self.node("Assign", f"_start{len(self.nodes)}", [name, start], T=dtype_of(value)))
        self.reads.append(f"{name}:0")
        return name

    def resource(self, value, run, static):
        shared = f"{run}_{self.name}_{len(self.nodes)}"
        name = self.node("VarHandleOp", f"_var{len(self.nodes)}", [], dtype=dtype_of(value), shape=value.shape if static else None, shared_name=shared)
        start = self.feed(value, static, self.first_feeds)
        self.first.append(self.node("AssignVariableOp", f"_start{len(self.nodes)}", [name, start], dtype=dtype_of(value)))
        self.reads.append(f"{self.node('ReadVariableOp', f'_read{len(self.nodes)}', [name], dtype=dtype_of(value))}:0")
        return name

    def call(self, types, call, run, static):
        """Adds the op itself with the inputs of a `cases.Call`. `static`: shapes and parameters are in the graph."""
        definition = op_def_registry.get(self.op)
        attrs = dict(call.attrs)
        inputs = []
        for arg, value in zip(definition.input_arg, call.inputs, strict=True):
            dtype = types.get(arg.type_attr, arg.type or None)
            value = [quantized(v, dtype) for v in value] if isinstance(value, list) else quantized(value, dtype)
            if arg.number_attr or arg.type_list_attr:
                inputs += [self.feed(np.asarray(v), static, self.feeds) for v in value]
                if arg.number_attr:
                    attrs[arg.number_attr] = len(value)
                if arg.type_list_attr:
                    attrs[arg.type_list_attr] = [dtype_of(np.asarray(v)) for v in value]
            elif arg.is_ref:
                inputs.append(self.variable(value, run, static))
            elif arg.type == tf.resource.as_datatype_enum:
                inputs.append(self.resource(value, run, static))
            elif (static or call.known) and is_parameter(arg, definition):
                inputs.append(self.constant(np.asarray(value)))
            else:
                inputs.append(self.feed(np.asarray(value), static, self.feeds))
        flat = [v for value in call.inputs for v in (value if isinstance(value, list) else [value])]
        self.shapes = " ".join(str(list(np.shape(v))) for v in flat) + f" {call.attrs or ''}"
        named = {a.name: a for a in definition.attr}
        for name, dtype in types.items():
            if named[name].type == "type":
                attrs[name] = dtype
        name = self.node(self.op, "", inputs, **attrs)
        self.steps, self.exact, self.loose, self.within = call.steps, call.exact, call.loose, call.within
        self.fetch(name)
        self.fetches = [f for i, f in enumerate(self.fetches) if i not in call.unset]
        return self

    def fetch(self, name):
        """Fetches all outputs of the last node, or runs it if it has none."""
        node = self.nodes[-1]
        count = len(output_types(node))
        self.fetches += [f"{name}:{i}" for i in range(count)] or [name]


def is_parameter(arg, definition):
    """Returns whether an input is a parameter, such as an axis, a shape or indices, and not data."""
    first = definition.input_arg[0]
    return arg.type == tf.int32.as_datatype_enum or bool(
        arg.type_attr and first.type_attr and arg.type_attr != first.type_attr and arg.type_attr not in ("T", "dtype", "Tout")
    )


def output_types(node):
    out = []
    for arg in op_def_registry.get(node.op).output_arg:
        if arg.type_list_attr:
            out += list(node.attr[arg.type_list_attr].list.type)
        else:
            out += [arg.type] * (node.attr[arg.number_attr].i if arg.number_attr else 1)
    return out


def config():
    """Returns a session configuration without constant folding and rewrites, so that every node runs."""
    out = tf.ConfigProto(intra_op_parallelism_threads=1)
    out.graph_options.rewrite_options.disable_meta_optimizer = True
    out.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    return out


def copied(feeds):
    """Copies the fed arrays: the peer's session shares their memory, and some kernels write their inputs."""
    return {name: np.array(value) for name, value in feeds.items()}


def attempt(target, probes):
    """Runs the probes in one session; returns for each name the (outputs, variables) of each step."""
    graph_def = graph_pb2.GraphDef(node=[n for p in probes for n in p.nodes])
    graph_def.versions.producer = probes[0].producer
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        fetchable = lambda name: graph.get_tensor_by_name(name) if ":" in name else graph.get_operation_by_name(name)
        values = {p.name: [] for p in probes}
        with tf.Session(target, config=config()) as session:
            first = [fetchable(n) for p in probes for n in p.first]
            if first:
                session.run(first, {k: v for p in probes for k, v in p.first_feeds.items()})
            for step in range(max((p.steps for p in probes), default=0)):
                live = [p for p in probes if p.steps > step]
                feeds = copied({k: v for p in live for k, v in p.feeds.items()})
                got = session.run([[fetchable(n) for n in p.fetches] for p in live], feeds)
                read = session.run([[fetchable(n) for n in p.reads] for p in live]) if any(p.reads for p in live) else [[] for _ in live]
                for p, outputs, variables in zip(live, got, read):
                    values[p.name].append((outputs, variables))
        return values


def run(target, probes):
    """Like `attempt`, but isolates probes that fail: their result is the exception."""
    results = {}
    rest = [list(probes)]
    while rest:
        batch = rest.pop()
        if not batch:
            continue
        try:
            results |= attempt(target, batch)
        except tf.errors.UnavailableError:
            raise
        except (tf.errors.OpError, ValueError) as error:
            blamed = blame(error, batch)
            if len(batch) == 1:
                results[batch[0].name] = error
            elif blamed:
                results[blamed.name] = error
                rest.append([p for p in batch if p is not blamed])
            else:
                rest += [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
    return results


def blame(error, batch):
    """Returns the probe whose node the error names, or None if there is no such probe or more than one."""
    names = set(re.findall(r"\b(p\d+)(?:_\w+)?\b", getattr(error, "message", None) or str(error)))
    found = [p for p in batch if p.name in names]
    return found[0] if len(found) == 1 else None
