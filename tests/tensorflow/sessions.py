"""Partial runs, callables, traces, deadlines and options of sessions, used by an unmodified TensorFlow client on a
cluster of one ps and two workers.

Also runs against TensorFlow's own servers (`--is-peer`), where checks of intended differences are skipped.
"""
import argparse
import json
import re
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import timeline

from session_checks import Checks, fails

tf.disable_v2_behavior()

checks = Checks()
check = checks.add

PS = "/job:ps/replica:0/task:0/device:CPU:0"
WORKER = "/job:worker/replica:0/task:%d/device:CPU:0"


def two_stages():
    a, b, c = (tf.placeholder(tf.float32, [], name=n) for n in "abc")
    with tf.device("/job:ps/task:0"):
        first = tf.add(a, b, name="first")
    with tf.device("/job:worker/task:0"):
        second = tf.multiply(first, c, name="second")
    return a, b, c, first, second


def options(feed=(), fetch=(), target=(), connections=(), **run_options):
    made = config_pb2.CallableOptions(feed=feed, fetch=fetch, target=target)
    for source, destination in connections:
        made.tensor_connection.add(from_tensor=source, to_tensor=destination)
    if run_options:
        made.run_options.CopyFrom(tf.RunOptions(**run_options))
    return made


@check
def partial_runs(env):
    a, b, c, first, second = two_stages()
    with tf.Session(env.target) as session:
        run = session.partial_run_setup([first, second], [a, b, c])
        assert session.partial_run(run, first, {a: 1, b: 2}) == 3
        with fails(tf.errors.InvalidArgumentError, "The feed a:0 has already been fed."):
            session.partial_run(run, second, {a: 1, c: 2})
        assert session.partial_run(run, second, {c: 5}) == 15
        with fails(tf.errors.InvalidArgumentError, "Must run PartialRunSetup before performing partial runs"):
            session.partial_run(run, second, {c: 5})

        run = session.partial_run_setup([first, second], [a, b, c])
        with fails(
            tf.errors.InvalidArgumentError, "Fetch c:0 can't be computed from the feeds that have been fed so far."
        ):
            session.partial_run(run, second, {a: 1, b: 2})
        assert session.partial_run(run, first, {a: 1, b: 2}) == 3
        with fails(tf.errors.InvalidArgumentError, "The fetch first:0 has already been fetched."):
            session.partial_run(run, first, {})
        assert session.partial_run(run, second, {c: 2}) == 6

        run = session.partial_run_setup([first], [a, b])
        with fails(tf.errors.InvalidArgumentError, "The fetch second:0 was not specified in partial_run_setup."):
            session.partial_run(run, second, {a: 1, b: 2})
        with fails(tf.errors.InvalidArgumentError, "The feed c:0 was not specified in partial_run_setup."):
            session.partial_run(run, first, {a: 1, b: 2, c: 1})
        assert session.partial_run(run, first, {a: 3, b: 2}) == 5
        with fails(tf.errors.InvalidArgumentError, "Must run PartialRunSetup before performing partial runs"):
            session.partial_run("unknown", first, {a: 1, b: 2})
        with fails(tf.errors.InvalidArgumentError, "Must specify at least one target to fetch or execute."):
            session.partial_run_setup([], [a])
        with fails(tf.errors.InvalidArgumentError, 'Endpoint "a:0" fed more than once.'):
            session.partial_run_setup([first], [a, a])
        # Several partial runs at the same time, each with its own values; one of them is never finished.
        runs = [session.partial_run_setup([first, second], [a, b, c]) for _ in range(4)]
        assert [session.partial_run(r, first, {a: i, b: 1}) for i, r in enumerate(runs)] == [1, 2, 3, 4]
        assert [session.partial_run(r, second, {c: 2}) for r in runs[1:]] == [4, 6, 8]


