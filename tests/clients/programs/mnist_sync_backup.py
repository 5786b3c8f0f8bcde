"""Synchronous training with a backup worker: a step takes the first of two gradients."""
import tensorflow.compat.v1 as tf

from job import classifier, digits

CLIENTS = 2


def run(job):
    with tf.device(job.setter()):
        images, labels = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.int64, [None])
        _, loss, accuracy = classifier(images, labels)
        global_step = tf.train.get_or_create_global_step()
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.AdagradOptimizer(0.1), replicas_to_aggregate=1, total_num_replicas=2
        )
        train = optimizer.minimize(loss, global_step)
    hooks = [optimizer.make_session_run_hook(job.is_chief), tf.train.StopAtStepHook(last_step=100)]
    x, y = digits(2000, seed=job.task)
    config = tf.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{job.task}"])
    reached, i = 0.0, 0
    with tf.train.MonitoredTrainingSession(
        job.target, job.is_chief, hooks=hooks, config=config, max_wait_secs=60, stop_grace_period_secs=5
    ) as session:
        while not session.should_stop():
            at = (i * 64) % 1900
            _, reached = session.run([train, accuracy], {images: x[at : at + 64], labels: y[at : at + 64]})
            i += 1
    assert reached > 0.8, reached
