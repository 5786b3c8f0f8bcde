"""An unmodified TensorFlow client on our server: feeds, fetches, graph extension, errors."""
import argparse

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

CHECKS = []


def check(f):
    CHECKS.append(f)
    return f


def fails(error, *parts):
    """A context manager that expects `error` with all of `parts` in its message; `.value` is the error."""

    class Expected:
        value = None

        def __enter__(self):
            return self

        def __exit__(self, kind, value, _):
            assert kind is not None, f"{error.__name__} was expected, nothing failed"
            assert issubclass(kind, error), f"{error.__name__} was expected, got {kind.__name__}: {value}"
            for part in parts:
                assert part in str(value), f"'{part}' is not in: {value}"
            self.value = value
            return True

    return Expected()


@check
def feeds_and_fetches(target):
    x = tf.placeholder(tf.float32, [None, 3], name="x")
    y = tf.identity(x * 2.0 + 1.0, name="y")
    s = tf.constant([b"a", b"bc"])
    with tf.Session(target) as session:
        value = np.arange(6, dtype=np.float32).reshape(2, 3)
        got, strings, again = session.run([y, s, y], {x: value})
        np.testing.assert_array_equal(got, value * 2 + 1)
        np.testing.assert_array_equal(again, got)
        assert list(strings) == [b"a", b"bc"]
        # Any tensor can be fed, by its name or as an object.
        assert session.run(s[0], {"y:0": value, s: [b"fed", b"x"]}) == b"fed"
        np.testing.assert_array_equal(session.run("y:0", {"x:0": value}), got)
        empty = session.run(y, {x: np.zeros([0, 3], np.float32)})
        assert empty.shape == (0, 3)


@check
def callables(target):
    x = tf.placeholder(tf.int64, [])
    y = x * x
    with tf.Session(target) as session:
        call = session.make_callable(y, [x])
        assert [call(i) for i in range(4)] == [0, 1, 4, 9]


@check
def graph_extension(target):
    v = tf.Variable([1.0, 2.0], use_resource=False)
    with tf.Session(target) as session:
        session.run(tf.global_variables_initializer())
        assert session.run(v).tolist() == [1, 2]
        add = v.assign_add([1.0, 1.0])
        assert session.run(add).tolist() == [2, 3]
        double = v * 2.0
        assert session.run(double).tolist() == [4, 6]


@check
def session_tensors(target):
    """Session tensors, which TensorFlow's own server does not support."""
    x = tf.placeholder(tf.float32, [2])
    handle = tf.get_session_handle(x * 2.0)
    with tf.Session(target) as session:
        kept = session.run(handle, {x: [1.0, 2.0]})
        other = session.run(handle, {x: [5.0, 6.0]})
        assert kept.eval().tolist() == [2, 4] and other.eval().tolist() == [10, 12]
        holder, value = tf.get_session_tensor(kept.handle, tf.float32)
        assert session.run(value + 1.0, {holder: kept.handle}).tolist() == [3, 5]
        kept.delete()
        with fails(tf.errors.InvalidArgumentError, "is not in the session store"):
            session.run(value, {holder: other.handle.replace(";", ";9", 1)})


@check
def resource_variables(target):
    v = tf.Variable([1.0, 2.0], use_resource=True)
    with tf.Session(target) as session:
        with fails(tf.errors.FailedPreconditionError):
            session.run(v)
        session.run(v.initializer)
        session.run(v.assign_sub([1.0, 1.0]))
        assert session.run(v).tolist() == [0, 1]


@check
def variables_outlive_sessions_and_are_shared_by_name(target):
    v = tf.get_variable("shared", initializer=42, use_resource=False)
    with tf.Session(target) as session:
        session.run(v.initializer)
    with tf.Session(target) as first, tf.Session(target) as second:
        assert first.run(v) == 42
        first.run(tf.assign_add(v, 1))
        assert second.run(v) == 43
    tf.Session.reset(target)
    with tf.Session(target) as session:
        with fails(tf.errors.FailedPreconditionError, "Attempting to use uninitialized value shared"):
            session.run(v)


