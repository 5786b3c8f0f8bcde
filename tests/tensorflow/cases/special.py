"""Ops that need more than one node to call: variables, handles, temporaries, constants, placeholders, nodes without
inputs and outputs."""
import numpy as np

SPECIAL = {}


def special(*ops):
    def register(make):
        for op in ops:
            SPECIAL[op] = make
        return make

    return register


@special("Const")
def constants(c):
    for value in (c.values((3, 4), attr="dtype"), c.values((), attr="dtype"), c.values((0, 3), attr="dtype"), np.full((70,), c.values((), attr="dtype"))):

        def make(probe, run, value=np.asarray(value, dtype=object if c.name("dtype") == "string" else None)):
            probe.fetch(probe.constant(value))

        yield make


@special("Placeholder", "PlaceholderV2")
def placeholders(c):
    for shape in ((3, 4), (), (0, 3)):

        def make(probe, run, shape=shape):
            name = probe.node(c.op, "", [], dtype=c.name("dtype"), shape=list(shape))
            probe.feeds[f"{name}:0"] = c.values(shape, attr="dtype")
            probe.fetch(probe.node("Identity", "_out", [name], T=c.name("dtype")))

        yield make


@special("NoOp", "ControlTrigger")
def nothing(c):
    def make(probe, run):
        probe.fetch(probe.node(c.op, "", []))

    yield make


@special("Variable", "VariableV2")
def variables(c):
    for shape in ((3, 4), (), (0, 3)):

        def make(probe, run, shape=shape):
            dtype = c.name("dtype")
            name = probe.node(c.op, "", [], dtype=dtype, shape=list(shape), shared_name=f"{run}_{probe.name}")
            start = probe.feed(c.values(shape, attr="dtype"), True, probe.first_feeds)
            probe.first.append(probe.node("Assign", "_start", [name, start], T=dtype))
            probe.fetch(probe.node("Identity", "_out", [name], T=dtype))

        yield make


@special("TemporaryVariable", "DestroyTemporaryVariable")
def temporaries(c):
    def make(probe, run):
        dtype = c.name("dtype" if "dtype" in c.types else "T")
        name = probe.node("TemporaryVariable", "", [], dtype=dtype, shape=[2, 3], var_name=probe.name)
        value = probe.feed(c.values((2, 3), attr=dtype), True, probe.feeds)
        assigned = probe.node("Assign", "_assign", [name, value], T=dtype)
        probe.fetch(probe.node("DestroyTemporaryVariable", "_out", [assigned], T=dtype, var_name=probe.name))

    yield make


@special("VarHandleOp")
def handles(c):
    def make(probe, run):
        value = c.values((2, 3), attr="dtype")
        handle = probe.resource(value, run, True)
        probe.fetch(probe.node("ReadVariableOp", "_out", [handle], dtype=c.name("dtype")))

    yield make


@special("DestroyResourceOp")
def destroyed(c):
    def make(probe, run):
        handle = probe.resource(c.values((2, 3), attr="float"), run, True)
        probe.reads.clear()
        gone = probe.node("DestroyResourceOp", "", [handle])
        probe.fetch(probe.node("VarIsInitializedOp", "_out", [handle, f"^{gone}"]))

    yield make


SPARSE_PARTS = lambda c: [np.array([[0, 1], [2, 0], [2, 2]], np.int64), c.values((3,)), np.array([3, 4], np.int64)]


@special("AddSparseToTensorsMap", "AddManySparseToTensorsMap", "TakeManySparseFromTensorsMap")
def tensors_map(c):
    dtype = c.name("T" if "T" in c.types else "dtype")

    def make(probe, run):
        parts = [probe.feed(v, True, probe.feeds) for v in SPARSE_PARTS(type(c)(c.op, {"T": dtype}, 5))]
        shared = f"{run}_{probe.name}"
        many = c.op != "AddSparseToTensorsMap"
        op = "AddManySparseToTensorsMap" if many else "AddSparseToTensorsMap"
        handles = probe.node(op, "", parts, T=dtype, shared_name=shared)
        if not many:
            axis = probe.feed(np.array([1], np.int32), True, probe.feeds)
            handles = probe.node("Reshape", "_many", [handles, axis], T="int64", Tshape="int32")
        probe.fetch(probe.node("TakeManySparseFromTensorsMap", "_taken", [handles], dtype=dtype, shared_name=shared))

    yield make


