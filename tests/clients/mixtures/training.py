"""A model that sends all kinds of tensors between all tasks: gradients, strings, dead tensors, a loop's condition."""
import tensorflow.compat.v1 as tf

from job import classifier, digits
from mixtures import PS, WORKERS, on


def learn():
    """Builds a model with two towers; returns the placeholders, the loss and the training op."""
    setter = [tf.train.replica_device_setter(ps_tasks=2, worker_device=worker) for worker in WORKERS]
    with tf.device(WORKERS[0]):
        images, labels = tf.placeholder(tf.float32, [64, 784]), tf.placeholder(tf.int64, [64])
    gradients, losses = [], []
    optimizer = tf.train.AdamOptimizer(0.01)
    for i, (x, y) in enumerate(zip(tf.split(images, 2), tf.split(labels, 2))):
        with tf.device(setter[i]), tf.variable_scope("model", reuse=i > 0):
            _, loss, _ = classifier(x, y)
            gradients.append(optimizer.compute_gradients(loss))
            losses.append(loss)
    with tf.device(setter[0]):
        averaged = [((a + b) / 2, variable) for (a, variable), (b, _) in zip(*gradients)]
        step = optimizer.apply_gradients(averaged)
        return images, labels, tf.add_n(losses) / 2, step


def loop():
    """A loop whose body is on two tasks."""

    def body(i, total):
        with tf.device(WORKERS[1]):
            total = total + tf.cast(i, tf.float32)
        with tf.device(PS[0]):
            return i + 1, total * 0.5

    with tf.device(WORKERS[0]):
        return tf.while_loop(lambda i, _: i < 10, body, (tf.constant(0), tf.constant(1.0)))[1]


def build():
    images, labels, loss, step = learn()
    with tf.device(PS[1]):
        table = tf.Variable(tf.random_normal([20, 3], seed=3), name="table")
        names = tf.constant([b"a", b"", b"some longer name" * 10])
        count = tf.Variable(0, name="count")
    with tf.device(WORKERS[1]):
        rows, missing = tf.gather(table, [1, 3, 5]), tf.gather(table, [99])
        joined = tf.concat([names, names[:1]], 0)
        counted = tf.placeholder_with_default(False, [])
    # Dead tensors are sent between tasks, and so is the loop's condition.
    chosen = tf.cond(counted, lambda: on(PS[0], lambda: tf.identity(rows) * 2), lambda: on(PS[1], lambda: -rows))
    looped = loop()
    with tf.control_dependencies([step]), tf.device(PS[1]):
        counting = tf.assign_add(count, 1)
    init = tf.global_variables_initializer()
    x, y = digits(640)

    def run(session, _):
        session.run(init)
        values = []
        for at in range(0, 640, 64):
            values += session.run([loss, counting], {images: x[at : at + 64], labels: y[at : at + 64]})
        values += session.run([rows, chosen, looped, joined, table], {counted: True})
        values += session.run([chosen, count], {counted: False})
        try:
            session.run(missing)
            raise AssertionError("gathered a row that does not exist")
        except tf.errors.InvalidArgumentError as error:
            assert "99" in error.message, error.message
        return values

    return run
