"""Conditionals and loops of TensorFlow 1 on a server: each program computes the same as in a TensorFlow session in this
process.

Programs that use several tasks do so on the server only.
"""
import argparse
import contextlib
import time

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

PROGRAMS = []


def program(f):
    PROGRAMS.append(f)
    return f


class Target:
    """The target on which a program runs. `task` is the device scope of one of two tasks on a server, and has no effect in
    a local session."""

    def __init__(self, target):
        self.target = target

    def task(self, index):
        if not self.target:
            return contextlib.nullcontext()
        return tf.device(f"/job:worker/task:{index}")


@program
def branches(target):
    x = tf.placeholder(tf.float32, [])
    y = tf.cond(x > 0, lambda: x * 2.0, lambda: tf.cond(x < -5, lambda: x - 1.0, lambda: -x))
    grad = tf.gradients(y, x)[0]
    case = tf.case([(x > 3, lambda: tf.constant("big")), (x > 0, lambda: tf.constant("small"))],
                   default=lambda: tf.constant("not positive"))
    return [([y, grad, case], {x: v}) for v in (4.0, 1.0, -2.0, -9.0)]


@program
def branches_with_effects(target):
    v = tf.Variable(1.0, use_resource=True)
    w = tf.Variable(1.0, use_resource=False)
    p = tf.placeholder(tf.bool, [])
    both = tf.cond(p, lambda: [v.assign_add(2.0), w.assign_add(3.0)],
                   lambda: [v.assign_sub(1.0), w.assign_sub(2.0)])
    init = tf.global_variables_initializer()
    return [(init, {}), (both, {p: True}), (both, {p: False}), (both, {p: True}), ([v, w], {})]


@program
def a_branch_over_tasks(target):
    x = tf.placeholder(tf.float32, [2])
    p = tf.placeholder(tf.bool, [])

    def on(task, f):
        with target.task(task):
            return f(x)

    with target.task(0):
        y = tf.cond(p, lambda: on(1, lambda x: x * 3.0) + 1.0, lambda: on(1, lambda x: x - 3.0))
    with target.task(1):
        z = y * 2.0
    grad = tf.gradients(z, x)[0]
    return [([y, z, grad], {x: [1.0, 2.0], p: v}) for v in (True, False)]


def power(x, n, **options):
    return tf.while_loop(lambda i, a: i < n, lambda i, a: [i + 1, a * x], [0, tf.ones_like(x)], **options)[1]


@program
def a_loop_and_its_gradient(target):
    runs = []
    n = tf.placeholder(tf.int32, [])
    for parallel in (1, 2, 32):
        x = tf.constant([2.0, 0.5, -1.0])
        y = power(x, n, parallel_iterations=parallel)
        first = tf.gradients(y, x)[0]
        runs += [([y, first], {n: v}) for v in (0, 1, 7)]
    return runs


@program
def a_loop_of_bounded_length(target):
    x = tf.constant([2.0, 0.5])
    y = tf.while_loop(lambda i, a: i < 4, lambda i, a: [i + 1, a * x], [0, x], maximum_iterations=4)[1]
    first = tf.gradients(y, x)[0]
    return [([y, first], {})]


@program
def nested_loops_and_their_gradients(target):
    x = tf.placeholder(tf.float32, [])

    def outer(i, total):
        inner = tf.while_loop(lambda j, a: j < i, lambda j, a: [j + 1, a * x + 1.0], [0, total])[1]
        return [i + 1, inner + x]

    y = tf.while_loop(lambda i, _: i < 6, outer, [0, 1.0])[1]
    return [([y, tf.gradients(y, x)[0]], {x: v}) for v in (0.5, -1.25)]


@program
def branches_in_loops_and_loops_in_branches(target):
    n = tf.placeholder(tf.int32, [])
    x = tf.constant(1.5)

    def body(i, a):
        return [i + 1, tf.cond(tf.equal(i % 2, 0), lambda: a * x, lambda: a + tf.cast(i, tf.float32))]

    looped = tf.while_loop(lambda i, a: i < n, body, [0, x])[1]
    y = tf.cond(n > 3, lambda: looped, lambda: power(x, n))
    z = tf.cond(n > 3, lambda: power(x, n), lambda: x)
    return [([y, z, tf.gradients(y + z, x)[0]], {n: v}) for v in (0, 2, 3, 4, 9)]


