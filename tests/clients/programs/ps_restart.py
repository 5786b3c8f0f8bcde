"""The ps is killed and restarted during a monitored session, which recovers by itself from the last checkpoint."""
import os

import tensorflow.compat.v1 as tf

from job import classifier, digits


def run(job):
    with tf.device(job.setter()):
        images, labels = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.int64, [None])
        _, loss, _ = classifier(images, labels)
        global_step = tf.train.get_or_create_global_step()
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step)
    x, y = digits(200)
    seen, restarted = [], False
    config = tf.ConfigProto(device_filters=["/job:ps", "/job:worker/task:0"])
    with tf.train.MonitoredTrainingSession(
        job.target,
        True,
        checkpoint_dir=os.path.join(job.scratch, "model"),
        hooks=[tf.train.StopAtStepHook(last_step=40)],
        save_checkpoint_steps=10,
        save_summaries_steps=None,
        save_summaries_secs=None,
        config=config,
    ) as session:
        while not session.should_stop():
            _, now = session.run([train, global_step], {images: x, labels: y})
            seen.append(int(now))
            if now == 25 and not restarted:
                restarted = True
                job.ask("restart", "ps", 0)
    after = seen[seen.index(25) + 1 :]
    assert 20 <= after[0] <= 23, seen
    assert seen[-1] >= 39, seen
    return {"steps": seen}
