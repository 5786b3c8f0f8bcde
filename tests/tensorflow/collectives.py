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


def masters_of_their_own(targets):
    """Each worker has a session of its own, with its own task as master."""
    group, instance = Keys.next(), Keys.next()
    results, failures = [None] * WORKERS, []

    def work(rank):
        try:
            with tf.Graph().as_default(), tf.device(f"/job:worker/task:{rank}/device:CPU:0"):
                x = tf.placeholder(tf.float32, [None])
                total = collective_ops.all_reduce_v2(x, WORKERS, group, instance, "Add", "Id")
                with tf.Session(targets[rank]) as session:
                    results[rank] = [session.run(total, {x: [rank + step, 1.0]}, options=tf.RunOptions(timeout_in_ms=30000)) for step in range(20)]
        except Exception as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    for rank in range(WORKERS):
        np.testing.assert_allclose(results[rank], [[3.0 + 3 * step, 3.0] for step in range(20)])


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
    ]
    for check in checks:
        if not flags.checks or check.__name__ in flags.checks:
            check(targets)
            print(f"ok {check.__name__}", flush=True)


if __name__ == "__main__":
    main()
