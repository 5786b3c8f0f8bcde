"""Staging areas, in FIFO order and by key."""
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import data_flow_ops

from . import scenario, until


@scenario
def staged_elements_are_first_in_first_out(peer):
    area = data_flow_ops.StagingArea([tf.float32, tf.string], shapes=[[], [None]], capacity=3, shared_name=peer.name("s"))
    x, y = tf.placeholder(tf.float32, []), tf.placeholder(tf.string, [None])
    put, get, size, clear = area.put([x, y]), area.get(), area.size(), area.clear()
    peek = [area.peek(i) for i in range(2)]
    with peer.session() as s:
        for i in range(3):
            s.run(put, {x: i, y: [str(i)] * i})
        peer.record("size", s.run(size))
        blocked = peer.background(lambda: s.run(put, {x: 9, y: []}))
        peer.record("peek", s.run(peek[0]))
        peer.record("peek", s.run(peek[1]))
        peer.record("get", s.run(get))
        peer.record("put", blocked.join())
        peer.record("get", s.run(get))
        s.run(clear)
        peer.record("size", s.run(size))
        waits = peer.background(lambda: s.run(get))
        s.run(put, {x: 5, y: ["w"]})
        peer.record("waited", waits.join())
        waits = peer.background(lambda: s.run(peek[1]))
        s.run(put, {x: 6, y: ["w"]})
        s.run(put, {x: 7, y: ["v"]})
        peer.record("peek waited", waits.join())


@scenario
def staging_areas_limit_their_memory(peer):
    area = data_flow_ops.StagingArea([tf.float32], shapes=[[None]], memory_limit=40, shared_name=peer.name("s"))
    x = tf.placeholder(tf.float32, [None])
    put, get, size = area.put([x]), area.get(), area.size()
    with peer.session() as s:
        s.run(put, {x: [1.0] * 6})
        blocked = peer.background(lambda: s.run(put, {x: [2.0] * 5}))
        peer.record("get", s.run(get))
        peer.record("put", blocked.join())
        peer.record("size", s.run(size))
        peer.record("never fits", lambda: s.run(put, {x: [0.0] * 11}))


@scenario
def staging_by_key(peer):
    for ordered in (False, True):
        with tf.Graph().as_default():
            area = data_flow_ops.MapStagingArea(
                [tf.float32, tf.int32, tf.string], shapes=[[], [], []], names=["x", "n", "w"], ordered=ordered, capacity=4, shared_name=peer.name("m")
            )
            key = tf.placeholder(tf.int64, [])
            x, n, w = tf.placeholder(tf.float32, []), tf.placeholder(tf.int32, []), tf.placeholder(tf.string, [])
            put = area.put(key, {"x": x, "n": n, "w": w})
            put_x, put_rest = area.put(key, {"x": x}), area.put(key, {"n": n, "w": w})
            get, get_any, size, incomplete, clear = area.get(key), area.get(), area.size(), area.incomplete_size(), area.clear()
            get_x = area.get(key, ["x"])
            peek = area.peek(key)
            with peer.session() as s:
                s.run(put, {key: 7, x: 1.5, n: 1, w: "a"})
                s.run(put_x, {key: 3, x: 2.5})
                peer.record("sizes", [s.run(size), s.run(incomplete)])
                s.run(put_rest, {key: 3, n: 2, w: "b"})
                peer.record("sizes", [s.run(size), s.run(incomplete)])
                peer.record("again", lambda: s.run(put, {key: 7, x: 1.5, n: 1, w: "a"}))
                peer.record("peek", sorted_items(s.run(peek, {key: 7})))
                peer.record("get", sorted_items(s.run(get, {key: 7})))
                peer.record("any", sorted_items(s.run(get_any)))
                waits = peer.background(lambda: sorted_items(s.run(get, {key: 11})))
                s.run(put, {key: 10, x: 1.0, n: 1, w: "c"})
                s.run(put, {key: 11, x: 2.0, n: 1, w: "d"})
                peer.record("waited", waits.join())
                peer.record("part", sorted_items(s.run(get_x, {key: 10})))
                peer.record("part again", lambda: s.run(get_x, {key: 10}))
                peer.record("sizes", [s.run(size), s.run(incomplete)])
                s.run(clear)
                peer.record("sizes", [s.run(size), s.run(incomplete)])
                s.run(put_x, {key: 1, x: 2.5})
                peer.record("twice", lambda: s.run(put_x, {key: 1, x: 2.5}))
                for i in range(2, 6):
                    if ordered:
                        s.run(put, {key: 10 - i, x: i, n: 1, w: "d"})
                if ordered:
                    blocked = peer.background(lambda: s.run(put, {key: 1, x: 0, n: 1, w: "d"}) and None)
                    peer.record("least", sorted_items(s.run(get_any)))
                    peer.record("there is room", blocked.join())
                    peer.record("least", sorted_items(s.run(get_any)))


def sorted_items(value):
    if isinstance(value, dict):
        return [[k, plain(v)] for k, v in sorted(value.items())]
    return [sorted_items(v) if isinstance(v, dict) else plain(v) for v in value]


def plain(value):
    return getattr(value, "tolist", lambda: value)()


@scenario
def invalid_calls_of_staging_by_key_are_refused(peer):
    raw = tf.raw_ops
    name = peer.name("m")
    dtypes = [tf.float32, tf.int32]
    indices, key = tf.placeholder(tf.int32), tf.placeholder(tf.int64)
    x, n = tf.placeholder(tf.float32), tf.placeholder(tf.int32)
    both = raw.MapStage(key=key, indices=indices, values=[x, n], dtypes=dtypes, shared_name=name, memory_limit=100)
    one = raw.MapStage(key=key, indices=indices, values=[n], dtypes=dtypes, shared_name=name, memory_limit=100)
    with peer.session() as s:
        peer.record("order", lambda: s.run(both, {key: 1, indices: [1, 0], x: 1.0, n: 1}))
        peer.record("negative", lambda: s.run(one, {key: 1, indices: [-1], n: 1}))
        peer.record("incomplete memory", lambda: s.run(one, {key: 6, indices: [1], n: [1] * 50}))
        peer.record("key", lambda: s.run(both, {key: [1, 2], indices: [0, 1], x: 1.0, n: 1}))
        peer.record("size", s.run(raw.MapSize(dtypes=dtypes, shared_name=name, memory_limit=100)))


@scenario
def staging_ends_with_its_step(peer):
    area = data_flow_ops.StagingArea([tf.float32], shapes=[[]], shared_name=peer.name("s"))
    put, get, size = area.put([tf.constant(1.0)]), area.get(), area.size()
    with peer.session() as s:
        s.run(put)
        peer.record("size", s.run(size))
        peer.record("get", s.run(get))
        until(lambda: s.run(size) == 0)
