"""MonitoredTrainingSession with chief and worker: checkpoints, summaries, hooks, and a second run that resumes from the
checkpoint."""
import os

import tensorflow.compat.v1 as tf

from job import classifier, digits, wait, wait_for_file

CLIENTS = 2


class Counter(tf.train.SessionRunHook):
    """A hook that counts its calls."""

    def __init__(self):
        self.created, self.ran, self.ended = 0, 0, 0

    def after_create_session(self, session, coord):
        self.created += 1

    def after_run(self, context, values):
        self.ran += 1

    def end(self, session):
        self.ended += 1


def train(job, last_step, turns=0):
    """Trains to the last step, at first in turns with the other worker. Returns the losses of these turns, and the first
    global step after them."""
    with tf.Graph().as_default():
        tf.set_random_seed(3)
        with tf.device(job.setter()):
            images, labels = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.int64, [None])
            _, loss, _ = classifier(images, labels)
            global_step = tf.train.get_or_create_global_step()
            step = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step)
            tf.summary.scalar("loss", loss)
            tf.summary.histogram("weights", tf.trainable_variables()[0])
        counter = Counter()
        hooks = [counter, tf.train.StopAtStepHook(last_step=last_step), tf.train.NanTensorHook(loss)]
        x, y = digits(1000, seed=job.task)
        first, losses = None, []
        with tf.train.MonitoredTrainingSession(
            job.target,
            job.is_chief,
            checkpoint_dir=os.path.join(job.scratch, "model"),
            hooks=hooks,
            save_checkpoint_steps=20,
            save_summaries_steps=10,
            log_step_count_steps=10,
            max_wait_secs=60,
        ) as session:
            fed = {images: x[:64], labels: y[:64]}
            # Bypasses the hooks, some of which fetch tensors that need feeds.
            done = lambda: session.run_step_fn(lambda step_context: step_context.session.run(global_step))
            for _ in job.turns(done, turns):
                losses.append(session.run([loss, step], fed)[0])
            while not session.should_stop():
                _, now = session.run([step, global_step], fed)
                first = now if first is None else first
        assert counter.created == 1 and counter.ended == 1 and counter.ran > 0, vars(counter)
        return losses, first


def run(job):
    done = os.path.join(job.scratch, "first-run-over")
    if not job.is_chief:
        # Waits here, because a session that opens before the chief has initialised sleeps for half a minute.
        wait_for_file(os.path.join(job.scratch, "model", "checkpoint"))
    losses, _ = train(job, 60, turns=10)
    model = os.path.join(job.scratch, "model")
    if not job.is_chief:
        open(done, "w").close()
        return {"loss": losses}
    wait(lambda: os.path.exists(done), "the other worker ends")
    latest = tf.train.latest_checkpoint(model)
    reader = tf.train.load_checkpoint(latest)
    shapes = reader.get_variable_to_shape_map()
    saved = int(reader.get_tensor("global_step"))
    assert saved >= 60, saved
    with tf.Session(job.target) as session:
        # Resets the ps, which still has the variables, so that only the checkpoint can restore them.
        tf.Session.reset(job.target_of("ps", 0))
    _, first = train(job, saved + 20)
    assert saved <= first <= saved + 2, (saved, first)
    events = [name for name in os.listdir(model) if "tfevents" in name]
    tags = set()
    for name in events:
        for event in tf.train.summary_iterator(os.path.join(model, name)):
            tags |= {value.tag for value in event.summary.value}
    return {
        "loss": losses,
        "shapes": sorted(f"{name} {shape}" for name, shape in shapes.items()),
        "tags": sorted(tags),
    }
