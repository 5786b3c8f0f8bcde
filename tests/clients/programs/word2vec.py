"""Skip-grams with sampled softmax and noise-contrastive estimation, whose sparse gradients are sent to the ps."""
import numpy as np
import tensorflow.compat.v1 as tf

TOLERANCE = 1e-3


def run(job):
    words, units, batch = 200, 16, 32
    with tf.device(job.setter()):
        centre, context = tf.placeholder(tf.int64, [batch]), tf.placeholder(tf.int64, [batch, 1])
        uniform = tf.random_uniform_initializer(-0.5, 0.5, seed=1)
        table = tf.get_variable("embedding", [words, units], initializer=uniform)
        weights = tf.get_variable("weights", [words, units], initializer=tf.truncated_normal_initializer(stddev=0.2, seed=2))
        biases = tf.get_variable("biases", [words], initializer=tf.zeros_initializer())
        embedded = tf.nn.embedding_lookup(table, centre)
        sampled = tf.reduce_mean(tf.nn.sampled_softmax_loss(weights, biases, context, embedded, 20, words, seed=3))
        contrast = tf.reduce_mean(tf.nn.nce_loss(weights, biases, context, embedded, 10, words, sampled_values=tf.nn.log_uniform_candidate_sampler(context, 1, 10, True, words, seed=4)))
        loss = sampled + 0.1 * contrast
        train = tf.train.AdagradOptimizer(0.5).minimize(loss)
        norm = tf.sqrt(tf.reduce_sum(tf.square(table), 1, keepdims=True))
        nearest = tf.nn.top_k(tf.matmul(table / norm, table / norm, transpose_b=True), 2)
    random = np.random.default_rng(0)
    history = []
    with tf.Session(job.target) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(40):
            chosen = random.integers(0, words, batch)
            fed = {centre: chosen, context: (chosen[:, None] ^ 1)}
            history.append(session.run([loss, train], fed)[0])
        values, indices = session.run(nearest)
    assert np.mean(history[-5:]) < np.mean(history[:5]), history
    assert (indices[:, 0] == np.arange(words)).all()
    return {"loss": history, "similarity": values}
