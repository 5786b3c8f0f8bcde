"""One worker's client of a job with between-graph replication, which fits w * x + b to 0.1 x + 0.3. The variables w and b
are on the ps.

The first worker initialises; each worker trains until the values that it reads have converged.
"""
import argparse
import json
import time

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    parser.add_argument("--cluster", required=True, type=json.loads)
    parser.add_argument("--task", required=True, type=int)
    flags = parser.parse_args()

    setter = tf.train.replica_device_setter(
        cluster=tf.train.ClusterSpec(flags.cluster), worker_device=f"/job:worker/task:{flags.task}"
    )
    with tf.device(setter):
        w = tf.Variable(tf.random_uniform([1], -1.0, 1.0, seed=1), name="w")
        b = tf.Variable(tf.zeros([1]), name="b")
        x = tf.placeholder(tf.float32, [None])
        y = tf.placeholder(tf.float32, [None])
        loss = tf.reduce_mean(tf.square(w * x + b - y))
        train = tf.train.GradientDescentOptimizer(0.2).minimize(loss)
        init = tf.global_variables_initializer()
        missing = tf.report_uninitialized_variables()
    assert w.op.device.startswith("/job:ps"), w.op.device

    random = np.random.default_rng(flags.task)
    with tf.Session(flags.target) as session:
        if flags.task == 0:
            session.run(init)
        deadline = time.monotonic() + 30
        while len(session.run(missing)):
            assert time.monotonic() < deadline, "the chief never initialised"
            time.sleep(0.05)
        for _ in range(2000):
            batch = random.random(100, np.float32)
            session.run(train, {x: batch, y: batch * 0.1 + 0.3})
        got_w, got_b = session.run([w, b])
    assert abs(got_w[0] - 0.1) < 1e-2 and abs(got_b[0] - 0.3) < 1e-2, (got_w, got_b)
    print(f"w {got_w[0]:.4f} b {got_b[0]:.4f}")


main()
