"""Barriers: components are inserted by key, and elements are taken when complete."""
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import data_flow_ops

from . import scenario


def barrier(peer, types=(tf.float32, tf.string), shapes=((), ())):
    return data_flow_ops.Barrier(types, shapes=shapes, shared_name=peer.name("b"))


@scenario
def components_are_joined_by_key(peer):
    b = barrier(peer)
    with peer.session() as s:
        s.run(b.insert_many(0, [b"a", b"b", b"c"], [1.0, 2.0, 3.0]))
        peer.record("ready", s.run(b.ready_size()))
        peer.record("incomplete", s.run(b.incomplete_size()))
        s.run(b.insert_many(1, [b"c", b"a"], [b"x", b"y"]))
        peer.record("ready", s.run(b.ready_size()))
        peer.record("incomplete", s.run(b.incomplete_size()))
        peer.record("taken", s.run(b.take_many(2)))
        waits = peer.background(s.make_callable(b.take_many(2)))
        s.run(b.insert_many(1, [b"b"], [b"z"]))
        s.run(b.insert_many(0, [b"a"], [5.0]))
        s.run(b.insert_many(1, [b"a"], [b"w"]))
        peer.record("waited", waits.join())
        s.run(b.insert_many(0, [b"k", b"l"], [1.0, 2.0]))
        peer.record("twice", lambda: s.run(b.insert_many(0, [b"k"], [1.0])))
        s.run(b.close())
        peer.record("closed, complete", s.run(b.insert_many(1, [b"k"], [b"v"])))
        peer.record("closed, new", lambda: s.run(b.insert_many(0, [b"n"], [1.0])))
        peer.record("too many", lambda: s.run(b.take_many(3)))
        peer.record("small", lambda: s.run(b.take_many(1, allow_small_batch=True)))
        s.run(b.insert_many(1, [b"l"], [b"v"]))
        peer.record("all complete", lambda: s.run(b.insert_many(0, [b"n"], [1.0])))
        peer.record("small", lambda: s.run(b.take_many(5, allow_small_batch=True)))
        peer.record("empty", lambda: s.run(b.take_many(1, allow_small_batch=True)))
        peer.record("empty", lambda: s.run(b.take_many(1)))
        peer.record("again", lambda: s.run(b.close()))
        peer.record("cancel", lambda: s.run(b.close(cancel_pending_enqueues=True)))


@scenario
def empty_components_are_refused_unless_no_key_has_them(peer):
    b = barrier(peer, types=(tf.float32, tf.float32), shapes=None)
    with peer.session() as s:
        no_keys = tf.constant([], tf.string)
        for keys, shape in ([b"a", b"b"], (2, 0)), (no_keys, (0, 2)), (no_keys, (0,)):
            peer.record(f"{shape}", lambda: s.run(b.insert_many(0, keys, tf.zeros(shape))))
        peer.record("incomplete", s.run(b.incomplete_size()))


@scenario
def closing_with_cancellation(peer):
    b = barrier(peer)
    with peer.session() as s:
        s.run(b.insert_many(0, [b"a", b"b"], [1.0, 2.0]))
        s.run(b.insert_many(1, [b"a"], [b"x"]))
        s.run(b.close(cancel_pending_enqueues=True))
        peer.record("incomplete", s.run(b.incomplete_size()))
        peer.record("insert", lambda: s.run(b.insert_many(1, [b"b"], [b"x"])))
        peer.record("too many", lambda: s.run(b.take_many(2)))
        peer.record("one", s.run(b.take_many(1)))
        peer.record("empty", lambda: s.run(b.take_many(1)))


