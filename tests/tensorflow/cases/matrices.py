"""Linear algebra, diagonals, Fourier transforms and sums of products."""
import numpy as np

from . import Call, case
from .special import special

I64 = lambda v: np.array(v, np.int64)
I32 = lambda v: np.array(v, np.int32)


def well_formed(c, shape):
    """Well-conditioned square matrices."""
    n = shape[-1]
    return (c.values(shape, -1, 1).astype(np.complex128 if c.is_complex() else np.float64) + 3 * np.eye(n)).astype(c.dtype())


def positive(c, shape):
    a = c.values(shape, -1, 1).astype(np.complex128 if c.is_complex() else np.float64)
    return (a @ np.swapaxes(a.conj(), -1, -2) + 2 * np.eye(shape[-1])).astype(c.dtype())


SQUARES = ((3, 3), (2, 4, 4), (1, 1), (0, 3, 3))


@case("Cholesky", "BatchCholesky")
def cholesky(c):
    for shape in SQUARES:
        yield Call(positive(c, shape), loose=10)


@case("MatrixInverse", "BatchMatrixInverse")
def inverse(c):
    for shape in SQUARES:
        for adjoint in (False, True):
            yield Call(well_formed(c, shape), adjoint=adjoint, loose=10)


@case("MatrixDeterminant", "BatchMatrixDeterminant", "LogMatrixDeterminant")
def determinant(c):
    for shape in SQUARES:
        yield Call(well_formed(c, shape), loose=20)


@case("MatrixSolve", "BatchMatrixSolve")
def solve(c):
    for shape in SQUARES:
        for adjoint in (False, True):
            yield Call(well_formed(c, shape), c.values((*shape[:-1], 2), -1, 1), adjoint=adjoint, loose=20)


@case("MatrixTriangularSolve", "BatchMatrixTriangularSolve")
def triangular(c):
    for shape in SQUARES:
        for lower in (False, True):
            for adjoint in (False, True):
                yield Call(well_formed(c, shape), c.values((*shape[:-1], 2), -1, 1), lower=lower, adjoint=adjoint, loose=20)
    if c.op == "MatrixTriangularSolve":
        yield Call(well_formed(c, (2, 3, 3)), c.values((3, 2), -1, 1), loose=20)


@case("Qr")
def qr(c):
    for shape in ((3, 3), (2, 4, 3), (3, 4)):
        for full in (False, True):
            if full and shape[-2] > shape[-1]:
                continue  # The vectors beyond the rank are arbitrary.
            yield Call(c.values(shape, -1, 1), full_matrices=full, loose=20)


@case("Lu")
def lu(c):
    for shape in SQUARES[:3]:
        yield Call(well_formed(c, shape), loose=20)


@case("MatrixDiag", "BatchMatrixDiag")
def diag(c):
    for shape in ((3,), (2, 4), (0,), (2, 1)):
        yield Call(c.values(shape))


@case("MatrixDiagPart", "BatchMatrixDiagPart")
def part(c):
    for shape in ((3, 3), (2, 3, 4), (4, 2)):
        yield Call(c.values(shape))


@case("MatrixSetDiag", "BatchMatrixSetDiag")
def set_diag(c):
    for shape, diagonal in (((3, 3), (3,)), ((2, 3, 4), (2, 3)), ((4, 2), (2,))):
        yield Call(c.values(shape), c.values(diagonal))


ALIGNS = ("LEFT_RIGHT", "RIGHT_LEFT", "LEFT_LEFT", "RIGHT_RIGHT")


def aligned(c):
    return [dict(align=a) for a in ALIGNS] if c.op.endswith("V3") else [{}]


@case("MatrixDiagV2", "MatrixDiagV3")
def diags(c):
    for attrs in aligned(c):
        for shape, k, rows, columns in (((2, 3), 0, -1, -1), ((2, 3), 1, -1, -1), ((3,), -2, 5, 3), ((3, 3), [-1, 1], -1, -1), ((2, 2, 3), [1, 2], 3, -1), ((2, 3, 3), [-2, 0], -1, 4)):
            yield Call(c.values(shape), I32(k), I32(rows), I32(columns), c.values(()), **attrs)


@case("MatrixDiagPartV2", "MatrixDiagPartV3")
def parts(c):
    for attrs in aligned(c):
        for shape, k in (((3, 4), 0), ((2, 3, 4), 1), ((4, 3), -2), ((3, 4), [-1, 2]), ((2, 4, 4), [0, 3]), ((4, 3), [-3, -1])):
            yield Call(c.values(shape), I32(k), c.values(()), **attrs)


