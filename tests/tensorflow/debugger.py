"""TensorFlow's debugger (tfdbg) on a cluster of one ps and one worker: dumps of watched tensors, and measured costs."""
import argparse
import glob
import json
import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.debug.lib import debug_data, debug_utils
from tensorflow.python.debug.wrappers import dumping_wrapper, hooks

from session_checks import Checks, fails

tf.disable_v2_behavior()

checks = Checks()
check = checks.add

DEVICES = {f"/job:{job}/replica:0/task:0/device:CPU:0" for job in ("ps", "worker")}


def model():
    """Returns a variable on the ps, and on the worker a product and a logarithm that is infinite."""
    with tf.device("/job:ps/task:0"):
        v = tf.Variable([1.0, 2.0], name="v", use_resource=False)
    with tf.device("/job:worker/task:0"):
        y = tf.multiply(v, 3.0, name="y")
        z = tf.log(y - 3.0, name="z")
    return v, y, z


def dumps_of(root):
    """Returns the dumps of all runs below a folder, in the order of the runs."""
    return [debug_data.DebugDumpDir(os.path.join(root, run)) for run in sorted(os.listdir(root))]


def watching(node, ops, url, **watch):
    options = tf.RunOptions(output_partition_graphs=True)
    debug_utils.add_debug_tensor_watch(options, node, 0, debug_ops=ops, debug_urls=[url], **watch)
    return options


@check
def a_wrapped_session_dumps_every_tensor_of_both_tasks(env):
    v, _, z = model()
    root = os.path.join(env.folder, "wrapped")
    with tf.Session(env.target) as session:
        wrapped = dumping_wrapper.DumpingDebugWrapperSession(session, root)
        # The variable is watched before it has a value.
        wrapped.run(v.initializer)
        wrapped.run(z)
    before, dump = dumps_of(root)
    assert "v/initial_value" in before.nodes(), before.nodes()
    assert set(dump.devices()) == DEVICES, dump.devices()
    assert {"v/read", "y", "z"} <= {datum.node_name for datum in dump.dumped_tensor_data}
    np.testing.assert_array_equal(dump.get_tensors("y", 0, "DebugIdentity")[0], [3, 6])
    assert {datum.node_name for datum in dump.find(debug_data.has_inf_or_nan)} == {"z"}
    assert dump.node_op_type("z") == "Log" and dump.node_inputs("y")


@check
def dumps_have_the_names_and_numbers_of_their_runs(env):
    x = tf.placeholder(tf.float32, [], "x")
    y = tf.multiply(x, 3.0, name="y")
    z = tf.add(y, 1.0, name="z")
    root = os.path.join(env.folder, "numbered")
    with tf.Session(env.target) as session:
        for fetch in (y, y, [z, y]):
            options = watching("y", ["DebugIdentity"], "file://" + root)
            options.debug_options.global_step = 12
            session.run(fetch, {x: 2.0}, options=options)
    seen = []
    for path in glob.glob(os.path.join(root, "_tfdbg_core_metadata_*")):
        seen.append(tuple(json.loads(debug_data._load_log_message_from_event_file(path)).values()))
    names = (["x:0"], ["y:0"], []), (["x:0"], ["z:0", "y:0"], [])
    assert sorted(seen) == [(12, 0, 0, *names[0]), (12, 0, 0, *names[1]), (12, 1, 1, *names[0])], seen


@check
def a_hook_dumps_the_tensors_of_each_run(env):
    _, _, z = model()
    root = os.path.join(env.folder, "hooked")
    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(master=env.target), [hooks.DumpingDebugHook(root)]) as session:
        session.run(z)
        session.run(z)
    assert [len(dump.get_tensors("y", 0, "DebugIdentity")) for dump in dumps_of(root)] == [1, 1]


