"""tf.train.Supervisor: the chief initialises, the other waits; checkpoints and summaries by its threads."""
import os

import tensorflow.compat.v1 as tf

from job import classifier, digits

CLIENTS = 2


def run(job):
    with tf.device(job.setter()):
        images, labels = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.int64, [None])
        _, loss, _ = classifier(images, labels)
        global_step = tf.train.get_or_create_global_step()
        train = tf.train.AdamOptimizer(0.01).minimize(loss, global_step)
        tf.summary.scalar("weight", tf.reduce_mean(tf.square(tf.trainable_variables()[0])))
        init = tf.global_variables_initializer()
    supervisor = tf.train.Supervisor(
        is_chief=job.is_chief,
        logdir=os.path.join(job.scratch, "supervised"),
        init_op=init,
        global_step=global_step,
        recovery_wait_secs=1,
        save_model_secs=1,
        save_summaries_secs=1,
    )
    x, y = digits(1000, seed=job.task)
    with supervisor.managed_session(job.target) as session:
        step, i = 0, 0
        while not supervisor.should_stop() and step < 150:
            at = i * 50 % 1000
            _, step = session.run([train, global_step], {images: x[at : at + 50], labels: y[at : at + 50]})
            i += 1
        final = session.run(loss, {images: x, labels: y})
    assert final < 0.5, final
    if job.is_chief:
        assert tf.train.latest_checkpoint(os.path.join(job.scratch, "supervised"))
