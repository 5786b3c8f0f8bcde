"""Nested loops and gradients through both. The bodies of the inner and the outer loop are on different tasks, and read
variables on a third and a fourth task."""
import tensorflow.compat.v1 as tf

from mixtures import PS, WORKERS


def build():
    draw = lambda seed: tf.random_normal_initializer(stddev=0.5, seed=seed)
    make = lambda name, seed: tf.get_variable(name, [4], initializer=draw(seed))
    with tf.variable_scope("loops"):
        with tf.device(PS[0]):
            v = make("v", 1)
        with tf.device(PS[1]):
            w = make("w", 2)
    with tf.device(WORKERS[0]):
        x, iterations = tf.placeholder(tf.float32, [4]), tf.placeholder(tf.int32, [])

    def inner(j, y):
        with tf.device(WORKERS[1]):
            return j + 1, tf.sin(y * w) + 0.3 * y

    def outer(i, y):
        with tf.device(WORKERS[0]):
            # The number of inner iterations grows with the outer iteration.
            _, y = tf.while_loop(lambda j, _: j <= i, inner, (0, y + tf.cast(i, tf.float32)), name="inner")
            return i + 1, y * v

    with tf.device(WORKERS[0]):
        _, y = tf.while_loop(lambda i, _: i < iterations, outer, (0, x), name="outer")
        gradients = tf.gradients(tf.reduce_sum(tf.square(y)), [x, v, w])
    init = tf.variables_initializer([v, w])

    def run(session, _):
        session.run(init)
        fed = {x: [0.1, -0.5, 2.0, 0.0]}
        return [value for n in (0, 3) for value in session.run([y, *gradients], {**fed, iterations: n})]

    return run
