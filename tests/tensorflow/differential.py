"""Compares every op of our table (JSON, the first argument) on our server (`--target`) with TensorFlow's kernels, on the
same inputs, for every combination of types for which TensorFlow has a CPU kernel."""
import argparse
import itertools
import json
import os
import re
import sys
import time
import zlib

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import kernels, op_def_registry

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cases  # noqa: E402
import cases.errors  # noqa: E402
import cases.special  # noqa: E402
from probe import Probe, run  # noqa: E402

# The types that are compared.
COMPARED_TYPES = ("half", "bfloat16", "float", "double", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "string", "complex64", "complex128", *cases.QUANTIZED)

# Ops that cannot be compared through a client, with the reason.
EXCUSED = {
    "_Arg": "added by the caller of a function",
    "_Retval": "added by the caller of a function",
    "_FusedBatchNormEx": "created by the peer's optimiser alone",
    "_FusedConv2D": "created by the peer's optimiser alone",
    "_FusedMatMul": "created by the peer's optimiser alone",
    "_UnaryOpsComposition": "created by the peer's optimiser alone",
    "NcclAllReduce": "needs several GPUs",
    "NcclReduce": "needs several GPUs",
    "NcclBroadcast": "needs several GPUs",
    "NonDeterministicInts": "its result is not deterministic",
    "DummyIterationCounter": "outputs a handle of an object that no op reads",
    "Timestamp": "its result is not deterministic",
    "TileGrad": "the peer's kernel cannot be created: it needs an attribute that the op lacks",
    "TopK": "the peer's kernel cannot be created: it needs an attribute that the op lacks",
    "ImageSummary": "encoders compress differently: checkpoints.py compares the pixels",
    "Send": "sessions.py compares it, with Recv",
    "Recv": "sessions.py compares it, with Send",
    "_Send": "added by the master",
    "_Recv": "added by the master",
    "_HostSend": "added by the master",
    "_HostRecv": "added by the master",
    "CheckPinned": "every server without CUDA refuses it",
    "FileSystemSetConfiguration": "no file system of the servers has options",
}
# Ops that work only together with others: control_flow.py and step_objects.py compare whole programs.
EXCUSED |= dict.fromkeys(
    [f"{ref}{op}" for op in ("Switch", "Merge", "Enter", "Exit", "NextIteration") for ref in ("", "Ref")]
    + ["_SwitchN", "LoopCond", "RefSelect"]
    + [f"Stack{op}{age}" for op in ("", "Push", "Pop", "Close") for age in ("", "V2")]
    + ["TensorArrayGradWithShape", "TensorArrayPack", "TensorArrayUnpack"]
    + [
        f"TensorArray{op}{age}"
        for op in ("", "Grad", "Write", "Read", "Gather", "Scatter", "Concat", "Split", "Size", "Close")
        for age in ("", "V2", "V3")
    ],
    "part of a program",
)

# Ops of datasets and iterators: datasets.py compares whole pipelines.
PIPELINE = re.compile(r"Dataset|Iterator|StatsAggregator|ThreadPoolHandle|^(GetOptions|ComputeBatchSize|WindowOp|(Unc|C)ompressElement|GetElementAtIndex)$|^Optional(FromValue|None|HasValue|GetValue)$|SeedGenerator$|MemoryCache$")

# Ops on state that is shared between steps: `queues.py` compares scenarios.
SYNCHRONISATION = re.compile(
    r"(FIFO|PaddingFIFO|RandomShuffle|Priority|Fake)Queue(V2)?|Queue(Enqueue|Dequeue|Close|IsClosed|Size).*"
    r"|(Resource|Sparse)?(Conditional)?Accumulator.*|Barrier.*|(Ordered)?Map(Stage|Peek|Unstage|Size|IncompleteSize|Clear).*"
    r"|.*Reader(V2)?|Reader(Read|Num|Serialize|Restore|Reset).*|Stage(Peek|Size|Clear)?|Unstage|.*HashTable.*|InitializeTable.*|LookupTable.*|(Get|Delete)Session.*|.*Mutex.*"
)

# Ops of several devices: `collectives.py` and `mixed_collectives.py` run them on clusters.
COLLECTIVES = re.compile(r"Collective.*")

# Ops that only write files: `checkpoints.py` compares the files.
EVENT_FILES = re.compile(r".*Summary(File|Db)?Writer|Write\w*Summary|ImportEvent")

# Ops that call functions, and ops of tensor lists: `functions.py` compares whole programs.
FUNCTIONS = re.compile(
    r"(Stateless)?(If|While|Case)|(Stateful)?PartitionedCall|For|ToBool|DeviceIndex|FakeParam|RemoteCall|SymbolicGradient|MapDefun|BatchFunction"
    r"|(Empty)?TensorList.*"
)

# Ops that TensorFlow computes with oneDNN alone, which the other ops are compared without: `fused_quantized.py` compares them.
ONEDNN = re.compile(r"Quantized(DepthwiseConv2D|MatMulWithBias|Conv2D(PerChannel|And|WithBias)).*")

