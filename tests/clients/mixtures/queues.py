"""A queue on a ps that one worker fills, through its own master, while the other worker drains it."""
import threading

import tensorflow.compat.v1 as tf

from mixtures import PS, WORKERS

COUNT = 12


def build():
    # The capacity of 3 makes both the enqueues and the dequeues wait. A closed queue stays closed, so each master has its
    # own queue.
    with tf.device(PS[1]):
        types, shapes = [tf.int32, tf.float32, tf.string], [[], [2], []]
        queues = [tf.FIFOQueue(3, types, shapes, shared_name=f"queue-{i}") for i in range(2)]
    with tf.device(WORKERS[1]):
        i = tf.placeholder(tf.int32, [])
        value = tf.stack([tf.cast(i, tf.float32), 0.5]) * 2, tf.strings.join(["element ", tf.as_string(i)])
        fills = [(queue.enqueue([i, *value]), queue.close()) for queue in queues]
    with tf.device(WORKERS[0]):
        drains = [(queue.dequeue(), queue.dequeue_up_to(4), queue.size()) for queue in queues]
    rounds = iter(zip(fills, drains))

    def run(session, other):
        (enqueue, close), (dequeue, dequeue_up_to, size) = next(rounds)

        def fill():
            for n in range(COUNT):
                other.run(enqueue, {i: n})
            other.run(close)

        filler = threading.Thread(target=fill, daemon=True)
        filler.start()
        values = [part for _ in range(6) for part in session.run(dequeue)]
        while sum(len(numbers) for numbers in values[18::3]) < COUNT - 6:
            values += session.run(dequeue_up_to)
        filler.join()
        try:
            session.run(dequeue)
            raise AssertionError("dequeued from a closed and empty queue")
        except tf.errors.OutOfRangeError as error:
            assert "is closed and has insufficient elements" in error.message, error.message
        return values + [session.run(size)]

    return run
