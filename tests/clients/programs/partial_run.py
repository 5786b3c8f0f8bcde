"""Partial runs: a step that receives its feeds in several calls."""
import tensorflow.compat.v1 as tf


def run(job):
    with tf.device("/job:worker/task:0"):
        a, b, c = (tf.placeholder(tf.float32, [], name=n) for n in "abc")
        first = a + b
    with tf.device("/job:worker/task:1"):
        second = first * c
    results = {}
    with tf.Session(job.target) as session:
        handle = session.partial_run_setup([first, second], [a, b, c])
        results["first"] = session.partial_run(handle, first, {a: 1.0, b: 2.0})
        results["second"] = session.partial_run(handle, second, {c: results["first"] * 10})
        handle = session.partial_run_setup([first, second], [a, b, c])
        session.partial_run(handle, [], {a: 1.0})
        try:
            session.partial_run(handle, second, {c: 1.0})
            raise AssertionError("computed without a feed")
        except tf.errors.InvalidArgumentError as error:
            assert "can't be computed from the feeds that have been fed so far" in error.message, error.message
        results["plain"] = session.run(second, {a: 1.0, b: 1.0, c: 4.0})
    assert results["second"] == 90.0, results
    return results