@case("MatrixSetDiagV2", "MatrixSetDiagV3")
def set_diags(c):
    for attrs in aligned(c):
        for shape, diagonal, k in (((3, 4), (3,), 0), ((2, 3, 4), (2, 3), 1), ((3, 4), (4, 3), [-1, 2]), ((4, 3), (3, 3), [-3, -1])):
            yield Call(c.values(shape), c.values(diagonal), I32(k), **attrs)


@case("FFT", "IFFT", "FFT2D", "IFFT2D", "FFT3D", "IFFT3D")
def fft(c):
    for shape in ((4, 3, 5), (2, 8, 2, 7), (1, 1, 1)):
        yield Call(c.values(shape, attr="Tcomplex"), loose=200)


def rank(op):
    return int(op[-2]) if op.endswith("D") else 1


@case("RFFT", "RFFT2D", "RFFT3D")
def rfft(c):
    if (c.name("Treal") == "double") != (c.name("Tcomplex") == "complex128"):
        return
    for shape, lengths in (((4, 3, 5), (4, 3, 5)), ((2, 8, 2, 6), (7, 2, 6)), ((2, 4, 6), (2, 3, 4))):
        yield Call(c.values(shape, attr="Treal"), I32(lengths[3 - rank(c.op):]), loose=200)


@case("IRFFT", "IRFFT2D", "IRFFT3D")
def irfft(c):
    if (c.name("Treal") == "double") != (c.name("Tcomplex") == "complex128"):
        return
    for shape, lengths in (((4, 3, 5), (4, 3, 8)), ((2, 8, 2, 4), (7, 2, 7)), ((2, 4, 6), (2, 3, 4))):
        half = c.values(shape, attr="Tcomplex")
        half[..., 0] = half[..., 0].real
        if rank(c.op) == 1:
            yield Call(half, I32(lengths[2:]), loose=200)
        else:
            whole = np.fft.rfftn(c.rng.uniform(-1, 1, (*shape[:-1], 2 * shape[-1] - 2)), axes=range(-rank(c.op), 0))
            yield Call(whole.astype(half.dtype), I32((*shape[:-1], 2 * shape[-1] - 2)[-rank(c.op):]), loose=200)


@case("Einsum")
def einsum(c):
    for equation, *shapes in (
        ("ab,bc->ac", (2, 3), (3, 4)), ("abc,acd->abd", (2, 3, 4), (2, 4, 5)), ("ab->ba", (2, 3)), ("ab->", (2, 3)),
        ("aab->b", (3, 3, 2)), ("a->aa", (3,)), ("...ab,...bc->...ac", (2, 3, 4), (5, 1, 4, 2)), ("a,b->ab", (3,), (2,)),
        ("abc,cb->a", (2, 3, 4), (4, 3)), ("ab,cd->a", (2, 3), (2, 2)), ("ab...->b...", (2, 3, 4)),
    ):
        yield Call([c.values(s, -3, 3) for s in shapes], equation=equation, loose=8)


@case("ReverseSequence")
def reverse_sequence(c):
    for shape, lengths, sequence, batch in (((3, 4), [2, 0, 4], 1, 0), ((4, 3), [1, 4, 3], 0, 1), ((2, 3, 4, 2), [4, 2], 2, 0)):
        yield Call(c.values(shape), c.array(lengths, "Tlen"), seq_dim=sequence, batch_dim=batch)


@case("Roll")
def roll(c):
    for shape, shift, axis in (((5,), 2, 0), ((3, 4), [1, -2], [0, 1]), ((2, 3, 4), [7, 1], [1, 1]), ((2, 3, 2), [1], [-2])):
        yield Call(c.values(shape), c.array(shift, "Tshift"), c.array(axis, "Taxis"))


@case("UnravelIndex")
def unravel(c):
    for indices, dims in (([2, 5, 7], [3, 3]), (5, [2, 3]), ([22], [3, 4, 2])):
        yield Call(c.array(indices, "Tidx"), c.array(dims, "Tidx"))


@case("Cross")
def cross(c):
    for shape in ((3,), (4, 3), (0, 3)):
        yield Call(c.values(shape), c.values(shape))


@case("Bucketize")
def bucketize(c):
    yield Call(c.values((20,)), boundaries=[-4.0, 0.0, 1.5, 3.0])
    yield Call(c.array([[0, 1], [3, 7]]), boundaries=[0.0, 3.0])
    yield Call(c.values((3,)), boundaries=[])


@case("HistogramFixedWidth")
def histogram(c):
    for bins in (5, 1):
        yield Call(c.values((50,)), c.array([-5, 5]), I32(bins))


@case("Bincount")
def bincount(c):
    yield Call(I32([1, 3, 1, 9]), I32(5), c.values((4,)))
    yield Call(I32([1, 3, 1, 9]), I32(5), c.array([]))


