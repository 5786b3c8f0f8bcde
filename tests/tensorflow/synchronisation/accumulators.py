"""Dense and sparse accumulators of gradients."""
import numpy as np
import tensorflow.compat.v1 as tf

from . import scenario


@scenario
def gradients_are_averaged(peer):
    for reduction in ("MEAN", "SUM"):
        for dtype in (tf.float16, tf.float32, tf.float64):
            with tf.Graph().as_default():
                a = tf.ConditionalAccumulator(dtype, shape=[2], shared_name=peer.name("a"), reduction_type=reduction)
                g = tf.placeholder(dtype, [2])
                step = tf.placeholder(tf.int64, [])
                apply = a.apply_grad(g, step)
                with peer.session() as s:
                    peer.record("none", s.run(a.num_accumulated()))
                    for i, v in enumerate([[1, 2], [3, 5], [4, 0.5]]):
                        s.run(apply, {g: v, step: i})
                    peer.record("three", s.run(a.num_accumulated()))
                    peer.record("taken", s.run(a.take_grad(2)))
                    peer.record("none", s.run(a.num_accumulated()))
                    s.run(apply, {g: [9, 9], step: 0})
                    peer.record("stale", s.run(a.num_accumulated()))
                    s.run(apply, {g: [7, 9], step: 1})
                    peer.record("fresh", s.run(a.num_accumulated()))
                    s.run(a.set_global_step(5))
                    s.run(apply, {g: [7, 9], step: 4})
                    peer.record("stale again", s.run(a.num_accumulated()))
                    waits = peer.background(s.make_callable(a.take_grad(2)))
                    s.run(apply, {g: [1, 1], step: 5})
                    peer.record("waited", waits.join())
                    s.run(apply, {g: [1, 1], step: 5})
                    peer.record("its step is 6 now", s.run(a.num_accumulated()))
                    s.run(a.set_global_step(1))
                    s.run(apply, {g: [1, 1], step: 5})
                    peer.record("set back", s.run(a.num_accumulated()))


@scenario
def gradients_of_wrong_shapes_are_refused(peer):
    raw = tf.raw_ops
    a = tf.ConditionalAccumulator(tf.float32, shape=[2], shared_name=peer.name("a"))
    handle = a.accumulator_ref
    g = tf.placeholder(tf.float32)
    with peer.session() as s:
        apply = raw.ResourceAccumulatorApplyGradient(handle=handle, local_step=tf.constant(0, tf.int64), gradient=g)
        peer.record("shape", lambda: s.run(apply, {g: [1.0, 2.0, 3.0]}))
        s.run(apply, {g: [1.0, 2.0]})
        peer.record("shape", lambda: s.run(apply, {g: [1.0, 2.0, 3.0]}))
        peer.record("rank", lambda: s.run(apply, {g: [[1.0, 2.0]]}))
        n = tf.placeholder(tf.int32)
        take = raw.ResourceAccumulatorTakeGradient(handle=handle, num_required=n, dtype=tf.float32)
        peer.record("zero", lambda: s.run(take, {n: 0}))
        peer.record("negative", lambda: s.run(take, {n: -1}))
        peer.record("count", s.run(a.num_accumulated()))
    free = tf.ConditionalAccumulator(tf.float32, shared_name=peer.name("a"))
    apply = raw.ResourceAccumulatorApplyGradient(handle=free.accumulator_ref, local_step=tf.constant(0, tf.int64), gradient=g)
    with peer.session() as s:
        s.run(apply, {g: [1.0, 2.0]})
        peer.record("other shape", lambda: s.run(apply, {g: [1.0]}))
        peer.record("taken", s.run(free.take_grad(1)))
        partial = tf.ConditionalAccumulator(tf.float32, shape=[None, 2], shared_name=peer.name("a"))
        apply = raw.ResourceAccumulatorApplyGradient(handle=partial.accumulator_ref, local_step=tf.constant(0, tf.int64), gradient=g)
        s.run(apply, {g: [[1.0, 2.0]]})
        peer.record("partly known", lambda: s.run(apply, {g: [[1.0, 2.0, 3.0]]}))
        peer.record("other size", lambda: s.run(apply, {g: [[1.0, 2.0], [1.0, 2.0]]}))
        peer.record("taken", s.run(partial.take_grad(1)))


@scenario
def accumulators_are_shared_by_name(peer):
    name = peer.name("a")
    a = tf.ConditionalAccumulator(tf.float32, shape=[2], shared_name=name)
    others = [
        tf.ConditionalAccumulator(tf.float64, shape=[2], shared_name=name),
        tf.ConditionalAccumulator(tf.float32, shape=[3], shared_name=name),
        tf.ConditionalAccumulator(tf.float32, shape=[2], shared_name=name, reduction_type="SUM"),
        tf.ConditionalAccumulator(tf.float32, shape=[2], shared_name=name),
    ]
    with peer.session() as s:
        peer.record("first", s.run(a.num_accumulated()))
        for other in others:
            peer.record("other", lambda: s.run(other.num_accumulated()))


