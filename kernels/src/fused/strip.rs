//! Element-wise ops of fused chains as functions of strips of elements; the ops' own kernels use the same functions.

use crate::activation::Rectifiable;
use crate::numeric::broadcast::{Binary, Operand, ZipLoop};
use crate::numeric::elementwise::{MapLoop, Unary, map_each};
use crate::numeric::scalar::{Analytic, Real};
use crate::numeric::simd::{Vector as _, vectorized_wide};
use crate::numeric::threads::Cost;
use crate::numeric::threads::Cost::{Cheap, Expensive};
use crate::plan::fused::chain::{Arity, Pairing};
use crate::unary::{Polynomial, polynomial};
use crate::{activation, binary, unary};

/// An op on strips of elements of type `W`, the type of the computation.
pub(super) struct StripOp<W: 'static> {
    pub(super) run: StripFunction<W>,
    pub(super) cost: Cost,
}

/// The function of an op, with one or two operands.
pub(super) enum StripFunction<W: 'static> {
    Map(fn(&mut [W], &[W])),
    Zip(fn(&mut [W], &Operand<'_, W>, &Operand<'_, W>), Pairing),
}

impl<W> StripOp<W> {
    /// Returns the arity of the op.
    pub(super) fn form(&self) -> Arity {
        match self.run {
            StripFunction::Map(_) => Arity::Map,
            StripFunction::Zip(_, pairing) => Arity::Zip(pairing),
        }
    }
}

impl<W: Copy> StripFunction<W> {
    /// Computes `out` from the operands.
    #[inline]
    pub(super) fn compute<'v>(&self, out: &mut [W], operand: impl Fn(usize) -> Operand<'v, W>) {
        match self {
            StripFunction::Map(map) => match operand(0) {
                Operand::Many(x) => map(out, x),
                // The operand has one element only if the value has one element too.
                Operand::One(x) => map(out, &[x]),
            },
            StripFunction::Zip(zip, _) => zip(out, &operand(0), &operand(1)),
        }
    }
}

/// Applies `op` to each element of a strip. The strip is in the first-level cache, which can supply the widest vectors.
fn map<W: Copy>(out: &mut [W], x: &[W], op: impl Fn(W) -> W) {
    vectorized_wide(MapLoop { out, x, op });
}

/// Applies `op` to two strips, like [`map`].
fn zip<W: Copy>(out: &mut [W], x: &Operand<'_, W>, y: &Operand<'_, W>, op: impl Fn(W, W) -> W) {
    vectorized_wide(ZipLoop { out, x: *x, y: *y, op });
}

/// The types in which a fused chain can be computed.
pub(super) trait ChainElement: Real + Analytic + Rectifiable + Polynomial + 'static {}

impl ChainElement for f32 {}
impl ChainElement for f64 {}

/// Returns whether a fused chain can contain the op named `op`.
pub(crate) fn has_strip(op: &str) -> bool {
    strip_op::<f32>(op).is_some()
}

