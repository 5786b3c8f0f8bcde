"""Checks buckets of reductions: equal bits with and without them, one exchange for a bucket, and members whose buckets
differ or that are TensorFlow's. Prints `ok` and a name for each check.

    python bucketed_collectives.py --server target/release/anabranch-worker
"""
import argparse
import shlex
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.ops import collective_ops

from workers import Workers

tf.disable_v2_behavior()

# As many tensors as ResNet-50 has parameters.
TENSORS = 161
OPTIONS = tf.RunOptions(timeout_in_ms=60000)


def start(ours, workers, foreign=None, leader=0):
    """Starts workers that log their exchanges."""
    return Workers(ours, workers, foreign, leader, log="warn,anabranch_worker::collective=debug")


def exchanges(servers, task):
    """Returns the numbers of a task's exchanges of buckets and of single instances."""
    buckets = servers.lines(task, "collective bucket:")
    return buckets, servers.lines(task, " members: ") - buckets


def without_buckets():
    rewriter = rewriter_config_pb2.RewriterConfig(scoped_allocator_optimization=rewriter_config_pb2.RewriterConfig.OFF)
    return tf.ConfigProto(graph_options=tf.GraphOptions(rewrite_options=rewriter))


def inputs(rank, shapes):
    generator = np.random.default_rng(rank)
    return [generator.standard_normal(shape).astype(np.float32) for shape in shapes]


def sums(rank, shapes, workers, group, first):
    """Returns a member's sums of its inputs, under the instance keys from `first` on."""
    values = inputs(rank, shapes)
    return [
        collective_ops.all_reduce_v2(tf.constant(value), workers, group, first + i, "Add", "Id", timeout=30)
        for i, value in enumerate(values)
    ]


def serial(shapes, workers):
    """Returns the sums in the order of the ranks."""
    total = inputs(0, shapes)
    for rank in range(1, workers):
        total = [a + b for a, b in zip(total, inputs(rank, shapes))]
    return total


def assert_equal(got, want):
    for value, expected in zip(got, want, strict=True):
        assert value.shape == expected.shape and (value == expected).all(), (value, expected)


def in_one_session(targets, build, steps, config=None):
    """Runs what `build(rank)` returns for all members in the steps of one session."""
    with tf.Graph().as_default():
        fetches = []
        for rank in range(len(targets)):
            with tf.device(f"/job:worker/task:{rank}/device:CPU:0"):
                fetches.append(build(rank))
        with tf.Session(targets[0], config=config) as session:
            return [session.run(fetches, options=OPTIONS) for _ in range(steps)]


def in_sessions(servers, run, configs=None):
    """Calls `run(rank, session)` for each worker, in a graph and with a session of its own. Returns the results."""
    workers = len(servers.targets)
    results, failures = [None] * workers, []

    def work(rank):
        try:
            with tf.Graph().as_default(), tf.device(f"/job:worker/task:{rank}/device:CPU:0"):
                with tf.Session(servers.targets[rank], config=configs and configs[rank]) as session:
                    results[rank] = run(rank, session)
        except Exception as e:
            failures.append((rank, str(e)[:400]))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    return results


def many_small_tensors_are_one_exchange(ours):
    shapes = [[1024]] * TENSORS
    for workers in [2, 3]:
        with start(ours, workers) as servers:
            want = serial(shapes, workers)
            for step in in_one_session(servers.targets, lambda rank: sums(rank, shapes, workers, 1, 100), 3):
                for got in step:
                    assert_equal(got, want)
            assert [exchanges(servers, task) for task in range(workers)] == [(3, 0)] * workers


def buckets_change_no_bits(ours):
    shapes = [(), (0,), (3,), (7, 5), (4099,), (70_000,), (270_000,), (2,), (33, 33)]
    for workers in [2, 3, 4]:
        with start(ours, workers) as servers:
            want = serial(shapes, workers)
            for first, config in [(100, None), (200, without_buckets())]:
                for got in in_one_session(servers.targets, lambda rank: sums(rank, shapes, workers, 1, first), 2, config):
                    for of_rank in got:
                        assert_equal(of_rank, want)

            def run(rank, session):
                fetches = sums(rank, shapes, workers, 2, 300)
                return [session.run(fetches, options=OPTIONS) for _ in range(3)]

            for steps in in_sessions(servers, run):
                for got in steps:
                    assert_equal(got, want)
            # The largest tensor is above the limit, so it is alone.
            buckets, single = exchanges(servers, workers - 1)
            assert (buckets, single) == (2 + 3, 2 + 2 * len(shapes) + 3), (buckets, single)


def chained(rank, shapes, workers, group, first, chain):
    """Returns sums, of which on one rank the last waits for the first."""
    values = [tf.constant(value) for value in inputs(rank, shapes)]
    results = []
    for i, value in enumerate(values):
        after = [results[0]] if chain and i == len(values) - 1 else []
        with tf.control_dependencies(after):
            value = tf.identity(value)
        results.append(collective_ops.all_reduce_v2(value, workers, group, first + i, "Add", "Id", timeout=30))
    return results


def members_with_other_buckets_run_one_by_one(ours):
    shapes, workers = [[8]] * 6, 3
    with start(ours, workers) as servers:
        want = serial(shapes, workers)

        def run(rank, session):
            fetches = chained(rank, shapes, workers, 3, 10, rank == 1)
            return [session.run(fetches, options=OPTIONS) for _ in range(4)]

        for steps in in_sessions(servers, run):
            for got in steps:
                assert_equal(got, want)
        for task in range(workers):
            assert exchanges(servers, task) == (0, 4 * len(shapes))
            assert servers.lines(task, "run one by one") == 1
        off = [None, None, without_buckets()]

        def plain(rank, session):
            fetches = sums(rank, shapes, workers, 4, 10)
            return [session.run(fetches, options=OPTIONS) for _ in range(3)]

        for steps in in_sessions(servers, plain, off):
            for got in steps:
                assert_equal(got, want)


