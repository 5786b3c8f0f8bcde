"""Functions defined with Defun, as old programs do: gradients through calls on another task, by TensorFlow
(SymbolicGradient) and by gradient functions of the program."""
import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import function

TOLERANCE = 1e-3


@function.Defun(tf.float32, tf.float32)
def gate(x, w):
    return tf.sigmoid(tf.matmul(x, w)) * x


@function.Defun(tf.float32, tf.float32)
def twice(x, w):
    """A function that calls another one twice."""
    return gate(gate(x, w), w)


@function.Defun(tf.float32, tf.float32)
def clip_gradient(x, dy):
    return tf.clip_by_value(dy, -0.01, 0.01) + 0 * x


@function.Defun(tf.float32, grad_func=clip_gradient)
def clipped(x):
    """The identity with a custom gradient."""
    return tf.identity(x)


def half_gradient(op, dy):
    return dy / 2


@function.Defun(tf.float32, python_grad_func=half_gradient)
def halved(x):
    """A sine with a custom gradient that is a Python function."""
    return tf.sin(x)


def run(job):
    units = 6
    with tf.device(job.setter()):
        x = tf.placeholder(tf.float32, [4, units])
        w = tf.get_variable("w", [units, units], initializer=tf.random_normal_initializer(stddev=0.5, seed=1))
        with tf.device("/job:worker/task:1"):
            gated = twice(x, w)
        out = clipped(gated) + halved(gated)
        loss = tf.reduce_mean(tf.square(out - tf.cos(x)))
        gradients = tf.gradients(loss, [x, w])
        train = tf.train.GradientDescentOptimizer(0.5).minimize(loss)
    random = np.random.default_rng(0)
    losses = []
    with tf.Session(job.target) as session:
        session.run(tf.global_variables_initializer())
        first = session.run(gradients, {x: random.normal(size=(4, units))})
        for _ in range(20):
            losses.append(session.run([loss, train], {x: random.normal(size=(4, units))})[0])
        weights = session.run(w)
    return {"loss": losses, "gradient x": first[0], "gradient w": first[1], "weights": weights}
