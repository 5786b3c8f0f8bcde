"""What a client program is told: its cluster, its place, and data to learn from."""
import time

import numpy as np
import tensorflow.compat.v1 as tf


class Job:
    """One client of a program. `spec`: addresses by job; `task`: this client's number; `scratch`: a folder that the
    program's clients and the servers share."""

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
        return "grpc://" + self.spec[job][index]

    def setter(self):
        """Variables on the ps, everything else on this client's worker."""
        cluster = tf.train.ClusterSpec(self.spec)
        return tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{self.task}")

    def turns(self, done, count, clients=2):
        """Yields when it is this client's turn, `count` times, and ends when all clients have had theirs. `done()` is
        the number of turns that have been taken by all."""
        for turn in range(self.task, count * clients, clients):
            wait(lambda: done() == turn, f"turn {turn} of {clients} clients")
            yield turn
        wait(lambda: done() >= count * clients, "the other clients take their turns")

    def ask(self, what, *arguments):
        """Asks the one who started the servers to do something to them."""
        self.pipe.send((what, arguments))
        self.pipe.recv()


def wait(condition, what, deadline_s=60.0):
    """Waits until `condition()` holds."""
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, f"waited {deadline_s} s in vain: {what}"
        time.sleep(0.02)


def wait_for_file(path, deadline_s=60.0):
    wait(lambda: tf.gfile.Exists(path), path, deadline_s)


def digits(count, seed=0, size=28, classes=10):
    """Images and labels that a small network can learn: noisy copies of one random image a class."""
    random = np.random.default_rng(seed)
    prototypes = np.random.default_rng(99).normal(size=(classes, size * size)).astype(np.float32)
    labels = random.integers(0, classes, count)
    images = prototypes[labels] + random.normal(scale=0.5, size=(count, size * size)).astype(np.float32)
    return images.astype(np.float32), labels.astype(np.int64)


def dense(x, units, name, activation=None, seed=1):
    """A fully connected layer whose first weights follow from the seed."""
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