@program
def arrays_of_tensors(target):
    xs = tf.constant(np.arange(12, dtype=np.float32).reshape(4, 3))
    array = tf.TensorArray(tf.float32, size=4, clear_after_read=False).unstack(xs)
    out = tf.TensorArray(tf.float32, size=0, dynamic_size=True, clear_after_read=False, infer_shape=False)
    _, out = tf.while_loop(lambda i, _: i < 4,
                           lambda i, out: [i + 1, out.write(i, array.read(i)[:2] * tf.cast(i, tf.float32))],
                           [0, out])
    split = tf.TensorArray(tf.float32, size=3, infer_shape=False).split(xs, [1, 0, 3])
    stacked, joined, sliced = out.stack(), out.concat(), split.concat()
    grads = tf.gradients([stacked, joined * 2.0, sliced * 3.0, array.gather([1, 1, 2])], xs)[0]
    return [([stacked, joined, sliced, array.size(), out.size(), grads], {})]


@program
def maps_folds_and_scans(target):
    xs = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    mapped = tf.map_fn(lambda x: x * x + 1.0, xs)
    folded = tf.foldl(lambda a, x: a * 0.5 + x, xs)
    scanned = tf.scan(lambda a, x: a * 0.5 + x, xs)
    pair = tf.map_fn(lambda p: p[0] + tf.cast(p[1], tf.float32), (xs, tf.constant([1, 2, 3])), dtype=tf.float32)
    grads = [tf.gradients(y, xs)[0] for y in (mapped, folded, scanned, pair)]
    return [([mapped, folded, scanned, pair] + grads, {})]


def recurrent(xs, lengths, w, target, swap):
    """Builds the loop of dynamic_rnn: it reads steps from one tensor array and writes to another, and does not change the
    state of sequences that have ended."""
    steps, batch, size = 6, 3, 4
    inputs = tf.TensorArray(tf.float32, size=steps, element_shape=[batch, size]).unstack(xs)
    outputs = tf.TensorArray(tf.float32, size=steps, element_shape=[batch, size])

    def body(t, h, outputs):
        x = inputs.read(t)
        with target.task(1):
            new = tf.tanh(tf.matmul(tf.concat([x, h], 1), w))
        alive = tf.tile((t < lengths)[:, None], [1, size])
        h, out = tf.where(alive, new, h), tf.where(alive, new, tf.zeros_like(new))
        return [t + 1, h, outputs.write(t, out)]

    _, h, outputs = tf.while_loop(lambda t, *_: t < steps, body, [0, tf.zeros([batch, size]), outputs],
                                  parallel_iterations=32, swap_memory=swap)
    return h, outputs.stack()


def trained(target, use_resource, swap):
    rng = np.random.default_rng(3)
    xs = tf.constant(rng.normal(size=[6, 3, 4]).astype(np.float32))
    with target.task(0):
        w = tf.Variable(rng.normal(size=[8, 4]).astype(np.float32) * 0.3, use_resource=use_resource)
        h, out = recurrent(xs, tf.constant([6, 2, 4]), w, target, swap)
        loss = tf.reduce_sum(tf.square(out)) + tf.reduce_sum(h)
        train = tf.train.GradientDescentOptimizer(0.05).minimize(loss)
        init = tf.global_variables_initializer()
    runs = [(init, {})]
    for _ in range(4):
        runs += [(loss, {}), (train, {})]
    return runs + [([w, h, out], {})]


@program
def a_recurrent_net_trained_on_one_task(target):
    return trained(Target(""), True, False)


@program
def a_recurrent_net_trained_over_tasks(target):
    return trained(target, True, True)


@program
def a_loop_over_tasks(target):
    n = tf.placeholder(tf.int32, [])
    runs = []
    for parallel in (1, 32):
        x = tf.constant([1.5, -0.5])

        def body(i, a, b):
            with target.task(0):
                c = a * x + 1.0
            with target.task(1):
                d = tf.tanh(c) + b
            with target.task(0):
                return [i + 1, c - d, d * 0.5]

        with target.task(0):
            start = [tf.constant(0), tf.ones([2]), tf.zeros([2])]
            i, a, b = tf.while_loop(lambda i, *_: i < n, body, start, parallel_iterations=parallel)
        grad = tf.gradients([a, b], x)[0]
        runs += [([i, a, b, grad], {n: v}) for v in (0, 1, 9)]
    return runs


