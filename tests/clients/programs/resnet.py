"""A residual network with batch normalisation, its update ops, weight decay, a decaying rate and moving averages."""
import tensorflow.compat.v1 as tf

from job import dense, digits

# For this tolerance the learning rate is small: at 0.05, rounding errors grow tenfold in three steps.
TOLERANCE = 1e-3


def convolution(x, filters, name, stride=1):
    shape = [3, 3, x.shape[-1], filters]
    kernel = tf.get_variable(name, shape, initializer=tf.random_normal_initializer(stddev=0.15, seed=filters))
    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, 1e-4 * tf.nn.l2_loss(kernel))
    return tf.nn.conv2d(x, kernel, [1, stride, stride, 1], "SAME")


def normalise(x, training, name):
    with tf.variable_scope(name):
        size = [x.shape[-1]]
        scale = tf.get_variable("scale", size, initializer=tf.ones_initializer())
        offset = tf.get_variable("offset", size, initializer=tf.zeros_initializer())
        mean = tf.get_variable("mean", size, initializer=tf.zeros_initializer(), trainable=False)
        variance = tf.get_variable("variance", size, initializer=tf.ones_initializer(), trainable=False)

        def train():
            y, m, v = tf.nn.fused_batch_norm(x, scale, offset, epsilon=1e-3, is_training=True)
            return y, m, v

        def infer():
            y, _, _ = tf.nn.fused_batch_norm(x, scale, offset, mean, variance, epsilon=1e-3, is_training=False)
            return y, tf.identity(mean), tf.identity(variance)

        y, m, v = tf.cond(training, train, infer)
        for moving, now in ((mean, m), (variance, v)):
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_sub(moving, 0.1 * (moving - now)))
        return y


def block(x, filters, stride, training, name):
    with tf.variable_scope(name):
        y = tf.nn.relu(normalise(convolution(x, filters, "first", stride), training, "bn1"))
        y = normalise(convolution(y, filters, "second"), training, "bn2")
        if stride > 1:
            x = tf.nn.avg_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
            x = tf.pad(x, [[0, 0], [0, 0], [0, 0], [0, filters - int(x.shape[-1])]])
        return tf.nn.relu(x + y)


def run(job):
    with tf.device(job.setter()):
        images, labels = tf.placeholder(tf.float32, [None, 64]), tf.placeholder(tf.int64, [None])
        training = tf.placeholder(tf.bool, [])
        x = tf.reshape(images, [-1, 8, 8, 1])
        x = tf.nn.relu(normalise(convolution(x, 8, "stem"), training, "bn"))
        x = block(x, 8, 1, training, "a")
        x = block(x, 16, 2, training, "b")
        logits = dense(tf.reduce_mean(x, [1, 2]), 10, "out")
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        total = loss + tf.add_n(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES))
        step = tf.train.get_or_create_global_step()
        rate = tf.train.exponential_decay(0.02, step, 10, 0.9, staircase=True)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train = tf.train.MomentumOptimizer(rate, 0.9, use_nesterov=True).minimize(total, step)
        with tf.control_dependencies([train]):
            # Reads on the ps, because TensorFlow's read on another task would race with the next update.
            with tf.device("/job:ps/task:0"):
                count = tf.identity(step)
            average = tf.train.ExponentialMovingAverage(0.9, count)
            train = average.apply(tf.trainable_variables())
        averaged = average.average(tf.trainable_variables()[0])
    x_fed, y_fed = digits(320, size=8)
    history = []
    with tf.Session(job.target) as session:
        session.run(tf.global_variables_initializer())
        for i in range(40):
            at = i * 32 % 320
            fed = {images: x_fed[at : at + 32], labels: y_fed[at : at + 32], training: True}
            history.append(session.run([loss, train], fed)[0])
        held = session.run(loss, {images: x_fed, labels: y_fed, training: False})
        assert history[-1] < history[0] * 0.7, history
        return {"loss": history, "held": held, "averaged": session.run(averaged), "rate": session.run(rate)}
