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


@special("GenerateVocabRemapping", "LoadAndRemapMatrix")
def remapped(c):
    for new, old, offset, count, size in ((b"a\nb\nc\nd\n", b"c\nx\na\nb\n", 0, 4, -1), (b"a\nb\nc\nd\n", b"c\nx\na\r\nb", 1, 2, 3), (b"a\na\nb", b"a\n", 0, 3, -1), (b"a\n", b"b\n", 1, 0, -1)):

        def make(probe, run, new=new, old=old, offset=offset, count=count, size=size):
            paths = []
            for name, lines in (("new", new), ("old", old)):
                path = name_of(probe, name)
                with open(path, "wb") as file:
                    file.write(lines)
                paths.append(text(probe, path))
            probe.fetch(probe.node("GenerateVocabRemapping", "_words", paths, new_vocab_offset=offset, num_new_vocab=count, old_vocab_size=size))

        yield make
    for rows, columns, missing in (([2, 0], [], 0), ([3, -1, 0], [], 3), ([2, -1, 1], [1, -1, 0], 5), ([-1, -1], [-1], 2), ([], [2], 0), ([0, 3], [2, 1], 0)):
        for most in (-1, 1, 2):

            def make(probe, run, rows=rows, columns=columns, missing=missing, most=most):
                matrix = np.arange(12, dtype=np.float32).reshape(4, 3)
                halves = [probe.feed(part, True, probe.feeds) for part in (matrix[:2], matrix[2:])]
                path = text(probe, name_of(probe, "matrix"))
                slices = text(probe, [b"4 3 0,2:-", b"4 3 2,2:-"])
                saved = probe.node("SaveV2", "_save", [path, text(probe, [b"m", b"m"]), slices, *halves], dtypes=["float"] * 2)
                maps = [probe.feed(np.array(each, np.int64), True, probe.feeds) for each in (rows, columns)]
                values = probe.feed(c.values((missing,), attr="float"), True, probe.feeds)
                shape = dict(num_rows=len(rows), num_cols=len(columns) or 3, max_rows_in_memory=most)
                probe.fetch(probe.node("LoadAndRemapMatrix", "_out", [path, text(probe, b"m"), *maps, values, f"^{saved}"], **shape))

            yield make


@special("ImmutableConst")
def constants_of_files(c):
    for shape in ((3, 4), (), (0, 3), (2,)):

        def make(probe, run, shape=shape):
            path = name_of(probe, "constant")
            with open(path, "wb") as file:
                file.write(c.values((3, 4), attr="dtype").tobytes())
            probe.steps = 2
            probe.fetch(probe.node("ImmutableConst", "", [], dtype=c.name("dtype"), shape=list(shape), memory_region_name=path))

        if c.name("dtype") != "string":
            yield make
