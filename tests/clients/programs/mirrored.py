"""`tf.distribute.MirroredStrategy` with one client: a replica on each of two GPUs, mirrored variables, distributed
batches, reduced gradients. Soft placement puts ops of missing GPUs on the worker's CPU."""
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from job import classifier, digits


def run(job):
    devices = [f"/job:worker/replica:0/task:0/device:GPU:{i}" for i in range(2)]
    strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=tf2.distribute.ReductionToOneDevice())
    x, y = digits(1280)
    with tf.device("/job:worker/task:0"), strategy.scope():
        batches = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(128, drop_remainder=True)
        iterator = strategy.make_dataset_iterator(batches)

        def step(inputs):
            _, loss, _ = classifier(*inputs)
            # The loss of a replica is the mean over half of the batch.
            train = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss / 2)
            with tf.control_dependencies([train]):
                return tf.identity(loss)

        losses = strategy.run(step, args=(iterator.get_next(),))
        loss = strategy.reduce(tf2.distribute.ReduceOp.MEAN, losses, axis=None)
        initialize = [tf.global_variables_initializer(), iterator.initialize()]
    with tf.Session(job.target, config=tf.ConfigProto(allow_soft_placement=True)) as session:
        session.run(initialize)
        history = [session.run(loss) for _ in range(40)]
        assert history[-1] < history[0] / 5, history
        return {"loss": history, "weights": session.run(tf.trainable_variables()[0])}
