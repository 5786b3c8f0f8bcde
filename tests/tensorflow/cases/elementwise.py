"""Elementwise ops, with and without broadcasting."""
import numpy as np

from . import COMPLEX, Call, FLOATS, case

SHAPES = ((3, 4), (), (0, 3), (1031,))

# The range of an op's random inputs; outside of it, only special values are tried.
RANGES = {
    "Acos": (-1, 1), "Acosh": (1, 9), "Asin": (-1, 1), "Atanh": (-0.99, 0.99), "Cosh": (-4, 4), "Sinh": (-4, 4),
    "Digamma": (0.1, 9), "Lgamma": (0.1, 9), "Erf": (-3, 3), "Erfc": (-3, 3), "Exp": (-5, 5), "Expm1": (-5, 5),
    "Inv": (1, 9), "Reciprocal": (1, 9), "Log": (0.01, 9), "Log1p": (-0.9, 9), "Rsqrt": (0.1, 9), "Sqrt": (0, 9),
    "Tan": (-1.2, 1.2),
}


@case(
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Digamma", "Erf", "Erfc", "Exp",
    "Expm1", "Floor", "Inv", "IsFinite", "IsInf", "IsNan", "Lgamma", "Log", "Log1p", "LogicalNot", "Neg", "Reciprocal",
    "Rint", "Round", "Rsqrt", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Square", "Tan", "Tanh", "Relu", "Relu6",
    "Elu", "Selu", "Softplus", "Softsign", "ZerosLike", "OnesLike", "Identity", "Snapshot", "StopGradient",
    "PreventGradient", "Invert", "PopulationCount", "DeepCopy", "GuaranteeConst",
)
def unary(c):
    attr = "T" if "T" in c.types else "bool"
    low, high = RANGES.get(c.op, (-8, 8))
    for shape in SHAPES:
        if c.op in ("Abs", "Neg", "Square", "Sign", "Invert", "PopulationCount", "Identity", "Relu", "Relu6"):
            yield Call(c.whole(shape, attr))
        else:
            yield Call(c.values(shape, low, high, attr))
    if c.is_float(attr):
        x = c.special()
        # The peer's erf of an infinite double is NaN.
        yield Call(x[np.isfinite(x)] if c.op == "Erf" else x)
        if c.op in ("Acosh", "Asinh"):
            yield Call(c.array([6e4, 1e19, 1e38, 1e300 if c.name("T") == "double" else 3e38]))
        if c.op in ("Round", "Rint", "Floor", "Ceil"):
            yield Call(c.array([0.5, 1.5, 2.5, -0.5, -1.5, 3.49, -3.51]))


@case("L2Loss")
def loss(c):
    for shape in SHAPES:
        yield Call(c.values(shape, -2, 2))


@case("LeakyRelu")
def leaky(c):
    for shape in SHAPES:
        yield Call(c.values(shape))
    yield Call(c.special(), alpha=0.3)


@case("Copy", "CopyHost", "DebugIdentity", "DebugIdentityV3", "DebugNanCount", "DebugNumericSummary")
def watched(c):
    named = {"tensor_name": "x:0"}
    yield Call(c.values(), **named)
    yield Call(c.values((0, 2)), **named)
    if c.is_float():
        yield Call(np.array([1, np.nan, -np.inf, 0, -2, np.inf], c.dtype()), **named)
    if c.op == "DebugNumericSummary":
        yield Call(c.values(), lower_bound=-3.0, upper_bound=2.0, mute_if_healthy=True, **named)


@case("DebugGradientIdentity", "DebugGradientRefIdentity", "DebugIdentityV2")
def of_the_debugger(c):
    for shape in SHAPES:
        yield Call(c.values(shape))


@case("DebugNumericSummaryV2")
def summarized(c):
    for mode in (2, 3, 4, 5, 8):
        yield Call(c.values(), tensor_debug_mode=mode, tensor_id=9)
        yield Call(c.values((0, 2)), tensor_debug_mode=mode, tensor_id=9)
        if c.is_float():
            yield Call(np.array([1, np.nan, -np.inf, 0, -2, np.inf], c.dtype()), tensor_debug_mode=mode)
    yield Call(c.values((1, 2, 1, 3, 2, 1, 1, 2)), tensor_debug_mode=5)


@case("CheckNumerics", "CheckNumericsV2")
def numerics(c):
    for shape in SHAPES:
        yield Call(c.values(shape), message="of a test")


