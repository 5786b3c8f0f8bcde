"""A generative adversarial network: two networks trained alternately, each with its own optimizer and variables."""
import numpy as np
import tensorflow.compat.v1 as tf

from job import dense

TOLERANCE = 1e-3


def run(job):
    batch = 32
    with tf.device(job.setter()):
        real = tf.placeholder(tf.float32, [batch, 2])
        with tf.variable_scope("generator"):
            noise = tf.random_normal([batch, 4], seed=5)
            fake = dense(dense(noise, 16, "hidden", tf.nn.tanh, 1), 2, "out", None, 2)
        with tf.variable_scope("critic", reuse=tf.AUTO_REUSE):
            judge = lambda x: dense(dense(x, 16, "hidden", tf.nn.leaky_relu, 3), 1, "out", None, 4)
            of_real, of_fake = judge(real), judge(fake)
        cross = tf.nn.sigmoid_cross_entropy_with_logits
        critic_loss = tf.reduce_mean(cross(labels=tf.ones_like(of_real), logits=of_real) + cross(labels=tf.zeros_like(of_fake), logits=of_fake))
        generator_loss = tf.reduce_mean(cross(labels=tf.ones_like(of_fake), logits=of_fake))
        optimizer = lambda: tf.train.AdamOptimizer(0.01, beta1=0.5)
        train_critic = optimizer().minimize(critic_loss, var_list=tf.trainable_variables("critic"))
        train_generator = optimizer().minimize(generator_loss, var_list=tf.trainable_variables("generator"))
    random = np.random.default_rng(0)
    history = []
    with tf.Session(job.target) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(40):
            fed = {real: random.normal([2.0, -1.0], 0.3, (batch, 2))}
            a, _ = session.run([critic_loss, train_critic], fed)
            b, _ = session.run([generator_loss, train_generator])
            history.append([a, b])
        sample = session.run(fake)
    assert np.isfinite(history).all()
    return {"loss": history, "sample": sample}
