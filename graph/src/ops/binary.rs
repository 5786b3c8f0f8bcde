//! Element-wise arithmetic of two operands, with broadcasting.

use super::broadcast::{arrived, broadcast, number, reduce_gradients};
use super::{Gradient, GradientFn, OpDef, Traits};
use crate::builder::{Forward, Scope};
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::PartialShape;

/// Builds the op table row of an op with two operands `x` and `y`.
macro_rules! row {
    ($name:literal, $types:literal, $gradient:expr, $traits:expr) => {
        OpDef {
            name: $name,
            inputs: &["x: T", "y: T"],
            outputs: &["z: T"],
            attrs: &[concat!("T: {", $types, "}")],
            infer: broadcast,
            gradient: $gradient,
            traits: $traits,
            ..OpDef::NEW
        }
    };
}

/// Builds a gradient from `|scope, x, y, z, dz| (gradient of x, gradient of y)`, both of the broadcast shape. For
/// complex numbers, `x`, `y` and `z` are the conjugates, because the gradient of an analytic function contains the
/// conjugate of its slope.
macro_rules! gradient {
    (|$s:ident, $x:ident, $y:ident, $z:ident, $dz:ident| $value:expr) => {{
        const GRADIENT: GradientFn = |$s: &Scope, forward: &Forward, gradients: &[Option<Output>]| {
            let operands = [forward.input(0), forward.input(1)];
            let [$x, $y] = operands.map(|operand| $s.conj(operand));
            let ($z, $dz) = ($s.conj(forward.output(0)), arrived(forward, gradients)?);
            let _ = ($x, $y, $z);
            let (dx, dy): (Output, Output) = $value;
            reduce_gradients($s, operands, [Some(dx), Some(dy)])
        };
        Gradient::Defined(GRADIENT)
    }};
}

const NO_TRAITS: Traits = Traits::NONE;

const ADD: Gradient = gradient!(|_s, x, y, z, dz| (dz, dz));

const DIVIDE: Gradient = gradient!(|s, x, y, z, dz| {
    let slope = s.div(s.div(s.neg(x), y), y);
    (s.div(dz, y), s.mul(dz, slope))
});