@scenario
def accumulators_by_reference(peer):
    raw = tf.raw_ops
    for dtype in (tf.float16, tf.float32, tf.float64):
        with tf.Graph().as_default():
            handle = raw.ConditionalAccumulator(dtype=dtype, shape=[2], shared_name=peer.name("a"))
            step = tf.constant(1, tf.int64)
            apply = raw.AccumulatorApplyGradient(handle=handle, local_step=step, gradient=tf.constant([1, 2.5], dtype))
            number = raw.AccumulatorNumAccumulated(handle=handle)
            set_step = raw.AccumulatorSetGlobalStep(handle=handle, new_global_step=step + 1)
            take = raw.AccumulatorTakeGradient(handle=handle, num_required=2, dtype=dtype)
            with peer.session() as s:
                s.run(apply)
                s.run(apply)
                peer.record("number", s.run(number))
                peer.record("taken", s.run(take))
                s.run(set_step)
                s.run(apply)
                peer.record("number", s.run(number))


@scenario
def sparse_gradients(peer):
    for reduction in ("MEAN", "SUM"):
        for dtype in (tf.float16, tf.float32, tf.float64):
            with tf.Graph().as_default():
                a = tf.SparseConditionalAccumulator(dtype, shape=[8, 2], shared_name=peer.name("a"), reduction_type=reduction)
                indices, values = tf.placeholder(tf.int64, [None]), tf.placeholder(dtype, [None, 2])
                step = tf.placeholder(tf.int64, [])
                apply = a.apply_grad(indices, values, [8, 2], step)
                with peer.session() as s:
                    s.run(apply, {indices: [1, 4], values: [[1, 2], [3, 4]], step: 0})
                    s.run(apply, {indices: [0, 4, 7], values: [[5, 6], [7, 8], [9, 1]], step: 0})
                    s.run(apply, {indices: [4], values: [[1, 0]], step: 0})
                    peer.record("number", s.run(a.num_accumulated()))
                    peer.record("taken", list(s.run(a.take_grad(3))))
                    s.run(apply, {indices: [1], values: [[1, 2]], step: 0})
                    peer.record("stale", s.run(a.num_accumulated()))
                    s.run(apply, {indices: [1], values: [[1, 2]], step: 1})
                    slices = a.take_indexed_slices_grad(1)
                    peer.record("slices", list(s.run([slices.indices, slices.values, slices.dense_shape])))
                    nothing = np.zeros([0, 2], dtype.as_numpy_dtype)
                    peer.record("nothing", lambda: s.run(apply, {indices: [], values: nothing, step: 2}))


@scenario
def sparse_gradients_of_wrong_shapes_are_refused(peer):
    raw = tf.raw_ops
    for known in (True, False):
        for declared in ([3, 2], None):
            with tf.Graph().as_default():
                a = tf.SparseConditionalAccumulator(tf.float32, shape=declared, shared_name=peer.name("a"))
                i, v, shape = tf.placeholder(tf.int64), tf.placeholder(tf.float32), tf.placeholder(tf.int64)
                apply = raw.SparseAccumulatorApplyGradient(
                    handle=a.accumulator_ref, local_step=tf.constant(0, tf.int64), gradient_indices=i, gradient_values=v, gradient_shape=shape, has_known_shape=known
                )
                with peer.session() as s:
                    calls = [
                        ([1], [[1.0, 2.0]], [3, 2]),
                        ([1], [[1.0, 2.0, 3.0]], [3, 3]),
                        ([1], [[1.0, 2.0]], [4, 2]),
                        ([1], [[1.0, 2.0]], [3, 2, 1]),
                        ([1, 2], [[1.0, 2.0]], [3, 2]),
                        ([[1]], [[1.0, 2.0]], [3, 2]),
                        ([1], 1.0, [3, 2]),
                        ([2, 0], [[1.0, 2.0], [3.0, 4.0]], [3, 2]),
                        ([0, 0], [[1.0, 2.0], [3.0, 4.0]], [3, 2]),
                        ([7], [[1.0, 2.0]], [3, 2]),
                        ([-1], [[1.0, 2.0]], [3, 2]),
                        ([0], [[1.0]], [3, 1]),
                    ]
                    for call in calls:
                        peer.record(f"{known} {declared} {call}", lambda: s.run(apply, dict(zip((i, v, shape), call))))
                    peer.record("number", s.run(a.num_accumulated()))
                    take = raw.SparseAccumulatorTakeGradient(handle=a.accumulator_ref, num_required=1, dtype=tf.float32)
                    peer.record("taken", lambda: list(s.run(take)))