/// Returns the function of the op named `op`; `None` if fused chains cannot contain it. `BiasAdd` means the format
/// `NHWC`, `AddN` means two operands.
pub(super) fn strip_op<W: ChainElement>(op: &str) -> Option<StripOp<W>> {
    macro_rules! map {
        ($Function:ty) => {
            StripOp { run: StripFunction::Map(|out, x| map(out, x, <$Function>::apply)), cost: Cheap }
        };
    }
    // Defines an op that calls a library function for each element, so vector instructions would not make it faster.
    macro_rules! calls {
        ($function:expr) => {
            StripOp {
                run: StripFunction::Map(|out, x| MapLoop { out, x, op: $function }.run()),
                cost: Expensive,
            }
        };
    }
    macro_rules! zip_calls {
        ($pairing:ident, $function:expr) => {
            StripOp {
                run: StripFunction::Zip(
                    |out, x, y| ZipLoop { out, x: *x, y: *y, op: $function }.run(),
                    Pairing::$pairing,
                ),
                cost: Expensive,
            }
        };
    }
    macro_rules! map_with {
        ($function:path) => {
            StripOp { run: StripFunction::Map(|out, x| map(out, x, $function)), cost: Cheap }
        };
    }
    macro_rules! zip {
        ($pairing:ident, $Function:ty) => {
            StripOp {
                run: StripFunction::Zip(|out, x, y| zip(out, x, y, <$Function>::apply), Pairing::$pairing),
                cost: Cheap,
            }
        };
    }
    macro_rules! zip_with {
        ($function:path) => {
            StripOp {
                run: StripFunction::Zip(|out, x, y| zip(out, x, y, $function), Pairing::Equal),
                cost: Cheap,
            }
        };
    }
    macro_rules! polynomial {
        ($single:path, $Function:ty) => {
            StripOp {
                run: StripFunction::Map(W::pick($single, map_each::<f64, f64, $Function>)),
                cost: Expensive,
            }
        };
    }
    Some(match op {
        "Neg" => map!(unary::Neg),
        "Abs" => map!(unary::Abs),
        "Sign" => map!(unary::Sign),
        "Square" => map!(unary::Square),
        "Reciprocal" | "Inv" => map!(unary::Reciprocal),
        "Sqrt" => map!(unary::Sqrt),
        "Rsqrt" => map!(unary::Rsqrt),
        "Floor" => map!(unary::Floor),
        "Ceil" => map!(unary::Ceil),
        "Round" | "Rint" => map!(unary::Round),
        "Expm1" => calls!(unary::Expm1::apply),
        "Log1p" => calls!(unary::Log1p::apply),
        "Sin" => calls!(unary::Sin::apply),
        "Cos" => calls!(unary::Cos::apply),
        "Erf" => calls!(unary::Erf::apply),
        "Exp" => polynomial!(polynomial::exp, unary::Exp),
        "Log" => polynomial!(polynomial::log, unary::Log),
        "Tanh" => polynomial!(polynomial::tanh, unary::Tanh),
        "Sigmoid" => polynomial!(polynomial::sigmoid, unary::Sigmoid),
        "Relu" => map_with!(activation::relu),
        "Relu6" => map_with!(activation::relu6),
        "Elu" => calls!(activation::elu),
        "Selu" => calls!(activation::selu),
        "Softplus" => calls!(activation::softplus),
        "Softsign" => map_with!(activation::softsign),
        "Add" | "AddV2" => zip!(Broadcast, binary::Add),
        "AddN" => zip!(Equal, binary::Add),
        "Sub" => zip!(Broadcast, binary::Sub),
        "Mul" => zip!(Broadcast, binary::Mul),
        "RealDiv" | "Div" => zip!(Broadcast, binary::Div),
        "DivNoNan" => zip!(Broadcast, binary::DivNoNan),
        "MulNoNan" => zip!(Broadcast, binary::MulNoNan),
        "Maximum" => zip!(Broadcast, binary::Maximum),
        "Minimum" => zip!(Broadcast, binary::Minimum),
        "SquaredDifference" => zip!(Broadcast, binary::SquaredDifference),
        "Pow" => zip_calls!(Broadcast, binary::Pow::apply),
        "BiasAdd" => zip!(Bias, binary::Add),
        "SqrtGrad" => zip!(Equal, unary::SqrtGrad),
        "RsqrtGrad" => zip!(Equal, unary::RsqrtGrad),
        "ReciprocalGrad" | "InvGrad" => zip!(Equal, unary::ReciprocalGrad),
        "TanhGrad" => zip!(Equal, unary::TanhGrad),
        "SigmoidGrad" => zip!(Equal, unary::SigmoidGrad),
        "ReluGrad" => zip_with!(activation::relu_gradient),
        "Relu6Grad" => zip_with!(activation::relu6_gradient),
        "EluGrad" => zip_with!(activation::elu_gradient),
        "SeluGrad" => zip_with!(activation::selu_gradient),
        "SoftplusGrad" => zip_calls!(Equal, activation::softplus_gradient),
        "SoftsignGrad" => zip_with!(activation::softsign_gradient),
        _ => return None,
    })
}
