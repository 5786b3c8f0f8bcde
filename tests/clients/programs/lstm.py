"""A language model on dynamic_rnn with truncated back-propagation: texts of different lengths are fed in windows, and
the state is fed from each window to the next."""
import collections

import numpy as np
import tensorflow.compat.v1 as tf

TOLERANCE = 1e-3


State = collections.namedtuple("State", ["c", "h"])


class Cell:
    """An LSTM cell for `tf.nn.dynamic_rnn`. TensorFlow's own cells are in a Keras package that clients may lack."""

    def __init__(self, units, seed):
        self.output_size, self.state_size = units, State(units, units)
        self.initializer = tf.random_uniform_initializer(-0.2, 0.2, seed=seed)

    def zero_state(self, batch_size, dtype):
        return State(*(tf.zeros([batch_size, self.output_size], dtype) for _ in range(2)))

    def __call__(self, x, state):
        units = self.output_size
        w = tf.get_variable("w", [x.shape[-1] + units, 4 * units], initializer=self.initializer)
        b = tf.get_variable("b", [4 * units], initializer=tf.zeros_initializer())
        i, j, f, o = tf.split(tf.nn.xw_plus_b(tf.concat([x, state.h], 1), w, b), 4, axis=1)
        c = state.c * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
        h = tf.tanh(c) * tf.sigmoid(o)
        return h, State(c, h)


def model(batch, steps, units, words):
    """Builds the model. Returns the placeholders, the loss, the state after the window, the cell's output at each step,
    and the training op."""
    text, lengths = tf.placeholder(tf.int32, [batch, steps + 1]), tf.placeholder(tf.int32, [batch])
    first = State(*(tf.placeholder(tf.float32, [batch, units]) for _ in range(2)))
    table = tf.get_variable("embedding", [words, units], initializer=tf.random_uniform_initializer(-0.3, 0.3, seed=1))
    embedded = tf.nn.embedding_lookup(table, text[:, :-1])
    outputs, last = tf.nn.dynamic_rnn(Cell(units, 4), embedded, lengths, first, parallel_iterations=8)
    out = tf.get_variable("out", [units, words], initializer=tf.random_uniform_initializer(-0.3, 0.3, seed=2))
    logits = tf.tensordot(outputs, out, [[2], [0]])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=text[:, 1:], logits=logits)
    mask = tf.sequence_mask(lengths, steps, tf.float32)
    loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 5.0)
    train = tf.train.AdamOptimizer(0.02).apply_gradients(zip(gradients, variables))
    return (text, lengths, first), loss, last, outputs, train


def run(job):
    batch, steps, units, words, windows = 8, 12, 16, 30, 40
    with tf.device(job.setter()):
        (text, lengths, first), *fetches = model(batch, steps, units, words)
    random = np.random.default_rng(0)
    stream = (np.cumsum(random.integers(1, 3, (batch, windows * steps + 1)), axis=1) % words).astype(np.int32)
    # The longest text has all windows, the shortest a quarter of them.
    ends = np.linspace(windows * steps / 4, windows * steps, batch).astype(np.int32)
    losses = []
    with tf.Session(job.target) as session:
        session.run(tf.global_variables_initializer())
        state = State(*np.zeros([2, batch, units], np.float32))
        for at in range(0, windows * steps, steps):
            left = np.clip(ends - at, 0, steps)
            fed = {text: stream[:, at : at + steps + 1], lengths: left, first: state}
            value, last, outputs, _ = session.run(fetches, fed)
            losses.append(value)
            for i in range(batch):
                assert not outputs[i, left[i] :].any(), "an output after the end of a text"
                if left[i] == 0:
                    assert (last.c[i] == state.c[i]).all() and (last.h[i] == state.h[i]).all()
            state = last
    assert losses[-1] < losses[0] * 0.8, losses
    return {"loss": losses, "c": state.c, "h": state.h, "outputs": outputs}
