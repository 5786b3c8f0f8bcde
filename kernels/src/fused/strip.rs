//! Element-wise ops as functions of strips of elements, for chains: the same functions as in the ops' own kernels.

use crate::activation::Rectifiable;
use crate::numeric::broadcast::{Binary, Operand, Zip, ZipLoop};
use crate::numeric::elementwise::{Map, MapLoop, Unary, map_run};
use crate::numeric::scalar::{Analytic, Real};
use crate::numeric::simd::vectorized_wide;
use crate::numeric::threads::Cost;
use crate::numeric::threads::Cost::{Cheap, Expensive};
use crate::plan::fused::chain::{Arity, Pairing};
use crate::unary::{Polynomial, polynomial};
use crate::{activation, binary, unary};

/// An op on strips of elements of the type `W` of the computation.
pub(super) struct StripOp<W: 'static> {
    pub(super) run: StripFunction<W>,
    pub(super) cost: Cost,
}

/// The function of an op, with one or two operands.
pub(super) enum StripFunction<W: 'static> {
    Map(&'static Map<'static, W, W>),
    Zip(&'static Zip<'static, W, W>, Pairing),
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
                // A single operand occurs only if the value is single too.
                Operand::One(x) => map(out, &[x]),
            },
            StripFunction::Zip(zip, _) => zip(out, &operand(0), &operand(1)),
        }
    }
}

/// Applies `op` to a strip. The strip is in the first-level cache, which can supply the widest vectors.
fn map<W: Copy>(out: &mut [W], x: &[W], op: impl Fn(W) -> W) {
    vectorized_wide(MapLoop { out, x, op });
}

/// Applies `op` to two strips, like [`map`].
fn zip<W: Copy>(out: &mut [W], x: &Operand<'_, W>, y: &Operand<'_, W>, op: impl Fn(W, W) -> W) {
    vectorized_wide(ZipLoop { out, x: *x, y: *y, op });
}

/// The types in which chains are computed.
pub(super) trait ChainElement: Real + Analytic + Rectifiable + Polynomial + 'static {}

impl ChainElement for f32 {}
impl ChainElement for f64 {}

/// Returns whether a chain can contain the op.
pub(crate) fn has_strip(op: &str) -> bool {
    strip_op::<f32>(op).is_some()
}

/// Returns the function of an op, if it has one; `BiasAdd` is that of the format `NHWC`, `AddN` that of two
/// operands.
pub(super) fn strip_op<W: ChainElement>(op: &str) -> Option<StripOp<W>> {
    macro_rules! map {
        ($cost:ident, $Function:ty) => {
            StripOp { run: StripFunction::Map(&|out, x| map(out, x, <$Function>::apply)), cost: $cost }
        };
    }
    macro_rules! map_with {
        ($cost:ident, $function:path) => {
            StripOp { run: StripFunction::Map(&|out, x| map(out, x, $function)), cost: $cost }
        };
    }
    macro_rules! zip {
        ($cost:ident, $pairing:ident, $Function:ty) => {
            StripOp {
                run: StripFunction::Zip(&|out, x, y| zip(out, x, y, <$Function>::apply), Pairing::$pairing),
                cost: $cost,
            }
        };
    }
    macro_rules! zip_with {
        ($cost:ident, $function:path) => {
            StripOp {
                run: StripFunction::Zip(&|out, x, y| zip(out, x, y, $function), Pairing::Equal),
                cost: $cost,
            }
        };
    }
    let polynomial =
        |single, double| StripOp { run: StripFunction::Map(W::pick(single, double)), cost: Expensive };
    Some(match op {
        "Neg" => map!(Cheap, unary::Neg),
        "Abs" => map!(Cheap, unary::Abs),
        "Sign" => map!(Cheap, unary::Sign),
        "Square" => map!(Cheap, unary::Square),
        "Reciprocal" | "Inv" => map!(Cheap, unary::Reciprocal),
        "Sqrt" => map!(Cheap, unary::Sqrt),
        "Rsqrt" => map!(Cheap, unary::Rsqrt),
        "Floor" => map!(Cheap, unary::Floor),
        "Ceil" => map!(Cheap, unary::Ceil),
        "Round" | "Rint" => map!(Cheap, unary::Round),
        "Expm1" => map!(Expensive, unary::Expm1),
        "Log1p" => map!(Expensive, unary::Log1p),
        "Sin" => map!(Expensive, unary::Sin),
        "Cos" => map!(Expensive, unary::Cos),
        "Erf" => map!(Expensive, unary::Erf),
        "Exp" => polynomial(&polynomial::exp, &map_run::<f64, f64, unary::Exp>),
        "Log" => polynomial(&polynomial::log, &map_run::<f64, f64, unary::Log>),
        "Tanh" => polynomial(&polynomial::tanh, &map_run::<f64, f64, unary::Tanh>),
        "Sigmoid" => polynomial(&polynomial::sigmoid, &map_run::<f64, f64, unary::Sigmoid>),
        "Relu" => map_with!(Cheap, activation::relu),
        "Relu6" => map_with!(Cheap, activation::relu6),
        "Elu" => map_with!(Expensive, activation::elu),
        "Selu" => map_with!(Expensive, activation::selu),
        "Softplus" => map_with!(Expensive, activation::softplus),
        "Softsign" => map_with!(Cheap, activation::softsign),
        "Add" | "AddV2" => zip!(Cheap, Broadcast, binary::Add),
        "AddN" => zip!(Cheap, Equal, binary::Add),
        "Sub" => zip!(Cheap, Broadcast, binary::Sub),
        "Mul" => zip!(Cheap, Broadcast, binary::Mul),
        "RealDiv" | "Div" => zip!(Cheap, Broadcast, binary::Div),
        "DivNoNan" => zip!(Cheap, Broadcast, binary::DivNoNan),
        "MulNoNan" => zip!(Cheap, Broadcast, binary::MulNoNan),
        "Maximum" => zip!(Cheap, Broadcast, binary::Maximum),
        "Minimum" => zip!(Cheap, Broadcast, binary::Minimum),
        "SquaredDifference" => zip!(Cheap, Broadcast, binary::SquaredDifference),
        "Pow" => zip!(Expensive, Broadcast, binary::Pow),
        "BiasAdd" => zip!(Cheap, Bias, binary::Add),
        "SqrtGrad" => zip!(Cheap, Equal, unary::SqrtGrad),
        "RsqrtGrad" => zip!(Cheap, Equal, unary::RsqrtGrad),
        "ReciprocalGrad" | "InvGrad" => zip!(Cheap, Equal, unary::ReciprocalGrad),
        "TanhGrad" => zip!(Cheap, Equal, unary::TanhGrad),
        "SigmoidGrad" => zip!(Cheap, Equal, unary::SigmoidGrad),
        "ReluGrad" => zip_with!(Cheap, activation::relu_gradient),
        "Relu6Grad" => zip_with!(Cheap, activation::relu6_gradient),
        "EluGrad" => zip_with!(Cheap, activation::elu_gradient),
        "SeluGrad" => zip_with!(Cheap, activation::selu_gradient),
        "SoftplusGrad" => zip_with!(Expensive, activation::softplus_gradient),
        "SoftsignGrad" => zip_with!(Cheap, activation::softsign_gradient),
        _ => return None,
    })
}
