"""A wide-and-deep model: partitioned embeddings, sparse lookups, two optimizers (Ftrl and Adagrad)."""
import numpy as np
import tensorflow.compat.v1 as tf

from job import dense

TOLERANCE = 1e-3


def run(job):
    batch, buckets, units = 32, 1000, 8
    with tf.device(job.setter()):
        words = tf.placeholder(tf.string, [batch, 2])
        numbers = tf.placeholder(tf.float32, [batch, 4])
        label = tf.placeholder(tf.float32, [batch, 1])
        ids = tf.strings.to_hash_bucket_fast(words, buckets)
        crossed = tf.strings.to_hash_bucket_fast(tf.strings.join([words[:, 0], words[:, 1]], separator="_X_"), buckets)
        sparse = tf.SparseTensor(
            tf.stack([tf.repeat(tf.range(batch, dtype=tf.int64), 2), tf.tile(tf.range(2, dtype=tf.int64), [batch])], 1),
            tf.reshape(ids, [-1]),
            [batch, 2],
        )
        with tf.variable_scope("deep", partitioner=tf.fixed_size_partitioner(3)):
            table = tf.get_variable("embedding", [buckets, units], initializer=tf.random_uniform_initializer(-0.1, 0.1, seed=1))
            deep = tf.nn.embedding_lookup_sparse(table, sparse, None, combiner="mean")
        with tf.variable_scope("layers"):
            deep = dense(tf.concat([deep, numbers], 1), 8, "hidden", tf.nn.relu)
            deep = dense(deep, 1, "out")
        with tf.variable_scope("wide", partitioner=tf.min_max_variable_partitioner(2, min_slice_size=64)):
            linear = tf.get_variable("linear", [buckets, 1], initializer=tf.zeros_initializer())
            wide = tf.nn.embedding_lookup(linear, crossed, partition_strategy="div")
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=deep + wide))
        in_wide = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, "wide")
        others = [v for v in tf.trainable_variables() if v not in in_wide]
        train = tf.group(
            tf.train.FtrlOptimizer(0.2, l1_regularization_strength=0.001).minimize(loss, var_list=in_wide),
            tf.train.AdagradOptimizer(0.1).minimize(loss, var_list=others),
        )
    random = np.random.default_rng(0)
    history = []
    with tf.Session(job.target) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(60):
            chosen = random.integers(0, 12, (batch, 2))
            fed = {
                words: np.char.add("w", chosen.astype(str)).astype(object),
                numbers: random.normal(size=(batch, 4)),
                label: (chosen.sum(1, keepdims=True) % 2).astype(np.float32),
            }
            history.append(session.run([loss, train], fed)[0])
        assert np.mean(history[-8:]) < np.mean(history[:8]) * 0.95, history
        return {"loss": history, "wide": np.concatenate(session.run(in_wide))}
