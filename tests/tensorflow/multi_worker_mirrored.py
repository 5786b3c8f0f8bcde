"""Trains a variable by `MultiWorkerMirroredStrategy` in graph mode: two clients, each with a session at its own worker.
Prints `ok` for each client.

    python multi_worker_mirrored.py --targets grpc://HOST:PORT,grpc://HOST:PORT
"""
import argparse
import json
import multiprocessing
import os

import numpy as np

STEPS = 30


def train(rank, hosts, results):
    """One client: minimizes (w - 1)^2 + (2 w - 1)^2, of which each replica has one term."""
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": rank}})
    import tensorflow
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    resolver = tensorflow.distribute.cluster_resolver.SimpleClusterResolver(
        tensorflow.train.ClusterSpec({"worker": hosts}), task_type="worker", task_id=rank, rpc_layer="grpc"
    )
    strategy = tensorflow.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    config = strategy.update_config_proto(tf.ConfigProto())
    with tf.Graph().as_default(), strategy.scope():
        # The initial value of worker 0 is broadcast.
        w = tf.Variable(1.0 + rank)
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        x = tf.placeholder(tf.float32, [])

        def step():
            with tf.GradientTape() as tape:
                loss = (w * x - 1.0) ** 2
            gradients = tape.gradient(loss, [w])
            with tf.control_dependencies([optimizer.apply_gradients(zip(gradients, [w]))]):
                return tf.identity(loss)

        total = strategy.reduce(tensorflow.distribute.ReduceOp.SUM, strategy.run(step), axis=None)
        with tf.Session(f"grpc://{hosts[rank]}", config=config) as session:
            session.run(tf.global_variables_initializer())
            first = session.run(w.read_value())
            for _ in range(STEPS):
                loss = session.run(total, {x: 1.0 + rank})
            results.put((rank, float(np.ravel(first)[0]), float(loss), float(np.ravel(session.run(w.read_value()))[0])))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--targets", required=True)
    hosts = [target.removeprefix("grpc://") for target in parser.parse_args().targets.split(",")]
    # Each client imports TensorFlow itself, because the strategy configures the process.
    processes = multiprocessing.get_context("spawn")
    results = processes.Queue()
    clients = [processes.Process(target=train, args=(rank, hosts, results), daemon=True) for rank in range(len(hosts))]
    for client in clients:
        client.start()
    for _ in clients:
        rank, first, loss, w = results.get(timeout=150)
        assert first == 1.0, (rank, first)
        np.testing.assert_allclose([loss, w], [0.2, 0.6], rtol=1e-5)
        print(f"ok client {rank}", flush=True)
    for client in clients:
        client.join(30)


if __name__ == "__main__":
    main()
