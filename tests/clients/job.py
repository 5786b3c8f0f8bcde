"""The job that a client program receives (its cluster and task), and helpers: waiting, training data, small models."""
import time

import numpy as np
import tensorflow.compat.v1 as tf


class Job:
    """The cluster and task of one client of a program. `spec`: addresses by job; `task`: this client's index; `scratch`:
    a folder that the program's clients and the servers share."""

    def __init__(self, spec, task, scratch):
        self.spec, self.task, self.scratch = spec, task, scratch
        self.pipe = None

    @property
    def is_chief(self):
        return self.task == 0

    @property
    def target(self):
        """The session target of this client's own worker."""
        return self.target_of("worker", self.task)

    def target_of(self, job, index):
        """The session target of a task."""
        return "grpc://" + self.spec[job][index]

    def setter(self):
        """Returns the device function that puts variables on the ps and all other ops on this client's worker."""
        cluster = tf.train.ClusterSpec(self.spec)
        return tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{self.task}")

    def turns(self, done, count, clients=2):
        """Makes clients take turns: yields `count` times, whenever this client's turn has come, and returns when all
        clients have taken their turns. `done()` returns the number of turns that all clients together have taken."""
        for turn in range(self.task, count * clients, clients):
            wait(lambda: done() == turn, f"turn {turn} of {clients} clients")
            yield turn
        wait(lambda: done() >= count * clients, "the other clients take their turns")

    def ask(self, method, *arguments):
        """Calls a method of `run.Side` in the process that started the servers."""
        self.pipe.send((method, arguments))
        self.pipe.recv()


def wait(condition, description, deadline_s=60.0):
    """Waits until `condition()` holds; fails with `description` after the deadline."""
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, f"waited {deadline_s} s in vain: {description}"
        time.sleep(0.02)


def wait_for_file(path, deadline_s=60.0):
    wait(lambda: tf.gfile.Exists(path), path, deadline_s)


def digits(count, seed=0, size=28, classes=10):
    """Images and labels that a small network can learn: noisy copies of one random image per class."""
    random = np.random.default_rng(seed)
    prototypes = np.random.default_rng(99).normal(size=(classes, size * size)).astype(np.float32)
    labels = random.integers(0, classes, count)
    images = prototypes[labels] + random.normal(scale=0.5, size=(count, size * size)).astype(np.float32)
    return images.astype(np.float32), labels.astype(np.int64)


def dense(x, units, name, activation=None, seed=1):
    """A fully connected layer whose initial weights are random, from the seed."""
    with tf.variable_scope(name):
        w = tf.get_variable("w", [x.shape[-1], units], initializer=tf.random_normal_initializer(stddev=0.1, seed=seed))
        b = tf.get_variable("b", [units], initializer=tf.zeros_initializer())
        y = tf.nn.xw_plus_b(x, w, b)
    return activation(y) if activation else y


def classifier(images, labels, hidden=32):
    """Logits, loss and accuracy of a network with one hidden layer."""
    logits = dense(dense(images, hidden, "hidden", tf.nn.relu, 1), 10, "logits", None, 2)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))
    return logits, loss, accuracy