@check
def failed_partial_run(env):
    a, b, c, first, second = two_stages()
    with tf.Session(env.target) as session:
        run = session.partial_run_setup([first, second], [a, b])
        with fails(tf.errors.InvalidArgumentError, "You must feed a value for placeholder tensor 'c'"):
            session.partial_run(run, first, {a: 1, b: 2})
            session.partial_run(run, second, {})
        with fails(tf.errors.InvalidArgumentError, "Must run PartialRunSetup"):
            session.partial_run(run, second, {})
        assert session.run(second, {a: 1, b: 2, c: 3}) == 9


@check
def callables(env):
    a, b, c, first, second = two_stages()
    tf.constant(3.0, name="k")
    v = tf.get_variable("counter", initializer=0.0, use_resource=False)
    count = tf.assign_add(v, 1.0, name="count")
    one, two = np.float32(1), np.float32(2)
    with tf.Session(env.target) as session:
        session.run(v.initializer)
        make = session._make_callable_from_options
        call = make(options(["a:0", "b:0"], ["first:0", "k:0"], ["count"]))
        assert call(one, two) == [3, 3] and call(two, two) == [4, 3]
        assert session.run(v) == 2
        del call
        assert make(options(["a:0", "b:0"], ["second:0"], connections=[("k:0", "c:0")]))(one, two) == [9]
        assert session.make_callable(second, [a, b, c])(1, 2, 3) == 9
        metadata = tf.RunMetadata()
        traced = make(options(["a:0", "b:0"], ["first:0"], trace_level=tf.RunOptions.FULL_TRACE))
        assert traced(one, two, run_metadata=metadata) == [3]

        for expected, text, bad in [
            (tf.errors.NotFoundError, "FetchOutputs node zz:0: not found", options(["a:0", "b:0"], ["zz:0"])),
            (tf.errors.NotFoundError, "FeedInputs: unable to find feed output zz:0", options(["zz:0"], ["k:0"])),
            (tf.errors.InvalidArgumentError, "Must specify at least one target", options(["a:0"])),
            (tf.errors.InvalidArgumentError, 'Endpoint "a:0" fed more than once.', options(["a:0", "a:0"], ["k:0"])),
            (tf.errors.InvalidArgumentError, "a:0 is both fed and fetched.", options(["a:0"], ["a:0"])),
            (
                tf.errors.InvalidArgumentError,
                "Requested tensor connection from unknown node",
                options(["a:0", "b:0"], ["second:0"], connections=[("zz:0", "c:0")]),
            ),
            (
                tf.errors.NotFoundError,
                "FeedInputs: unable to find feed output zz:0",
                options(["a:0", "b:0"], ["first:0"], connections=[("k:0", "zz:0")]),
            ),
            (
                tf.errors.InvalidArgumentError,
                'Endpoint "a:0" fed more than once.',
                options(["a:0", "b:0"], ["first:0"], connections=[("k:0", "a:0")]),
            ),
            (
                tf.errors.InvalidArgumentError,
                'Requested Tensor connection between nodes "c" and "second" would create a cycle.',
                options(["a:0", "b:0"], ["second:0"], connections=[("second:0", "c:0")]),
            ),
        ]:
            with fails(expected, text):
                make(bad)
        for devices in ("feed_devices", "fetch_devices"):
            bad = options(["a:0", "b:0"], ["first:0"])
            getattr(bad, devices)["a:0" if devices == "feed_devices" else "first:0"] = WORKER % 0
            with fails(tf.errors.UnimplementedError, "feed_devices and CallableOptions::fetch_devices"):
                make(bad)


@check
def callables_of_keras(env):
    keras = tf.keras
    if not hasattr(keras.backend, "function"):
        return
    with tf.Session(env.target) as session:
        x = tf.placeholder(tf.float32, [None, 2])
        call = session._make_callable_from_options(options([x.name], [(x * 2.0).name]))
        for rows in (1, 3, 0):
            value = np.ones([rows, 2], np.float32)
            np.testing.assert_array_equal(call(value)[0], value * 2)


