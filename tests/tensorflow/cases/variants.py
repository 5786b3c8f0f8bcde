"""Ops on variants: maps of tensors, batches of concurrent steps, sparse matrices."""
import numpy as np

from .special import special


@special("EmptyTensorMap", "TensorMapInsert", "TensorMapLookup", "TensorMapErase", "TensorMapHasKey", "TensorMapSize", "TensorMapStackKeys")
def maps(c):
    key, value = c.types.get("key_dtype", "string"), c.types.get("value_dtype", "float")
    if "string" not in (key, value) and c.types.get("key_dtype") and (key, value) not in (("int64", "double"), ("float", "int32"), ("int32", "bool")):
        return

    def make(probe, run):
        feed = lambda array: probe.feed(np.asarray(array), True, probe.feeds)
        types = dict(key_dtype=key, value_dtype=value)
        keys = [feed(k) for k in c.distinct((4, 2), attr=key)[:, :1]] if key not in ("bool", "string") else [feed(np.array([b"k%d" % i], object)) if key == "string" else feed(np.array([i > 0])) for i in range(4)]
        values = [feed(c.values(shape, attr=value)) for shape in ((3,), (2, 2), ())]
        at = probe.node("EmptyTensorMap", "_none", [])
        probe.fetch(probe.node("TensorMapSize", "_size0", [at]))
        for i, v in enumerate(values):
            at = probe.node("TensorMapInsert", f"_insert{i}", [at, keys[i], v], **types)
        again = probe.node("TensorMapInsert", "_again", [at, keys[0], values[1]], **types)
        erased = probe.node("TensorMapErase", "_erased", [again, keys[0]], **types)
        single = probe.node("TensorMapErase", "_single", [erased, keys[1]], **types) if key != "bool" else erased
        for i, each in enumerate((at, again, erased, single)):
            probe.fetch(probe.node("TensorMapSize", f"_size{i + 1}", [each]))
            for k in (0, 2, 3):
                probe.fetch(probe.node("TensorMapHasKey", f"_has{i}_{k}", [each, keys[k]], key_dtype=key))
        for i, each in enumerate((at, again)):
            probe.fetch(probe.node("TensorMapLookup", f"_get{i}", [each, keys[0]], **types))
        # The order of several keys is not defined.
        probe.fetch(probe.node("TensorMapStackKeys", "_keys", [single], key_dtype=key))
        zeros = probe.node("ZerosLike", "_zeros", [again], T="variant")
        probe.fetch(probe.node("TensorMapSize", "_size_of_zeros", [zeros]))
        if value in ("float", "double", "int32"):
            other = probe.node("TensorMapInsert", "_other", [zeros, keys[3], values[0]], **types)
            total = probe.node("AddN", "_sum", [again, again, other], N=3, T="variant")
            probe.fetch(probe.node("TensorMapLookup", "_sum_of_two", [total, keys[0]], **types))
            probe.fetch(probe.node("TensorMapLookup", "_sum_of_one", [total, keys[3]], **types))

    yield make


@special("Batch", "Unbatch", "UnbatchGrad")
def batches(c):
    for allowed in ([], [4]):

        def make(probe, run, allowed=allowed):
            dtype = c.types.get("T", "float")
            rows = probe.feed(c.values((3, 2), attr=dtype), True, probe.feeds)
            more = probe.feed(c.values((3,), attr="int32"), True, probe.feeds)
            limits = dict(num_batch_threads=1, max_batch_size=4, batch_timeout_micros=1000, grad_timeout_micros=0, allowed_batch_sizes=allowed)
            batch = probe.node("Batch", "_batch", [rows, more], T=[dtype, "int32"], shared_name=probe.name, **limits)
            parts = [f"{batch}:{i}" for i in range(4)]
            probe.fetches += parts[:2]
            # The id is random.
            probe.fetch(probe.node("Shape", "_index", [parts[2]], T="int64", out_type="int32"))
            probe.fetch(probe.node("Unbatch", "_own", [parts[0], *parts[2:]], T=dtype, timeout_micros=10**7))
            probe.fetch(probe.node("UnbatchGrad", "_gradient", [parts[0], parts[2], rows, parts[3]], T=dtype))

        yield make


def entries(c, shape, density=0.5, attr="T"):
    """Indices and values of a sparse tensor, in the order of the indices."""
    chosen = np.argwhere(c.rng.uniform(size=shape) < density).astype(np.int64)
    return chosen.reshape(-1, len(shape)), c.values((len(chosen),), -4, 4, attr)


class Matrices:
    """Nodes on sparse matrices of one type."""

    def __init__(self, probe, dtype):
        self.probe, self.dtype, self.count = probe, dtype, 0

    def node(self, op, inputs, **attrs):
        self.count += 1
        return self.probe.node(op, f"_m{self.count}", inputs, **attrs)

    def feed(self, value):
        return self.probe.feed(np.asarray(value), True, self.probe.feeds)

    def made(self, indices, values, shape):
        parts = [self.feed(each) for each in (indices, values, np.array(shape, np.int64))]
        return self.node("SparseTensorToCSRSparseMatrix", parts, T=self.dtype)

    def fetch_all(self, matrix, batch=None):
        """Fetches a matrix in all forms."""
        self.probe.fetch(self.node("CSRSparseMatrixToSparseTensor", [matrix], type=self.dtype))
        self.probe.fetch(self.node("CSRSparseMatrixToDense", [matrix], type=self.dtype))
        self.probe.fetch(self.node("SparseMatrixNNZ", [matrix]))
        for i in range(batch or 1):
            index = self.feed(np.int32(i))
            self.probe.fetch(self.node("CSRSparseMatrixComponents", [matrix, index], type=self.dtype))


