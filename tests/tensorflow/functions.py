"""Functions and functional control flow: the same graphs in a session on our servers and in a local TensorFlow session,
with results compared.

    functions.py --target grpc://HOST:PORT --devices /job:ps/task:0,/job:worker/task:1
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

tf1 = tf.compat.v1
tf1.disable_eager_execution()
tf1.enable_control_flow_v2()

CASES = []


def case(build):
    CASES.append(build)
    return build


def numbers(*shape):
    return (np.arange(np.prod(shape, dtype=np.int64)).reshape(shape) % 7 / 7 - 0.4).astype(np.float32)


@case
def branches(at):
    x = tf1.placeholder(tf.float32, [])
    with at(1):
        y = tf.cond(x > 0, lambda: x * 2, lambda: x - tf.constant(1.0))
    z = tf.cond(x > 5, lambda: tf.cond(x > 7, lambda: x, lambda: -x), lambda: tf.constant(0.5))
    grads = tf1.gradients([y, z], [x])
    return [y, z, *grads], [{x: 3.0}, {x: -3.0}, {x: 6.0}, {x: 8.0}]


@case
def loops(at):
    n = tf1.placeholder(tf.int32, [])
    x = tf1.placeholder(tf.float32, [2])
    with at(1):
        _, y = tf.while_loop(lambda i, _: i < n, lambda i, v: (i + 1, v * x + 1), [0, x])
    grads = tf1.gradients(y, x)
    return [y, *grads], [{n: 0, x: [1.0, 2.0]}, {n: 5, x: [0.5, -2.0]}]


@case
def batched_calls(at):
    x = tf1.placeholder(tf.float32, [None, 2])
    with at(1):
        w = tf.constant(numbers(2, 3))

        @tf.nondifferentiable_batch_function(num_batch_threads=2, max_batch_size=8, batch_timeout_micros=2000, allowed_batch_sizes=[4, 8])
        def net(v):
            return tf.matmul(v, w), tf.reduce_sum(v, axis=1)

        y = [*net(x), *net(x + 1.0)]
    return y, [{x: numbers(1, 2)}, {x: numbers(5, 2)}, {x: numbers(8, 2)}]


@case
def rows_joined_to_batches(at):
    """Two nodes add to one batch; one of them gets all rows, and each gets back its own."""
    x = tf1.placeholder(tf.float32, [None, 2])
    own, totals = [], []
    with at(1):
        for i in range(2):
            limits = dict(num_batch_threads=1, max_batch_size=8, batch_timeout_micros=20000, grad_timeout_micros=0)
            [batch], index, key = tf.raw_ops.Batch(in_tensors=[x + i], shared_name="rows", **limits)
            own.append(tf.raw_ops.Unbatch(batched_tensor=batch * 3.0, batch_index=index, id=key, timeout_micros=10**7, shared_name="own"))
            gradient = tf.raw_ops.UnbatchGrad(original_input=batch, batch_index=index, grad=own[i], id=key, shared_name="gradient")
            totals.append(tf.reduce_sum(gradient, axis=0))
    return [*own, totals[0] + totals[1]], [{x: numbers(1, 2)}, {x: numbers(4, 2)}]


@case
def gradients_of_sparse_matrices(at):
    from tensorflow.python.ops.linalg.sparse import sparse_csr_matrix_ops as csr

    indices = np.array([[0, 1], [1, 0], [1, 3], [2, 2]], np.int64)
    values = tf1.placeholder(tf.float32, [4])
    dense = tf1.placeholder(tf.float32, [4, 2])
    with at(1):
        a = csr.sparse_tensor_to_csr_sparse_matrix(indices, values, [3, 4])
        product = csr.sparse_matrix_mat_mul(a, dense)
        square = csr.sparse_matrix_sparse_mat_mul(a, a, type=tf.float32, transpose_b=True)
        parts = csr.csr_sparse_matrix_to_dense(square, tf.float32)
        turned = csr.csr_sparse_matrix_to_dense(csr.sparse_matrix_transpose(a, type=tf.float32), tf.float32)
        # Sums of matrices have no kernel on the peer's CPU, so each gradient has one path.
        grads = [*tf1.gradients(product * product, [values, dense]), *tf1.gradients(turned * turned, values)]
    return [product, parts, turned, *grads], [{values: numbers(4), dense: numbers(4, 2)}]


@case
def gradients_of_maps(at):
    from tensorflow.python.ops import map_ops

    x, y = tf1.placeholder(tf.float32, [2]), tf1.placeholder(tf.float32, [2])
    with at(1):
        one, two = tf.constant(1.0), tf.constant([2.0])
        entries = map_ops.tensor_map_insert(map_ops.empty_tensor_map(), one, x)
        entries = map_ops.tensor_map_insert(entries, two, y * x)
        z = map_ops.tensor_map_lookup(entries, one, tf.float32) * map_ops.tensor_map_lookup(entries, two, tf.float32)
        z += map_ops.tensor_map_lookup(map_ops.tensor_map_erase(entries, two, tf.float32), one, tf.float32)
        grads = tf1.gradients(z, [x, y])
    return [z, *grads], [{x: [1.0, 2.0], y: [3.0, -1.0]}]


@case
def gradients_of_ops(at):
    """The function of a SymbolicGradient may be an op."""
    x, y, dz = (tf1.placeholder(tf.float32, [3, 3]) for _ in range(3))
    out = []
    for op, inputs, flags in (("Mul", [x, y], {}), ("Sin", [x], {}), ("MatMul", [x, y], {"transpose_a": True, "transpose_b": False, "grad_a": False, "grad_b": False})):
        graph = tf1.GraphDef()
        graph.versions.producer = tf1.get_default_graph().as_graph_def().versions.producer
        node = graph.node.add(name="gradient", op="SymbolicGradient")
        node.input.extend(f"given{i}" for i in range(len(inputs) + 1))
        node.attr["Tin"].list.type.extend([tf.float32.as_datatype_enum] * (len(inputs) + 1))
        node.attr["Tout"].list.type.extend([tf.float32.as_datatype_enum] * len(inputs))
        node.attr["f"].func.name = op
        node.attr["f"].func.attr["T"].type = tf.float32.as_datatype_enum
        for name, value in flags.items():
            node.attr["f"].func.attr[name].b = value
        given = {f"given{i}": tensor for i, tensor in enumerate([*inputs, dz])}
        out += tf1.import_graph_def(graph, given, [f"gradient:{i}" for i in range(len(inputs))], name="")
    return out, [{x: numbers(3, 3), y: numbers(3, 3).T + 1.0, dz: numbers(3, 3) * 2.0}]


@case
def loops_in_loops(at):
    x = tf1.placeholder(tf.float32, [])

    def outer(i, v):
        inner = tf.while_loop(lambda j, _: j < i, lambda j, w: (j + 1, w * x), [0, v])
        return i + 1, tf.cond(inner[1] > 10, lambda: inner[1] / 2, lambda: inner[1] + 1)

    with at(0):
        _, y = tf.while_loop(lambda i, _: i < 4, outer, [0, x])
    return [y, *tf1.gradients(y, x)], [{x: 1.5}, {x: -0.5}]


@case
def gradients_of_loops_over_branches(at):
    """The condition of a branch is a loop constant, and the branch that is taken ignores the loop's variables."""
    p, q = tf1.placeholder(tf.bool, []), tf1.placeholder(tf.bool, [])
    x = tf1.placeholder(tf.float32, [])

    def choose(v):
        return tf.cond(p, lambda: v * v, lambda: tf.cond(q, lambda: tf.constant(3.0), lambda: v + x))

    def loop(body):
        return tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, body(v)), [0, x])[1]

    with at(0):
        simple = loop(lambda v: tf.cond(p, lambda: v * 2.0, lambda: tf.constant(10.0)))
        nested = loop(choose)
        inner = loop(lambda v: tf.cond(q, lambda: loop(choose), lambda: tf.constant(1.0)))
    with at(1):
        first = tf1.gradients([simple, nested, inner], x)
        second = [tf1.gradients(y, x)[0] for y in tf1.gradients(simple, x) + tf1.gradients(nested, x)]
    feeds = [{p: a, q: b, x: 0.9} for a in (True, False) for b in (True, False)]
    return [simple, nested, inner, *first, *second], feeds


