"""Functional control flow (If, While, Case) over resource variables on the ps: bodies and branches on other tasks than
the surrounding ops, nested ones, and gradients through all of them, which use tensor lists."""
import numpy as np
import tensorflow.compat.v1 as tf

TOLERANCE = 1e-3
V2_BEHAVIOR = True

PS, FIRST, SECOND = "/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"


def variable(name, shape, seed):
    initializer = tf.random_normal_initializer(stddev=0.3, seed=seed)
    with tf.device(PS):
        return tf.get_variable(name, shape, initializer=initializer, use_resource=True)


def on(device, make):
    """Returns a branch function whose ops are on one task."""

    def branch():
        with tf.device(device):
            return make()

    return branch


def recurrence(x, w, b):
    """Returns the states over time (first axis) and the last state of a recurrent layer. The loop's body reads the
    variable `b` in each iteration, and multiplies on the other worker."""
    batch, steps, units = x.shape
    inputs = tf.TensorArray(tf.float32, steps).unstack(tf.transpose(x, [1, 0, 2]))
    states = tf.TensorArray(tf.float32, steps)

    def body(t, state, states):
        joined = tf.concat([inputs.read(t), state], 1)
        with tf.device(SECOND):
            product = tf.matmul(joined, w)
        state = tf.tanh(product + b)
        return t + 1, state, states.write(t, state)

    first = (0, tf.zeros([batch, units]), states)
    _, last, states = tf.while_loop(lambda t, *_: t < steps, body, first, parallel_iterations=4)
    return states.stack(), last


def settle(state, w):
    """A loop whose number of iterations depends on its values, inside a loop of two iterations. The inner body is on the
    other worker."""

    def inner(iterations, y):
        with tf.device(SECOND):
            return iterations + 1, 0.7 * tf.sin(tf.matmul(y, w)) + 0.1 * y

    def outer(i, total, y):
        # The inner loop's condition is on the outer loop's task.
        iterations, y = tf.while_loop(lambda n, y: tf.logical_and(n < 6, tf.reduce_max(tf.abs(y)) > 0.02), inner, (0, y))
        return i + 1, total + iterations, y + 0.5

    _, iterations, y = tf.while_loop(lambda i, *_: i < 2, outer, (0, 0, state))
    return iterations, y


def choices(state, kind, w):
    """Nested conditionals on computed values, and a switch on a fed number."""
    negative = tf.cond(
        tf.reduce_sum(state) > 1.0,
        on(PS, lambda: tf.nn.relu(state) * 3),
        on(FIRST, lambda: tf.nn.softplus(tf.matmul(state, w))),
    )
    signed = tf.cond(tf.reduce_mean(state) > 0, on(SECOND, lambda: tf.matmul(state, w)), lambda: negative)

    def repeated():
        return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.tanh(tf.matmul(y, w))), (0, signed))[1]

    return tf.switch_case(kind, [repeated, on(SECOND, lambda: tf.square(signed)), on(PS, lambda: signed - state)])


def run(job):
    batch, steps, units = 4, 5, 6
    with tf.device(FIRST):
        x, kind = tf.placeholder(tf.float32, [batch, steps, units]), tf.placeholder(tf.int32, [])
        w, b = variable("w", [2 * units, units], 1), variable("b", [units], 2)
        inner, chosen = variable("inner", [units, units], 3), variable("chosen", [units, units], 4)
        states, last = recurrence(x, w, b)
        iterations, settled = settle(last, inner)
        summed = tf.scan(lambda total, state: 0.5 * total + tf.sin(state), states)
        out = choices(settled + summed[-1], kind, chosen)
        loss = tf.reduce_mean(tf.square(out - tf.reduce_mean(x, 1)))
        gradients = tf.gradients(loss, [x, w, b, inner, chosen])
        train = tf.train.AdamOptimizer(0.02).minimize(loss)
        with tf.device(PS):
            count = tf.get_variable("count", [], tf.int32, tf.zeros_initializer(), use_resource=True)
        # A branch that changes state.
        with tf.control_dependencies([train]):
            counted = tf.cond(tf.equal(kind, 1), lambda: count.assign_add(10), lambda: count.assign_add(1))
    random = np.random.default_rng(0)
    results = {"loss": [], "iterations": [], "count": []}
    with tf.Session(job.target) as session:
        session.run(tf.global_variables_initializer())
        fed = random.normal(size=(batch, steps, units))
        first = [session.run(gradients, {x: fed, kind: k}) for k in range(3)]
        for step in range(24):
            values = session.run([loss, iterations, counted], {x: random.normal(size=fed.shape), kind: step % 3})
            for key, value in zip(results, values):
                results[key].append(value)
        weights = session.run([w, b, inner, chosen])
    results.update({f"gradient {k} {i}": g for k, of_kind in enumerate(first) for i, g in enumerate(of_kind)})
    results.update({f"weights {i}": value for i, value in enumerate(weights)})
    return results