@check
def timelines(env):
    a, b, c, first, second = two_stages()
    with tf.Session(env.target) as session:
        feeds = {a: 1, b: 2, c: 3}
        full = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
        before = time.time() * 1e6
        # TensorFlow's workers record transfers concurrently with the step, so a trace may lack some: hence the retries.
        for _ in range(20 if env.is_peer else 1):
            metadata = tf.RunMetadata()
            assert session.run(second, feeds, options=full, run_metadata=metadata) == 9
            nodes = {}
            for device in metadata.step_stats.dev_stats:
                for node in device.node_stats:
                    nodes.setdefault(device.device, {}).setdefault(node.node_name, []).append(node)
            moved = [node.timeline_label for of in nodes.values() for node in of.get("RecvTensor", ())]
            if any("_recv_a_0" in m for m in moved):
                break
        assert set(nodes) == {PS, WORKER % 0}, set(nodes)
        assert "first" in nodes[PS] and "second" in nodes[WORKER % 0], nodes
        ran = nodes[PS]["first"][0]
        assert re.match(r"first = Add(V2)?\(_recv_a_0\S*, _recv_b_0\S*\)$", ran.timeline_label), ran.timeline_label
        assert before - 1e6 < ran.all_start_micros < time.time() * 1e6 + 1e6
        assert 0 <= ran.op_start_rel_nanos <= ran.op_end_rel_nanos <= ran.all_end_rel_nanos
        described = ran.output[0].tensor_description
        assert described.dtype == tf.float32.as_datatype_enum and not described.shape.dim
        assert described.allocation_description.requested_bytes == 4
        assert any(re.match(r"\[4B\] \[[\d.]+Mb/s\] edge_\d+_first from \S+ to \S+$", m) for m in moved), moved
        assert any("_recv_a_0" in m for m in moved), moved
        graphs = [{node.name for node in graph.node} for graph in metadata.partition_graphs]
        assert len(graphs) == 2 and any("first" in g for g in graphs) and any("second" in g for g in graphs)

        for show in ({}, {"show_memory": True, "show_dataflow": True}):
            trace = json.loads(timeline.Timeline(metadata.step_stats).generate_chrome_trace_format(**show))
            events = trace["traceEvents"]
            lanes = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
            ops = {(e["args"]["name"], lanes[e["pid"]]) for e in events if e["ph"] == "X"}
            assert ("first", PS + " Compute") in ops and ("second", WORKER % 0 + " Compute") in ops, ops

        # Untraced steps record nothing, and concurrent traced steps have separate traces.
        plain = tf.RunMetadata()
        session.run(second, feeds, run_metadata=plain)
        assert not plain.step_stats.dev_stats and not plain.partition_graphs
        traces = [tf.RunMetadata() for _ in range(4)]
        threads = [
            threading.Thread(target=lambda m=m: session.run(second, feeds, options=full, run_metadata=m)) for m in traces
        ]
        [t.start() for t in threads]
        [t.join() for t in threads]
        for metadata in traces:
            names = [n.node_name for d in metadata.step_stats.dev_stats for n in d.node_stats]
            assert names.count("first") == 1 and (env.is_peer or names.count("RecvTensor") == 3), names
    withholds = tf.ConfigProto()
    withholds.experimental.disable_output_partition_graphs = True
    with tf.Session(env.target, config=withholds) as session:
        with fails(tf.errors.InvalidArgumentError, "RunOptions.output_partition_graphs() is not supported when"):
            session.run(second, feeds, options=full, run_metadata=tf.RunMetadata())


@check
def options_of_runs(env):
    a, b, c, first, second = two_stages()
    feeds = {a: 1, b: 2, c: 3}
    with tf.Session(env.target) as session:
        experimental = tf.RunOptions.Experimental(use_run_handler_pool=True)
        for run in [
            tf.RunOptions(inter_op_thread_pool=3),
            tf.RunOptions(timeout_in_ms=60_000),
            tf.RunOptions(report_tensor_allocations_upon_oom=True),
            tf.RunOptions(experimental=experimental),
            tf.RunOptions(trace_level=tf.RunOptions.HARDWARE_TRACE),
        ]:
            assert session.run(second, feeds, options=run, run_metadata=tf.RunMetadata()) == 9