@case(
    "InvGrad", "ReciprocalGrad", "RsqrtGrad", "SqrtGrad", "SigmoidGrad", "TanhGrad", "ReluGrad", "Relu6Grad", "EluGrad",
    "SeluGrad", "SoftplusGrad", "SoftsignGrad",
)
def slope(c):
    positive = c.op in ("InvGrad", "ReciprocalGrad", "RsqrtGrad", "SqrtGrad", "SigmoidGrad")
    for shape in SHAPES:
        at_y = c.values(shape, -0.9, 0.9) if c.op == "TanhGrad" else c.values(shape, 0.1 if positive else -3, 7)
        yield Call(at_y, c.values(shape, 0.1 if positive else -3, 7), loose=2)


@case("LeakyReluGrad")
def leaky_slope(c):
    for shape in SHAPES:
        yield Call(c.values(shape), c.values(shape), alpha=0.3)


BROADCASTS = (
    ((3, 4), (3, 4)), ((3, 4), (4,)), ((), (2, 3)), ((2, 3), ()), ((3, 1, 2), (4, 1)), ((0, 3), (3,)), ((5,), (1,)),
    ((1031,), (1031,)), ((), ()), ((2, 1, 3, 1, 2), (1, 4, 1, 5, 1)),
)


@case(
    "Add", "AddV2", "Sub", "Mul", "Maximum", "Minimum", "SquaredDifference", "BitwiseAnd", "BitwiseOr", "BitwiseXor",
    "Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr", "MulNoNan",
)
def binary(c):
    attr = "T" if "T" in c.types else "bool"
    for a, b in BROADCASTS:
        yield Call(c.values(a, -3, 3, attr), c.values(b, -3, 3, attr))
    yield Call(c.whole((64,), attr), c.whole((64,), attr))
    if c.is_float(attr):
        x = c.special()
        yield Call(x.reshape(-1, 1), x)


@case("Div", "RealDiv", "FloorDiv", "TruncateDiv", "FloorMod", "Mod", "TruncateMod", "DivNoNan")
def division(c):
    for a, b in BROADCASTS:
        divisor = c.values(b, 1, 7)
        if not c.is_unsigned():
            divisor = (divisor * c.rng.choice([-1, 1], b)).astype(divisor.dtype).reshape(b)
        yield Call(c.values(a, -50, 50), divisor)
    if c.is_float():
        yield Call(c.array([1, -1, 0, 5.5, -5.5, 6, -6, 7]), c.array([0, 0, 0, 2, 2, -3, 3, -2.5]))
        if c.op in ("Div", "RealDiv", "DivNoNan"):
            x = c.special()
            yield Call(x.reshape(-1, 1), x)


@case("Pow")
def power(c):
    for a, b in BROADCASTS:
        if c.is_float():
            yield Call(c.values(a, 0.1, 3), c.values(b, -3, 3))
        else:
            yield Call(c.values(a, -4, 5), c.values(b, 0, 4))
    if c.is_float():
        yield Call(c.array([0, 0, -2, -2, 1, -1, 4]), c.array([0, 2, 2, 3, 9, -2, 0.5]))


@case("Atan2", "Xdivy", "Xlogy", "Xlog1py")
def of_positive(c):
    for a, b in BROADCASTS:
        yield Call(c.values(a, -3, 3), c.values(b, 0.2, 3))
    yield Call(c.array([0, 0, 0, 1, -1, 0]), c.array([0, -1, 1, 0.5, 0.25, 3]))
    if c.op == "Atan2":
        yield Call(c.values((20,), -3, 3), c.values((20,), -3, 3))


@case("LeftShift", "RightShift")
def shifts(c):
    for a, b in BROADCASTS:
        yield Call(c.whole(a), c.values(b, 0, 8))


@case("ApproximateEqual")
def about(c):
    x = c.values((3, 4), -2, 2)
    yield Call(x, x)
    yield Call(x, c.values((3, 4), -2, 2), tolerance=1.5)
    yield Call(c.values(()), c.values(()))
    yield Call(c.array([1, 2, 5]), c.array([2, 4, 5]), tolerance=1)


@case("AddN")
def sums(c):
    for n, shape in ((1, (3,)), (2, (3, 4)), (5, ()), (3, (0, 2)), (9, (70,))):
        yield Call([c.values(shape, -3, 3) for _ in range(n)], loose=8)


@case("ClipByValue")
def clip(c):
    for shape in SHAPES:
        yield Call(c.values(shape), c.array(1), c.array(4))
    yield Call(c.values((3, 4)), c.values((3, 4), 0, 2), c.values((3, 4), 3, 5))


@case("Cast")
def casts(c):
    source, target = c.name("SrcT"), c.name("DstT")
    low = 0 if c.is_unsigned("DstT") and source in FLOATS + COMPLEX else -100
    for shape in SHAPES:
        yield Call(c.values(shape, low, 100, "SrcT"))
    if source in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        yield Call(c.whole((64,), "SrcT"))
    if source in FLOATS and target in FLOATS:
        yield Call(c.array([float("nan"), float("inf"), -float("inf"), -0.0, 0.1, 65504], "SrcT"))


