"""A queue on a ps that one worker, a master itself, fills, while the other drains it."""
import threading

import tensorflow.compat.v1 as tf

from mixtures import PS, WORKERS

COUNT = 12


def build():
    # Those who wait for room and for elements are in turns. Once closed a queue stays so: there is one for each master.
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
        (enqueue, close), (one, some, size) = next(rounds)

        def fill():
            for n in range(COUNT):
                other.run(enqueue, {i: n})
            other.run(close)

        filler = threading.Thread(target=fill, daemon=True)
        filler.start()
        said = [part for _ in range(6) for part in session.run(one)]
        while sum(len(numbers) for numbers in said[18::3]) < COUNT - 6:
            said += session.run(some)
        filler.join()
        try:
            session.run(one)
            raise AssertionError("took from a closed queue that is empty")
        except tf.errors.OutOfRangeError as error:
            assert "is closed and has insufficient elements" in error.message, error.message
        return said + [session.run(size)]

    return run
