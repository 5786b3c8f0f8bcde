"""Saver: sharded and unsharded checkpoints, restoring, also into another partitioning, and the number of checkpoints
that are kept."""
import os

import numpy as np
import tensorflow.compat.v1 as tf


def variables(parts):
    partitioner = tf.fixed_size_partitioner(parts) if parts > 1 else None
    with tf.variable_scope("model", partitioner=partitioner):
        table = tf.get_variable("table", [10, 3], initializer=tf.random_normal_initializer(seed=1))
    with tf.device("/job:worker/task:1"):
        count = tf.get_variable("count", [], tf.int64, initializer=tf.constant_initializer(7))
        words = tf.get_variable("words", [3], tf.string, initializer=tf.constant_initializer([b"a", b"", b"long" * 50]))
    return table, count, words


def value(table):
    return tf.convert_to_tensor(table)


def run(job):
    path = os.path.join(job.scratch, "saved", "model")
    os.makedirs(os.path.dirname(path))
    with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
        table, count, words = variables(3)
        savers = [tf.train.Saver(sharded=sharded, max_to_keep=2) for sharded in (False, True)]
        with tf.Session(job.target) as session:
            session.run(tf.global_variables_initializer())
            before = session.run(value(table))
            kept = []
            for saver, name in zip(savers, ("whole", "sharded")):
                for step in range(3):
                    kept.append(saver.save(session, f"{path}-{name}", step))
                assert [os.path.exists(p + ".index") for p in kept[-3:]] == [False, True, True]
                session.run([count.assign(0), tf.assign(words, [b"x", b"y", b"z"])])
                saver.restore(session, kept[-1])
                assert session.run(count) == 7
                assert session.run(words).tolist() == [b"a", b"", b"long" * 50]
                np.testing.assert_array_equal(session.run(value(table)), before)
            try:
                savers[0].restore(session, path + "-none")
                raise AssertionError("restored a checkpoint that does not exist")
            except ValueError as error:
                assert "not a valid checkpoint" in str(error), error
    listed = sorted(f"{name} {shape}" for name, shape in tf.train.list_variables(kept[-1]))
    tf.Session.reset(job.target)
    with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
        table, count, words = variables(4)
        with tf.Session(job.target) as session:
            for checkpoint in (kept[2], kept[-1]):
                tf.train.Saver().restore(session, checkpoint)
                np.testing.assert_array_equal(session.run(value(table)), before)
    with tf.Graph().as_default():
        with tf.device("/job:ps/task:0"):
            other = tf.get_variable("other", [2])
        with tf.Session(job.target) as session:
            try:
                tf.train.Saver([other]).restore(session, kept[-1])
                raise AssertionError("restored a variable that was not saved")
            except tf.errors.NotFoundError as error:
                assert "other not found in checkpoint" in str(error), error
    return {"table": before, "listed": listed}