@case
def calls(at):
    @tf.function
    def square(x):
        return x * x

    @tf.function
    def both(x):
        with at(1):
            y = square(x) + 1
        return y, square(y)

    x = tf1.placeholder(tf.float32, [3])
    y, z = both(x)
    return [y, z, *tf1.gradients(z, x)], [{x: [1.0, 2.0, 3.0]}]


@case
def defuns(at):
    from tensorflow.python.framework import function

    @function.Defun(tf.float32, tf.float32, func_name="Product")
    def product(x, y):
        return x * y + 1.0

    x = tf1.placeholder(tf.float32, [])
    with at(1):
        y = product(x, product(x, 3.0))
    return [y], [{x: 2.0}]


@case
def kept_calls_with_bodies_elsewhere(at):
    """A function that is not inlined, whose body runs on its variable's task, which is not the caller's."""
    from tensorflow.python.framework import function

    with at(0):
        scale = tf1.get_variable("scale", [], initializer=tf1.constant_initializer(3.0), use_resource=True)

    @function.Defun(tf.resource, tf.float32, func_name="ScaleThere", noinline=True)
    def scaled(handle, x):
        with at(0):
            return resource_variable_ops.read_variable_op(handle, tf.float32) * x

    @function.Defun(tf.resource, tf.float32, func_name="ScaleTwice", noinline=True)
    def twice(handle, x):
        return scaled(handle, scaled(handle, x))

    x = tf1.placeholder(tf.float32, [])
    with at(1):
        y = twice(scale.handle, x) + 1.0
    return [y], [{x: 2.0}]


