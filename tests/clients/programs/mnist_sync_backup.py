"""Synchronous training with a backup worker: a step uses the first of two gradients."""
import os

import tensorflow.compat.v1 as tf

from job import classifier, digits, wait_for_file

CLIENTS = 2


class InitialValues(tf.train.SessionRunHook):
    """A hook of the chief that runs `fetches` on the initial variables, and then lets the other worker begin by creating
    the file `path`. No variable can have changed before, because the hook that applies gradients runs after this one."""

    def __init__(self, fetches, feeds, path):
        self.fetches, self.feeds, self.path = fetches, feeds, path

    def after_create_session(self, session, coord):
        self.values = session.run(self.fetches, self.feeds)
        open(self.path, "w").close()


def run(job):
    with tf.device(job.setter()):
        images, labels = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.int64, [None])
        _, loss, accuracy = classifier(images, labels)
        global_step = tf.train.get_or_create_global_step()
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.AdagradOptimizer(0.1), replicas_to_aggregate=1, total_num_replicas=2
        )
        gradients = optimizer.compute_gradients(loss)
        train = optimizer.apply_gradients(gradients, global_step)
    x, y = digits(2000, seed=job.task)
    hooks = [optimizer.make_session_run_hook(job.is_chief), tf.train.StopAtStepHook(last_step=100)]
    initialised = os.path.join(job.scratch, "initialised")
    if job.is_chief:
        fetches = [loss, global_step, *(gradient for gradient, _ in gradients)]
        before = InitialValues(fetches, {images: x[:64], labels: y[:64]}, initialised)
        hooks.insert(0, before)
    else:
        # Waits here, because a session that opens before the chief has initialised sleeps for half a minute.
        wait_for_file(initialised)
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
    if job.is_chief:
        return {f"before {i}": value for i, value in enumerate(before.values)}
    return {}
