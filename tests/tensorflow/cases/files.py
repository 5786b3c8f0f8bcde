"""Ops on files, which are written and read in the same step."""
import atexit
import os
import shutil
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

from .special import special

# Types of which the peer does not restore slices.
WHOLE = ("half", "uint16", "uint32", "uint64", "string")

FOLDER = tempfile.mkdtemp()
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def text(probe, value):
    return probe.constant(np.array(value, object))


def name_of(probe, kind):
    return os.path.join(FOLDER, f"{probe.name}-{kind}").encode()


@special("SaveV2", "RestoreV2", "MergeV2Checkpoints", "ShardedFilename", "ShardedFilespec")
def checkpoints(c):
    dtype = c.types.get("dtypes", "float")

    def make(probe, run):
        probe.exact = True
        values = [np.asarray(c.values((2, 3), attr=dtype)), np.asarray(c.values((2, 3), attr=dtype))]
        base, number = text(probe, name_of(probe, "part")), lambda n: probe.constant(np.int32(n))
        file = probe.node("ShardedFilename", "_file", [base, number(1), number(2)])
        spec = probe.node("ShardedFilespec", "_spec", [base, number(2)])
        is_cut = dtype not in WHOLE
        names = text(probe, [b"a", b"b", b"b"] if is_cut else [b"a", b"b", b"c"])
        parts = text(probe, [b"", b"4 3 0,2:-", b"4 3 2,2:-"] if is_cut else [b"", b"", b""])
        tensors = [probe.feed(v, True, probe.feeds) for v in (values[0], *values)]
        saved = probe.node("SaveV2", "_save", [file, names, parts, *tensors], dtypes=[dtype] * 3)
        whole = text(probe, name_of(probe, "whole"))
        prefixes = probe.node("Pack", "_pack", [file], N=1, T="string")
        merged = probe.node("MergeV2Checkpoints", "_merge", [prefixes, whole, f"^{saved}"], delete_old_dirs=False)
        slices = text(probe, [b"", b"4 3 1,2:-" if is_cut else b""])
        probe.fetch(probe.node("RestoreV2", "_restore", [whole, text(probe, [b"a", b"b"]), slices, f"^{merged}"], dtypes=[dtype] * 2))
        probe.fetches += [f"{file}:0", f"{spec}:0"]

    yield make


@special("Save", "SaveSlices", "Restore", "RestoreSlice")
def first_format(c):
    dtype = c.types.get("T") or c.types.get("dt")

    def make(probe, run):
        probe.exact = True
        values = [np.asarray(c.values((2, 3), attr=dtype)) for _ in range(2)]
        tensors = [probe.feed(v, True, probe.feeds) for v in values]
        path, names = text(probe, name_of(probe, "old")), text(probe, [b"a", b"b"])
        saved = probe.node("Save", "_save", [path, names, *tensors], T=[dtype] * 2)
        probe.fetch(probe.node("Restore", "_all", [path, text(probe, b"b"), f"^{saved}"], dt=dtype))
        if dtype == "string":
            return
        path, names = text(probe, name_of(probe, "slices")), text(probe, [b"a", b"a"])
        parts = text(probe, [b"4 3 0,2:-", b"4 3 2,2:-"])
        saved = probe.node("SaveSlices", "_slices", [path, names, parts, *tensors], T=[dtype] * 2)
        slice_spec = text(probe, b"4 3 1,2:0,2")
        probe.fetch(probe.node("RestoreSlice", "_part", [path, text(probe, b"a"), slice_spec, f"^{saved}"], dt=dtype))

    if dtype not in ("bfloat16", "uint32", "uint64"):
        yield make


@special("ReadFile", "WriteFile", "MatchingFiles")
def files(c):
    def make(probe, run):
        path = text(probe, name_of(probe, "file"))
        written = probe.node("WriteFile", "_write", [path, text(probe, b"one\0two")])
        probe.fetch(probe.node("ReadFile", "_read", [path, f"^{written}"]))
        patterns = text(probe, [name_of(probe, "file")[:-2] + b"*", b"/none/*"])
        probe.fetch(probe.node("MatchingFiles", "_found", [patterns, f"^{written}"]))

    yield make


@special("RecordInput")
def record_input(c):
    for batch, buffer in ((3, 2), (5, 100)):

        def make(probe, run, batch=batch, buffer=buffer):
            # The order is random, so the records are equal.
            path = name_of(probe, "records").decode()
            if not os.path.exists(path):
                with tf.python_io.TFRecordWriter(path) as writer:
                    for _ in range(4):
                        writer.write(b"record")
            probe.steps = 3
            probe.fetch(probe.node("RecordInput", "_out", [], file_pattern=path, batch_size=batch, file_buffer_size=buffer))

        yield make
