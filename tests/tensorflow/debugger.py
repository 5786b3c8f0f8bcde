"""TensorFlow's debugger (tfdbg) on a cluster of one ps and one worker: dumps of watched tensors, and measured costs."""
import argparse
import collections
import contextlib
import functools
import glob
import json
import os
import socket
import tempfile
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.debug import debug_service_pb2
from tensorflow.core.protobuf import debug_event_pb2
from tensorflow.python.debug.lib import debug_data, debug_utils, grpc_debug_server
from tensorflow.python.debug.wrappers import dumping_wrapper, grpc_wrapper, hooks

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
        with fails(tf.errors.InternalError, "Invalid debug target URL: http://localhost:1"):
            session.run(y, options=watching("y", ["DebugIdentity"], "http://localhost:1"))
        with fails(tf.errors.FailedPreconditionError, "grpc://localhost:1/a: it cannot be reached"):
            session.run(y, options=watching("y", ["DebugIdentity"], "grpc://localhost:1/a"))
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


class Debugger(grpc_debug_server.EventListenerBaseServicer):
    """A debugger of TensorFlow's Python library, which keeps all that it gets."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        super().__init__(port, functools.partial(DebuggerStream, self))
        self.url = f"grpc://localhost:{port}"
        self.metadata, self.graphs, self.values = [], {}, collections.defaultdict(list)
        # A breakpoint's reply waits for `released`.
        self.reached, self.released = threading.Event(), threading.Event()

    def values_of(self, tensor, count):
        """Returns the values of a tensor when `count` have come; tasks send them while the step ends."""
        values = self.values[f"{tensor}:DebugIdentity"]
        end = time.monotonic() + 60
        while len(values) < count:
            assert time.monotonic() < end, (tensor, len(values))
            time.sleep(0.01)
        return values


class DebuggerStream(grpc_debug_server.EventListenerBaseStreamHandler):
    def __init__(self, debugger):
        super().__init__()
        self.debugger = debugger

    def on_core_metadata_event(self, event):
        self.debugger.metadata.append(json.loads(event.log_message.message))

    def on_graph_def(self, graph_def, device_name, wall_time):
        self.debugger.graphs[tf.compat.as_str(device_name)] = graph_def

    def on_value_event(self, event):
        name = event.summary.value[0].node_name
        self.debugger.values[name].append(debug_data.load_tensor_from_event(event))
        if name in {f"{node}:{slot}:{op}" for node, slot, op in self.debugger.breakpoints}:
            self.debugger.reached.set()
            assert self.debugger.released.wait(60)
            return debug_service_pb2.EventReply()


@contextlib.contextmanager
def running_debugger():
    debugger = Debugger()
    debugger.run_server(blocking=False)
    try:
        yield debugger
    finally:
        debugger.released.set()
        debugger.server.stop(0).wait()


@check
def a_debugger_gets_the_tensors_and_graphs_of_both_tasks(env):
    v, _, z = model()
    with running_debugger() as debugger, tf.Session(env.target) as session:
        wrapped = grpc_wrapper.GrpcDebugWrapperSession(session, debugger.url.removeprefix("grpc://") + "/a/path")
        wrapped.run(v.initializer)
        wrapped.run(z)
        wrapped.run(z)
        np.testing.assert_array_equal(debugger.values_of("y:0", 2), [[3, 6]] * 2)
        np.testing.assert_array_equal(debugger.values_of("v/read:0", 2), [[1, 2]] * 2)
    assert [m["grpc_path"] for m in debugger.metadata] == ["/a/path"] * 3, debugger.metadata
    assert [m["session_run_index"] for m in debugger.metadata] == [0, 0, 1], debugger.metadata
    assert debugger.metadata[1]["output_names"] == ["z:0"]
    assert set(debugger.graphs) == DEVICES, set(debugger.graphs)


@check
def large_tensors_reach_a_debugger_whole(env):
    with tf.device("/job:ps/task:0"):
        x = tf.range(3_000_000, name="x")
        words = tf.tile(tf.constant(["a" * 1000, "b"]), [4000], name="words")
    fetches = tf.reduce_sum(x), tf.reduce_sum(tf.strings.length(words))
    with running_debugger() as debugger, tf.Session(env.target) as session:
        options = tf.RunOptions()
        for node in "x", "words":
            debug_utils.add_debug_tensor_watch(options, node, 0, debug_urls=[debugger.url])
        session.run(fetches, options=options)
        session.run(fetches)
        (large,), (strings,) = debugger.values_of("x:0", 1), debugger.values_of("words:0", 1)
    np.testing.assert_array_equal(large, np.arange(3_000_000))
    assert strings.shape == (8000,) and strings[0] == b"a" * 1000 and strings[-1] == b"b"


@check
def a_debugger_opens_and_closes_gates_and_stops_steps(env):
    _, _, z = model()
    gated = "DebugIdentity(gated_grpc=true)"
    watch = "y", 0, "DebugIdentity"
    with running_debugger() as debugger, tf.Session(env.target) as session:
        session.run(tf.global_variables_initializer())

        def values_of_a_run():
            debugger.values.clear()
            session.run(z, options=watching("y", [gated], debugger.url))
            return len(debugger.values["y:0:DebugIdentity"])

        assert values_of_a_run() == 0
        assert set(debugger.gated_grpc_debug_watches()) == {watch}
        debugger.request_watch(*watch)
        assert values_of_a_run() == 1
        debugger.request_watch(*watch, breakpoint=True)
        step = threading.Thread(target=values_of_a_run)
        step.start()
        assert debugger.reached.wait(60)
        step.join(0.5)
        assert step.is_alive()
        debugger.released.set()
        step.join(60)
        assert not step.is_alive()
        debugger.request_unwatch(*watch)
        assert values_of_a_run() == 0
        # A deadline ends a step at a breakpoint.
        debugger.released.clear()
        debugger.request_watch(*watch, breakpoint=True)
        options = watching("y", [gated], debugger.url)
        options.timeout_in_ms = 2000
        with fails(tf.errors.DeadlineExceededError):
            session.run(z, options=options)
        debugger.released.set()
        np.testing.assert_allclose(session.run(z), [-np.inf, np.log(3)])


@check
def a_debugger_that_ends_fails_the_step_and_not_the_session(env):
    _, _, z = model()
    with tf.Session(env.target) as session:
        session.run(tf.global_variables_initializer())
        with running_debugger() as debugger:
            # The tasks send their graphs. From now on, the master's task alone gets replies.
            session.run(z, options=watching("y", ["DebugIdentity"], debugger.url))
            debugger.request_watch("y", 0, "DebugIdentity", breakpoint=True)
            errors = []

            def run():
                try:
                    session.run(z, options=watching("y", ["DebugIdentity"], debugger.url))
                except tf.errors.OpError as error:
                    errors.append(error)

            step = threading.Thread(target=run)
            step.start()
            assert debugger.reached.wait(60)
            debugger.server.stop(0)
            step.join(60)
        (error,) = errors
        assert isinstance(error, tf.errors.FailedPreconditionError) and debugger.url in str(error), error
        np.testing.assert_allclose(session.run(z), [-np.inf, np.log(3)])


@check
def traces_of_the_newer_debugger_are_written_to_its_files(env):
    x = tf.constant([1.0, 2.0])

    def traced(folder, kept):
        url = f"file://{env.folder}/{folder}"
        return tf.raw_ops.DebugIdentityV2(
            input=x, tfdbg_context_id="graph", op_name="x", output_slot=0, tensor_debug_mode=8, debug_urls=[url],
            circular_buffer_size=kept, tfdbg_run_id="run")

    all_kept, newest = traced("all", 0), traced("newest", 2)
    with tf.Session(env.target) as session:
        for _ in range(3):
            np.testing.assert_array_equal(session.run([all_kept, newest]), [[1, 2], [1, 2]])
    for folder, count in ("all", 3), ("newest", 2):
        records = {}
        for path in glob.glob(f"{env.folder}/{folder}/tfdbg_events.*"):
            events = [debug_event_pb2.DebugEvent.FromString(r) for r in tf.io.tf_record_iterator(path)]
            records[path.rsplit(".", 1)[1]] = events
        assert len(records) == 6, records
        assert records["metadata"][0].debug_metadata.tfdbg_run_id == "run"
        traces = [event.graph_execution_trace for event in records["graph_execution_traces"]]
        assert len(traces) == count, traces
        assert traces[0].op_name == "x" and traces[0].tensor_debug_mode == 8 and "CPU:0" in traces[0].device_name
        np.testing.assert_array_equal(tf.make_ndarray(traces[0].tensor_proto), [1, 2])


@check
def inputs_of_nodes_are_written_to_folders_of_steps(env):
    x = tf.constant([1.0, 2.0])
    y = tf.raw_ops.DebugIdentityV3(
        input=x, tensor_name="x:0", io_of_node="scope/node", is_input=True, io_index=2,
        debug_urls=[f"file://{env.folder}/ports"])
    with tf.Session(env.target) as session:
        session.run(y)
    (path,) = glob.glob(f"{env.folder}/ports/node-io-dump/step-*/*")
    assert os.path.basename(path).startswith("scope-node:in:2_"), path
    np.testing.assert_array_equal(debug_data.load_tensor_from_event_file(path), [1, 2])


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
