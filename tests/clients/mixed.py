"""Clusters of which some tasks are ours and some are TensorFlow's: one program, the same numbers in each mixture.

    python mixed.py --server target/release/anabranch-worker

The four tasks (two ps, two workers) are given to the two implementations in all sixteen ways. Worker 0 is the master:
ours in one half of the mixtures, TensorFlow's in the other.
"""
import argparse
import itertools
import json
import os
import shlex
import subprocess
import sys
import time

from run import PROCESSES, np, tf  # first: it sets up TensorFlow's environment and the path

from cluster import free_ports
from job import classifier, digits

TASKS = [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)]


class Mixture:
    """A cluster whose tasks are ours where `ours` says so."""

    def __init__(self, command, ours):
        self.command, self.ours = command, ours
        ports = iter(free_ports(len(TASKS)))
        self.spec = {"ps": [], "worker": []}
        for job, _ in TASKS:
            self.spec[job].append(f"127.0.0.1:{next(ports)}")
        self.running = []

    def __enter__(self):
        for (job, index), ours in zip(TASKS, self.ours):
            if ours:
                config = {"cluster": self.spec, "task": {"type": job, "index": index}}
                environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
                self.running.append(subprocess.Popen(self.command, env=environment, stderr=subprocess.DEVNULL))
            else:
                self.running.append(PROCESSES.Process(target=serve, args=(self.spec, job, index), daemon=True))
                self.running[-1].start()
        return self

    def __exit__(self, *_):
        for task in self.running:
            task.kill()
        for task in self.running:
            task.wait() if isinstance(task, subprocess.Popen) else task.join()


def serve(spec, job, index):
    """TensorFlow's server."""
    tf.train.Server(tf.train.ClusterSpec(spec), job_name=job, task_index=index).join()


def train(spec):
    """Numbers that a model gives which sends all kinds of tensors between all tasks."""
    tf.disable_v2_behavior()
    setter = [tf.train.replica_device_setter(ps_tasks=2, worker_device=f"/job:worker/task:{i}") for i in range(2)]
    with tf.device("/job:worker/task:0"):
        images, labels = tf.placeholder(tf.float32, [64, 784]), tf.placeholder(tf.int64, [64])
    gradients, losses = [], []
    optimizer = tf.train.AdamOptimizer(0.01)
    for i, (x, y) in enumerate(zip(tf.split(images, 2), tf.split(labels, 2))):
        with tf.device(setter[i]), tf.variable_scope("model", reuse=i > 0):
            _, loss, _ = classifier(x, y)
            gradients.append(optimizer.compute_gradients(loss))
            losses.append(loss)
    with tf.device(setter[0]):
        averaged = [((a + b) / 2, variable) for (a, variable), (b, _) in zip(*gradients)]
        step = optimizer.apply_gradients(averaged)
        loss = tf.add_n(losses) / 2
    with tf.device("/job:ps/task:1"):
        table = tf.Variable(tf.random_normal([20, 3], seed=3), name="table")
        names = tf.constant([b"a", b"", b"some longer name" * 10])
        count = tf.Variable(0, name="count")
    with tf.device("/job:worker/task:1"):
        rows = tf.gather(table, [1, 3, 5])
        joined = tf.concat([names, names[:1]], 0)
        counted = tf.placeholder_with_default(False, [])
    # Dead tensors cross from one task to another, and so does the loop's condition.
    chosen = tf.cond(counted, lambda: on("/job:ps/task:0", lambda: tf.identity(rows) * 2), lambda: on("/job:ps/task:1", lambda: -rows))

    def turn(i, total):
        with tf.device("/job:worker/task:1"):
            total = total + tf.cast(i, tf.float32)
        with tf.device("/job:ps/task:0"):
            return i + 1, total * 0.5

    with tf.device("/job:worker/task:0"):
        looped = tf.while_loop(lambda i, _: i < 10, turn, (tf.constant(0), tf.constant(1.0)))[1]
    with tf.control_dependencies([step]), tf.device("/job:ps/task:1"):
        counting = tf.assign_add(count, 1)
    x, y = digits(640)
    said = []
    with tf.Session("grpc://" + spec["worker"][0]) as session:
        session.run(tf.global_variables_initializer())
        for i in range(10):
            fed = {images: x[i * 64 : i * 64 + 64], labels: y[i * 64 : i * 64 + 64]}
            said.append(session.run([loss, counting], fed))
        values = session.run([rows, chosen, looped, joined, table], {counted: True})
        values += session.run([chosen, count], {counted: False})
        try:
            session.run(tf.gather(table, [99]))
            raise AssertionError("gathered a row that is not there")
        except tf.errors.InvalidArgumentError as error:
            assert "99" in error.message, error.message
    return [np.asarray(said), *values]


def on(device, make):
    with tf.device(device):
        return make()


def client(spec, pipe):
    try:
        pipe.send(train(spec))
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}")
    os._exit(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True, help="our worker's command")
    parser.add_argument("--only", help="one mixture, such as 0110: 1 where the task is ours")
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds a mixture may take")
    flags = parser.parse_args()
    wanted = None
    count, failed = 0, 0
    for ours in itertools.product([False, True], repeat=len(TASKS)):
        name = "".join(str(int(o)) for o in ours)
        if flags.only and name not in (flags.only, "0000"):
            continue
        with Mixture(shlex.split(flags.server), ours) as cluster:
            mine, theirs = PROCESSES.Pipe()
            process = PROCESSES.Process(target=client, args=(cluster.spec, theirs), daemon=True)
            started = time.monotonic()
            process.start()
            theirs.close()
            try:
                said = mine.recv() if mine.poll(flags.deadline) else "it did not end in time"
            except EOFError:
                said = "the client ended without a word"
            process.kill()
            process.join()
        wanted = said if wanted is None else wanted
        wrong = said if isinstance(said, str) else difference(said, wanted)
        count, failed = count + 1, failed + bool(wrong)
        print(f"{'FAILED' if wrong else 'ok'} {name} {time.monotonic() - started:.1f} s {wrong or ''}", flush=True)
    print(f"{count} mixtures, {failed} failed")
    sys.exit(1 if failed else 0)


def difference(said, wanted):
    for i, (a, b) in enumerate(zip(said, wanted)):
        a, b = np.asarray(a), np.asarray(b)
        same = np.allclose(a, b, rtol=1e-5, atol=1e-6) if a.dtype.kind == "f" else bool((a == b).all())
        if not same:
            return f"value {i} is {a}, not {b}"
    return None


if __name__ == "__main__":
    main()
