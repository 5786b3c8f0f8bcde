"""Queues, staging areas, tables and other objects that keep values between steps support all types of TensorFlow."""
import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import kernels
from tensorflow.python.ops import data_flow_ops

from . import scenario

raw = tf.raw_ops

NUMBERS = [
    tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128, tf.int8, tf.int16, tf.int32, tf.int64,
    tf.uint8, tf.uint16, tf.uint32, tf.uint64,
]
TYPES = NUMBERS + [tf.bool, tf.string, tf.qint8, tf.quint8, tf.qint16, tf.quint16, tf.qint32]


def pair(dtype):
    """Returns a tensor of two elements of a type."""
    if dtype == tf.string:
        return tf.constant(["one", ""])
    if dtype.is_quantized:
        return tf.bitcast(tf.constant([1, 2], tf.as_dtype(dtype.name.removeprefix("q"))), dtype)
    return tf.cast(tf.constant([1, 0]), dtype)


def fetchable(value):
    """Converts a quantized tensor to an integer tensor, which a client can fetch."""
    return tf.bitcast(value, tf.as_dtype(value.dtype.name.removeprefix("q"))) if value.dtype.is_quantized else value


def for_each_type(peer, types, build):
    """Records for each type the values of the fetches that `build` returns, which run one after the other. Skips types for
    which TensorFlow has no kernels."""
    compared = 0
    for dtype in types:
        with tf.Graph().as_default() as graph:
            fetches = list(build(dtype))
            if not all(has_kernel(op) for op in graph.get_operations()):
                continue
            compared += 1
            with peer.session() as s:
                for i, fetch in enumerate(fetches):
                    peer.record(f"{dtype.name} {i}", lambda fetch=fetch: in_words(s.run(fetch)))
    assert compared > 2, compared


def has_kernel(op):
    """Returns whether TensorFlow has a CPU kernel for a node."""
    defs = kernels.get_registered_kernels_for_op(op.type).kernel
    return any(k.device_type in ("CPU", "DEFAULT") and all(fits(op, c) for c in k.constraint) for k in defs)


def fits(op, constraint):
    value = op.node_def.attr[constraint.name]
    types = value.list.type if value.HasField("list") else [value.type]
    return all(t in constraint.allowed_values.list.type for t in types)


def in_words(value):
    """Converts values to text, because Python's numbers of some types cannot be compared."""
    return [str(v) for v in np.ravel(value)] if isinstance(value, np.ndarray) else str(value)


@scenario
def queues_of_every_type(peer):
    def build(dtype):
        value = pair(dtype)
        for kind in ("fifo", "padding", "shuffle", "priority"):
            name = peer.name(kind)
            if kind == "fifo":
                queue = tf.FIFOQueue(3, dtype, [[2]], shared_name=name)
            elif kind == "padding":
                queue = tf.PaddingFIFOQueue(3, dtype, [[None]], shared_name=name)
            elif kind == "shuffle":
                queue = tf.RandomShuffleQueue(3, 0, dtype, [[2]], shared_name=name)
            else:
                queue = data_flow_ops.PriorityQueue(3, dtype, [[2]], shared_name=name)
            put = (tf.constant(1, tf.int64), value) if kind == "priority" else value
            yield queue.enqueue(put)
            yield queue.enqueue(put)
            many = queue.dequeue_many(2)
            yield many[1] if kind == "priority" else many

    # Without quantized types, whose batched enqueues and dequeues are Unimplemented in TensorFlow.
    for_each_type(peer, NUMBERS + [tf.bool, tf.string], build)


@scenario
def staging_areas_of_every_type(peer):
    def build(dtype):
        area = data_flow_ops.StagingArea([dtype], [[2]], capacity=2, shared_name=peer.name("area"))
        yield area.put([pair(dtype)])
        yield fetchable(area.peek(0)[0])
        yield fetchable(area.get()[0])
        by_key = data_flow_ops.MapStagingArea([dtype], [[2]], capacity=2, shared_name=peer.name("map"))
        key = tf.constant(4, tf.int64)
        yield by_key.put(key, [pair(dtype)], [0])
        yield fetchable(by_key.get(key)[1][0])

    for_each_type(peer, TYPES, build)


@scenario
def barriers_of_every_type(peer):
    def build(dtype):
        barrier = data_flow_ops.Barrier([dtype], [()], shared_name=peer.name("barrier"))
        yield barrier.insert_many(0, ["a", "b"], pair(dtype))
        yield fetchable(barrier.take_many(2)[2][0])

    for_each_type(peer, TYPES, build)


