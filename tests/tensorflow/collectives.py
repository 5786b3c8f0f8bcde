"""Checks collectives of TensorFlow's clients on a cluster of three workers: values, refusals, and sessions one after
another. Prints `ok` and a name for each check.

    python collectives.py --targets grpc://HOST:PORT,grpc://HOST:PORT,grpc://HOST:PORT
"""
import argparse
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import collective_ops, gen_collective_ops

tf.disable_v2_behavior()

WORKERS = 3
TYPES = [np.float32, np.float64, np.float16, np.int32, np.int64, tf.bfloat16.as_numpy_dtype]


class Keys:
    """Gives out group and instance keys that no other check uses."""

    last = 0

    @classmethod
    def next(cls):
        cls.last += 1
        return cls.last


def on_workers(build, members=WORKERS):
    """Returns what `build(rank)` returns on each worker's device."""
    built = []
    for rank in range(members):
        with tf.device(f"/job:worker/task:{rank}/device:CPU:0"):
            built.append(build(rank))
    return built


def run(target, build, members=WORKERS):
    """Runs what `build(rank)` returns for all members in one step of a new session."""
    with tf.Graph().as_default():
        fetches = on_workers(build, members)
        with tf.Session(target) as session:
            return session.run(fetches, options=tf.RunOptions(timeout_in_ms=30000))


def inputs(dtype, shape, members=WORKERS):
    generator = np.random.default_rng(7)
    return [(generator.integers(1, 9, shape)).astype(dtype) for _ in range(members)]


def reductions(targets):
    functions = {"Add": np.add, "Mul": np.multiply, "Min": np.minimum, "Max": np.maximum}
    for dtype in TYPES:
        for merge, function in functions.items():
            for final in ["Id", "Div"]:
                for shape in [(), (0,), (2,), (4099,), (3, 5, 7)]:
                    values = inputs(dtype, shape)
                    group, instance = Keys.next(), Keys.next()
                    got = run(
                        targets[0],
                        lambda rank: collective_ops.all_reduce_v2(tf.constant(values[rank]), WORKERS, group, instance, merge, final),
                    )
                    want = values[0].astype(np.float64)
                    for value in values[1:]:
                        want = function(want, value.astype(np.float64))
                    if final == "Div":
                        want = want / WORKERS if np.dtype(dtype).kind not in "iu" else want // WORKERS
                    for value in got:
                        assert value.dtype == dtype and value.shape == shape
                        np.testing.assert_allclose(value.astype(np.float64), want.astype(dtype).astype(np.float64), rtol=1e-2 if np.dtype(dtype).itemsize == 2 else 1e-6)


def large_reductions(targets):
    """Reductions of more than 32 KiB, which are divided among the members, give the serial sum in the order of the ranks."""
    for count in [8193, 1_000_003]:
        values = [np.random.default_rng(rank).standard_normal(count).astype(np.float32) for rank in range(WORKERS)]
        group, instance = Keys.next(), Keys.next()
        got = run(targets[0], lambda rank: collective_ops.all_reduce_v2(tf.constant(values[rank]), WORKERS, group, instance, "Add", "Id"))
        want = (values[0] + values[1]) + values[2]
        for value in got:
            assert (value == want).all()


def first_versions(targets):
    values = inputs(np.float32, (5, 2))
    group = Keys.next()
    reduced, gathered, sent = Keys.next(), Keys.next(), Keys.next()

    def build(rank):
        x = tf.constant(values[rank])
        broadcast = (
            collective_ops.broadcast_send(x, x.shape, x.dtype, WORKERS, group, sent)
            if rank == 1
            else collective_ops.broadcast_recv([5, 2], tf.float32, WORKERS, group, sent)
        )
        return (
            collective_ops.all_reduce(x, WORKERS, group, reduced, "Add", "Id", (0,)),
            collective_ops.all_gather(x, WORKERS, group, gathered),
            broadcast,
        )

    for sums, rows, received in run(targets[0], build):
        np.testing.assert_allclose(sums, sum(values))
        assert (rows == np.concatenate(values)).all()
        assert (received == values[1]).all()


