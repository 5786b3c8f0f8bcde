"""Two workers train one network on a parameter server: in turns at first, so that each loss is deterministic, then
asynchronously."""
import numpy as np
import tensorflow.compat.v1 as tf

from job import classifier, digits, wait

CLIENTS = 2
TOLERANCE = 1e-3


def run(job):
    with tf.device(job.setter()):
        images, labels = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.int64, [None])
        _, loss, accuracy = classifier(images, labels)
        global_step = tf.train.get_or_create_global_step()
        train = tf.train.AdamOptimizer(0.01).minimize(loss, global_step)
        init, missing = tf.global_variables_initializer(), tf.report_uninitialized_variables()
    with tf.Session(job.target) as session:
        if job.is_chief:
            session.run(init)
        wait(lambda: len(session.run(missing)) == 0, "the chief initialises")
        x, y = digits(2000, seed=job.task)
        order = np.random.default_rng(job.task)

        def step():
            rows = order.integers(0, len(x), 64)
            return session.run([loss, train], {images: x[rows], labels: y[rows]})[0]

        losses = [step() for _ in job.turns(lambda: session.run(global_step), 10)]
        for _ in range(50):
            step()
        wait(lambda: session.run(global_step) >= 120, "the other worker trains")
        held_x, held_y = digits(500, seed=7)
        reached = session.run(accuracy, {images: held_x, labels: held_y})
        assert reached > 0.95, reached
        return {"loss": losses, "steps": session.run(global_step)}
