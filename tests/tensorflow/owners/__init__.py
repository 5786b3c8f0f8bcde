"""Objects that sessions make on a server, and the session or container that each belongs to.

An `Object` is one resource-making op in one graph: `touch` changes the object, `look` reads a number that tells how often
it was changed. `resource_owners.py` runs the scenarios of `scenarios.py` on two servers and compares all that was seen."""
import collections

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import op_def_library, op_def_registry

# How a node names its object: attributes `shared_name` and `container`.
Naming = collections.namedtuple("Naming", "shared_name container")

MAKERS = []


class Maker:
    """A function that builds the object of an op. `variant` distinguishes several objects of the same op. An `alone` object
    runs in steps of its own, because its nodes may fail or because `look` changes it. An object that is not `removable`
    cannot be in a container that is reset, because TensorFlow's server then waits for ever or ends. An object that does not
    `outlive` its session is in no scenario that uses it after the session that made it, because TensorFlow's object refers to
    memory of that session."""

    def __init__(self, op, build, variant, alone, removable, outlives):
        self.op, self.build, self.alone, self.removable, self.outlives = op, build, alone, removable, outlives
        self.label = f"{op}.{variant}" if variant else op


def makes(*ops, variant="", alone=False, removable=True, outlives=True):
    """Registers the decorated function as the maker of ops; it is called with a `Builder` and returns (touch, look)."""
    def register(build):
        MAKERS.extend(Maker(op, build, variant, alone, removable, outlives) for op in ops)
        return build
    return register


class Builder:
    """What a maker builds with: the node's op and name, and values that each step feeds."""

    def __init__(self, op, node, naming, key, number, folder, label):
        self.op, self.node = op, node
        self.key, self.number, self.folder = key, number, folder
        self.container = naming.container
        self.shared_name = naming.shared_name and f"{naming.shared_name}_{label}"

    @property
    def shared(self):
        """The name by which another node finds the object."""
        return self.shared_name or self.node

    def names(self):
        """Returns the attributes that name the object."""
        return {"shared_name": self.shared_name, "container": self.container}

    def make(self, **arguments):
        """Adds the op under the object's name; returns its first output."""
        return first(call(self.op, name=self.node, **self.names(), **arguments))

    def make_unnamed(self, **arguments):
        """Adds an op that has no attributes for a name."""
        return first(call(self.op, name=self.node, **arguments))


def first(outputs):
    return outputs[0] if isinstance(outputs, (list, tuple)) else outputs


def call(op, name=None, **arguments):
    """Adds a node of any op, also of those for which the client has no function. Missing attributes have their defaults, and
    attributes that the inputs determine may be given in vain."""
    definition = op_def_registry.get(op)
    determined = {attr for arg in definition.input_arg for attr in (arg.type_attr, arg.number_attr, arg.type_list_attr)}
    arguments = {name: value for name, value in arguments.items() if name not in determined}
    for attr in definition.attr:
        if attr.HasField("default_value") and attr.name not in arguments:
            arguments[attr.name] = default_of(attr)
    return op_def_library.apply_op(op, name=name, **arguments)


def default_of(attr):
    value = attr.default_value
    field = value.WhichOneof("value")
    if field == "list":
        return next((list(values) for _, values in value.list.ListFields()), [])
    return getattr(value, field)


def after(before, value):
    """Returns the value, computed after other nodes have run."""
    with tf.control_dependencies(before if isinstance(before, list) else [before]):
        return tf.identity(value) if isinstance(value, tf.Tensor) else value()


from . import datasets, objects  # noqa: E402,F401