@case
def switch_cases(at):
    index = tf1.placeholder(tf.int32, [])
    x = tf1.placeholder(tf.float32, [])
    with at(1):
        y = tf.switch_case(index, [lambda: x, lambda: x * x, lambda: tf.exp(x)])
    return [y, *tf1.gradients(y, x)], [{index: i, x: 3.0} for i in (0, 1, 2, 7, -1)]


@case
def effects(at):
    with at(0):
        counter = tf1.get_variable("counter", [], initializer=tf1.zeros_initializer(), use_resource=True)

    @tf.function
    def add(by):
        counter.assign_add(by)
        return counter.read_value()

    def body(i):
        with tf.control_dependencies([counter.assign_add(1.0)]):
            return i + 1

    x = tf1.placeholder(tf.float32, [])
    first = add(x)
    with tf.control_dependencies([first]):
        [looped] = tf.nest.flatten(tf.while_loop(lambda i: i < 3, body, [tf.constant(0)]))
        with tf.control_dependencies([looped]):
            last = tf.cond(x > 1, lambda: counter.assign_add(100.0), lambda: tf.identity(counter))
            with tf.control_dependencies([last]):
                after = counter.read_value()
    return [first, looped, last, after], [{x: 1.0}, {x: 2.0}]


@case
def lists(at):
    x = tf1.placeholder(tf.float32, [4, 2])
    array = tf.TensorArray(tf.float32, 4, element_shape=[2]).unstack(x)
    with at(1):
        _, out = tf.while_loop(
            lambda i, _: i < 4,
            lambda i, out: (i + 1, out.write(i, array.read(3 - i) * 2)),
            [0, tf.TensorArray(tf.float32, 4, element_shape=[2])],
        )
    y = out.stack()
    gathered, joined = out.gather([2, 0]), out.concat()
    grads = tf1.gradients([y, gathered], x)
    return [y, gathered, joined, *grads], [{x: numbers(4, 2)}]


