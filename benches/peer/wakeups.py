"""Measure the servers' threads during short steps over two tasks: how often each slept and was woken, and its CPU time.

    python wakeups.py --server 'path/to/worker-binary' [pull | push | many | sparse] [--steps 2000]

Unlike the wall time, the number of turns (voluntary context switches) does not depend on the machine's other load.
"""
import argparse
import os
import pathlib
import shlex
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cluster import Cluster
from workloads import PS, WORKER, session, tf


def pull():
    with tf.device(PS):
        read = tf.identity(tf.Variable(tf.zeros([1]), use_resource=False))
    with tf.device(WORKER):
        return tf.slice(read, [0], [1]).op


def push():
    with tf.device(PS):
        there = tf.Variable(tf.zeros([1]), use_resource=False)
    with tf.device(WORKER):
        gradient = tf.identity(tf.Variable(tf.ones([1]), use_resource=False))
    with tf.device(PS):
        return tf.assign_add(there, gradient).op


def many():
    with tf.device(PS):
        reads = [tf.identity(tf.Variable(tf.zeros([1024]), use_resource=False)) for _ in range(200)]
    with tf.device(WORKER):
        return tf.group(*[tf.slice(r, [0], [1]) for r in reads])


def sparse():
    with tf.device(PS):
        table = tf.Variable(tf.zeros([200_000, 256]), use_resource=False)
        rows = tf.gather(table, tf.random_uniform([32], 0, 200_000, tf.int32))
    with tf.device(WORKER):
        return tf.slice(rows, [0, 0], [1, 1]).op


STEPS = {f.__name__: f for f in (pull, push, many, sparse)}


def threads(pid):
    """Returns name, voluntary context switches and nanoseconds on a CPU of each thread."""
    found = {}
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            status = dict(line.split(":\t", 1) for line in (thread / "status").read_text().splitlines() if ":\t" in line)
            nanos = int((thread / "schedstat").read_text().split()[0])
        except FileNotFoundError:
            continue  # the thread has ended
        found[thread.name] = status["Name"], int(status["voluntary_ctxt_switches"]), nanos
    return found


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--server", required=True, help="command of the server")
    ap.add_argument("--steps", type=int, default=2000)
    ap.add_argument("step", nargs="?", choices=STEPS, default="pull")
    a = ap.parse_args()
    with Cluster(shlex.split(a.server), {"ps": 1, "worker": 1}) as cluster:
        step = STEPS[a.step]()
        with session(cluster.target()) as s:
            for _ in range(300):
                s.run(step)
            pids = {job: task.pid for (job, _), task in cluster.tasks.items()}
            before, times = {job: threads(pid) for job, pid in pids.items()}, []
            for _ in range(a.steps):
                start = time.perf_counter()
                s.run(step)
                times.append(time.perf_counter() - start)
            print(f"{a.step}: {statistics.median(times) * 1e6:.0f} us a step")
            for job, pid in pids.items():
                by_name = {}
                for thread, (name, turns, nanos) in threads(pid).items():
                    _, turns_before, nanos_before = before[job].get(thread, (name, 0, 0))
                    sums = by_name.setdefault(name.split("-")[0] if name.startswith("compute") else name, [0, 0])
                    sums[0] += turns - turns_before
                    sums[1] += nanos - nanos_before
                for name, (turns, nanos) in sorted(by_name.items()):
                    if turns or nanos:
                        print(f"  {job:6} {name:16} {turns / a.steps:6.2f} turns {nanos / a.steps / 1e3:8.1f} us")


if __name__ == "__main__":
    main()
