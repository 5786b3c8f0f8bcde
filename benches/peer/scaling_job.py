"""One client of a training job, for scaling.py: `scaling_job.py MODE WORKER`, the cluster in SCALING_CLUSTER.

It trains until it is killed. It prints READY after its first steps. The first worker measures when it reads a line from
its input, and prints RESULT with the number of variable updates per second.
"""
import json
import os
import sys
import threading
import time

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)

MODE, WORKER = sys.argv[1], int(sys.argv[2])
CLUSTER = json.loads(os.environ["SCALING_CLUSTER"])
WORKERS = len(CLUSTER["worker"])
SIZES = [784, 512, 784]
BATCH = 32
WINDOW_S = float(os.environ.get("SCALING_WINDOW_S", "8"))


def variables():
    """Creates two matrices of 1.6 MB."""
    shapes = zip(SIZES, SIZES[1:])
    return [tf.get_variable(f"w{i}", s, initializer=tf.random_normal_initializer(0, 0.01)) for i, s in enumerate(shapes)]


def loss(matrices):
    x = tf.random_uniform([BATCH, SIZES[0]])
    h = x
    for matrix in matrices:
        h = tf.matmul(h, matrix)
    return tf.reduce_mean(tf.square(h - x))


def between_graph():
    """Builds the worker's own graph, whose variables are shared with other workers by name."""
    placed = tf.train.replica_device_setter(cluster=CLUSTER, worker_device=f"/job:worker/task:{WORKER}")
    with tf.device(placed):
        matrices = variables()
        step = tf.train.get_or_create_global_step()
        optimizer, hooks = tf.train.GradientDescentOptimizer(0.01), []
        if MODE == "sync":
            optimizer = tf.train.SyncReplicasOptimizer(optimizer, WORKERS, total_num_replicas=WORKERS)
            hooks.append(optimizer.make_session_run_hook(WORKER == 0))
        train = optimizer.minimize(loss(matrices), global_step=step)
    return train, step, hooks, ["/job:ps", f"/job:worker/task:{WORKER}"]


def towers():
    """Builds one graph with a tower on each worker; the mean of the gradients is computed on the variables' devices."""
    with tf.device(tf.train.replica_device_setter(cluster=CLUSTER, worker_device="/job:worker/task:0")):
        matrices = variables()
        step = tf.train.get_or_create_global_step()
    optimizer = tf.train.GradientDescentOptimizer(0.01)
    gradients = []
    for worker in range(WORKERS):
        with tf.device(f"/job:worker/task:{worker}"):
            gradients.append(tf.gradients(loss(matrices), matrices))
    means = []
    for matrix, parts in zip(matrices, zip(*gradients)):
        with tf.device(matrix.device):
            means.append((tf.add_n(parts) / WORKERS, matrix))
    return optimizer.apply_gradients(means, global_step=step), step, [], None


def main():
    train, step, hooks, filters = towers() if MODE == "towers" else between_graph()
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    target, config = "grpc://" + CLUSTER["worker"][WORKER], tf.ConfigProto(device_filters=filters)
    session = tf.train.MonitoredTrainingSession(
        master=target, is_chief=WORKER == 0, config=config, hooks=hooks, max_wait_secs=60, log_step_count_steps=None
    )
    with session as s:
        for _ in range(5):
            s.run(train)
        print("READY", flush=True)
        while not told.is_set():
            s.run(train)
        begin, first = time.perf_counter(), s.run(step)
        while time.perf_counter() < begin + WINDOW_S:
            s.run(train)
        last, end = s.run(step), time.perf_counter()
        print("RESULT " + json.dumps((last - first) / (end - begin)), flush=True)
        while True:
            s.run(train)


main()
