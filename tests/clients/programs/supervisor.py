"""tf.train.Supervisor: the chief initialises and the other worker waits; the supervisor's threads write checkpoints and
summaries. The workers train in turns at first, so that each loss is deterministic."""
import os

import tensorflow.compat.v1 as tf

from job import classifier, digits

CLIENTS = 2
TOLERANCE = 1e-3


def run(job):
    with tf.device(job.setter()):
        images, labels = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.int64, [None])
        _, loss, _ = classifier(images, labels)
        global_step = tf.train.get_or_create_global_step()
        train = tf.train.AdamOptimizer(0.01).minimize(loss, global_step)
        tf.summary.scalar("weight", tf.reduce_mean(tf.square(tf.trainable_variables()[0])))
        init = tf.global_variables_initializer()
    folder = os.path.join(job.scratch, "supervised")
    supervisor = tf.train.Supervisor(
        is_chief=job.is_chief,
        logdir=folder,
        init_op=init,
        global_step=global_step,
        recovery_wait_secs=1,
        save_model_secs=1,
        save_summaries_secs=1,
    )
    x, y = digits(1000, seed=job.task)
    with supervisor.managed_session(job.target) as session:

        def run_step(i):
            at = i * 50 % 1000
            return session.run([loss, global_step, train], {images: x[at : at + 50], labels: y[at : at + 50]})

        losses = [run_step(turn)[0] for turn in job.turns(lambda: session.run(global_step), 10)]
        step, i = 0, 0
        while not supervisor.should_stop() and step < 150:
            _, step, _ = run_step(i)
            i += 1
        final = session.run(loss, {images: x, labels: y})
    assert final < 0.5, final
    if not job.is_chief:
        return {"loss": losses}
    saved = tf.train.list_variables(tf.train.latest_checkpoint(folder))
    events = [os.path.join(folder, name) for name in os.listdir(folder) if "tfevents" in name]
    tags = {value.tag for path in events for event in tf.train.summary_iterator(path) for value in event.summary.value}
    return {"loss": losses, "saved": [f"{name} {shape}" for name, shape in saved], "tags": sorted(tags)}