@check
def devices_of_a_session(env):
    first = tf.constant(1.0)
    with tf.Session(env.target) as session:
        # Lists devices before the first step, when the session has no graph yet.
        devices = session.list_devices()
        assert {d.name for d in devices} == {PS, WORKER % 0, WORKER % 1}, devices
        assert all(d.device_type == "CPU" and d.memory_limit_bytes > 0 for d in devices)
        assert len({d.incarnation for d in devices}) == 3
        assert session.run(first) == 1
    with tf.Session(env.target, config=tf.ConfigProto(device_filters=["/job:ps"])) as session:
        # Filters never exclude the master's own task.
        assert {d.name for d in session.list_devices()} == {PS, WORKER % 0}
    with tf.device("/job:worker/task:1"):
        away = tf.constant(1.0, name="away")
    with tf.Session(env.target, config=tf.ConfigProto(device_filters=["/job:ps"])) as session:
        with fails(tf.errors.InvalidArgumentError, "away", "/job:worker/task:1"):
            session.run(away)


@check
def isolated_session_state(env):
    v = tf.get_variable("isolated", initializer=1.0, use_resource=False)
    with tf.Session(env.target) as shared:
        shared.run(v.initializer)
        shared.run(tf.assign(v, 5.0))
        with tf.Session(env.target, config=tf.ConfigProto(isolate_session_state=True)) as own:
            with fails(tf.errors.FailedPreconditionError, "Attempting to use uninitialized value isolated"):
                own.run(v)
            own.run(v.initializer)
            assert own.run(v) == 1
        assert shared.run(v) == 5


@check
def reset_of_containers(env):
    with tf.device("/job:ps/task:0"):
        with tf.container("kept"):
            kept = tf.get_variable("in_container", initializer=1.0, use_resource=False)
        plain = tf.get_variable("in_default", initializer=1.0, use_resource=False)
    first = tf.Session(env.target)
    first.run(tf.global_variables_initializer())
    # Reset clears the named containers and closes all sessions.
    tf.Session.reset(env.target, ["kept"])
    with fails(tf.errors.AbortedError, "Session ", " is not found."):
        first.run(plain)
    with tf.Session(env.target) as session:
        assert session.run(plain) == 1
        with fails(tf.errors.FailedPreconditionError, "uninitialized value in_container"):
            session.run(kept)
    tf.Session.reset(env.target)
    with tf.Session(env.target) as session:
        with fails(tf.errors.FailedPreconditionError, "uninitialized value in_default"):
            session.run(plain)


@check
def logged_placement(env):
    *_, second = two_stages()
    with tf.Session(env.target, config=tf.ConfigProto(log_device_placement=True)) as session:
        session.run(second, {"a:0": 1, "b:0": 2, "c:0": 3})
    if env.log:
        with open(env.log, encoding="utf-8") as log:
            text = log.read()
        for line in (f"first: (AddV2): {PS}", f"second: (Mul): {WORKER % 0}"):
            assert line in text or line.replace("AddV2", "Add") in text, text


@check
def deadlines(env):
    with tf.device("/job:ps/task:0"):
        long = tf.random_uniform([1500, 1500])
        for _ in range(300):
            long = tf.matmul(long, long) * 1e-3
        long = tf.reduce_sum(long)
        short = tf.random_uniform([]) >= 0.0
    config = tf.ConfigProto(operation_timeout_in_ms=500)
    with tf.Session(env.target, config=config) as session:
        with fails(tf.errors.DeadlineExceededError) as failed:
            session.run(long)
        if not env.is_peer:
            assert "/job:ps/replica:0/task:0" in str(failed.value), failed.value
    with tf.Session(env.target) as session:
        with fails(tf.errors.DeadlineExceededError):
            session.run(long, options=tf.RunOptions(timeout_in_ms=500))
        assert session.run(short)