@check
def steps_over_several_tasks(target):
    with tf.device("/job:ps/task:0"):
        v = tf.Variable(tf.zeros([4]), use_resource=False)
    with tf.device("/job:worker/task:1"):
        one = tf.constant([1.0, 2.0, 3.0, 4.0])
        with tf.control_dependencies([tf.no_op()]):
            update = tf.assign_add(v, one * 2.0)
    with tf.device("/job:worker/task:0"):
        with tf.control_dependencies([update]):
            total = tf.reduce_sum(v.read_value())
    with tf.Session(target) as session:
        session.run(v.initializer)
        assert session.run(total) == 20
        assert session.run(total) == 40
        names = [d.name for d in session.list_devices()]
        assert "/job:ps/replica:0/task:0/device:CPU:0" in names, names


@check
def unfed_placeholder(target):
    p = tf.placeholder(tf.float32, name="p")
    y = p + 1.0
    with tf.Session(target) as session:
        with fails(tf.errors.InvalidArgumentError, "You must feed a value for placeholder tensor 'p'") as e:
            session.run(y)
        assert e.value.op is p.op, e.value.op
        assert session.run(y, {p: 1.0}) == 2


@check
def unknown_device(target):
    with tf.device("/job:worker/task:9"):
        x = tf.constant(1.0, name="lost")
    with tf.Session(target) as session:
        with fails(tf.errors.InvalidArgumentError, "Cannot assign a device for operation lost", "/job:worker/task:9") as e:
            session.run(x)
    with tf.Graph().as_default():
        with tf.device("/job:worker/task:0/device:GPU:0"):
            x = tf.constant(1.0, name="on_gpu")
        with tf.Session(target) as session:
            with fails(tf.errors.InvalidArgumentError, "on_gpu"):
                session.run(x)
        soft = tf.ConfigProto(allow_soft_placement=True)
        with tf.Session(target, config=soft) as session:
            assert session.run(x) == 1


@check
def incompatible_shapes(target):
    a = tf.placeholder(tf.float32, name="a")
    b = tf.placeholder(tf.float32, name="b")
    product = tf.matmul(a, b, name="product")
    total = tf.add(a, b, name="total")
    with tf.Session(target) as session:
        with fails(tf.errors.InvalidArgumentError, "product") as e:
            session.run(product, {a: np.zeros([2, 3]), b: np.zeros([2, 3])})
        assert e.value.op is product.op
        with fails(tf.errors.InvalidArgumentError, "Incompatible shapes: [2] vs. [3]") as e:
            session.run(total, {a: np.zeros([2]), b: np.zeros([3])})
        assert e.value.op is total.op
        assert session.run(total, {a: 1.0, b: 2.0}) == 3


@check
def failed_assertion(target):
    x = tf.placeholder(tf.int32, [])
    checked = tf.Assert(x > 0, ["x is", x])
    with tf.Session(target) as session:
        session.run(checked, {x: 1})
        with fails(tf.errors.InvalidArgumentError, "assertion failed", "x is"):
            session.run(checked, {x: -1})


@check
def step_deadline(target):
    """A step ends at its deadline, and the session still works."""
    x = tf.random_uniform([1500, 1500])
    for _ in range(200):
        x = tf.matmul(x, x) * 1e-3
    done = tf.reduce_sum(x)
    with tf.Session(target) as session:
        with fails(tf.errors.DeadlineExceededError):
            session.run(done, options=tf.RunOptions(timeout_in_ms=50))
        assert session.run(tf.constant(3)) == 3


@check
def unknown_names(target):
    x = tf.constant(1.0, name="x")
    with tf.Session(target) as session:
        session.run(x)
        with fails(ValueError):
            session.run("nothing:0")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    target = parser.parse_args().target
    for f in CHECKS:
        tf.reset_default_graph()
        try:
            f(target)
        except BaseException as e:
            print(f"FAILED {f.__name__}", flush=True)
            raise e
        print(f"ok {f.__name__}", flush=True)


main()
