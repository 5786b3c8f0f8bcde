"""Sequence to sequence with attention: an encoder and a decoder as while loops; sequences of different lengths."""
import numpy as np
import tensorflow.compat.v1 as tf

from lstm import Cell

TOLERANCE = 1e-3


def run(job):
    batch, steps, units, words = 8, 7, 12, 12
    with tf.device(job.setter()):
        source = tf.placeholder(tf.int32, [batch, steps])
        lengths = tf.placeholder(tf.int32, [batch])
        target = tf.placeholder(tf.int32, [batch, steps])
        table = tf.get_variable("embedding", [words, units], initializer=tf.random_uniform_initializer(-0.5, 0.5, seed=1))
        embedded = tf.transpose(tf.nn.embedding_lookup(table, source), [1, 0, 2])
        zeros = tf.zeros([batch, units])
        encoder, decoder = Cell(units), Cell(units)

        def encode(t, c, h, memory):
            with tf.variable_scope("encoder", reuse=tf.AUTO_REUSE):
                new_c, new_h = encoder(embedded[t], (c, h))
            alive = t < lengths
            c, h = tf.where(alive, new_c, c), tf.where(alive, new_h, h)
            return t + 1, c, h, memory.write(t, h)

        memory = tf.TensorArray(tf.float32, steps)
        _, c, h, memory = tf.while_loop(lambda t, *_: t < steps, encode, (0, zeros, zeros, memory))
        memory = tf.transpose(memory.stack(), [1, 0, 2])
        hidden = tf.sequence_mask(lengths, steps, tf.float32)
        w = tf.get_variable("attention", [2 * units, units], initializer=tf.random_uniform_initializer(-0.3, 0.3, seed=5))
        given = tf.transpose(tf.nn.embedding_lookup(table, tf.pad(target, [[0, 0], [1, 0]])[:, :-1]), [1, 0, 2])
        given_array = tf.TensorArray(tf.float32, steps).unstack(given)

        def decode(t, c, h, outputs):
            with tf.variable_scope("decoder", reuse=tf.AUTO_REUSE):
                c, h = decoder(given_array.read(t), (c, h))
            scores = tf.reduce_sum(memory * tf.expand_dims(h, 1), 2) + (hidden - 1) * 1e9
            context = tf.reduce_sum(memory * tf.expand_dims(tf.nn.softmax(scores), 2), 1)
            attended = tf.tanh(tf.matmul(tf.concat([h, context], 1), w))
            return t + 1, c, h, outputs.write(t, attended)

        outputs = tf.TensorArray(tf.float32, steps)
        *_, outputs = tf.while_loop(lambda t, *_: t < steps, decode, (0, c, h, outputs), swap_memory=True)
        outputs = tf.transpose(outputs.stack(), [1, 0, 2])
        logits = tf.tensordot(outputs, table, [[2], [1]])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=logits)
        loss = tf.reduce_sum(losses * hidden) / tf.reduce_sum(hidden)
        train = tf.train.AdamOptimizer(0.03).minimize(loss)
    random = np.random.default_rng(0)
    history = []
    with tf.Session(job.target) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(25):
            text = random.integers(1, words, (batch, steps))
            size = random.integers(2, steps + 1, batch)
            fed = {source: text, lengths: size, target: text}
            history.append(session.run([loss, train], fed)[0])
    assert history[-1] < history[0], history
    return {"loss": history}
