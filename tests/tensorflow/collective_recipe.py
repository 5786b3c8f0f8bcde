"""Trains a script of one device, and the same script after four changed lines, by which each client trains on its own worker
and the clients combine their gradients. Two clients with half of the batch each must end like one with the whole batch.
Prints `ok` for each optimizer.

    python collective_recipe.py --targets grpc://HOST:PORT,grpc://HOST:PORT
"""
import argparse
import threading

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

STEPS = 30
X = np.random.default_rng(1).standard_normal([8, 3]).astype(np.float32)
Y = (X @ np.float32([[1.0], [-2.0], [0.5]]) + 3.0).astype(np.float32)
OPTIMIZERS = {
    "GradientDescent": lambda: tf.train.GradientDescentOptimizer(0.1),
    "Momentum": lambda: tf.train.MomentumOptimizer(0.05, 0.9),
    "Adam": lambda: tf.train.AdamOptimizer(0.1),
}


def model():
    x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None, 1])
    w = tf.get_variable("w", [3, 1], initializer=tf.random_normal_initializer())
    b = tf.get_variable("b", [1], initializer=tf.zeros_initializer())
    return x, y, tf.reduce_mean(tf.square(tf.matmul(x, w) + b - y)), [w, b]


def before(optimizer, rows):
    """The script of one device."""
    tf.set_random_seed(7)
    x, y, loss, variables = model()
    train = optimizer.minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(STEPS):
            session.run(train, {x: X[rows], y: Y[rows]})
        return session.run(variables)


def after(optimizer, rows, target, n):
    """The script of a client of `n`: lines 1 to 4 have been changed. Line 1 gives all clients the same initial values."""
    tf.set_random_seed(7)  # 1, if the script has no seed
    x, y, loss, variables = model()
    mean = lambda i, g: tf.raw_ops.CollectiveReduceV2(input=g, group_size=n, group_key=1, instance_key=i, merge_op="Add", final_op="Div", ordering_token=[])  # 2
    train = optimizer.apply_gradients([(mean(i, g), v) for i, (g, v) in enumerate(optimizer.compute_gradients(loss), 1)])  # 3
    with tf.Session(target) as session:  # 4
        session.run(tf.global_variables_initializer())
        for _ in range(STEPS):
            session.run(train, {x: X[rows], y: Y[rows]})
        return session.run(variables)


def in_new_graph(results, i, run, *arguments):
    """Keeps the variables of a client, or its failure."""
    try:
        with tf.Graph().as_default():
            results[i] = run(OPTIMIZERS[arguments[0]](), *arguments[1:])
    except Exception as error:
        results[i] = error


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--targets", required=True)
    targets = parser.parse_args().targets.split(",")
    n = len(targets)
    for name in OPTIMIZERS:
        results = [None] * (n + 1)
        in_new_graph(results, n, before, name, slice(0, 8))
        share = lambda rank: slice(rank * 8 // n, (rank + 1) * 8 // n)
        clients = [
            threading.Thread(target=in_new_graph, args=(results, rank, after, name, share(rank), targets[rank], n))
            for rank in range(n)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert not any(isinstance(result, Exception) for result in results), results
        for values in results[:n]:
            assert all((a == b).all() for a, b in zip(values, results[0])), results
            assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(values, results[n])), results
        print(f"ok {name}", flush=True)


if __name__ == "__main__":
    main()