@program
def nested_loops_over_tasks(target):
    n = tf.placeholder(tf.int32, [])

    def inner(j, a):
        with target.task(1):
            return [j + 1, a * 1.1 + 0.5]

    def outer(i, a):
        with target.task(0):
            b = tf.while_loop(lambda j, _: j < i, inner, [0, a])[1]
            return [i + 1, b + 1.0]

    with target.task(0):
        y = tf.while_loop(lambda i, _: i < n, outer, [0, 1.0])[1]
    return [(y, {n: v}) for v in (0, 1, 6)]


@program
def a_loop_over_tasks_on_a_side_not_taken(target):
    p = tf.placeholder(tf.bool, [])

    def body(i, a):
        with target.task(1):
            return [i + 1, a + 2.0]

    with target.task(0):
        x = tf.constant(1.0)
        y = tf.cond(p, lambda: tf.while_loop(lambda i, _: i < 5, body, [0, x])[1], lambda: x)
    return [(y, {p: v}) for v in (True, False, True)]


@program
def strings_and_integers_go_round(target):
    text = tf.while_loop(lambda i, s: i < 3, lambda i, s: [i + 1, tf.identity(s)], [0, tf.constant("abc")])[1]
    many = tf.while_loop(lambda i, s: i < 100000, lambda i, s: [i + 1, s + tf.cast(i, tf.int64)],
                         [0, tf.constant(0, tf.int64)])[1]
    return [([text, many], {})]


def results(target, build):
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        runs = build(Target(target))
        with tf.Session(target) as session:
            return [session.run(fetches, feeds) for fetches, feeds in runs]


def compare(target, build):
    ours, theirs = (results(t, build) for t in (target, ""))
    assert len(ours) == len(theirs)
    for a, b in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs)):
        if isinstance(b, (bytes, str)) or b is None:
            assert a == b, (a, b)
        else:
            # Training amplifies differences in the last bits of hyperbolic tangents.
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
            assert np.asarray(a).dtype == np.asarray(b).dtype


def a_dead_tensor_cannot_be_fetched(target):
    """Fetching a dead tensor fails with the message of TensorFlow's server, which differs from that of local sessions."""
    with tf.Graph().as_default():
        x, p = tf.constant(1.0), tf.placeholder(tf.bool, [])
        no, yes = tf.raw_ops.Switch(data=x, pred=p)
        gone = tf.identity(yes) + 1.0
        with tf.Session(target) as session:
            assert session.run(no, {p: False}) == 1.0
            for fetch in (yes, gone):
                try:
                    session.run(fetch, {p: False})
                except tf.errors.InternalError as error:
                    assert "Failed to fetch outputs for step" in error.message, error.message
                    assert "was not valid." in error.message, error.message
                else:
                    raise AssertionError("a dead tensor was fetched")
            assert session.run(gone, {p: True}) == 2.0


def a_loop_without_end_has_a_deadline(target):
    with tf.Graph().as_default():
        endless = tf.while_loop(lambda i: i >= 0, lambda i: i * 1, [1])
        other = tf.constant(2) * 3
        with tf.Session(target) as session:
            assert session.run(other) == 6
            for _ in range(3):
                started = time.monotonic()
                try:
                    session.run(endless, options=tf.RunOptions(timeout_in_ms=500))
                except (tf.errors.DeadlineExceededError, tf.errors.CancelledError):
                    assert time.monotonic() - started < 30
                else:
                    raise AssertionError("the loop has ended")
                assert session.run(other) == 6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True, help="task 0 of a job 'worker' of two tasks")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    failed = []
    checks = [(f.__name__, lambda f=f: compare(args.target, f)) for f in PROGRAMS]
    checks += [(f.__name__, lambda f=f: f(args.target))
               for f in (a_dead_tensor_cannot_be_fetched, a_loop_without_end_has_a_deadline)]
    for name, check in checks:
        if args.only not in name:
            continue
        try:
            check()
        except Exception as error:  # Runs all programs, also after a failure.
            failed.append(name)
            print("FAILED", name, type(error).__name__, str(error)[:1500], flush=True)
        else:
            print("ok", name, flush=True)
    assert not failed, failed


if __name__ == "__main__":
    main()