@special("SerializeSparse", "SerializeManySparse", "DeserializeSparse", "DeserializeManySparse")
def carried(c):
    dtype = c.name("T" if "T" in c.types else "dtype")

    back = "DeserializeManySparse" if c.op == "DeserializeManySparse" else "DeserializeSparse"
    for form in ("variant", "string") if back == "DeserializeSparse" else ("string",):

        def make(probe, run, form=form):
            parts = [probe.feed(v, True, probe.feeds) for v in SPARSE_PARTS(type(c)(c.op, {"T": dtype}, 5))]
            op = "SerializeSparse" if c.op == "SerializeSparse" else "SerializeManySparse"
            held = probe.node(op, "", parts, T=dtype, out_type=form)
            types = dict(dtype=dtype) if back == "DeserializeManySparse" else dict(dtype=dtype, Tserialized=form)
            probe.fetch(probe.node(back, "_out", [held], **types))

        yield make


@special("SelfAdjointEigV2", "BatchSelfAdjointEigV2", "Svd", "BatchSvd")
def spectra(c):
    """Singular and eigenvalues. Vectors are compared by the magnitudes of their elements, because each may have another
    phase. Outputs of vectors that are not requested are ignored."""
    from .matrices import positive

    dtype = c.name("T")
    shapes = ((3, 3), (2, 4, 4), (1, 1)) if "Svd" not in c.op else ((3, 3), (2, 4, 3), (3, 4))
    flag = "compute_uv" if "Svd" in c.op else "compute_v"
    for shape in shapes:
        for vectors in (False, True):
            value = positive(c, shape) if "Svd" not in c.op else c.values(shape, -1, 1)

            def make(probe, run, value=value, vectors=vectors):
                node = probe.node(c.op, "", [probe.feed(value, True, probe.feeds)], T=dtype, **{flag: vectors})
                probe.fetches.append(f"{node}:0")
                for i in range(1, 3 if "Svd" in c.op else 2) if vectors else ():
                    size = dict(op="Abs", T=dtype) if not c.is_complex() else dict(op="ComplexAbs", T=dtype, Tout="double" if dtype == "complex128" else "float")
                    probe.fetch(probe.node(size.pop("op"), f"_{i}", [f"{node}:{i}"], **size))
                probe.steps, probe.loose = 1, 50

            yield make


@special("SelfAdjointEig", "BatchSelfAdjointEig")
def joined_spectra(c):
    """Eigenvalues above eigenvectors, which are compared by the magnitudes of their elements."""
    from .matrices import positive

    for shape in ((3, 3), (2, 4, 4), (1, 1)):

        def make(probe, run, value=positive(c, shape)):
            node = probe.node(c.op, "", [probe.feed(value, True, probe.feeds)], T=c.name("T"))
            probe.fetch(probe.node("Abs", "_out", [node], T=c.name("T")))

        yield make


@special("SyncDevice")
def synchronized(c):
    def make(probe, run):
        probe.fetch(probe.node("SyncDevice", "", []))

    yield make


@special("Fact")
def facts(c):
    def make(probe, run):
        probe.fetch(probe.node("Fact", "", []))

    yield make


@special("CompositeTensorVariantFromComponents", "CompositeTensorVariantToComponents")
def composites(c):
    dtype = c.types.get("Tcomponents", "float")

    def make(probe, run):
        values = [probe.feed(c.values(shape, attr=dtype), True, probe.feeds) for shape in ((3,), (2, 2), ())]
        held = probe.node("CompositeTensorVariantFromComponents", "_held", values, Tcomponents=[dtype] * 3, metadata="")
        probe.fetch(probe.node("CompositeTensorVariantToComponents", "_out", [held], Tcomponents=[dtype] * 3, metadata=""))

    yield make