@case
def mapped(at):
    x = tf1.placeholder(tf.float32, [3, 2])
    y = tf.map_fn(lambda row: tf.reduce_sum(row * row), x)
    z = tf.scan(lambda a, row: a + row, x)
    return [y, z, *tf1.gradients([y, z], x)], [{x: numbers(3, 2)}]


@case
def recursion_in_the_graph(at):
    x = tf1.placeholder(tf.float32, [2])
    deep = x
    for _ in range(12):
        deep = tf.function(lambda v: v * 1.25 + 0.5)(deep)
    return [deep, *tf1.gradients(deep, x)], [{x: [1.0, -1.0]}]


@case
def lstm(at):
    x = tf1.placeholder(tf.float32, [2, 5, 3])
    with at(1):
        layer = tf.keras.layers.LSTM(
            4,
            return_sequences=True,
            kernel_initializer="ones",
            recurrent_initializer="zeros",
        )
        y = layer(x)
    weights = layer.trainable_weights
    return [y, *tf1.gradients(tf.reduce_sum(y * y), weights)], [{x: numbers(2, 5, 3)}]


def fed_outputs(target):
    """A value fed for an output of a call, a conditional or a loop reaches all consumers of the output. In TensorFlow this
    holds for calls alone, so there is no comparison."""

    def by_type(*types):
        return next(op for op in tf1.get_default_graph().get_operations() if op.type in types)

    with tf.Graph().as_default():
        x = tf1.placeholder(tf.float32, [])
        tf.cond(x > 0, lambda: x * 2, lambda: x - 1.0)
        branch = by_type("If", "StatelessIf").outputs[0]
        taken = branch + 10.0
        tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, v * 2), [0, branch])
        looped = next(o for o in by_type("While", "StatelessWhile").outputs if o.dtype == tf.float32)
        called = tf.function(lambda a: a * 3.0)(looped) + 0.0
        call = by_type("PartitionedCall", "StatefulPartitionedCall").outputs[0]
        with tf1.Session(target) as session:
            assert session.run([taken, looped, called], {x: 1.0}) == [12, 16, 48]
            assert session.run([taken, looped, called], {branch: 100.0}) == [110, 800, 2400]
            assert session.run([called], {looped: 7.0}) == [21]
            assert session.run([called, taken], {looped: 7.0, x: -1.0}) == [21, 8]
            assert session.run(called, {call: 4.0}) == 4


def run(build, target, devices):
    """Runs a case on a target; returns the fetched values for each feed."""
    graph = tf.Graph()
    with graph.as_default():
        def at(i):
            return tf1.device(devices[i % len(devices)] if devices else None)

        fetches, feeds = build(at)
        init = tf1.global_variables_initializer()
        config = tf1.ConfigProto(allow_soft_placement=False)
        with tf1.Session(target, graph=graph, config=config) as session:
            session.run(init)
            return [session.run(fetches, feed) for feed in feeds]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    parser.add_argument("--devices", default="")
    parser.add_argument("--filter", default="")
    args = parser.parse_args()
    devices = [d for d in args.devices.split(",") if d]
    failed = 0
    for build in CASES:
        if args.filter not in build.__name__:
            continue
        try:
            ours, theirs = run(build, args.target, devices), run(build, "", [])
            for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                for j, (u, v) in enumerate(zip(a, b, strict=True)):
                    np.testing.assert_allclose(u, v, rtol=1e-5, atol=1e-6, err_msg=f"feed {i}, fetch {j}")
            print("ok", build.__name__)
        except Exception as error:
            failed += 1
            print("failed", build.__name__, type(error).__name__, str(error)[:1500])
    if args.filter in fed_outputs.__name__:
        fed_outputs(args.target)
        print("ok", fed_outputs.__name__)
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