@check
def cluster_spec_propagation(env):
    """ClusterSpec propagation: the session's configuration names the jobs and tasks of the servers."""
    config = tf.ConfigProto()
    config.cluster_def.job.add(name="chief").tasks[0] = env.target[len("grpc://") :]
    config.cluster_def.job.add(name="store").tasks[3] = env.address_of_ps
    with tf.device("/job:store/task:3"):
        v = tf.get_variable("propagated", initializer=2.0, use_resource=False)
    with tf.device("/job:chief/task:0"):
        triple = v * 3.0
    names = {"/job:chief/replica:0/task:0/device:CPU:0", "/job:store/replica:0/task:3/device:CPU:0"}
    with tf.Session(env.target, config=config) as session:
        session.run(v.initializer)
        assert session.run(triple) == 6
        assert {d.name for d in session.list_devices()} == names
    with tf.Session(env.target, config=config) as session:
        # Without sharing, each session has its own state.
        with fails(tf.errors.FailedPreconditionError, "Attempting to use uninitialized value propagated"):
            session.run(triple)
    config.experimental.share_session_state_in_clusterspec_propagation = True
    with tf.Session(env.target, config=config) as session:
        session.run(v.initializer)
    with tf.Session(env.target, config=config) as session:
        assert session.run(triple) == 6


@check
def options_of_sessions(env):
    *_, second = two_stages()
    feeds = {"a:0": 1, "b:0": 2, "c:0": 3}
    with fails(tf.errors.InvalidArgumentError, "Distributed session does not support session thread pool options."):
        with tf.Session(env.target, config=tf.ConfigProto(use_per_session_threads=True)) as session:
            session.run(second, feeds)
    off = tf.ConfigProto(inter_op_parallelism_threads=2, intra_op_parallelism_threads=2, allow_soft_placement=True)
    off.graph_options.place_pruned_graph = True
    off.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    off.rpc_options.compression_algorithm = "gzip"
    off.share_cluster_devices_in_session = True
    folded = tf.add(tf.constant(1.0), tf.constant(2.0), name="folded")
    total = tf.add(second, folded, name="total")
    partitions = tf.RunOptions(output_partition_graphs=True)

    def ops_that_run(config):
        metadata = tf.RunMetadata()
        with tf.Session(env.target, config=config) as session:
            assert session.run(total, feeds, options=partitions, run_metadata=metadata) == 12
        return {node.name: node.op for graph in metadata.partition_graphs for node in graph.node}

    if env.is_peer:
        return
    by_default = ops_that_run(tf.ConfigProto())
    assert (by_default["folded"], by_default["total"]) == ("Const", "_FusedElementwise"), by_default
    assert ops_that_run(off)["folded"].startswith("Add")
    off = tf.ConfigProto()
    rewrites = off.graph_options.rewrite_options
    rewrites.remapping = rewrites.OFF
    unfused = ops_that_run(off)
    assert unfused["folded"] == "Const" and unfused["total"].startswith("Add"), unfused
    rewrites.constant_folding = rewrites.OFF
    assert ops_that_run(off)["folded"].startswith("Add")
    for listed, op in (("function", "Add"), ("constfold", "Const")):
        some = tf.ConfigProto()
        some.graph_options.rewrite_options.optimizers.append(listed)
        assert ops_that_run(some)["folded"].startswith(op), listed


@check
def feeds_and_fetches_of_any_tensor(env):
    p = tf.placeholder(tf.float32, [], name="p")
    default = tf.placeholder_with_default(5.0, [], name="default")
    v = tf.get_variable("fetched_ref", initializer=[1.0, 2.0], use_resource=False)
    values, indices = tf.nn.top_k(v, 1, name="top")
    total = tf.add(p, default, name="total")
    with tf.Session(env.target) as session:
        session.run(v.initializer)
        assert session.run("fetched_ref:0").tolist() == [1, 2]
        assert session.run(tf.assign(v, [3.0, 2.0])).tolist() == [3, 2]
        assert [x.tolist() for x in session.run([indices, values, indices])] == [[0], [3], [0]]
        if not env.is_peer:
            # TensorFlow's server answers with the fed value, which the client then refuses.
            assert session.run(indices, {"top:0": [0.0]}).tolist() == [0]
        assert session.run([p, total, "p:0"], {p: 1}) == [1, 6, 1]
        assert session.run([total, default], {"p:0": 1, default: 2}) == [3, 2]
        assert session.run(total, {total: 8}) == 8
        assert session.run(values, {v: [7.0, 9.0]}).tolist() == [9]


