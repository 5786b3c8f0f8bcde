"""Barriers: components inserted under keys, taken when complete."""
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import data_flow_ops

from . import scenario


def barrier(peer, types=(tf.float32, tf.string), shapes=((), ())):
    return data_flow_ops.Barrier(types, shapes=shapes, shared_name=peer.name("b"))


@scenario
def components_meet_under_their_key(peer):
    b = barrier(peer)
    with peer.session() as s:
        s.run(b.insert_many(0, [b"a", b"b", b"c"], [1.0, 2.0, 3.0]))
        peer.say("ready", s.run(b.ready_size()))
        peer.say("incomplete", s.run(b.incomplete_size()))
        s.run(b.insert_many(1, [b"c", b"a"], [b"x", b"y"]))
        peer.say("ready", s.run(b.ready_size()))
        peer.say("incomplete", s.run(b.incomplete_size()))
        peer.say("taken", s.run(b.take_many(2)))
        waits = peer.background(s.make_callable(b.take_many(2)))
        s.run(b.insert_many(1, [b"b"], [b"z"]))
        s.run(b.insert_many(0, [b"a"], [5.0]))
        s.run(b.insert_many(1, [b"a"], [b"w"]))
        peer.say("waited", waits.join())
        s.run(b.insert_many(0, [b"k", b"l"], [1.0, 2.0]))
        peer.say("twice", lambda: s.run(b.insert_many(0, [b"k"], [1.0])))
        s.run(b.close())
        peer.say("closed, complete", s.run(b.insert_many(1, [b"k"], [b"v"])))
        peer.say("closed, new", lambda: s.run(b.insert_many(0, [b"n"], [1.0])))
        peer.say("too many", lambda: s.run(b.take_many(3)))
        peer.say("small", lambda: s.run(b.take_many(1, allow_small_batch=True)))
        s.run(b.insert_many(1, [b"l"], [b"v"]))
        peer.say("all complete", lambda: s.run(b.insert_many(0, [b"n"], [1.0])))
        peer.say("small", lambda: s.run(b.take_many(5, allow_small_batch=True)))
        peer.say("empty", lambda: s.run(b.take_many(1, allow_small_batch=True)))
        peer.say("empty", lambda: s.run(b.take_many(1)))
        peer.say("again", lambda: s.run(b.close()))
        peer.say("cancel", lambda: s.run(b.close(cancel_pending_enqueues=True)))


@scenario
def a_cancelled_barrier(peer):
    b = barrier(peer)
    with peer.session() as s:
        s.run(b.insert_many(0, [b"a", b"b"], [1.0, 2.0]))
        s.run(b.insert_many(1, [b"a"], [b"x"]))
        s.run(b.close(cancel_pending_enqueues=True))
        peer.say("incomplete", s.run(b.incomplete_size()))
        peer.say("insert", lambda: s.run(b.insert_many(1, [b"b"], [b"x"])))
        peer.say("too many", lambda: s.run(b.take_many(2)))
        peer.say("one", s.run(b.take_many(1)))
        peer.say("empty", lambda: s.run(b.take_many(1)))


@scenario
def a_closed_barrier_waits_for_the_incomplete(peer):
    b = barrier(peer)
    with peer.session() as s:
        s.run(b.insert_many(0, [b"a", b"b"], [1.0, 2.0]))
        s.run(b.insert_many(1, [b"a"], [b"x"]))
        s.run(b.close())
        peer.say("too many", lambda: s.run(b.take_many(3)))
        peer.say("small", s.run(b.take_many(3, allow_small_batch=True)))
        one = peer.background(s.make_callable(b.take_many(1)))
        s.run(b.insert_many(1, [b"b"], [b"y"]))
        peer.say("one", one.join())
        peer.say("empty", lambda: s.run(b.take_many(3, allow_small_batch=True)))


@scenario
def who_waits_for_a_barrier_that_closes(peer):
    b = barrier(peer)
    take = b.take_many(2)
    with peer.session() as s:
        s.run(b.insert_many(0, [b"a"], [1.0]))
        s.run(b.insert_many(1, [b"a"], [b"x"]))
        waits = peer.background(lambda: type_of(lambda: s.run(take)))
        s.run(b.close(cancel_pending_enqueues=True))
        peer.say("waited", waits.join())
        peer.say("given back", s.run(b.ready_size()))


def type_of(f):
    try:
        f()
    except tf.errors.OpError as error:
        return type(error).__name__
    return None


@scenario
def what_a_barrier_refuses(peer):
    b = barrier(peer, shapes=((), (2,)))
    raw = tf.raw_ops
    keys, floats, words = tf.placeholder(tf.string), tf.placeholder(tf.float32), tf.placeholder(tf.string)
    handle = b.barrier_ref
    with peer.session() as s:
        first = raw.BarrierInsertMany(handle=handle, keys=keys, values=floats, component_index=0)
        second = raw.BarrierInsertMany(handle=handle, keys=keys, values=words, component_index=1)
        wrong = raw.BarrierInsertMany(handle=handle, keys=keys, values=words, component_index=0)
        beyond = raw.BarrierInsertMany(handle=handle, keys=keys, values=words, component_index=2)
        peer.say("type", lambda: s.run(wrong, {keys: [b"a"], words: [b"x"]}))
        peer.say("index", lambda: s.run(beyond, {keys: [b"a"], words: [b"x"]}))
        take = raw.BarrierTakeMany(handle=handle, num_elements=1, component_types=[tf.int32, tf.string])
        peer.say("types", lambda: s.run(take))
        n = tf.placeholder(tf.int32)
        take = raw.BarrierTakeMany(handle=handle, num_elements=n, component_types=[tf.float32, tf.string])
        s.run(second, {keys: [b"a"], words: [[b"x", b"y"]]})
        s.run(first, {keys: [b"a"], floats: [3.0]})
        peer.say("taken", s.run(take, {n: 1}))
        small = raw.BarrierTakeMany(handle=handle, num_elements=n, component_types=[tf.float32, tf.string], timeout_ms=5)
        peer.say("timeout", lambda: s.run(small, {n: 1}))


@scenario
def barriers_of_one_name(peer):
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
        peer.say("first", s.run(first.ready_size()))
        for other in others:
            peer.say("other", lambda: s.run(other.ready_size()))
        for handle in (unnamed, odd, limited):
            peer.say("odd", lambda: s.run(tf.raw_ops.BarrierReadySize(handle=handle)))