@scenario
def accumulators_of_every_type(peer):
    def build(dtype):
        for shape in ([2], [None]):
            handle = raw.ConditionalAccumulator(dtype=dtype, shape=shape, shared_name=peer.name("sum"))
            step = tf.constant(0, tf.int64)
            yield raw.AccumulatorApplyGradient(handle=handle, local_step=step, gradient=pair(dtype))
            yield raw.AccumulatorApplyGradient(handle=handle, local_step=step, gradient=pair(dtype))
            yield raw.AccumulatorTakeGradient(handle=handle, num_required=2, dtype=dtype)
        sparse = raw.SparseConditionalAccumulator(dtype=dtype, shape=[3], shared_name=peer.name("sparse"))
        yield raw.SparseAccumulatorApplyGradient(
            handle=sparse, local_step=step, gradient_indices=tf.constant([2, 0], tf.int64), gradient_values=pair(dtype),
            gradient_shape=tf.constant([3], tf.int64), has_known_shape=True,
        )
        yield raw.SparseAccumulatorTakeGradient(handle=sparse, num_required=1, dtype=dtype)[1]

    for_each_type(peer, NUMBERS, build)


@scenario
def tensor_arrays_and_lists_of_every_type(peer):
    def build(dtype):
        value = pair(dtype)
        array = tf.TensorArray(dtype, 3, clear_after_read=False).write(0, value).write(2, value)
        yield fetchable(array.read(2))
        yield fetchable(array.gather([0, 2]))
        yield fetchable(array.stack())
        yield fetchable(tf.TensorArray(dtype, 2).unstack(value).stack())
        yield fetchable(tf.TensorArray(dtype, 1).split(value, [2]).concat())
        items = raw.TensorListFromTensor(tensor=value, element_shape=tf.constant([], tf.int32))
        items = raw.TensorListPushBack(input_handle=items, tensor=value[0])
        yield fetchable(raw.TensorListStack(input_handle=items, element_shape=tf.constant([], tf.int32), element_dtype=dtype))
        yield fetchable(raw.TensorListGather(input_handle=items, indices=[2, 0], element_shape=tf.constant([], tf.int32), element_dtype=dtype))
        stack = raw.StackV2(max_size=-1, elem_type=dtype, stack_name="")
        with tf.control_dependencies([raw.StackPushV2(handle=stack, elem=value)]):
            yield fetchable(raw.StackPopV2(handle=stack, elem_type=dtype))

    for_each_type(peer, TYPES, build)


@scenario
def tables_of_every_type(peer):
    def build(key, value):
        table = raw.MutableHashTableV2(key_dtype=key, value_dtype=value, shared_name=peer.name("table"))
        yield raw.LookupTableInsertV2(table_handle=table, keys=pair(key), values=pair(value))
        default = tf.zeros([], value) if value != tf.string else tf.constant("none")
        yield raw.LookupTableFindV2(table_handle=table, keys=pair(key), default_value=default)
        yield raw.LookupTableSizeV2(table_handle=table)

    for key in (tf.int32, tf.int64, tf.string):
        for_each_type(peer, NUMBERS + [tf.bool, tf.string], lambda value, key=key: build(key, value))


@scenario
def variables_of_every_type(peer):
    def build(dtype):
        value = pair(dtype)
        handle = raw.VarHandleOp(dtype=dtype, shape=[2], shared_name=peer.name("resource"))
        yield raw.VarIsInitializedOp(resource=handle)
        yield raw.AssignVariableOp(resource=handle, value=value)
        yield fetchable(raw.ReadVariableOp(resource=handle, dtype=dtype))
        yield raw.AssignAddVariableOp(resource=handle, value=value)
        yield fetchable(raw.ReadVariableOp(resource=handle, dtype=dtype))
        yield fetchable(raw.ResourceGather(resource=handle, indices=[1, 1], dtype=dtype))
        with tf.variable_scope(peer.name("ref")):
            ref = tf.get_variable("v", initializer=value, use_resource=False)
        yield ref.initializer
        yield fetchable(tf.identity(ref))
        yield fetchable(tf.scatter_update(ref, [0], value[1:]))

    for_each_type(peer, TYPES, build)


@scenario
def switches_and_loops_of_every_type(peer):
    def build(dtype):
        value = pair(dtype)
        off, on = raw.Switch(data=value, pred=tf.constant(True))
        yield fetchable(raw.Merge(inputs=[off, on])[0])
        yield fetchable(raw.Merge(inputs=[on, off])[0])
        entered = raw.Enter(data=value, frame_name=peer.name("frame"), is_constant=False, parallel_iterations=1)
        yield fetchable(raw.Exit(data=entered))
        looped = tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, tf.identity(v)), [0, value])
        yield fetchable(looped[1])

    for_each_type(peer, TYPES, build)