@case("DenseBincount")
def dense_bincount(c):
    index = lambda v: c.array(v, "Tidx")
    for binary in (False, True):
        yield Call(index([1, 3, 1, 9]), index(5), c.values((4,)), binary_output=binary)
        yield Call(index([[1, 3], [1, 0]]), index(4), c.array([]), binary_output=binary)
    yield Call(index([[1, 3], [1, 1]]), index(4), c.values((2, 2)))


@case("SparseBincount")
def sparse_bincount(c):
    index = lambda v: c.array(v, "Tidx")
    for binary in (False, True):
        for weights in (c.array([]), c.values((4,))):
            yield Call(I64([[0, 1], [0, 2], [2, 0], [2, 1]]), index([1, 1, 3, 9]), I64([3, 4]), index(4), weights, binary_output=binary)
            yield Call(I64([[0], [1], [2], [5]]), index([1, 1, 3, 9]), I64([6]), index(4), weights, binary_output=binary)
    yield Call(I64([[0, 1], [2, 2]]), index([-1, 2]), I64([3, 4]), index(3), c.array([]))
    yield Call(I64([[0, 1, 1], [2, 0, 0]]), index([1, 2]), I64([3, 4, 2]), index(3), c.array([]))
    yield Call(I64(np.zeros((0, 2))), index([]), I64([3, 4]), index(2), c.array([]))


@case("RaggedBincount")
def ragged_bincount(c):
    index = lambda v: c.array(v, "Tidx")
    for binary in (False, True):
        for weights in (c.array([]), c.values((4,))):
            yield Call(I64([0, 2, 2, 4]), index([1, 1, 3, 9]), index(4), weights, binary_output=binary)
    yield Call(I64([0]), index([]), index(4), c.array([]))
    yield Call(I64([0, 0]), index([]), index(0), c.array([]))


COUNTED = (dict(), dict(minlength=7), dict(maxlength=3), dict(minlength=9, maxlength=3), dict(maxlength=0))


@case("DenseCountSparseOutput")
def dense_count(c):
    for shape in ((5,), (2, 4), (0,), (2, 0)):
        for attrs in COUNTED:
            for binary in (False, True):
                for weights in ((0,), shape):
                    yield Call(c.values(shape, 0, 6), c.values(weights, attr="output_type"), binary_output=binary, loose=4, **attrs)


@case("SparseCountSparseOutput")
def sparse_count(c):
    for indices, shape in (([[0], [3], [4]], [5]), ([[0, 1], [0, 2], [2, 0]], [3, 4]), ([[2, 0], [0, 1], [0, 3]], [3, 4]), (np.zeros((0, 2)), [3, 4]), ([[0, 1, 1], [1, 2, 0]], [3, 4, 2])):
        for attrs in COUNTED:
            for binary in (False, True):
                for weights in ((0,), (len(indices),)):
                    yield Call(I64(indices), c.values((len(indices),), 0, 4), I64(shape), c.values(weights, attr="output_type"), binary_output=binary, **attrs)


@case("RaggedCountSparseOutput")
def ragged_count(c):
    for splits in ([0, 2, 2, 5], [0, 5], [0, 0, 0]):
        for attrs in COUNTED:
            for binary in (False, True):
                for weights in ((0,), (splits[-1],)):
                    yield Call(I64(splits), c.values((splits[-1],), 0, 4), c.values(weights, attr="output_type"), binary_output=binary, loose=4, **attrs)


@case("LowerBound", "UpperBound")
def bounds(c):
    yield Call(np.sort(c.values((2, 9)).astype(np.float64), axis=1).astype(c.dtype()), c.values((2, 5)))
    yield Call(c.array([[1, 1, 2, 3]]), c.array([[0, 1, 3, 4]]))


@case("MatrixSolveLs", "BatchMatrixSolveLs")
def least_squares(c):
    close = dict(within=1e-4 if c.name("T") in ("float", "complex64") else 1e-9)
    for batch, rows, columns in (((), 5, 3), ((), 3, 5), ((2,), 4, 4), ((2, 2), 4, 2), ((0,), 4, 3), ((), 3, 0)):
        a, b = c.values((*batch, rows, columns), -1, 1), c.values((*batch, rows, 2), -1, 1)
        yield Call(a, b, np.float64(0.5), **close)
        yield Call(a, b, np.float64(0.5), fast=False, **close)
    yield Call(np.ones((4, 3), c.dtype()), c.values((4, 2), -1, 1), np.float64(0), fast=False, **close)
    yield Call(np.zeros((4, 3), c.dtype()), c.values((4, 2), -1, 1), np.float64(0), fast=False, **close)


@case("CholeskyGrad", "BatchCholeskyGrad")
def cholesky_grad(c):
    for shape in SQUARES:
        factor = np.linalg.cholesky(positive(c, shape).astype(np.float64)) if 0 not in shape else np.zeros(shape)
        yield Call(factor.astype(c.dtype()), c.values(shape, -1, 1), within=2e-5 if c.name("T") == "float" else 1e-13)


