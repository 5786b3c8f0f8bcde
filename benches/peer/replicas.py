"""Measure the cost of a standby of a parameter server: steps with `--ps-replicas 2` and without it, alternately.

    python replicas.py --server 'path/to/worker-binary' [--rounds 5]

All processes run on this machine, so the standby competes for memory bandwidth and cores, which it would not do on a
separate machine. Memory is the sum of both processes of the parameter server.
"""
import argparse
import pathlib
import shlex
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cluster import Cluster
from turns import pull, push, sparse
from workloads import PS, WORKER, session, tf


def rows():
    """A step that changes 32 rows of a table."""
    with tf.device(PS):
        table = tf.Variable(tf.zeros([200_000, 256]), use_resource=False)
    with tf.device(WORKER):
        gradient = tf.ones([32, 256]) * tf.random_uniform([], 1, 1)
        indices = tf.random_uniform([32], 0, 200_000, tf.int32)
    with tf.device(PS):
        return tf.scatter_add(table, indices, gradient).op


def dense():
    """A step that changes 100 MB."""
    with tf.device(PS):
        there = tf.Variable(tf.zeros([25_000_000]), use_resource=False)
    with tf.device(WORKER):
        gradient = tf.ones([25_000_000]) * tf.random_uniform([], 1, 1)
    with tf.device(PS):
        return tf.assign_add(there, gradient).op


STEPS = {"read 4 B": (pull, 500), "read 32 rows": (sparse, 500), "add 4 B": (push, 500), "add 32 rows": (rows, 500),
         "add 100 MB": (dense, 10)}


def until_whole(cluster):
    while " has a standby" not in open(cluster.logs["ps", 0]).read():
        time.sleep(0.01)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--server", required=True, help="command of the server")
    ap.add_argument("--rounds", type=int, default=5)
    a = ap.parse_args()
    command = shlex.split(a.server)
    for name, (build, steps) in STEPS.items():
        with Cluster(command, {"ps": 1, "worker": 1}) as alone:
            both = Cluster([*command, "--ps-replicas", "2"], {"ps": 2, "worker": 1})
            both.wait_for_ps, both.wait_for = both.wait_for, lambda _: None  # a standby does not listen
            with both:
                both.wait_for_ps(both.spec["ps"][0]), both.wait_for_ps(both.spec["worker"][0])
                until_whole(both)
                tf.reset_default_graph()
                step = build()
                times = {alone: [], both: []}
                with session(alone.target()) as first, session(both.target()) as second:
                    for _ in range(a.rounds + 1):
                        for cluster, s in (alone, first), (both, second):
                            start = time.perf_counter()
                            for _ in range(steps):
                                s.run(step)
                            times[cluster].append((time.perf_counter() - start) / steps * 1e6)
                one, two = (statistics.median(times[c][1:]) for c in (alone, both))
                memory = alone.rss_mib("ps", 0), both.rss_mib("ps", 0) + both.rss_mib("ps", 1)
                print(f"{name:14} {one:9.0f} us alone {two:9.0f} us with a standby: {two / one:5.2f} times"
                      f"   {memory[0]:5.0f} and {memory[1]:5.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