pub(super) const OPS: &[OpDef] = &[
    row!(
        "Add",
        "bfloat16, half, float, double, uint8, int8, int16, int32, int64, complex64, complex128, string",
        ADD,
        NO_TRAITS
    ),
    row!(
        "AddV2",
        "bfloat16, half, float, double, uint8, uint16, uint32, uint64, int8, int16, int32, int64, complex64, complex128",
        ADD,
        Traits::AGGREGATE
    ),
    row!(
        "Sub",
        "bfloat16, half, float, double, uint8, int8, uint16, int16, int32, int64, complex64, complex128, uint32, uint64",
        gradient!(|s, x, y, z, dz| (dz, s.neg(dz))),
        NO_TRAITS
    ),
    row!(
        "Mul",
        "bfloat16, half, float, double, uint8, int8, uint16, int16, int32, uint32, uint64, int64, complex64, complex128",
        gradient!(|s, x, y, z, dz| (s.mul(dz, y), s.mul(x, dz))),
        Traits::COMMUTATIVE
    ),
    row!(
        "RealDiv",
        "bfloat16, half, float, double, uint8, int8, uint16, int16, int32, uint32, uint64, int64, complex64, complex128",
        DIVIDE,
        NO_TRAITS
    ),
    row!(
        "Div",
        "bfloat16, half, float, double, uint8, int8, uint16, int16, int32, uint32, uint64, int64, complex64, complex128",
        DIVIDE,
        NO_TRAITS
    ),
    row!(
        "FloorDiv",
        "bfloat16, half, float, double, uint8, int8, uint16, int16, int32, uint32, uint64, int64, complex64, complex128",
        Gradient::Leaf,
        NO_TRAITS
    ),
    row!(
        "FloorMod",
        "int8, int16, int32, int64, uint8, uint16, uint32, uint64, bfloat16, half, float, double",
        gradient!(|s, x, y, z, dz| (dz, s.mul(dz, s.neg(s.floor_div(x, y))))),
        NO_TRAITS
    ),
    row!("Mod", "int32, int64, half, half, bfloat16, float, double", Gradient::None, NO_TRAITS),
    row!(
        "TruncateDiv",
        "bfloat16, half, float, double, uint8, int8, uint16, int16, int32, uint32, uint64, int64, complex64, complex128",
        Gradient::Leaf,
        NO_TRAITS
    ),
    row!("TruncateMod", "int32, int64, bfloat16, half, float, double", Gradient::None, NO_TRAITS),
    row!(
        "Maximum",
        "bfloat16, half, float, double, int8, uint8, int16, uint16, int32, uint32, int64, uint64",
        gradient!(|s, x, y, z, dz| choose(s, s.greater_equal(x, y), dz)),
        NO_TRAITS
    ),
    row!(
        "Minimum",
        "bfloat16, half, float, double, int8, uint8, int16, uint16, int32, uint32, int64, uint64",
        gradient!(|s, x, y, z, dz| choose(s, s.less_equal(x, y), dz)),
        NO_TRAITS
    ),
    row!(
        "Pow",
        "bfloat16, float, half, double, int8, int16, int32, int64, complex64, complex128",
        gradient!(|s, x, y, z, dz| {
            let one = number(s, s.dtype(x), 1.0)?;
            let dx = s.mul(s.mul(dz, y), s.pow(x, s.sub(y, one)));
            // The logarithm of `x` is taken only where it is defined; elsewhere the gradient of `y` is 0.
            let zeros = s.op("ZerosLike").input(x).output();
            let positive = match s.dtype(x).is_complex() {
                true => s.not_equal(x, zeros),
                false => s.greater(x, zeros),
            };
            let select =
                |then, otherwise| s.op("SelectV2").input(positive).input(then).input(otherwise).output();
            let log = select(s.log(select(x, one)), zeros);
            (dx, s.mul(s.mul(dz, z), log))
        }),
        NO_TRAITS
    ),
    row!(
        "SquaredDifference",
        "bfloat16, half, float, double, int32, int64, complex64, complex128",
        gradient!(|s, x, y, z, dz| {
            // For complex numbers SquaredDifference is not analytic: it multiplies the difference by the conjugate of
            // the difference.
            let dx = s.mul(s.mul(number(s, s.dtype(x), 2.0)?, dz), s.conj(s.sub(x, y)));
            (dx, s.neg(dx))
        }),
        Traits::COMMUTATIVE
    ),
    row!(
        "DivNoNan",
        "half, float, bfloat16, double, complex64, complex128",
        gradient!(|s, x, y, z, dz| {
            let slope = s.div_no_nan(s.div_no_nan(s.neg(x), y), y);
            (s.div_no_nan(dz, y), s.mul(dz, slope))
        }),
        NO_TRAITS
    ),
    row!(
        "MulNoNan",
        "bfloat16, half, float, double, complex64, complex128",
        gradient!(|s, x, y, z, dz| (s.mul_no_nan(dz, y), s.mul_no_nan(x, dz))),
        NO_TRAITS
    ),
    OpDef {
        name: "Atan2",
        inputs: &["y: T", "x: T"],
        outputs: &["z: T"],
        attrs: &["T: {bfloat16, half, float, double}"],
        infer: broadcast,
        gradient: gradient!(|s, y, x, z, dz| {
            let part = s.div(dz, s.add(s.square(x), s.square(y)));
            (s.mul(x, part), s.mul(s.neg(y), part))
        }),
        ..OpDef::NEW
    },
    row!(
        "Xdivy",
        "half, bfloat16, float, double, complex64, complex128",
        gradient!(|s, x, y, z, dz| {
            let dx = s.xdivy(nonzero(s, x), y);
            let dy = s.xdivy(s.neg(x), s.square(y));
            (s.mul(dx, dz), s.mul(dy, dz))
        }),
        NO_TRAITS
    ),
    row!(
        "Xlogy",
        "half, bfloat16, float, double, complex64, complex128",
        gradient!(|s, x, y, z, dz| {
            let (dx, dy) = (s.xlogy(nonzero(s, x), y), s.xdivy(x, y));
            (s.mul(dx, dz), s.mul(dy, dz))
        }),
        NO_TRAITS
    ),
    row!(
        "Xlog1py",
        "half, bfloat16, float, double, complex64, complex128",
        gradient!(|s, x, y, z, dz| {
            let one = number(s, s.dtype(y), 1.0)?;
            let (dx, dy) = (s.xlog1py(nonzero(s, x), y), s.xdivy(x, s.add(y, one)));
            (s.mul(dx, dz), s.mul(dy, dz))
        }),
        NO_TRAITS
    ),
    OpDef {
        name: "AddN",
        inputs: &["inputs: N * T"],
        outputs: &["sum: T"],
        attrs: &[
            "N: int >= 1",
            "T: {float, double, int32, uint8, int16, int8, complex64, int64, qint8, quint8, qint32, bfloat16, qint16, quint16, uint16, complex128, half, uint32, uint64, variant}",
        ],
        infer: merged,
        gradient: Gradient::Defined(|_, forward, gradients| {
            Ok(vec![Some(arrived(forward, gradients)?); forward.inputs.len()])
        }),
        traits: Traits::AGGREGATE,
        ..OpDef::NEW
    },
    bitwise("BitwiseAnd", Traits::COMMUTATIVE),
    bitwise("BitwiseOr", Traits::COMMUTATIVE),
    bitwise("BitwiseXor", Traits::COMMUTATIVE),
    bitwise("LeftShift", Traits::NONE),
    bitwise("RightShift", Traits::NONE),
];

const fn bitwise(name: &'static str, traits: Traits) -> OpDef {
    OpDef {
        name,
        inputs: &["x: T", "y: T"],
        outputs: &["z: T"],
        attrs: &["T: {int8, int16, int32, int64, uint8, uint16, uint32, uint64}"],
        infer: broadcast,
        gradient: Gradient::Leaf,
        traits,
        ..OpDef::NEW
    }
}

/// Sets the output's shape to the common shape of all inputs.
pub(super) fn merged(infer: &mut Infer<'_>) -> Result<()> {
    let shape =
        (0..infer.num_inputs()).try_fold(PartialShape::unknown(), |shape, i| shape.merge(&infer.input(i)))?;
    infer.set(0, shape);
    Ok(())
}

/// Divides `dz` between two operands: the first tensor has the elements of `dz` where `first` is true and 0 elsewhere,
/// the second has the elements of `dz` where `first` is false and 0 elsewhere.
fn choose(scope: &Scope, first: Output, dz: Output) -> (Output, Output) {
    let zeros = scope.op("ZerosLike").input(dz).output();
    let select = |then, otherwise| scope.op("SelectV2").input(first).input(then).input(otherwise).output();
    (select(dz, zeros), select(zeros, dz))
}

/// Returns 1 where `x` is not 0, and 0 elsewhere.
fn nonzero(scope: &Scope, x: Output) -> Output {
    let zeros = scope.op("ZerosLike").input(x).output();
    scope.cast(scope.not_equal(x, zeros), scope.dtype(x))
}
