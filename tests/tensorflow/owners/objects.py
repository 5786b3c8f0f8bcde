"""Queues, barriers, accumulators, tables, readers, staging areas, variables and objects of steps."""
import os

import tensorflow.compat.v1 as tf

from . import after, call, first, makes

FLOAT = tf.float32


@makes("FIFOQueue", "RandomShuffleQueue", "PaddingFIFOQueue", "PriorityQueue")
def queue(b):
    return on_queue(b, "", make_queue(b))


@makes("FIFOQueueV2", "RandomShuffleQueueV2", "PaddingFIFOQueueV2", "PriorityQueueV2")
def queue_with_handle(b):
    return on_queue(b, "V2", make_queue(b))


def make_queue(b):
    if b.op.startswith("Priority"):
        return b.make(component_types=[FLOAT], shapes=[[]])
    return b.make(component_types=[FLOAT], shapes=[[]])


def on_queue(b, version, handle):
    values = [tf.constant(0, tf.int64), tf.constant(1.0)] if b.op.startswith("Priority") else [tf.constant(1.0)]
    return call(f"QueueEnqueue{version}", handle=handle, components=values), call(f"QueueSize{version}", handle=handle)


@makes("FakeQueue")
def fake_queue(b):
    handle = call("FIFOQueueV2", name=f"{b.node}_of", component_types=[FLOAT], shapes=[[]], **b.names())
    return on_queue(b, "", b.make_unnamed(resource=handle))


@makes("Barrier", outlives=False)
def barrier(b):
    handle = b.make(component_types=[FLOAT], shapes=[[]])
    insert = call("BarrierInsertMany", handle=handle, keys=[b.key], values=[1.0], component_index=0)
    return insert, call("BarrierReadySize", handle=handle)


@makes("ConditionalAccumulator", removable=False)
def accumulator(b):
    handle = b.make(dtype=FLOAT, shape=[])
    add = call("AccumulatorApplyGradient", handle=handle, local_step=tf.constant(0, tf.int64), gradient=1.0)
    return add, call("AccumulatorNumAccumulated", handle=handle)


@makes("ResourceConditionalAccumulator", removable=False)
def resource_accumulator(b):
    handle = b.make(dtype=FLOAT, shape=[])
    add = call("ResourceAccumulatorApplyGradient", handle=handle, local_step=tf.constant(0, tf.int64), gradient=1.0)
    return add, call("ResourceAccumulatorNumAccumulated", handle=handle)


@makes("SparseConditionalAccumulator", removable=False)
def sparse_accumulator(b):
    handle = b.make(dtype=FLOAT, shape=[3])
    add = call(
        "SparseAccumulatorApplyGradient", handle=handle, local_step=tf.constant(0, tf.int64), has_known_shape=True,
        gradient_indices=tf.constant([0], tf.int64), gradient_values=[1.0], gradient_shape=tf.constant([3], tf.int64),
    )
    return add, call("AccumulatorNumAccumulated", handle=handle)


def by_handle(op):
    return "V2" if op.endswith("V2") or op.startswith("Anonymous") else ""


def table_types(b):
    if "Dense" in b.op:
        return {"empty_key": "", "deleted_key": "-", "value_dtype": FLOAT}
    if "OfTensors" in b.op:
        return {"key_dtype": tf.string, "value_dtype": FLOAT, "value_shape": [1]}
    return {"key_dtype": tf.string, "value_dtype": FLOAT}


def on_table(b, handle):
    version = by_handle(b.op)
    if b.op.rstrip("V2") in ("HashTable", "AnonymousHashTable"):
        change = call(f"InitializeTable{version}", table_handle=handle, keys=["a", "b"], values=[1.0, 2.0])
    else:
        values = [[1.0]] if "OfTensors" in b.op else [1.0]
        change = call(f"LookupTableInsert{version}", table_handle=handle, keys=[b.key], values=values)
    return change, lambda: call(f"LookupTableSize{version}", table_handle=handle)


KINDS = ("HashTable", "MutableHashTable", "MutableHashTableOfTensors", "MutableDenseHashTable")
# TensorFlow has no kernel for the oldest form of a dense table.
TABLES = (*KINDS[:-1], *(f"{kind}V2" for kind in KINDS))


@makes(*TABLES)
def table(b):
    change, size = on_table(b, b.make(**table_types(b)))
    return change, size()


@makes(*TABLES, variant="by_node")
def table_of_a_node(b):
    change, size = on_table(b, b.make(use_node_name_sharing=True, **table_types(b)))
    return change, size()


@makes(*(f"Anonymous{kind}" for kind in KINDS))
def anonymous_table(b):
    change, size = on_table(b, b.make_unnamed(**table_types(b)))
    return tf.no_op(), after(change, size)


