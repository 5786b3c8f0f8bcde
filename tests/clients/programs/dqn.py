"""Deep Q-learning: a target network that is updated by assignments, and feeds whose first axis grows."""
import numpy as np
import tensorflow.compat.v1 as tf

from job import dense


def network(states, name):
    with tf.variable_scope(name):
        return dense(dense(states, 24, "hidden", tf.nn.relu, 1), 3, "out", None, 2)


def run(job):
    with tf.device(job.setter()):
        states, after = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None, 4])
        actions, rewards = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.float32, [None])
        ended = tf.placeholder(tf.bool, [None])
        q, target = network(states, "online"), network(after, "target")
        best = tf.where(ended, tf.zeros_like(rewards), tf.reduce_max(target, 1))
        target_q = tf.stop_gradient(rewards + 0.9 * best)
        rows = tf.stack([tf.range(tf.shape(actions)[0]), actions], 1)
        error = tf.gather_nd(q, rows) - target_q
        loss = tf.reduce_mean(tf.where(tf.abs(error) < 1, 0.5 * tf.square(error), tf.abs(error) - 0.5))
        train = tf.train.RMSPropOptimizer(0.005).minimize(loss)
        pairs = zip(tf.trainable_variables("target"), tf.trainable_variables("online"))
        copy = tf.group(*[a.assign(b) for a, b in pairs])
        act = tf.argmax(q, 1)
    random = np.random.default_rng(0)
    history, acted = [], []
    with tf.Session(job.target) as session:
        session.run(tf.global_variables_initializer())
        session.run(copy)
        for step in range(40):
            n = 4 + step
            s = random.normal(size=(n, 4)).astype(np.float32)
            a = random.integers(0, 3, n)
            fed = {states: s, after: s + 0.1, actions: a, rewards: (s[:, 0] > 0) == (a == 1), ended: random.random(n) < 0.2}
            history.append(session.run([loss, train], fed)[0])
            if step % 10 == 9:
                session.run(copy)
                acted.extend(session.run(act, {states: s[:4]}).tolist())
    return {"loss": history, "acted": acted}
