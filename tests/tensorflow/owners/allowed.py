"""Ops that no scenario has, and permitted differences from TensorFlow, each with its reason."""
import collections
import re

# Ops that cannot be in a scenario, with the reason.
EXCUSED = {
    "NcclAllReduce": "needs several GPUs",
    "NcclReduce": "needs several GPUs",
    "NcclBroadcast": "needs several GPUs",
    "FixedLengthRecordReader": "the peer's kernel cannot be created: it needs an attribute that the op lacks",
    "MutableDenseHashTable": "the peer's kernel cannot be created: it needs an input that the op lacks",
    "AnonymousRandomSeedGenerator": "the peer's kernel cannot be created: it needs an input that the op lacks",
    "BatchFunction": "its batches end with the steps that make them, so no later step sees the object",
    "Batch": "its batches end with the steps that make them, so no later step sees the object",
    "Unbatch": "rows wait for a step that collects them: functions.py",
    "UnbatchGrad": "gradients wait for a step that collects them: functions.py",
    "StatsAggregatorHandleV2": "its values are written to event files: datasets.py",
    "DummyIterationCounter": "the handle of an object that no op reads",
    "CollectiveInitializeCommunicator": "a group of collectives: collectives.py",
}

# `objects` and `scenario` are regular expressions.
Allowed = collections.namedtuple("Allowed", "objects scenario reason")

ALLOWED = (
    Allowed("GetSessionHandle(V2)?", ".*", "the peer keeps no tensors of a session on a cluster; here they belong to the task"),
)


def entry_for(label, scenario):
    """Returns the entry that permits a difference of an object in a scenario, or None."""
    for entry in ALLOWED:
        if re.fullmatch(entry.objects, label) and re.fullmatch(entry.scenario, scenario):
            return entry
    return None