@scenario
def closed_barrier_waits_for_incomplete_elements(peer):
    b = barrier(peer)
    with peer.session() as s:
        s.run(b.insert_many(0, [b"a", b"b"], [1.0, 2.0]))
        s.run(b.insert_many(1, [b"a"], [b"x"]))
        s.run(b.close())
        peer.record("too many", lambda: s.run(b.take_many(3)))
        peer.record("small", s.run(b.take_many(3, allow_small_batch=True)))
        one = peer.background(s.make_callable(b.take_many(1)))
        s.run(b.insert_many(1, [b"b"], [b"y"]))
        peer.record("one", one.join())
        peer.record("empty", lambda: s.run(b.take_many(3, allow_small_batch=True)))


@scenario
def pending_takes_of_a_closed_barrier(peer):
    b = barrier(peer)
    take = b.take_many(2)
    with peer.session() as s:
        s.run(b.insert_many(0, [b"a"], [1.0]))
        s.run(b.insert_many(1, [b"a"], [b"x"]))
        waits = peer.background(lambda: type_of(lambda: s.run(take)))
        s.run(b.close(cancel_pending_enqueues=True))
        peer.record("waited", waits.join())
        peer.record("given back", s.run(b.ready_size()))


def type_of(f):
    try:
        f()
    except tf.errors.OpError as error:
        return type(error).__name__
    return None


@scenario
def invalid_calls_of_barriers_are_refused(peer):
    b = barrier(peer, shapes=((), (2,)))
    raw = tf.raw_ops
    keys, floats, words = tf.placeholder(tf.string), tf.placeholder(tf.float32), tf.placeholder(tf.string)
    handle = b.barrier_ref
    with peer.session() as s:
        first = raw.BarrierInsertMany(handle=handle, keys=keys, values=floats, component_index=0)
        second = raw.BarrierInsertMany(handle=handle, keys=keys, values=words, component_index=1)
        wrong = raw.BarrierInsertMany(handle=handle, keys=keys, values=words, component_index=0)
        beyond = raw.BarrierInsertMany(handle=handle, keys=keys, values=words, component_index=2)
        peer.record("type", lambda: s.run(wrong, {keys: [b"a"], words: [b"x"]}))
        peer.record("index", lambda: s.run(beyond, {keys: [b"a"], words: [b"x"]}))
        take = raw.BarrierTakeMany(handle=handle, num_elements=1, component_types=[tf.int32, tf.string])
        peer.record("types", lambda: s.run(take))
        n = tf.placeholder(tf.int32)
        take = raw.BarrierTakeMany(handle=handle, num_elements=n, component_types=[tf.float32, tf.string])
        s.run(second, {keys: [b"a"], words: [[b"x", b"y"]]})
        s.run(first, {keys: [b"a"], floats: [3.0]})
        peer.record("taken", s.run(take, {n: 1}))
        small = raw.BarrierTakeMany(handle=handle, num_elements=n, component_types=[tf.float32, tf.string], timeout_ms=5)
        peer.record("timeout", lambda: s.run(small, {n: 1}))


@scenario
def barriers_are_shared_by_name(peer):
    name = peer.name("b")
    make = data_flow_ops.Barrier
    first = make([tf.float32], shapes=[()], shared_name=name)
    others = [
        make([tf.float64], shapes=[()], shared_name=name),
        make([tf.float32], shapes=[(2,)], shared_name=name),
        make([tf.float32, tf.float32], shapes=[(), ()], shared_name=name),
    ]
    unnamed = tf.raw_ops.Barrier(component_types=[tf.int32], shapes=[], shared_name=peer.name("b"))
    odd = tf.raw_ops.Barrier(component_types=[tf.int32], shapes=[[], []], shared_name=peer.name("b"))
    limited = tf.raw_ops.Barrier(component_types=[tf.int32], shapes=[[]], capacity=3, shared_name=peer.name("b"))
    with peer.session() as s:
        peer.record("first", s.run(first.ready_size()))
        for other in others:
            peer.record("other", lambda: s.run(other.ready_size()))
        for handle in (unnamed, odd, limited):
            peer.record("odd", lambda: s.run(tf.raw_ops.BarrierReadySize(handle=handle)))
