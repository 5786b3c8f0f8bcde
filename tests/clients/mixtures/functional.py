"""Functional control flow (While, If), whose bodies and branches are on all tasks, and gradients through it."""
import numpy as np
import tensorflow.compat.v1 as tf

from mixtures import PS, WORKERS, on


def build():
    tf.enable_control_flow_v2()
    try:
        return compute()
    finally:
        tf.disable_control_flow_v2()


def compute():
    with tf.device(PS[1]):
        draw = tf.random_normal_initializer(stddev=0.5, seed=5)
        w = tf.get_variable("functional/w", [3, 3], initializer=draw, use_resource=True)
    with tf.device(WORKERS[0]):
        x = tf.placeholder(tf.float32, [2, 3])
        states = tf.TensorArray(tf.float32, 4)
        with tf.device(PS[1]):
            read = w.read_value()

        def body(i, y, states):
            with tf.device(WORKERS[1]):
                y = tf.tanh(tf.matmul(y, read))
            with tf.device(PS[0]):
                return i + 1, y * 1.5, states.write(i, y)

        _, y, states = tf.while_loop(lambda i, *_: i < 4, body, (0, x, states))
        y = y + tf.reduce_sum(states.stack(), 0)
        branches = lambda: on(PS[0], lambda: tf.matmul(y, w)), lambda: on(WORKERS[1], lambda: tf.square(y))
        out = tf.cond(tf.reduce_sum(y) > 0, *branches)
        gradients = tf.gradients(tf.reduce_sum(out), [x, w])

    def run(session, _):
        session.run(w.initializer)
        fed = np.array([[0.5, -1.0, 0.2], [1.0, 0.3, -0.1]])
        return [value for sign in (1, -1) for value in session.run([y, out, *gradients], {x: sign * fed})]

    return run
