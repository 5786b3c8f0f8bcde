"""A partial run over all tasks: the second call continues from the values that the first has computed."""
import tensorflow.compat.v1 as tf

from mixtures import PS, WORKERS


def build():
    with tf.device(WORKERS[0]):
        a, b, c = (tf.placeholder(tf.float32, [2]) for _ in range(3))
    with tf.device(PS[0]):
        first = a + b
    with tf.device(WORKERS[1]):
        second = first * c
    with tf.device(PS[1]):
        third = tf.stack([first, second]) - a

    def run(session, _):
        handle = session.partial_run_setup([first, second, third], [a, b, c])
        values = [session.partial_run(handle, first, {a: [1.0, 2.0], b: [10.0, 20.0]})]
        return values + session.partial_run(handle, [second, third], {c: values[0] * 2})

    return run
