"""Sequence to sequence with attention: an encoder on dynamic_rnn, a decoder on raw_rnn; sequences of different
lengths."""
import numpy as np
import tensorflow.compat.v1 as tf

from lstm import Cell

TOLERANCE = 1e-3


def attention(memory, lengths, units):
    """Returns a function that combines the decoder's output with the part of `memory` that it attends to."""
    w = tf.get_variable("attention", [2 * units, units], initializer=tf.random_uniform_initializer(-0.3, 0.3, seed=5))
    outside = (1 - tf.sequence_mask(lengths, tf.shape(memory)[1], tf.float32)) * 1e9

    def attend(h):
        scores = tf.reduce_sum(memory * tf.expand_dims(h, 1), 2) - outside
        context = tf.reduce_sum(memory * tf.expand_dims(tf.nn.softmax(scores), 2), 1)
        return tf.tanh(tf.matmul(tf.concat([h, context], 1), w))

    return attend


def decode(given, lengths, state, attend, units):
    """The decoder's outputs for the input words `given`, for as many steps as the longest sequence has."""
    batch, steps, size = given.shape
    given = tf.TensorArray(tf.float32, steps).unstack(tf.transpose(given, [1, 0, 2]))

    def step(time, output, now, _):
        finished = time >= lengths
        over = tf.reduce_all(finished)
        word = tf.cond(over, lambda: tf.zeros([batch, size]), lambda: tf.ensure_shape(given.read(time), [batch, size]))
        if output is None:
            return finished, word, state, tf.zeros([units]), None
        return finished, word, now, attend(output), None

    outputs, _, _ = tf.nn.raw_rnn(Cell(units, 6), step, swap_memory=True, scope="decoder")
    return tf.transpose(outputs.stack(), [1, 0, 2])


def run(job):
    batch, steps, units, words = 8, 7, 12, 12
    with tf.device(job.setter()):
        source, target = tf.placeholder(tf.int32, [batch, steps]), tf.placeholder(tf.int32, [batch, steps])
        lengths = tf.placeholder(tf.int32, [batch])
        table = tf.get_variable("embedding", [words, units], initializer=tf.random_uniform_initializer(-0.5, 0.5, seed=1))
        embedded = tf.nn.embedding_lookup(table, source)
        memory, state = tf.nn.dynamic_rnn(Cell(units, 4), embedded, lengths, dtype=tf.float32, scope="encoder")
        given = tf.nn.embedding_lookup(table, tf.pad(target, [[0, 0], [1, 0]])[:, :-1])
        outputs = decode(given, lengths, state, attention(memory, lengths, units), units)
        logits = tf.tensordot(outputs, table, [[2], [1]])
        labels = target[:, : tf.shape(outputs)[1]]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        mask = tf.sequence_mask(lengths, dtype=tf.float32)
        loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)
        train = tf.train.AdamOptimizer(0.03).minimize(loss)
    random = np.random.default_rng(0)
    history, taken = [], []
    with tf.Session(job.target) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(25):
            text = random.integers(1, words, (batch, steps))
            size = random.integers(2, steps + 1, batch)
            fed = {source: text, lengths: size, target: text}
            value, decoded, _ = session.run([loss, outputs, train], fed)
            history.append(value)
            taken.append(decoded.shape[1])
    assert history[-1] < history[0], history
    return {"loss": history, "steps": taken, "decoded": decoded}