def exchanges(targets):
    values = inputs(np.int32, (WORKERS, 4))
    group = Keys.next()
    gathered, sent, exchanged, scattered = (Keys.next() for _ in range(4))

    def build(rank):
        x = tf.constant(values[rank])
        broadcast = (
            collective_ops.broadcast_send_v2(x, WORKERS, group, sent)
            if rank == 2
            else collective_ops.broadcast_recv_v2([WORKERS, 4], tf.int32, WORKERS, group, sent)
        )
        return (
            collective_ops.all_gather_v2(x, WORKERS, group, gathered),
            broadcast,
            collective_ops.all_to_all_v2(x, WORKERS, group, exchanged),
            gen_collective_ops.collective_reduce_scatter_v2(x, WORKERS, group, scattered, [], "Add", "Id"),
        )

    for rank, (rows, received, row, part) in enumerate(run(targets[0], build)):
        assert (rows == np.concatenate(values)).all()
        assert (received == values[2]).all()
        assert (row == np.stack([value[rank] for value in values])).all()
        assert (part == sum(values)[rank : rank + 1]).all()


def steps_of_one_session(targets):
    group, instance = Keys.next(), Keys.next()
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None])
        sums = on_workers(lambda rank: collective_ops.all_reduce_v2(x * (rank + 1.0), WORKERS, group, instance, "Add", "Id"))
        with tf.Session(targets[1]) as session:
            for step in range(50):
                for value in session.run(sums, {x: np.full(8, step, np.float32)}):
                    np.testing.assert_allclose(value, np.full(8, step * 6.0))


def sessions_reuse_keys(targets):
    """A second session uses the same keys for another shape and other members."""
    group, instance = Keys.next(), Keys.next()
    for members, shape in [(2, (4,)), (3, (7,)), (2, (1, 2))]:
        values = inputs(np.float32, shape, members)
        got = run(targets[0], lambda rank: collective_ops.all_reduce_v2(tf.constant(values[rank]), members, group, instance, "Add", "Id"), members)
        for value in got:
            np.testing.assert_allclose(value, sum(values))


def refused(targets, build, *texts, error=tf.errors.OpError):
    try:
        run(targets[0], build)
    except error as e:
        missing = [text for text in texts if text not in str(e)]
        assert not missing, (missing, str(e))
    else:
        raise AssertionError("no error")
    # The servers work as before.
    values = inputs(np.float32, (3,))
    group, instance = Keys.next(), Keys.next()
    got = run(targets[0], lambda rank: collective_ops.all_reduce_v2(tf.constant(values[rank]), WORKERS, group, instance, "Add", "Id"))
    np.testing.assert_allclose(got[0], sum(values))


