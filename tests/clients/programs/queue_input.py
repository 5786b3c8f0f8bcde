"""Input by queue runners: file names, their lines, shuffled batches, and OutOfRangeError at the end."""
import os

import numpy as np
import tensorflow.compat.v1 as tf


def run(job):
    names = []
    for part in range(3):
        names.append(os.path.join(job.scratch, f"part-{part}.csv"))
        with open(names[-1], "w") as out:
            out.writelines(f"{part * 10 + i},{(part * 10 + i) * 0.5}\n" for i in range(10))
    with tf.device("/job:worker/task:0"):
        queue = tf.train.string_input_producer(names, num_epochs=2, shuffle=True, seed=1)
        lines = tf.string_split([tf.read_file(queue.dequeue())], "\n").values
        number, half = tf.decode_csv(lines, [[0], [0.0]])
        number.set_shape([10])
        half.set_shape([10])
        numbers, halves = tf.train.shuffle_batch(
            [number, half], batch_size=4, capacity=30, min_after_dequeue=8, num_threads=1, seed=2, enqueue_many=True,
            allow_smaller_final_batch=True,
        )
        pairs = tf.train.batch([numbers, halves], batch_size=3, enqueue_many=True, allow_smaller_final_batch=True)
    seen = []
    with tf.Session(job.target) as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        try:
            while not coordinator.should_stop():
                a, b = session.run(pairs)
                np.testing.assert_allclose(a * 0.5, b)
                seen.extend(a.tolist())
        except tf.errors.OutOfRangeError as error:
            assert "is closed and has insufficient elements" in error.message, error.message
        finally:
            coordinator.request_stop()
            coordinator.join(threads, stop_grace_period_secs=20)
    # Sorted, because several threads enqueue and the order is not deterministic.
    assert seen != sorted(seen)
    return {"numbers": sorted(seen)}