@check
def counts_and_summaries_are_written_as_asked(env):
    with tf.device("/job:ps/task:0"):
        x = tf.placeholder(tf.float32, [None], "x")
        tf.identity(x * 2.0, name="y")
    y = tf.get_default_graph().get_tensor_by_name("y:0")
    values = [1, np.nan, -3, np.inf, 0, 40]
    ops = ["DebugNanCount", "DebugNumericSummary(lower_bound=-5;upper_bound=60)", "DebugIdentity"]
    found = {}
    for side, target in (("here", ""), ("cluster", env.target)):
        folder = os.path.join(env.folder, "summaries", side)
        with tf.Graph().as_default():
            local = tf.identity(tf.placeholder(tf.float32, [None], "x") * 2.0, name="y")
            graph = local.graph if side == "here" else y.graph
            with tf.Session(target, graph=graph) as session:
                session.run("y:0", {"x:0": values}, options=watching("y", ops, f"file://{folder}"))
        for at, _, names in os.walk(folder):
            for name in names:
                if "_graph_" not in name and "core_metadata" not in name:
                    op = name.split("_")[2]
                    found.setdefault(op, {})[side] = debug_data.load_tensor_from_event_file(os.path.join(at, name))
    assert len(found) == 3, found
    for op, sides in found.items():
        np.testing.assert_allclose(sides["cluster"], sides["here"], err_msg=op)
    np.testing.assert_array_equal(found["DebugNanCount"]["cluster"], [1])


@check
def what_cannot_be_written_is_an_error_that_says_why(env):
    with tf.device("/job:ps/task:0"):
        y = tf.identity(tf.constant([1.0]) * 2.0, name="y")
        text = tf.identity(tf.identity(tf.constant("a")), name="text")
    file = os.path.join(env.folder, "file")
    open(file, "w").close()
    with tf.Session(env.target) as session:
        with fails(tf.errors.OpError, f"{file}/"):
            session.run(y, options=watching("y", ["DebugIdentity"], f"file://{file}/below"))
        with fails(tf.errors.UnimplementedError, "grpc://localhost:1", "file://"):
            session.run(y, options=watching("y", ["DebugIdentity"], "grpc://localhost:1"))
        url = f"file://{env.folder}/others"
        with fails(tf.errors.FailedPreconditionError, "Failed to create debug node DebugNanCount for tensor text:0"):
            session.run(text, options=watching("text", ["DebugNanCount"], url))
        tolerant = watching("text", ["DebugNanCount"], url, tolerate_debug_op_creation_failures=True)
        assert session.run(text, options=tolerant) == b"a"
        with fails(tf.errors.FailedPreconditionError, "NoSuchOp"):
            session.run(y, options=watching("y", ["NoSuchOp"], url))
        with fails(tf.errors.FailedPreconditionError, "attribute 'q'"):
            session.run(y, options=watching("y", ["DebugNumericSummary(q=1)"], url))
        # The session goes on, and the same step without watches writes nothing.
        assert session.run(y) == [2]


@check
def costs_of_nodes_are_measured_in_the_steps_that_the_session_names(env):
    with tf.device("/job:worker/task:0"):
        a = tf.random_uniform([64, 64], name="a")
        b = tf.matmul(a, a, name="b")
    with tf.device("/job:ps/task:0"):
        c = tf.reduce_sum(b, name="c")
    config = tf.ConfigProto(graph_options=tf.GraphOptions(build_cost_model=2, build_cost_model_after=1))
    measured = []
    with tf.Session(env.target, config=config) as session:
        for _ in range(5):
            metadata = tf.RunMetadata()
            session.run(c, options=tf.RunOptions(), run_metadata=metadata)
            measured.append({node.name: node for node in metadata.cost_graph.node})
    assert [bool(nodes) for nodes in measured] == [False, False, True, False, True], measured
    nodes = measured[-1]
    assert {"a", "b", "c"} <= {name.split("/")[0] for name in nodes}, sorted(nodes)
    product = nodes["b"]
    assert product.output_info[0].size == 64 * 64 * 4 and product.device.startswith("/job:worker")
    ids = {node.id: node for node in nodes.values()}
    assert len(ids) == len(nodes) and product.input_info[0].preceding_node in ids


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    env = parser.parse_args()
    with tempfile.TemporaryDirectory() as env.folder:
        checks.run(env)


main()