@check
def fetched_variable_has_its_value_at_the_end_of_the_step(env):
    with tf.Session(env.target) as session:

        def fetched(read, write, after=False):
            v = tf.Variable(0.0, use_resource=False)
            value = read(v)
            with tf.control_dependencies([value] if after else []):
                written = write(v)
            session.run(v.initializer)
            return session.run([value, written.op])[0]

        def assign(v):
            return tf.assign(v, 5.0)

        def descend(v):
            return tf.raw_ops.ApplyGradientDescent(var=v._ref(), alpha=1.0, delta=2.0 * (v - 3.0))

        for read in (
            lambda v: v._ref(),
            lambda v: v.value(),
            tf.identity,
            lambda v: tf.identity(tf.identity(v)),
            lambda v: tf.stop_gradient(v._ref()),
            lambda v: tf.stop_gradient(tf.identity(v)),
            lambda v: tf.identity_n([1.0, v._ref()])[1],
            lambda v: tf.placeholder_with_default(v._ref(), []),
            lambda v: tf.raw_ops.PreventGradient(input=v._ref()),
            lambda v: tf.reshape(v._ref(), []),
            lambda v: tf.reshape(tf.identity(v), [1, 1]),
            lambda v: tf.expand_dims(v._ref(), 0),
            lambda v: tf.squeeze(tf.expand_dims(v._ref(), 0)),
            lambda v: tf.ensure_shape(v._ref(), []),
        ):
            assert fetched(read, assign) == 5
            assert fetched(read, assign, after=True) == 5
            assert fetched(read, lambda v: tf.assign_add(v, 1.0)) == 1
            assert fetched(read, descend) == 6
        assert fetched(lambda v: tf.raw_ops.Snapshot(input=v._ref()), assign, after=True) == 0
        v = tf.Variable(0.0, use_resource=False)
        first = tf.assign(v, 5.0)
        with tf.control_dependencies([first]):
            second = tf.assign(v, 7.0)
        session.run(v.initializer)
        assert session.run([first, tf.identity(first), second.op])[:2] == [7, 7]
        never = tf.Variable(0.0, use_resource=False, name="never_set")
        with fails(tf.errors.FailedPreconditionError, "Attempting to use uninitialized value never_set"):
            session.run(tf.identity(never))


@check
def sends_of_a_graph_reach_its_receives(env):
    with tf.Session(env.target) as session:
        incarnations = {device.name: device.incarnation for device in session.list_devices()}
        x = tf.placeholder(tf.float32, [None])
        for source, destination in (WORKER % 0, WORKER % 0), (PS, WORKER % 1), (WORKER % 1, PS):
            key = dict(
                tensor_name=f"from {source}", send_device=source, recv_device=destination,
                send_device_incarnation=incarnations[source])
            with tf.device(source):
                send = tf.raw_ops.Send(tensor=x * 2.0, **key)
            with tf.device(destination):
                received = tf.raw_ops.Recv(tensor_type=tf.float32, **key) + 1.0
            for values in [1.0], [2.0, 3.0]:
                result, _ = session.run([received, send], {x: values}, options=tf.RunOptions(timeout_in_ms=60_000))
                np.testing.assert_array_equal(result, np.multiply(values, 2) + 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True, help="grpc:// address of worker 0")
    parser.add_argument("--address-of-ps", required=True)
    parser.add_argument("--log", help="file that worker 0 logs to")
    parser.add_argument("--is-peer", action="store_true", help="the servers are TensorFlow's own")
    checks.run(parser.parse_args())


main()