@case("Complex")
def complex_numbers(c):
    yield from ((Call(c.values(a), c.values(b))) for a, b in (((3, 4), (3, 4)), ((), (2,)), ((2, 1), (3,)), ((0, 3), (3,))))


@case("Real", "Imag", "ComplexAbs", "Angle", "Conj")
def parts(c):
    if c.types.get("Tout") not in (None, "double" if c.name("T") == "complex128" else "float"):
        return  # The output type does not match the type of the parts.
    for shape in SHAPES:
        yield Call(c.values(shape))
    yield Call(c.array([0, 1, -1, 1j, -1j, complex(np.inf, 1), complex(np.nan, 0), 3 + 4j]))


@case("Select", "SelectV2")
def select(c):
    for shape in SHAPES:
        yield Call(c.values(shape, attr="bool"), c.values(shape), c.values(shape))
    if c.op == "Select":
        yield Call(c.values((3,), attr="bool"), c.values((3, 2, 2)), c.values((3, 2, 2)))
        yield Call(c.array(True, "bool"), c.values((3, 2)), c.values((3, 2)))
    else:
        yield Call(c.values((3, 1), attr="bool"), c.values((4,)), c.values((2, 3, 4)))
        yield Call(c.array(False, "bool"), c.values(()), c.values((2, 3)))
        yield Call(c.values((2, 3), attr="bool"), c.values(()), c.values((3,)))


@case("Bitcast")
def bits(c):
    wide, narrow = np.dtype(c.dtype("T")).itemsize, np.dtype(c.dtype("type")).itemsize
    shape = (2, 3) if wide >= narrow else (2, narrow // wide)
    make = c.whole if c.is_integer() else c.values
    yield Call(make(shape), exact=True)
    yield Call(make((0,) + shape[1:]), exact=True)
    if wide >= narrow:
        yield Call(make(()), exact=True)


@case("Zeta", "Polygamma", "Igamma", "Igammac", "NextAfter")
def special_functions(c):
    for a, b in (((3, 4), (3, 4)), ((), (5,)), ((2, 1), (3,)), ((0, 3), (3,))):
        if c.op == "Polygamma":
            yield Call(c.array(c.rng.integers(0, 5, a)), c.values(b, 0.5, 6), loose=10)
        elif c.op == "Zeta":
            yield Call(c.values(a, 1.2, 6), c.values(b, 0.3, 6), loose=10)
        elif c.op == "NextAfter":
            yield Call(c.values(a), c.values(b), exact=True)
        else:
            yield Call(c.values(a, 0.2, 9), c.values(b, 0.1, 9), loose=10)


@case(*(f"Bessel{kind}" for kind in ("I0", "I0e", "I1", "I1e", "J0", "J1", "Y0", "Y1", "K0", "K0e", "K1", "K1e")))
def bessel(c):
    yield Call(c.values((3, 4), -8, 8))
    yield Call(c.values((257,), 0, 40))
    yield Call(c.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -2.5, 90.0, 1e-3, 300.0]))
    yield Call(c.values((0, 3)))


@case("Dawsn", "Expint", "FresnelCos", "FresnelSin", "Spence", "Ndtri", "Erfinv")
def special_unary(c):
    low, high = {"Expint": (0.01, 40), "Spence": (0, 9), "Ndtri": (0.001, 0.999), "Erfinv": (-0.99, 0.99)}.get(c.op, (-8, 8))
    for shape in SHAPES:
        yield Call(c.values(shape, low, high))
    yield Call(c.array([np.nan, np.inf, 0.0, -0.0, 1.0, 0.5, 0.25, 2.0, 3.0, 1e-3]))
    if c.op not in ("Dawsn", "FresnelCos", "FresnelSin"):
        yield Call(c.array([-0.5, -1.0, -3.0, -np.inf, 1.5]))


@case("Betainc")
def incomplete_beta(c):
    for a, b, x in (((3, 4), (3, 4), (3, 4)), ((), (5,), (5,)), ((2, 3), (), ()), ((), (), ()), ((0, 3), (), (0, 3))):
        yield Call(c.values(a, 0.2, 9), c.values(b, 0.2, 9), c.values(x, 0, 1), within=2e-5 if c.name("T") == "float" else 1e-13)
    yield Call(c.array([0, 1, -1, 2, 2, 2]), c.array([1, 0, 2, 2, 2, 2]), c.array([0.5, 0.5, 0.5, 0, 1, -0.1]))
