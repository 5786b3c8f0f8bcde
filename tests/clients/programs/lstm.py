"""A language model on dynamic_rnn with truncated back-propagation: the state is carried from step to step."""
import numpy as np
import tensorflow.compat.v1 as tf

TOLERANCE = 1e-3


class Cell:
    """A long short-term memory written out."""

    def __init__(self, units):
        self.units = units

    def __call__(self, x, state):
        c, h = state
        w = tf.get_variable("w", [x.shape[-1] + self.units, 4 * self.units], initializer=tf.random_uniform_initializer(-0.2, 0.2, seed=4))
        b = tf.get_variable("b", [4 * self.units], initializer=tf.zeros_initializer())
        i, j, f, o = tf.split(tf.matmul(tf.concat([x, h], 1), w) + b, 4, axis=1)
        c = c * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
        return (c, tf.tanh(c) * tf.sigmoid(o))


def unroll(cell, inputs, state, steps):
    """The outputs over time (first axis) and the last state, by a while loop."""
    inputs = tf.TensorArray(tf.float32, steps).unstack(tf.transpose(inputs, [1, 0, 2]))
    outputs = tf.TensorArray(tf.float32, steps)

    def body(t, c, h, outputs):
        with tf.variable_scope("cell", reuse=tf.AUTO_REUSE):
            c, h = cell(inputs.read(t), (c, h))
        return t + 1, c, h, outputs.write(t, h)

    _, c, h, outputs = tf.while_loop(lambda t, *_: t < steps, body, (0, *state, outputs), parallel_iterations=8)
    return outputs.stack(), (c, h)


def run(job):
    batch, steps, units, words = 8, 12, 16, 30
    with tf.device(job.setter()):
        text = tf.placeholder(tf.int32, [batch, steps + 1])
        table = tf.get_variable("embedding", [words, units], initializer=tf.random_uniform_initializer(-0.3, 0.3, seed=1))
        first = tf.placeholder(tf.float32, [batch, units]), tf.placeholder(tf.float32, [batch, units])
        outputs, last = unroll(Cell(units), tf.nn.embedding_lookup(table, text[:, :-1]), first, steps)
        out = tf.get_variable("out", [units, words], initializer=tf.random_uniform_initializer(-0.3, 0.3, seed=2))
        logits = tf.matmul(tf.reshape(outputs, [-1, units]), out)
        labels = tf.reshape(tf.transpose(text[:, 1:]), [-1])
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        variables = tf.trainable_variables()
        gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 5.0)
        train = tf.train.AdamOptimizer(0.02).apply_gradients(zip(gradients, variables))
    random = np.random.default_rng(0)
    stream = (np.cumsum(random.integers(1, 3, (batch, 500)), axis=1) % words).astype(np.int32)
    losses = []
    with tf.Session(job.target) as session:
        session.run(tf.global_variables_initializer())
        state = np.zeros([2, batch, units], np.float32)
        for step in range(40):
            at = step * steps
            fed = {text: stream[:, at : at + steps + 1], first[0]: state[0], first[1]: state[1]}
            value, state, _ = session.run([loss, last, train], fed)
            losses.append(value)
    assert losses[-1] < losses[0] * 0.8, losses
    return {"loss": losses}
