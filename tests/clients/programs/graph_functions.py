"""Functions called in a graph: tf.function with resource variables on the ps, bodies on several tasks, loops and branches
in the bodies, and gradients through the calls; and a Defun."""
import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import function

TOLERANCE = 1e-3
V2_BEHAVIOR = True

PS, FIRST, SECOND = "/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"


@function.Defun(tf.float32, tf.float32)
def gate(x, w):
    return tf.sigmoid(tf.matmul(x, w)) * x


def layers(first, second):
    """Returns a function that reads variables on the ps and computes on both workers."""

    @tf.function(autograph=False)
    def forward(x):
        with tf.device(PS):
            weights = [first.read_value(), second.read_value()]
        with tf.device(SECOND):
            hidden = tf.nn.relu(tf.matmul(x, weights[0]))
        with tf.device(FIRST):
            return tf.matmul(hidden, weights[1]) + x

    return forward


def counted(total):
    """Returns a function that changes a variable on the ps in each iteration of a loop, in order."""

    @tf.function(autograph=False)
    def count(times):
        def body(i):
            total.assign_add(tf.cast(i, tf.float32))
            total.assign(total * 2)
            return i + 1

        tf.while_loop(lambda i: i < times, lambda i: [body(i)], [tf.constant(0)])
        return total.read_value()

    return count


def refined(w):
    """Returns a function with a loop and a branch that call another function. Both functions use a tensor `w` that is read
    outside of them, because TensorFlow's servers cannot run a loop whose calls take variables of another task."""

    @tf.function(autograph=False)
    def smooth(y):
        with tf.device(SECOND):
            return tf.tanh(tf.matmul(y, w)) + 0.1 * y

    @tf.function(autograph=False)
    def refine(x, times):
        _, y = tf.while_loop(lambda i, _: i < times, lambda i, y: (i + 1, smooth(y)), (0, x))
        return tf.cond(tf.reduce_sum(y) > 0, lambda: y, lambda: smooth(-y))

    return refine


def run(job):
    units = 6
    with tf.device(FIRST):
        x, times = tf.placeholder(tf.float32, [4, units]), tf.placeholder(tf.int32, [])
        with tf.device(PS):
            draw = tf.random_normal_initializer(stddev=0.3, seed=1)
            make = lambda name, shape: tf.get_variable(name, shape, initializer=draw, use_resource=True)
            first, second, third = make("first", [units, 8]), make("second", [8, units]), make("third", [units, units])
            total = tf.get_variable("total", [], initializer=tf.ones_initializer(), use_resource=True)
        forward = layers(first, second)
        with tf.device(PS):
            read = third.read_value()
        out = refined(read)(forward(x), times)
        with tf.device(SECOND):
            gated = gate(out, read)
        loss = tf.reduce_mean(tf.square(out - tf.cos(x)))
        gradients = tf.gradients(loss, [x, first, second, third])
        train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        with tf.control_dependencies([train]):
            counting = counted(total)(times)
    random = np.random.default_rng(0)
    results = {"loss": [], "total": [], "gated": []}
    with tf.Session(job.target) as session:
        session.run(tf.global_variables_initializer())
        fed = {x: random.normal(size=(4, units)), times: 3}
        first_gradients = session.run(gradients, fed)
        for step in range(20):
            fed = {x: random.normal(size=(4, units)), times: step % 4}
            for key, value in zip(results, session.run([loss, counting, gated], fed)):
                results[key].append(value)
        weights = session.run([first, second, third])
    assert np.abs(first_gradients[0]).max() > 0, first_gradients
    results.update({f"gradient {i}": gradient for i, gradient in enumerate(first_gradients)})
    results.update({f"weights {i}": value for i, value in enumerate(weights)})
    return results