@makes("IdentityReader", "WholeFileReader", "TextLineReader", "TFRecordReader", removable=False)
def reader(b):
    return on_reader(b, "")


@makes("IdentityReaderV2", "WholeFileReaderV2", "TextLineReaderV2", "TFRecordReaderV2", "FixedLengthRecordReaderV2", removable=False)
def reader_with_handle(b):
    return on_reader(b, "V2")


def on_reader(b, version):
    handle = b.make(record_bytes=1) if b.op.startswith("Fixed") else b.make()
    work = call(f"FIFOQueue{version}", component_types=[tf.string])
    name = "records" if b.op.startswith("TFRecord") else "lines"
    supply = call(f"QueueEnqueue{version}", handle=work, components=[tf.constant(os.path.join(b.folder, name))])
    with tf.control_dependencies([supply]):
        read = call(f"ReaderRead{version}", reader_handle=handle, queue_handle=work)
    return read[0].op, call(f"ReaderNumRecordsProduced{version}", reader_handle=handle)


AREA = {"dtypes": [FLOAT]}


def area(b, op, **arguments):
    """Adds an op on the staging area that the object's op names; returns its outputs."""
    return call(op, shared_name=b.shared, container=b.container, **arguments, **AREA)


def family(op):
    """Returns the prefix of the names of the ops on the same kind of area."""
    return "OrderedMap" if op.startswith("OrderedMap") else "Map" if op.startswith("Map") else ""


def put(b, op):
    kind = family(op)
    if not kind:
        return {"values": [1.0]}
    key = tf.strings.to_hash_bucket_fast(b.key, 1 << 40)
    return {"key": key, "indices": [0], "values": [1.0], "fake_dtypes": [FLOAT]}


@makes("Stage", "MapStage", "OrderedMapStage")
def stage(b):
    change = call(b.op, name=b.node, **b.names(), **AREA, **put(b, b.op))
    return change, area(b, f"{family(b.op)}{'Size' if family(b.op) else 'StageSize'}")


def add(b):
    """Returns a node that puts a value into the area."""
    kind = family(b.op)
    return area(b, f"{kind}Stage", **put(b, b.op))


def size(b):
    kind = family(b.op)
    return area(b, f"{kind}Size" if kind else "StageSize")


@makes("StageSize", "MapSize", "OrderedMapSize", "MapIncompleteSize", "OrderedMapIncompleteSize")
def staged_size(b):
    return add(b), call(b.op, name=b.node, **b.names(), **AREA)


@makes("StageClear", "MapClear", "OrderedMapClear")
def cleared(b):
    clear = call(b.op, name=b.node, **b.names(), **AREA)
    return add(b), after(clear, lambda: size(b))


@makes("Unstage", "MapUnstageNoKey", "OrderedMapUnstageNoKey")
def unstaged(b):
    before = [add(b)]
    with tf.control_dependencies(before):
        arguments = {"indices": [0]} if family(b.op) else {}
        taken = call(b.op, name=b.node, **b.names(), **AREA, **arguments)
    return add(b), after(first(taken), lambda: size(b))


@makes("StagePeek", "MapPeek", "OrderedMapPeek", "MapUnstage", "OrderedMapUnstage")
def peeked(b):
    kind = family(b.op)
    before = add(b)
    with tf.control_dependencies([before]):
        arguments = {"key": put(b, b.op)["key"], "indices": [0]} if kind else {"index": 0}
        seen = call(b.op, name=b.node, **b.names(), **AREA, **arguments)
    return add(b), after(first(seen), lambda: size(b))


@makes("AddSparseToTensorsMap", "AddManySparseToTensorsMap")
def sparse_map(b):
    # The handle of the stored tensor counts the tensors that were stored before.
    prefix = "" if b.op == "AddManySparseToTensorsMap" else "sparse_"
    prefix = "sparse_"
    handle = b.make(**sparse(prefix, rank=2))
    return tf.no_op(), handle


def sparse(prefix, rank):
    return {
        f"{prefix}indices": tf.constant([[0] * rank], tf.int64),
        f"{prefix}values": [1.0],
        f"{prefix}shape": tf.constant([1] * rank, tf.int64),
    }


@makes("TakeManySparseFromTensorsMap", alone=True)
def sparse_map_taken(b):
    # TensorFlow refuses a map that no shared name gives.
    names = {"shared_name": b.shared, "container": b.container}
    handle = call("AddSparseToTensorsMap", name=f"{b.node}_of", **names, **sparse("sparse_", rank=2))
    with tf.control_dependencies([handle]):
        taken = b.make(sparse_handles=[handle], dtype=FLOAT)
    return tf.no_op(), taken


@makes("Variable", "VariableV2")
def variable(b):
    ref = b.make(shape=[], dtype=FLOAT)
    is_initialized = call("IsVariableInitialized", ref=ref)
    return call("Assign", ref=ref, value=b.number).op, tf.cond(is_initialized, lambda: tf.identity(ref), lambda: -1.0)