# The most combinations of types of an op that are compared; of more, every forty-first is.
MOST_COMBINATIONS = 500

# Errors of the peer's kernels, by op and type attribute: crashes, memory read as another type, wrong results.
PEER_FAULTS = {
    ("StatefulRandomBinomial", "S", "int64"): "its process ends",
    ("UnicodeDecodeWithOffsets", "Tsplits", "int32"): "its process ends",
    ("ConjugateTranspose", "T", "string"): "its process ends",
    ("ArgMax", "Tidx", "int16"): "reads the axis as a wider type",
    ("TopKV2", "Tk", "int16"): "reads k as a wider type",
    ("ParameterizedTruncatedNormal", "T", "int64"): "its process ends",
    ("SplitV", "Tlen", "int8"): "its process ends",
    ("Cast", "SrcT", "string"): "is registered, but refuses",
    ("Cast", "DstT", "string"): "is registered, but refuses",
    ("Tile", "T", "uint16"): "is registered, but refuses",
    ("Where", "T", "half"): "is registered, but refuses",
    ("Round", "T", "int32"): "answers 0",
    ("Round", "T", "int64"): "answers 0",
    ("QuantizedConv2D", "Tfilter", "qint8"): "computes nothing without oneDNN",
}
PEER_FAULTS |= {(op, "T", t): "is registered, but refuses" for op in ("DeepCopy", "Tile", "TensorStridedSliceUpdate") for t in cases.QUANTIZED}

# Relative and absolute tolerance. A call may widen that of 16-bit floats, because kernels round sums at different points.
TOLERANCES = {"float32": (1e-5, 1e-6), "float64": (1e-13, 1e-15), "complex64": (1e-5, 2e-6), "complex128": (1e-13, 1e-15), "float16": (3e-3, 1e-3), "bfloat16": (2e-2, 1e-2)}
HALVES = ("float16", "bfloat16")


def combinations(op, definition):
    """Yields the combinations of types that TensorFlow's CPU kernels support, as dicts of attributes."""
    attrs = [a for a in definition.attr if a.type in ("type", "list(type)")]
    # Cases that add variables or other nodes use the types of their arrays.
    adds_nodes = op in cases.special.SPECIAL or any(a.is_ref or a.type == tf.resource.as_datatype_enum for a in definition.input_arg)
    compared = [t for t in COMPARED_TYPES if not (adds_nodes and t in cases.QUANTIZED)]
    spine = {tf.as_dtype(t).as_datatype_enum: t for t in compared}
    choices = []
    for a in attrs:
        allowed = list(a.allowed_values.list.type)
        choices.append([t for number, t in spine.items() if not allowed or number in allowed])
    defs = [k for k in kernels.get_registered_kernels_for_op(op).kernel if k.device_type in ("CPU", "DEFAULT") and not k.label]
    every = 41 if np.prod([len(c) for c in choices], dtype=float) > MOST_COMBINATIONS else 1

    def supported(every):
        for chosen in itertools.islice(itertools.product(*choices), 0, None, every):
            types = {a.name: t for a, t in zip(attrs, chosen)}
            faulty = any((op, name, t) in PEER_FAULTS for name, t in types.items())
            if not faulty and any(fits(kernel, types) for kernel in defs):
                yield types

    # Kernels of few combinations may be missed by a choice of every 41st.
    yield from list(supported(every)) or supported(1)


def fits(kernel, types):
    return all(
        tf.as_dtype(types[c.name]).as_datatype_enum in c.allowed_values.list.type for c in kernel.constraint if c.name in types
    )


def is_called(op):
    """Returns whether this script compares the op."""
    elsewhere = (SYNCHRONISATION, COLLECTIVES, EVENT_FILES, FUNCTIONS, ONEDNN)
    return not (op in EXCUSED or PIPELINE.search(op) or any(ops.fullmatch(op) for ops in elsewhere))


def context_of(op, types):
    """Returns the label of an op with these types, and the context for its generator."""
    definition = op_def_registry.get(op)
    label = " ".join([op, *(f"{k}={v}" for k, v in types.items())])
    context = cases.Context(op, types, zlib.crc32(label.encode()))
    context.signature_inputs = [a.name for a in definition.input_arg]
    context.signature_attrs = [a.name for a in definition.attr]
    return label, context


def probes_of(op, number, pattern):
    """Returns the probes of one op whose labels match a regular expression."""
    definition = op_def_registry.get(op)
    index_types = [a.name for a in definition.attr if a.type == "type"][1:] if op not in ("Cast", "Bitcast") else []
    first = {}
    made = []
    for types in combinations(op, definition):
        main = next(iter(types.values()), None)
        label, context = context_of(op, types)
        if not re.search(pattern, label):
            continue
        # Index types rarely matter: all except the first get only two calls.
        index = tuple(types[a] for a in index_types)
        few = first.setdefault(main, index) != index
        if op in cases.special.SPECIAL:
            for make in cases.special.SPECIAL[op](context):
                probe = Probe(number + len(made), op, label)
                make(probe, RUN)
                made.append(probe)
            continue
        for i, call in enumerate(cases.GENERATORS[op](context)):
            if few and i >= 2:
                break
            static = (i + few) % 2 == 0
            made.append(Probe(number + len(made), op, label).call(types, call, RUN, static))
    return made


