"""Measure the memory of servers while an unmodified tf.compat.v1 client trains: two asynchronous workers, one ps.

    python memory.py [--steps N] path/to/worker-binary
"""
import argparse
import os
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow.compat.v1 as tf

from cluster import Cluster

POINTS = 5


class Replica:
    """The client of one worker, with its own graph and session and with variables shared on the ps."""

    def __init__(self, cluster, worker):
        graph = tf.Graph()
        with graph.as_default():
            setter = tf.train.replica_device_setter(ps_tasks=1, worker_device=f"/job:worker/task:{worker}")
            with tf.device(setter):
                self.x = tf.placeholder(tf.float32, [None, 8])
                self.y = tf.placeholder(tf.float32, [None, 1])
                weights = tf.get_variable("weights", [8, 1], initializer=tf.zeros_initializer())
                self.loss = tf.reduce_mean(tf.square(tf.matmul(self.x, weights) - self.y))
                self.train = tf.train.AdamOptimizer(0.01).minimize(self.loss)
                initialize = tf.global_variables_initializer()
        self.session = tf.Session(cluster.target("worker", worker), graph=graph)
        if worker == 0:
            self.session.run(initialize)
        self.feeds = {self.x: np.ones([4, 8], np.float32), self.y: np.ones([4, 1], np.float32)}

    def steps(self, count):
        for _ in range(count):
            self.session.run([self.loss, self.train], self.feeds)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("server", nargs="+")
    args = parser.parse_args()
    with Cluster(args.server, {"ps": 1, "worker": 2}) as cluster:
        tasks = [("ps", 0), ("worker", 0), ("worker", 1)]
        resident = lambda: sum(cluster.rss_mib(*task) for task in tasks)
        replicas = [Replica(cluster, worker) for worker in range(2)]
        start, noted = time.perf_counter(), []
        for _ in range(POINTS):
            share = args.steps // POINTS // len(replicas)
            threads = [threading.Thread(target=r.steps, args=[share]) for r in replicas]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            noted.append(resident())
        took, growth = time.perf_counter() - start, 100 * (noted[-1] / noted[0] - 1)
        print(f"{args.steps} steps in {took:.1f} s; MiB after each fifth:", *(f"{m:.1f}" for m in noted))
        print(f"growth after the first: {growth:+.2f} %")
        # Sessions are closed while their servers run, because a session that outlives its server blocks the script's exit.
        for replica in replicas:
            replica.session.close()


main()