def a_member_may_change_its_buckets(ours):
    """In turn all members, one, and none have a bucket, in one session."""
    shapes, workers = [[8]] * 5, 2
    with start(ours, workers) as servers:
        want = serial(shapes, workers)

        def run(rank, session):
            plans = [chained(rank, shapes, workers, 5, 10, chain) for chain in [False, True]]
            order = [[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0, 0, 0]][rank]
            return [session.run(plans[plan], options=OPTIONS) for plan in order]

        for steps in in_sessions(servers, run):
            for got in steps:
                assert_equal(got, want)
        # In the third step worker 0 begins the bucket's exchange, and is told that worker 1 has another. A bucket that has
        # been divided stays so in the session.
        assert [exchanges(servers, rank)[0] for rank in range(workers)] == [3, 2]


def fed_tensors_and_groups_are_in_buckets_by_declared_shapes(ours):
    workers = 2
    with start(ours, workers) as servers:

        def run(rank, session):
            x = tf.placeholder(tf.float32, [None])
            y = tf.ensure_shape(tf.placeholder(tf.float32, [3]), [3])
            keys = [(tf.slice(x, [0], [4]), 20), (y, 21), (y + 1.0, 22)]
            group = tf.placeholder(tf.int32, [])
            fetches = [collective_ops.all_reduce_v2(v, workers, group, key, "Add", "Id", timeout=30) for v, key in keys]
            feeds = {x: np.full(8, 1.0 + rank, np.float32), y: np.ones(3, np.float32), group: 6}
            return [session.run(fetches, feeds, options=OPTIONS) for _ in range(3)]

        for steps in in_sessions(servers, run):
            for got in steps:
                assert_equal(got, [np.full(4, 3.0), np.full(3, 2.0), np.full(3, 4.0)])
        assert exchanges(servers, 1) == (3, 0), exchanges(servers, 1)


def partial_runs_do_not_hold_up_a_fetch(ours):
    workers = 2
    with start(ours, workers) as servers, tf.Graph().as_default():
        feeds, fetches = [], []
        for rank in range(workers):
            with tf.device(f"/job:worker/task:{rank}/device:CPU:0"):
                feeds.append([tf.placeholder(tf.float32, [2]) for _ in range(2)])
                fetches.append([collective_ops.all_reduce_v2(x, workers, 7, 1 + i) for i, x in enumerate(feeds[rank])])
        with tf.Session(servers.targets[0]) as session:
            flat = [x for of_rank in feeds for x in of_rank]
            handle = session.partial_run_setup([x for of_rank in fetches for x in of_rank], flat)
            for i in range(2):
                values = {feeds[rank][i]: np.full(2, 1.0 + rank) for rank in range(workers)}
                got = session.partial_run(handle, [of_rank[i] for of_rank in fetches], values)
                assert_equal(got, [np.full(2, 3.0)] * workers)


def errors_name_the_nodes_of_a_bucket(ours):
    workers = 2
    with start(ours, workers) as servers:

        def run(rank, session):
            build = lambda: [
                collective_ops.all_reduce_v2(tf.ones([2]), workers, 8, 1 + i, timeout=2, name=f"gradient_{i}") for i in range(3)
            ]
            session.run(build(), options=OPTIONS)
            if rank == 1:
                time.sleep(6)
                return ""
            start = time.monotonic()
            try:
                session.run(["gradient_0:0", "gradient_1:0", "gradient_2:0"], options=OPTIONS)
            except tf.errors.DeadlineExceededError as e:
                assert time.monotonic() - start < 5, "the deadline is two seconds"
                return str(e)
            raise AssertionError("the step has not failed")

        text = in_sessions(servers, run)[0]
        for part in ["'gradient_0', 'gradient_1', 'gradient_2'", "group 8 of 2", "waits for /job:worker/replica:0/task:1"]:
            assert part in text, text


def members_of_tensorflow_have_no_buckets(ours):
    shapes, workers = [[8], [4099], [3, 3]], 2
    want = serial(shapes, workers)
    for foreign in range(workers):
        for leader in range(workers):
            with start(ours, workers, foreign, leader) as servers:
                own = 1 - foreign
                targets = [servers.targets[own], servers.targets[foreign]]
                for step in in_one_session(targets, lambda rank: sums(rank, shapes, workers, 9, 100), 3):
                    for got in step:
                        assert_equal(got, want)

                def run(rank, session):
                    fetches = sums(rank, shapes, workers, 10, 200)
                    return [session.run(fetches, options=OPTIONS) for _ in range(3)]

                for steps in in_sessions(servers, run):
                    for got in steps:
                        assert_equal(got, want)
                assert exchanges(servers, own) == (0, 6 * len(shapes)), exchanges(servers, own)


CHECKS = [
    many_small_tensors_are_one_exchange,
    buckets_change_no_bits,
    members_with_other_buckets_run_one_by_one,
    a_member_may_change_its_buckets,
    fed_tensors_and_groups_are_in_buckets_by_declared_shapes,
    partial_runs_do_not_hold_up_a_fetch,
    errors_name_the_nodes_of_a_bucket,
    members_of_tensorflow_have_no_buckets,
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True, help="our worker's command")
    parser.add_argument("--only", help="the name of one check")
    flags = parser.parse_args()
    for check in CHECKS:
        if flags.only in (None, check.__name__):
            check(shlex.split(flags.server))
            print(f"ok {check.__name__}", flush=True)


if __name__ == "__main__":
    main()