RUN = f"run{os.getpid()}"


def compare(probe, ours, theirs):
    """Returns the first difference as text, or None."""
    if isinstance(theirs, Exception):
        return f"the peer fails: {first_line(theirs)}"
    if isinstance(ours, Exception):
        return f"ours fails: {first_line(ours)}"
    for step, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        for kind, a, b in (("output", mine[0], other[0]), ("variable", mine[1], other[1])):
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                difference = different(x, y, probe)
                if difference:
                    return f"{kind} {i} of step {step}: {difference}"
    return None


def different(x, y, probe):
    """Returns the difference of two values as text, or None if they agree within the probe's tolerance."""
    if x is None and y is None:
        return None
    x, y = np.asarray(x), np.asarray(y)
    strings = {x.dtype.kind, y.dtype.kind} <= {"O", "S"}
    if x.dtype != y.dtype and not strings:
        return f"{x.dtype}, not {y.dtype}"
    if x.shape != y.shape:
        return f"shape {x.shape}, not {y.shape}"
    if x.dtype.name in TOLERANCES and not probe.exact:
        relative, absolute = TOLERANCES[x.dtype.name]
        absolute = max(absolute, probe.within)
        wide = np.complex128 if x.dtype.kind == "c" else np.float64
        a, b = x.astype(wide), y.astype(wide)
        with np.errstate(all="ignore"):
            close = np.abs(a - b) <= (absolute + relative * np.abs(b)) * (probe.loose if x.dtype.name in HALVES else 1)
        bad = ~(close & np.isfinite(a) & np.isfinite(b) | (a == b) | np.isnan(a) & np.isnan(b))
    else:
        bad = np.asarray(x != y) & ~(np.asarray(x != x) & np.asarray(y != y))
    if not bad.any():
        return None
    at = tuple(int(i) for i in np.argwhere(bad)[0]) if x.shape else ()
    return f"{x[at]!r}, not {y[at]!r} at {list(at)} ({int(bad.sum())} of {bad.size} differ)"


def first_line(error):
    lines = [line for line in str(getattr(error, "message", None) or error).splitlines() if "Graph execution error" not in line]
    return f"{type(error).__name__}: {' '.join(lines).strip()[:300]}"


def batches(probes, size):
    """Yields groups of at most `size` consecutive probes with the same graph version."""
    for _, same in itertools.groupby(probes, key=lambda p: p.producer):
        same = list(same)
        yield from (same[i : i + size] for i in range(0, len(same), size))


class PrintedLines(list):
    """A list whose lines are printed when they are added."""

    def append(self, line):
        super().append(line)
        print(line, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("table")
    parser.add_argument("--target", required=True)
    parser.add_argument("--only", default="", help="a regular expression that labels (an op with its types) must match")
    parser.add_argument("--batch", type=int, default=250)
    options = parser.parse_args()
    table = json.load(open(options.table))
    probes, wrong = [], PrintedLines()
    started = time.time()
    for op in sorted(table):
        if not is_called(op):
            continue
        if op not in cases.GENERATORS and op not in cases.special.SPECIAL:
            wrong.append(f"{op}: has no case")
            continue
        made = probes_of(op, len(probes), options.only)
        if not made and not options.only:
            wrong.append(f"{op}: TensorFlow has no kernel to compare with")
        probes += made
    print(f"{len(probes)} probes made in {time.time() - started:.0f} s", flush=True)
    for batch in batches(probes, options.batch):
        theirs, ours = run("", batch), run(options.target, batch)
        for probe in batch:
            difference = compare(probe, ours[probe.name], theirs[probe.name])
            if difference:
                wrong.append(f"{probe.label} {probe.shapes}: {difference}")
    failures = 0
    for probe in cases.errors.probes(len(probes), RUN, options.only):
        failures += 1
        theirs, ours = run("", [probe])[probe.name], run(options.target, [probe])[probe.name]
        if not isinstance(theirs, Exception):
            wrong.append(f"{probe.label} {probe.shapes}: the peer does not fail")
        elif type(theirs) is not type(ours):
            difference = first_line(ours) if isinstance(ours, Exception) else "no error"
            wrong.append(f"{probe.label} {probe.shapes}: {difference}, not {first_line(theirs)}")
    ops = len({p.op for p in probes})
    print(f"{ops} ops, {len(probes)} calls and {failures} failures compared in {time.time() - started:.0f} s, {len(wrong)} differences")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