def refusals(targets):
    group, instance = Keys.next(), Keys.next()

    def reduce(x, merge="Add", size=WORKERS):
        return collective_ops.all_reduce_v2(x, size, group, instance, merge, "Id")

    refused(targets, lambda rank: reduce(tf.zeros([3 if rank else 4])), "Shape mismatch in the collective instance", "task:")
    refused(targets, lambda rank: reduce(tf.zeros([3], tf.float32 if rank else tf.float64)), "data_type")
    refused(targets, lambda rank: reduce(tf.zeros([3]), "Add" if rank else "Max"), "Max", "Add")
    refused(targets, lambda rank: reduce(tf.zeros([3]), size=WORKERS if rank else 2), "but that group has size")
    refused(targets, lambda rank: reduce(tf.zeros([3]), size=2), "already full")
    refused(targets, lambda rank: collective_ops.broadcast_send_v2(tf.zeros([3]), WORKERS, group, instance), "second claim")
    refused(
        targets,
        lambda rank: collective_ops.broadcast_recv_v2([3], tf.float32, WORKERS, group, instance),
        "found no source for broadcast",
    )
    refused(targets, lambda rank: reduce(tf.zeros([3]), size=-1), "group_size must be positive")

    def failing(rank):
        x = tf.constant([0 if rank == 1 else 1])
        return reduce(tf.cast(tf.constant([6]) // x, tf.float32))

    refused(targets, failing, "Integer division by zero")


def missing_member(targets):
    """A member that never comes ends the step by the node's timeout, with an error that names the node."""
    group, instance = Keys.next(), Keys.next()
    started = time.monotonic()
    refused(
        targets,
        lambda rank: tf.no_op()
        if rank == 2
        else collective_ops.all_reduce_v2(tf.zeros([3]), WORKERS, group, instance, "Add", "Id", timeout=2),
        "CollectiveReduceV2",
        "waited 2.0 s",
        error=tf.errors.DeadlineExceededError,
    )
    assert time.monotonic() - started < 8


def in_threads(work):
    """Returns what `work(worker)` returns for each worker, on a thread with a graph on the worker's device."""
    results, failures = [None] * WORKERS, []

    def one(worker):
        try:
            with tf.Graph().as_default(), tf.device(f"/job:worker/task:{worker}/device:CPU:0"):
                results[worker] = work(worker)
        except Exception as e:
            failures.append(e)

    threads = [threading.Thread(target=one, args=(worker,)) for worker in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    return results


def masters_of_their_own(targets):
    """Each worker has a session of its own, with its own task as master."""
    group, instance = Keys.next(), Keys.next()

    def work(rank):
        x = tf.placeholder(tf.float32, [None])
        total = collective_ops.all_reduce_v2(x, WORKERS, group, instance, "Add", "Id")
        with tf.Session(targets[rank]) as session:
            options = tf.RunOptions(timeout_in_ms=30000)
            return [session.run(total, {x: [rank + step, 1.0]}, options=options) for step in range(20)]

    for result in in_threads(work):
        np.testing.assert_allclose(result, [[3.0 + 3 * step, 3.0] for step in range(20)])


def fails(session, fetches, feeds, *texts):
    """Checks that a step fails at once, with an error that contains the texts."""
    started = time.monotonic()
    try:
        session.run(fetches, feeds, options=tf.RunOptions(timeout_in_ms=30000))
    except tf.errors.OpError as e:
        assert all(text in str(e) for text in texts), (texts, str(e))
    else:
        raise AssertionError("no error")
    assert time.monotonic() - started < 10


def changes(targets):
    """Steps of one session in which shapes and the source change, and members that disagree after steps that they agreed on."""
    group, instance, sent = Keys.next(), Keys.next(), Keys.next()
    with tf.Graph().as_default():
        xs = [tf.placeholder(tf.float32, [None]) for _ in range(WORKERS)]
        total = on_workers(lambda rank: collective_ops.all_reduce_v2(xs[rank], WORKERS, group, instance, "Add", "Id"))

        def broadcast(sources):
            def build(rank):
                if rank in sources:
                    return collective_ops.broadcast_send_v2(tf.constant([1.0 + rank]), WORKERS, group, sent)
                return collective_ops.broadcast_recv_v2([1], tf.float32, WORKERS, group, sent)

            return on_workers(build)

        from_each = [broadcast([source]) for source in range(WORKERS)]
        from_two, from_none = broadcast([0, 1]), broadcast([])
        twice = [collective_ops.all_reduce_v2(xs[0], WORKERS, group, instance, "Add", "Id") for _ in range(2)]
        with tf.Session(targets[0]) as session:
            fed = lambda sizes: {x: np.full(size, 2.0) for x, size in zip(xs, sizes)}
            for size in [3, 3, 5, 0, 2]:
                for value in session.run(total, fed([size] * WORKERS)):
                    assert (value == np.full(size, 6.0)).all() and value.shape == (size,)
            for sizes in [(2, 4, 2), (4, 4, 2), (2, 0, 2), (1, 3, 4)]:
                fails(session, total, fed(sizes), "Shape mismatch in the collective instance")
                assert (session.run(total, fed([2] * WORKERS))[1] == [6.0, 6.0]).all()
            for source in [0, 1, 2, 0, 0]:
                assert session.run(from_each[source]) == [[1.0 + source]] * WORKERS
            fails(session, from_two, {}, "already has source", "received second claim from")
            assert session.run(from_each[1]) == [[2.0]] * WORKERS
            fails(session, from_none, {}, "found no source for broadcast")
            assert session.run(from_each[0]) == [[1.0]] * WORKERS
            fails(session, [*total, *twice], fed([2] * WORKERS), "at once", "give each its own instance key")


# The ranks that the workers give in communicators.
RANKS = [2, 0, 1]
# The group assignment that stands for all members.
ALL = np.zeros((0, 0), np.int32)


def communicator(rank, group, size=WORKERS, timeout=0):
    return gen_collective_ops.collective_initialize_communicator(group, rank, size, timeout_seconds=timeout)


def sum_v3(x, communicator, assignment=ALL, reduction="Add", name=None):
    return gen_collective_ops.collective_reduce_v3(x, communicator, assignment, reduction, name=name)


def communicators(targets):
    """Ops of communicators, in several steps, beside a group with the same key."""
    values = inputs(np.float32, (WORKERS,))
    # The worker that has each rank.
    workers = [RANKS.index(rank) for rank in range(WORKERS)]
    group = Keys.next()

    def build(worker):
        own = communicator(RANKS[worker], group)
        exchange = gen_collective_ops.collective_all_to_all_v3
        return (
            sum_v3(values[worker], own),
            sum_v3(values[worker], own, [[0, 1, 2]], "Max"),
            sum_v3(values[worker], own, [[1], [0], [2]], "Mul"),
            exchange(values[worker], own, ALL),
            exchange(values[worker], own, [[2, 0, 1]]),
            collective_ops.all_reduce_v2(tf.constant(values[worker]), WORKERS, group, 0, "Min", "Id"),
        )

    for graph_key in [0, 5]:
        with tf.Graph().as_default():
            fetches = on_workers(build)
            with tf.Session(targets[0]) as session:
                options = tf.RunOptions(timeout_in_ms=30000)
                options.experimental.collective_graph_key = graph_key
                for _ in range(3):
                    results = session.run(fetches, options=options)
        for worker, (total, largest, alone, exchanged, permuted, smallest) in enumerate(results):
            assert (total == sum(values)).all()
            assert (largest == np.max(values, 0)).all()
            assert (alone == values[worker]).all()
            assert (smallest == np.min(values, 0)).all()
            assert (exchanged == [values[other][RANKS[worker]] for other in workers]).all()
            order = [2, 0, 1]
            position = order.index(RANKS[worker])
            assert (permuted == [values[workers[rank]][position] for rank in order]).all()


def communicators_of_masters(targets):
    """Members in sessions of their own, which add the ops in different orders."""
    values, group = inputs(np.float32, (WORKERS,)), Keys.next()

    def work(worker):
        x, own = tf.placeholder(tf.float32, [None]), communicator(RANKS[worker], group)
        reductions = {"largest": "Max", "total": "Add"}
        names = sorted(reductions, reverse=worker == 1)
        reduced = {name: sum_v3(x, own, ALL, reductions[name], name) for name in names}
        with tf.Session(targets[worker]) as session:
            options = tf.RunOptions(timeout_in_ms=30000)
            return [session.run(reduced, {x: values[worker] * step}, options=options) for step in range(20)]

    for results in in_threads(work):
        for step, result in enumerate(results):
            assert (result["total"] == sum(values) * step).all()
            assert (result["largest"] == np.max(values, 0) * step).all()


def communicator_refusals(targets):
    group = Keys.next()
    x = inputs(np.float32, (WORKERS,))

    def op(worker, rank=None, assignment=ALL, size=WORKERS, length=WORKERS, reduction="Add"):
        own = communicator(worker if rank is None else rank, group, size)
        return sum_v3(x[worker][:length], own, assignment, reduction)

    refused(targets, lambda worker: op(worker, worker + 1), "rank 3 is not in a communicator of 3 members")
    refused(targets, lambda worker: op(worker, -1), "rank -1 is not in")
    refused(targets, lambda worker: op(worker, min(worker, 1)), "with rank 1, which", "task:1", "task:2")
    refused(targets, lambda worker: op(worker, size=2 if worker == 0 else 3), "but that group has size")
    refused(targets, lambda worker: op(worker, assignment=[[0, 1]]), "does not list rank 2")
    refused(targets, lambda worker: op(worker, assignment=[[0, 1, 1]]), "lists rank 1 twice")
    refused(targets, lambda worker: op(worker, assignment=[[0, 1, 3]]), "lists rank 3")
    refused(targets, lambda worker: op(worker, assignment=[0, 1, 2]), "must be a matrix")
    refused(targets, lambda worker: op(worker, assignment=[[2, 1, 0]] if worker else ALL), "subgroups", "together")
    refused(targets, lambda worker: op(worker, length=2 if worker else 3), "Shape mismatch")
    refused(targets, lambda worker: op(worker, reduction="Max" if worker else "Add"), "Max", "Add")
    missing = lambda worker: tf.no_op() if worker == 2 else sum_v3(x[worker], communicator(worker, group, timeout=2))
    refused(targets, missing, "CollectiveInitializeCommunicator", "waited 2.0 s", error=tf.errors.DeadlineExceededError)
    # The group is not spoilt.
    for total in run(targets[0], op):
        assert (total == sum(x)).all()


def loops(targets):
    """Each iteration of a loop is a collective of its own, also where iterations overlap."""
    group, instance = Keys.next(), Keys.next()
    values = inputs(np.float32, (3,))

    def halves(reduce):
        def build(worker):
            body = lambda i, x: (i + 1, reduce(worker, x) / 2 + tf.cast(i, tf.float32))
            return tf.while_loop(lambda i, _: i < 5, body, [0, tf.constant(values[worker])])[1]

        return build

    def of_keys(_, x):
        return collective_ops.all_reduce_v2(x, WORKERS, group, instance, "Add", "Id")

    want = sum(values) / 2
    for i in range(1, 5):
        want = 3 * want / 2 + i
    for reduce in [of_keys, lambda worker, x: sum_v3(x, communicator(worker, group))]:
        for value in run(targets[0], halves(reduce)):
            np.testing.assert_allclose(value, want, rtol=1e-6)

    def independent(_):
        def body(i, total):
            squared = tf.cast(i * i, tf.float32)
            return i + 1, total + collective_ops.all_reduce_v2(squared, WORKERS, group, instance + 1, "Add", "Id")

        return tf.while_loop(lambda i, _: i < 20, body, [0, 0.0], parallel_iterations=10)[1]

    Keys.next()
    assert run(targets[0], independent) == [3.0 * sum(i * i for i in range(20))] * WORKERS


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--targets", required=True)
    parser.add_argument("checks", nargs="*")
    flags = parser.parse_args()
    targets = flags.targets.split(",")
    checks = [
        reductions,
        large_reductions,
        first_versions,
        exchanges,
        steps_of_one_session,
        sessions_reuse_keys,
        refusals,
        missing_member,
        masters_of_their_own,
        changes,
        communicators,
        communicators_of_masters,
        communicator_refusals,
        loops,
    ]
    for check in checks:
        if not flags.checks or check.__name__ in flags.checks:
            check(targets)
            print(f"ok {check.__name__}", flush=True)


if __name__ == "__main__":
    main()
