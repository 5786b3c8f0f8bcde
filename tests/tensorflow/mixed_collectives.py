"""Checks collectives between a server of TensorFlow and one of ours, with either as leader and as master.

    python mixed_collectives.py --server target/release/anabranch-worker
    python mixed_collectives.py --server target/release/anabranch-worker --large 6000000 --steps 100
"""
import argparse
import shlex
import threading

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import collective_ops

from workers import Workers

tf.disable_v2_behavior()

WORKERS = 2


def collectives(rank, x, first):
    """Returns a sum, a mean, a gather and a broadcast of a member's input."""
    broadcast = (
        collective_ops.broadcast_send_v2(x, WORKERS, first, first + 3)
        if rank == 1
        else collective_ops.broadcast_recv_v2(tf.shape(x), x.dtype, WORKERS, first, first + 3)
    )
    return (
        collective_ops.all_reduce_v2(x, WORKERS, first, first, "Add", "Id"),
        collective_ops.all_reduce_v2(x, WORKERS, first, first + 1, "Add", "Div"),
        collective_ops.all_gather_v2(x, WORKERS, first, first + 2),
        broadcast,
    )


def check(values, results):
    want = (values[0] + values[1], (values[0] + values[1]) / np.float32(2), np.concatenate(values), values[1])
    for result in results:
        for got, expected in zip(result, want):
            assert (got == expected).all(), (got, expected)


def inputs(count, step):
    return [np.random.default_rng(10 * step + rank).standard_normal(count).astype(np.float32) for rank in range(WORKERS)]


def one_session(target, first, count, steps):
    with tf.Graph().as_default():
        feeds, fetches = [], []
        for rank in range(WORKERS):
            with tf.device(f"/job:worker/task:{rank}/device:CPU:0"):
                feeds.append(tf.placeholder(tf.float32, [count]))
                fetches.append(collectives(rank, feeds[rank], first))
        with tf.Session(target) as session:
            for step in range(steps):
                values = inputs(count, step)
                check(values, session.run(fetches, dict(zip(feeds, values)), options=tf.RunOptions(timeout_in_ms=60000)))


def two_sessions(targets, first, count, steps):
    """Each worker has a session of its own, with its own task as master."""
    results, failures = [[], []], []

    def work(rank):
        try:
            with tf.Graph().as_default(), tf.device(f"/job:worker/task:{rank}/device:CPU:0"):
                x = tf.placeholder(tf.float32, [count])
                fetches = collectives(rank, x, first)
                with tf.Session(targets[rank]) as session:
                    for step in range(steps):
                        results[rank].append(session.run(fetches, {x: inputs(count, step)[rank]}, options=tf.RunOptions(timeout_in_ms=60000)))
        except Exception as e:
            failures.append((rank, e))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, [(rank, str(e)[:400]) for rank, e in failures]
    for step in range(steps):
        check(inputs(count, step), [results[0][step], results[1][step]])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", help="our worker's command")
    parser.add_argument("--large", type=int, default=600_000, help="elements of the large tensors")
    parser.add_argument("--steps", type=int, default=3, help="steps with large tensors")
    flags = parser.parse_args()
    for foreign in range(WORKERS):
        for leader in range(WORKERS):
            with Workers(shlex.split(flags.server), WORKERS, foreign, leader) as servers:
                one_session(servers.targets[0], 100, 4099, 20)
                one_session(servers.targets[1], 200, flags.large, flags.steps)
                two_sessions(servers.targets, 300, 4099, 100)
            print(f"ok TensorFlow is task {foreign}, the leader is task {leader}", flush=True)


if __name__ == "__main__":
    main()
