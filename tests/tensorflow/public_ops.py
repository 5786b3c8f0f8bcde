"""Prints the ops that TensorFlow's servers run on a CPU and that Python programs can send, one per line."""
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import kernels


# Ops whose kernels only say that they were removed.
REMOVED = {"ExperimentalLMDBDataset", "LMDBDataset", "LMDBReader"}


def registered():
    """Returns the names of all ops in the registry."""
    ops = op_def_pb2.OpList()
    ops.ParseFromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    return sorted(op.name for op in ops.op)


def runs_on_a_cpu(op):
    return any(kernel.device_type in ("CPU", "DEFAULT") for kernel in kernels.get_registered_kernels_for_op(op).kernel)


for name in registered():
    # Ops without a Python wrapper are internal to TensorFlow.
    if not name.startswith("_") and name not in REMOVED and hasattr(tf.raw_ops, name) and runs_on_a_cpu(name):
        print(name)