@makes("VarHandleOp")
def resource_variable(b):
    handle = b.make(shape=[], dtype=FLOAT)
    is_initialized = call("VarIsInitializedOp", resource=handle)
    read = lambda: call("ReadVariableOp", resource=handle, dtype=FLOAT)
    return call("AssignVariableOp", resource=handle, value=b.number), tf.cond(is_initialized, read, lambda: -1.0)


@makes("TemporaryVariable")
def temporary_variable(b):
    ref = b.make_unnamed(shape=[], dtype=FLOAT, var_name=b.node)
    set_to = call("Assign", ref=ref, value=b.number)
    return tf.no_op(), call("DestroyTemporaryVariable", ref=set_to, var_name=b.node)


@makes("Stack")
def stack_by_reference(b):
    handle = b.make_unnamed(elem_type=FLOAT, stack_name=b.node)
    pushed = call("StackPush", handle=handle, elem=b.number)
    return tf.no_op(), after(pushed, lambda: call("StackPop", handle=handle, elem_type=FLOAT))


@makes("StackV2")
def stack(b):
    handle = b.make_unnamed(max_size=-1, elem_type=FLOAT, stack_name=b.node)
    pushed = call("StackPushV2", handle=handle, elem=b.number)
    return tf.no_op(), after(pushed, lambda: call("StackPopV2", handle=handle, elem_type=FLOAT))


@makes("TensorArray", "TensorArrayV2")
def array_by_reference(b):
    version = "V2" if b.op.endswith("V2") else ""
    handle = b.make_unnamed(size=1, dtype=FLOAT, tensor_array_name=b.node)
    flow = call(f"TensorArrayWrite{version}", handle=handle, index=0, value=b.number, flow_in=0.0)
    return tf.no_op(), call(f"TensorArrayRead{version}", handle=handle, index=0, flow_in=flow, dtype=FLOAT)


@makes("TensorArrayV3")
def array(b):
    handle, flow = call(b.op, name=b.node, size=1, dtype=FLOAT, tensor_array_name=b.node)
    flow = call("TensorArrayWriteV3", handle=handle, index=0, value=b.number, flow_in=flow)
    return tf.no_op(), call("TensorArrayReadV3", handle=handle, index=0, flow_in=flow, dtype=FLOAT)


@makes("TensorArrayGrad", "TensorArrayGradV2")
def array_of_gradients_by_reference(b):
    version = "V2" if b.op.endswith("V2") else ""
    handle = call(f"TensorArray{version}", size=1, dtype=FLOAT, tensor_array_name=b.node)
    flow = call(f"TensorArrayWrite{version}", handle=handle, index=0, value=b.number, flow_in=0.0)
    made = b.make_unnamed(handle=handle, flow_in=flow, source="g")
    flow = call(f"TensorArrayWrite{version}", handle=made, index=0, value=b.number, flow_in=flow)
    return tf.no_op(), call(f"TensorArrayRead{version}", handle=made, index=0, flow_in=flow, dtype=FLOAT)


@makes("TensorArrayGradV3", "TensorArrayGradWithShape")
def array_of_gradients(b):
    handle, flow = call("TensorArrayV3", size=1, dtype=FLOAT, tensor_array_name=b.node)
    flow = call("TensorArrayWriteV3", handle=handle, index=0, value=b.number, flow_in=flow)
    shape = {} if b.op == "TensorArrayGradV3" else {"shape_to_prepend": tf.constant([], tf.int32)}
    made, flow = call(b.op, name=b.node, handle=handle, flow_in=flow, source="g", **shape)
    flow = call("TensorArrayWriteV3", handle=made, index=0, value=b.number, flow_in=flow)
    return tf.no_op(), call("TensorArrayReadV3", handle=made, index=0, flow_in=flow, dtype=FLOAT)


@makes("MutexV2")
def mutex(b):
    lock = call("MutexLock", mutex=b.make())
    return tf.no_op(), after(call("ConsumeMutexLock", mutex_lock=lock), lambda: tf.constant(1))


@makes("SummaryWriter", alone=True)
def summary_writer(b):
    handle = b.make()
    create = call(
        "CreateSummaryFileWriter", writer=handle, logdir=os.path.join(b.folder, "events"), max_queue=1, flush_millis=1,
        filename_suffix="",
    )
    return create, after(call("FlushSummaryWriter", writer=handle), lambda: tf.constant(1))


@makes("GetSessionHandle", "GetSessionHandleV2", alone=True)
def session_tensor(b):
    handle = b.make_unnamed(value=b.number)
    return tf.no_op(), call("GetSessionTensor", handle=handle, dtype=FLOAT) if b.op == "GetSessionHandle" else after(handle, lambda: tf.constant(1))
