"""Every op that blocks ends with its step: at the step's deadline, and when its session closes. The queue or other
object at which it was blocked still works afterwards, and loses no elements. These checks run on our servers alone,
because TensorFlow's staging areas and mutexes do not end."""
import argparse
import os
import threading

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import data_flow_ops

from session_checks import Checks, fails

tf.disable_v2_behavior()

checks = Checks()
check = checks.add

SHORTLY = tf.RunOptions(timeout_in_ms=100)
DEADLINE = 20.0

raw = tf.raw_ops


def blocks_until_cancelled(target, blocked, before=()):
    """Runs `blocked` until the step's deadline, and then until its session closes; both must end it. Returns a session
    for further checks."""
    session = tf.Session(target)
    session.run(list(before))
    with fails(tf.errors.DeadlineExceededError):
        session.run(blocked, options=SHORTLY)
    failures = []

    def run_blocked():
        try:
            closing.run(blocked)
        except tf.errors.OpError as error:
            failures.append(error)

    closing = tf.Session(target, graph=session.graph)
    closing.run(tf.constant(0))
    thread = threading.Thread(target=run_blocked, daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive(), "the op does not block"
    closing.close()
    thread.join(DEADLINE)
    assert not thread.is_alive(), "the step does not end with its session"
    [failure] = failures
    assert isinstance(failure, (tf.errors.CancelledError, tf.errors.AbortedError)), failure
    return session


@check
def barriers(target):
    barrier = data_flow_ops.Barrier([tf.float32], shapes=[()], shared_name="barrier")
    insert, take = barrier.insert_many(0, [b"a"], [1.0]), barrier.take_many(2)
    session = blocks_until_cancelled(target, take, [insert])
    assert session.run(barrier.ready_size()) == 1
    session.run(barrier.insert_many(0, [b"b"], [2.0]))
    assert session.run(take)[1].tolist() == [b"a", b"b"]


@check
def staging_areas(target):
    area = data_flow_ops.StagingArea([tf.float32], shapes=[[]], capacity=1, shared_name="area")
    put, get, size = area.put([tf.constant(5.0)]), area.get(), area.size()
    session = blocks_until_cancelled(target, get)
    session = blocks_until_cancelled(target, put, [put])
    assert session.run(size) == 1
    assert session.run(get) == [5.0]
    blocks_until_cancelled(target, area.peek(0))


@check
def staging_areas_by_key(target):
    area = data_flow_ops.MapStagingArea([tf.float32], shapes=[[]], names=["x"], capacity=1, shared_name="map")
    key = tf.constant(3, tf.int64)
    put, get, size = area.put(key, {"x": tf.constant(5.0)}), area.get(key), area.size()
    blocks_until_cancelled(target, get[1])
    blocks_until_cancelled(target, area.peek(key)["x"])
    session = blocks_until_cancelled(target, area.put(tf.constant(4, tf.int64), {"x": tf.constant(6.0)}), [put])
    assert session.run(size) == 1
    assert session.run(get[1])["x"] == 5.0


@check
def mutexes(target):
    mutex = raw.MutexV2(shared_name="mutex")
    never = tf.FIFOQueue(1, tf.int32, shapes=[[]], shared_name="never")
    held = raw.MutexLock(mutex=mutex)
    with tf.control_dependencies([held]), tf.control_dependencies([never.dequeue()]):
        holds = raw.ConsumeMutexLock(mutex_lock=held)
    holder, released = tf.Session(target), threading.Event()

    def hold():
        holder.run(holds)
        released.set()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    lock = raw.MutexLock(mutex=mutex).op
    locked = until_held(target, lock)
    session = blocks_until_cancelled(target, lock)
    assert locked and not released.is_set()
    session.run(never.enqueue(1))
    assert released.wait(DEADLINE)
    session.run(lock)


def until_held(target, lock):
    """Waits until another step holds the mutex, so that locking it runs into the deadline; returns whether it does."""
    with tf.Session(target) as session:
        for _ in range(int(DEADLINE * 10)):
            try:
                session.run(lock, options=SHORTLY)
            except tf.errors.DeadlineExceededError:
                return True
    return False


@check
def accumulators(target):
    accumulator = tf.ConditionalAccumulator(tf.float32, shape=[], shared_name="gradients")
    apply, take = accumulator.apply_grad(2.0), accumulator.take_grad(2)
    session = blocks_until_cancelled(target, take, [apply])
    assert session.run(accumulator.num_accumulated()) == 1
    session.run(apply)
    assert session.run(take) == 2.0


@check
def queues(target):
    for kind in (tf.FIFOQueue, tf.PaddingFIFOQueue):
        queue = kind(1, tf.int32, shapes=[[]], shared_name=kind.__name__)
        put, get = queue.enqueue(7), queue.dequeue()
        blocks_until_cancelled(target, get)
        blocks_until_cancelled(target, queue.dequeue_many(2))
        session = blocks_until_cancelled(target, put, [put])
        assert session.run(queue.size()) == 1
        assert session.run(get) == 7


@check
def readers(target):
    names = tf.FIFOQueue(1, tf.string, shapes=[[]], shared_name="names")
    key, _ = tf.TextLineReader().read(names)
    blocks_until_cancelled(target, key)


@check
def iterators(target):
    def wait_for_ever(_):
        never = tf.FIFOQueue(1, tf.int32, shapes=[[]], shared_name="never_filled")
        return never.dequeue()

    dataset = tf.data.Dataset.range(3).map(wait_for_ever)
    iterator = tf.data.make_initializable_iterator(dataset, shared_name="iterator")
    blocks_until_cancelled(target, iterator.get_next(), [iterator.initializer])


@check
def loops(target):
    endless = tf.while_loop(lambda i: i >= 0, lambda i: tf.minimum(i + 1, 5), [0])
    blocks_until_cancelled(target, endless)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    checks.run(parser.parse_args().target)


if __name__ == "__main__":
    main()
