"""Asynchronous advantage actor-critic: each worker has its own copy of the shared networks, which it pulls before an
episode, and pushes its gradients to the shared ones. The workers take turns at first, so that results are
deterministic."""
import numpy as np
import tensorflow.compat.v1 as tf

from job import dense, wait

CLIENTS = 2
TOLERANCE = 1e-3


def network(states, name):
    with tf.variable_scope(name):
        hidden = dense(states, 16, "hidden", tf.nn.tanh, 1)
        return tf.nn.softmax(dense(hidden, 2, "policy", None, 2)), dense(hidden, 1, "value", None, 3)


def run(job):
    states = tf.placeholder(tf.float32, [None, 3])
    actions, returns = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.float32, [None])
    with tf.device("/job:ps/task:0"):
        network(states, "shared")
        episodes = tf.get_variable("episodes", [], tf.int64, tf.zeros_initializer(), trainable=False)
        optimizer = tf.train.AdamOptimizer(0.01, use_locking=True)
    with tf.device(f"/job:worker/task:{job.task}"):
        policy, value = network(states, f"worker_{job.task}")
        advantage = returns - tf.squeeze(value, 1)
        chosen = tf.reduce_sum(policy * tf.one_hot(actions, 2), 1)
        loss = -tf.reduce_mean(tf.log(chosen + 1e-8) * tf.stop_gradient(advantage)) + tf.reduce_mean(tf.square(advantage))
        loss -= 0.01 * tf.reduce_mean(-tf.reduce_sum(policy * tf.log(policy + 1e-8), 1))
        mine, shared = tf.trainable_variables(f"worker_{job.task}"), tf.trainable_variables("shared")
        gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, mine), 10.0)
        pull = tf.group(*[a.assign(b) for a, b in zip(mine, shared)])
    with tf.device("/job:ps/task:0"):
        push = optimizer.apply_gradients(zip(gradients, shared))
        with tf.control_dependencies([push]):
            count = episodes.assign_add(1, use_locking=True)
    everything = tf.global_variables()
    on_ps = [v for v in everything if v.device.startswith("/job:ps")]
    with tf.Session(job.target) as session:
        if job.is_chief:
            session.run(tf.variables_initializer(on_ps))
        session.run(tf.variables_initializer([v for v in everything if v not in on_ps]))
        missing = tf.report_uninitialized_variables(on_ps)
        wait(lambda: len(session.run(missing)) == 0, "the chief initialises")
        random = np.random.default_rng(job.task)

        def play():
            session.run(pull)
            s = random.normal(size=(20, 3)).astype(np.float32)
            p = session.run(policy, {states: s})
            a = (random.random(20) > p[:, 0]).astype(np.int32)
            fed = {states: s, actions: a, returns: ((s[:, 0] > 0) == (a == 1)) * 1.0}
            return p, a, session.run([loss, count], fed)[0]

        played = [play() for _ in job.turns(lambda: session.run(episodes), 10)]
        for _ in range(40):
            play()
        wait(lambda: session.run(episodes) >= 100, "the other worker plays")
        session.run(pull)
        s = random.normal(size=(400, 3)).astype(np.float32)
        right = np.mean((session.run(policy, {states: s})[:, 1] > 0.5) == (s[:, 0] > 0))
        assert right > 0.8, right
        policies, acted, losses = zip(*played)
        return {"policies": policies, "acted": acted, "loss": losses, "episodes": session.run(episodes)}