# The results of large numbers of operations in single or double precision.
NEAR = {"float": 5e-5, "complex64": 5e-5, "double": 1e-12, "complex128": 1e-12}


@case("MatrixSquareRoot", "MatrixLogarithm", "MatrixExponential")
def functions_of_matrices(c):
    for shape in SQUARES:
        yield Call(positive(c, shape), within=NEAR[c.name("T")] * (100 if c.op == "MatrixExponential" else 1))
        if c.is_complex():
            yield Call(well_formed(c, shape), within=NEAR[c.name("T")] * (100 if c.op == "MatrixExponential" else 1))


@case("TridiagonalMatMul")
def tridiagonal_product(c):
    for batch, rows, columns in (((), 4, 3), ((2,), 1, 2), ((2, 3), 3, 1), ((), 3, 0)):
        yield Call(*(c.values((*batch, 1, rows), -1, 1) for _ in range(3)), c.values((*batch, rows, columns), -1, 1))


@case("TridiagonalSolve")
def tridiagonal_solution(c):
    for batch, rows, columns in (((), 4, 3), ((2,), 1, 2), ((2, 3), 3, 1), ((), 2, 2), ((), 7, 2)):
        for pivots in (True, False):
            diagonals = c.values((*batch, 3, rows), -1, 1)
            diagonals[..., 1, :] += 3
            yield Call(diagonals, c.values((*batch, rows, columns), -1, 1), partial_pivoting=pivots, within=NEAR[c.name("T")])
    # The first pivot is zero.
    yield Call(c.array([[1, 2, 0], [0, 1, 4], [0, 1, 3]]), c.values((3, 2), -1, 1), within=NEAR[c.name("T")])


@case("BandedTriangularSolve")
def banded(c):
    def diagonals(shape, lower):
        made = c.values(shape, -0.5, 0.5)
        made[..., 0 if lower else -1, :] += 2
        return made

    for lower in (False, True):
        for adjoint in (False, True):
            for a, b in (((1, 3), (3, 2)), ((2, 4), (4, 1)), ((3, 3), (3, 2)), ((2, 2, 5), (2, 5, 3)), ((2, 5), (3, 5, 2)), ((3, 1, 2, 4), (2, 4, 1))):
                yield Call(diagonals(a, lower), c.values(b, -1, 1), lower=lower, adjoint=adjoint, within=1e-4 if c.name("T") in ("float", "complex64") else 1e-12)


@special("Eig")
def general_spectra(c):
    """Neither the order of eigenvalues nor the phases of eigenvectors are defined: the products of eigenvectors and
    eigenvalues are compared with those of the matrix, and the sums of powers of eigenvalues."""
    dtype, out = c.name("T"), c.name("Tout")
    if (dtype in ("double", "complex128")) != (out == "complex128"):
        return
    for shape in ((3, 3), (2, 4, 4), (1, 1), (2, 0, 0)):

        def make(probe, run, shape=shape):
            value = probe.feed(c.values(shape, -1, 1), True, probe.feeds)
            node = probe.node("Eig", "", [value], T=dtype, Tout=out, compute_v=True)
            alone = probe.node("Eig", "_alone", [value], T=dtype, Tout=out, compute_v=False)
            last = probe.constant(np.array([-1], np.int32))
            for name, values in (("both", node), ("alone", alone)):
                squares = probe.node("Square", f"_squares_{name}", [f"{values}:0"], T=out)
                probe.fetch(probe.node("Sum", f"_sum_{name}", [f"{values}:0", last], T=out, Tidx="int32"))
                probe.fetch(probe.node("Sum", f"_sum2_{name}", [squares, last], T=out, Tidx="int32"))
            matrix = probe.node("Cast", "_matrix", [value], SrcT=dtype, DstT=out)
            product = probe.node("BatchMatMulV2", "_product", [matrix, f"{node}:1"], T=out)
            row = probe.node("ExpandDims", "_row", [f"{node}:0", probe.constant(np.int32(-2))], T=out, Tdim="int32")
            scaled = probe.node("Mul", "_scaled", [f"{node}:1", row], T=out)
            probe.fetch(probe.node("Sub", "_rest", [product, scaled], T=out))
            norm = probe.node("ComplexAbs", "_abs", [f"{node}:1"], T=out, Tout="double" if out == "complex128" else "float")
            real = "double" if out == "complex128" else "float"
            square = probe.node("Square", "_square", [norm], T=real)
            rows = probe.constant(np.array([-2], np.int32))
            probe.fetch(probe.node("Sum", "_lengths", [square, rows], T=real, Tidx="int32"))
            probe.within = 2e-5 if out == "complex64" else 1e-11

        yield make
