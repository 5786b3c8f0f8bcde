"""A variational autoencoder: seeded noise inside the graph, several losses, gradients clipped by norm."""
import tensorflow.compat.v1 as tf

from job import dense, digits

TOLERANCE = 1e-3


def run(job):
    with tf.device(job.setter()):
        images = tf.placeholder(tf.float32, [None, 784])
        hidden = dense(images, 32, "encoder", tf.nn.softplus, 1)
        mean, log_variance = dense(hidden, 4, "mean", None, 2), dense(hidden, 4, "log_variance", None, 3)
        noise = tf.random_normal(tf.shape(mean), seed=9)
        z = mean + noise * tf.exp(0.5 * log_variance)
        out = dense(dense(z, 32, "decoder", tf.nn.elu, 4), 784, "out", None, 5)
        rebuilt = tf.reduce_sum(tf.squared_difference(out, images), 1)
        divergence = -0.5 * tf.reduce_sum(1 + log_variance - tf.square(mean) - tf.exp(log_variance), 1)
        loss = tf.reduce_mean(rebuilt + divergence)
        optimizer = tf.train.AdamOptimizer(0.005)
        clipped = [(tf.clip_by_norm(g, 50.0), v) for g, v in optimizer.compute_gradients(loss)]
        train = optimizer.apply_gradients(clipped)
    x, _ = digits(640)
    history = []
    with tf.Session(job.target) as session:
        session.run(tf.global_variables_initializer())
        for step in range(40):
            at = step * 64 % 640
            history.append(session.run([loss, train], {images: x[at : at + 64]})[0])
    assert history[-1] < history[0], history
    return {"loss": history}