SPARSE_SHAPES = ((3, 4), (1, 1), (5, 2), (2, 3, 4), (3, 2, 2))


@special("SparseTensorToCSRSparseMatrix", "CSRSparseMatrixToSparseTensor", "DenseToCSRSparseMatrix", "CSRSparseMatrixToDense", "CSRSparseMatrixComponents", "SparseMatrixNNZ", "SparseMatrixTranspose")
def sparse_matrices(c):
    dtype = c.types.get("T") or c.types.get("type") or "float"
    for shape in (*SPARSE_SHAPES, (0, 3), (3, 0)):

        def make(probe, run, shape=shape):
            m = Matrices(probe, dtype)
            batch = shape[0] if len(shape) == 3 else None
            indices, values = entries(c, shape, attr=dtype)
            matrix = m.made(indices, values, shape)
            m.fetch_all(matrix, batch)
            if 0 in shape:
                return
            for conjugate in (False, True):
                m.fetch_all(m.node("SparseMatrixTranspose", [matrix], type=dtype, conjugate=conjugate), batch)
            dense = m.feed(c.values(shape, -3, 3, dtype))
            m.fetch_all(m.node("DenseToCSRSparseMatrix", [dense, m.feed(indices)], T=dtype), batch)
            m.fetch_all(m.node("Conj", [matrix], T="variant"), batch)

        yield make


def flags(*names):
    """The combinations of flags in which no factor is both transposed and an adjoint."""
    for number in range(2 ** len(names)):
        chosen = {name: bool(number >> i & 1) for i, name in enumerate(names)}
        if not any(chosen.get(f"transpose_{f}") and chosen.get(f"adjoint_{f}") for f in "ab"):
            yield chosen


FORMS = ("transpose_a", "transpose_b", "adjoint_a", "adjoint_b")


@special("SparseMatrixMatMul", "SparseMatrixSparseMatMul")
def sparse_products(c):
    dtype = c.types.get("T") or c.types.get("type")
    is_sparse = c.op == "SparseMatrixSparseMatMul"
    chosen = flags(*FORMS) if is_sparse else flags(*FORMS, "transpose_output", "conjugate_output")
    for attrs in chosen:

        def make(probe, run, attrs=attrs):
            m = Matrices(probe, dtype)
            for batch in ((), (3,)):
                a = (4, 3) if attrs["transpose_a"] or attrs["adjoint_a"] else (3, 4)
                b = (2, 4) if attrs["transpose_b"] or attrs["adjoint_b"] else (4, 2)
                first = m.made(*entries(c, batch + a, attr=dtype), batch + a)
                if is_sparse:
                    second = m.made(*entries(c, batch + b, attr=dtype), batch + b)
                    m.fetch_all(m.node("SparseMatrixSparseMatMul", [first, second], type=dtype, **attrs), batch and batch[0])
                else:
                    second = m.feed(c.values(batch + b, -3, 3, dtype))
                    probe.fetch(m.node("SparseMatrixMatMul", [first, second], T=dtype, **attrs))
            probe.within = 1e-4 if dtype in ("float", "complex64") else 1e-12

        yield make


@special("SparseMatrixOrderingAMD", "SparseMatrixSparseCholesky")
def sparse_factors(c):
    dtype = c.types.get("type", "float")
    for size, batch in ((1, ()), (6, ()), (9, (2,))):

        def make(probe, run, size=size, batch=batch):
            m = Matrices(probe, dtype)
            pattern = c.rng.uniform(size=(size, size)) < 0.3
            pattern |= pattern.T | np.eye(size, dtype=bool)
            values = c.values(batch + (size, size), -1, 1, dtype)
            values = values + np.conj(np.swapaxes(values, -1, -2)) + np.eye(size, dtype=values.dtype) * 3 * size
            values = np.where(pattern, values, np.zeros_like(values)).astype(values.dtype)
            indices = np.argwhere(values != 0).astype(np.int64)
            matrix = m.made(indices, values[tuple(indices.T)], batch + (size, size))
            for order in (np.arange(size), c.rng.permutation(size)):
                order = np.broadcast_to(order, batch + (size,)).astype(np.int32)
                m.fetch_all(m.node("SparseMatrixSparseCholesky", [matrix, m.feed(order)], type=dtype), batch and batch[0])
            # A tree has an order of elimination without new entries; orders that have this property differ.
            tree = np.eye(size) * 4
            for row in range(1, size):
                tree[row, row // 2] = tree[row // 2, row] = 1
            indices = np.argwhere(tree).astype(np.int64)
            tree = m.made(indices, tree[tuple(indices.T)].astype(c.dtype(dtype)), (size, size))
            order = m.node("SparseMatrixOrderingAMD", [tree])
            factor = m.node("SparseMatrixSparseCholesky", [tree, order], type=dtype)
            probe.fetch(m.node("SparseMatrixNNZ", [factor]))
            probe.within = 1e-5 if dtype in ("float", "complex64") else 1e-12

        yield make
