"""Device filters: a session lists the devices of its master's task and of the tasks that its filters name."""
import tensorflow.compat.v1 as tf


def run(job):
    config = tf.ConfigProto(device_filters=["/job:ps"])
    with tf.Session(job.target_of("worker", 1), config=config) as session:
        seen = sorted({device.name.split("/device")[0] for device in session.list_devices()})
        with tf.device("/job:ps/task:0"):
            ours = tf.constant(1) + tf.constant(2)
        assert session.run(ours) == 3
    with tf.Graph().as_default(), tf.Session(job.target_of("worker", 1), config=config) as session:
        with tf.device("/job:worker/task:0"):
            other = tf.constant(1, name="other")
        try:
            session.run(other)
            raise AssertionError("placed on a device that the filters exclude")
        except tf.errors.InvalidArgumentError as error:
            assert "Cannot assign a device for operation other" in error.message, error.message
    return {"seen": seen}
