//! Functions of one operand, element by element, and the element-wise parts of their gradients.

pub(super) mod polynomial;

use super::broadcast::{Binary, Plan, zip_run, zip_tensors};
use super::dispatch::{FLOATS, INTEGERS, REALS, dispatch};
use super::elementwise::{self, Map, Unary, map_run};
use super::scalar::{Integer, Number, Real};
use super::threads::Cost;
use super::wide::Lane;
use crate::error::Result;
use crate::kernel::{Kernel, KernelDef};
use graph::Bool8;
use graph::DType::{self, *};

/// Functions of one element, by the types they are defined for.
macro_rules! functions {
    ($($name:ident: $kind:ident -> $out:ty, |$x:ident| $value:expr;)*) => {$(
        pub(super) struct $name;
        impl<T: $kind> Unary<T> for $name {
            type Out = $out;
            #[inline(always)]
            fn apply($x: T) -> $out { $value }
        }
    )*};
}

functions! {
    Neg: Number -> T, |x| x.negated();
    Abs: Number -> T, |x| x.magnitude();
    Sign: Number -> T, |x| Number::sign(x);
    Square: Number -> T, |x| x.times(x);
    Round: Number -> T, |x| x.round_even();
    Reciprocal: Real -> T, |x| T::ONE.over(x);
    Exp: Real -> T, |x| x.exp();
    Expm1: Real -> T, |x| x.exp_m1();
    Log: Real -> T, |x| x.ln();
    Log1p: Real -> T, |x| x.ln_1p();
    Sqrt: Real -> T, |x| x.sqrt();
    Rsqrt: Real -> T, |x| T::ONE.over(x.sqrt());
    Floor: Real -> T, |x| x.floor();
    Ceil: Real -> T, |x| x.ceil();
    Sin: Real -> T, |x| x.sin();
    Cos: Real -> T, |x| x.cos();
    Tan: Real -> T, |x| x.tan();
    Asin: Real -> T, |x| x.asin();
    Acos: Real -> T, |x| x.acos();
    Atan: Real -> T, |x| x.atan();
    Sinh: Real -> T, |x| x.sinh();
    Cosh: Real -> T, |x| x.cosh();
    Asinh: Real -> T, |x| x.asinh();
    Acosh: Real -> T, |x| x.acosh();
    Atanh: Real -> T, |x| odd_atanh(x);
    Tanh: Real -> T, |x| x.tanh();
    Sigmoid: Real -> T, |x| T::ONE.over(T::ONE + (-x).exp());
    Erf: Real -> T, |x| Real::erf(x);
    Erfc: Real -> T, |x| Real::erfc(x);
    Lgamma: Real -> T, |x| x.lgamma();
    Digamma: Real -> T, |x| x.digamma();
    IsNan: Real -> Bool8, |x| x.is_nan().into();
    IsInf: Real -> Bool8, |x| x.is_infinite().into();
    IsFinite: Real -> Bool8, |x| x.is_finite().into();
    Invert: Integer -> T, |x| !x;
    PopulationCount: Integer -> u8, |x| x.count_ones() as u8;
}

/// By the absolute value: near -1 the textbook form cancels.
#[inline(always)]
fn odd_atanh<T: Real>(x: T) -> T {
    let a = x.abs();
    (T::of(0.5) * ((a + a) / (T::ONE - a)).ln_1p()).copysign(x)
}

/// The factors of gradients, of an op's output (`Reciprocal`: also output) and what arrived there.
macro_rules! gradients {
    ($($name:ident, |$y:ident, $dy:ident| $value:expr;)*) => {$(
        struct $name;
        impl<T: Real> Binary<T> for $name {
            type Out = T;
            #[inline(always)]
            fn apply($y: T, $dy: T) -> T { $value }
        }
    )*};
}

gradients! {
    SqrtGrad, |y, dy| if dy == T::ZERO { T::ZERO } else { dy * T::of(0.5) / y };
    RsqrtGrad, |y, dy| T::of(-0.5) * (dy * y) * (y * y);
    ReciprocalGrad, |y, dy| -dy * (y * y);
    TanhGrad, |y, dy| dy * (T::ONE - y * y);
    SigmoidGrad, |y, dy| dy * (T::ONE - y) * y;
}

macro_rules! kernel {
    ($op:literal, $group:ident, $types:expr, $cost:ident, $Function:ident) => {
        KernelDef::of($op, &[("T", $types)], |init| {
            dispatch!($group, init.input_type(0), T => Kernel::sync(|ctx| {
                elementwise::unary::<T, T>(ctx, Cost::$cost, &map_run::<<T as Lane>::Wide, _, $Function>)
            }))
        })
    };
    (@to $out:ty, $op:literal, $group:ident, $types:expr, $Function:ident) => {
        KernelDef::of($op, &[("T", $types)], |init| {
            dispatch!($group, init.input_type(0), T => Kernel::sync(|ctx| {
                elementwise::unary::<T, $out>(ctx, Cost::Cheap, &map_run::<<T as Lane>::Wide, $out, $Function>)
            }))
        })
    };
}

/// A kernel whose `f32` form is a polynomial.
macro_rules! polynomial {
    ($op:literal, $Function:ident, $single:path) => {
        KernelDef::of($op, &[("T", FLOATS)], |init| {
            dispatch!(float, init.input_type(0), T => Kernel::sync(|ctx| {
                elementwise::unary::<T, T>(ctx, Cost::Dear, <<T as Lane>::Wide as Polynomial>::pick(
                    &$single,
                    &map_run::<f64, f64, $Function>,
                ))
            }))
        })
    };
}

/// Chooses between the forms of a function for the type.
trait Polynomial: Sized {
    fn pick<'a>(single: &'a Map<'a, f32, f32>, double: &'a Map<'a, f64, f64>) -> &'a Map<'a, Self, Self>;
}

impl Polynomial for f32 {
    fn pick<'a>(single: &'a Map<'a, f32, f32>, _: &'a Map<'a, f64, f64>) -> &'a Map<'a, f32, f32> {
        single
    }
}

impl Polynomial for f64 {
    fn pick<'a>(_: &'a Map<'a, f32, f32>, double: &'a Map<'a, f64, f64>) -> &'a Map<'a, f64, f64> {
        double
    }
}

macro_rules! gradient {
    ($op:literal, $Function:ident) => {
        KernelDef::of($op, &[("T", FLOATS)], |init| {
            dispatch!(float, init.input_type(0), T => Kernel::sync(|ctx| {
                let (y, dy) = (ctx.take_input(0)?, ctx.take_input(1)?);
                let plan = same_size(&y, &dy)?;
                let zip = &zip_run::<<T as Lane>::Wide, _, $Function>;
                let out = zip_tensors::<T, T>(&plan, y, dy, Cost::Cheap, zip)?;
                ctx.set_output(0, out);
                Ok(())
            }))
        })
    };
}

const SIGNED: &[DType] = &[BFloat16, Half, Float, Double, Int8, Int16, Int32, Int64];

pub(super) const KERNELS: &[KernelDef] = &[
    kernel!("Neg", real, SIGNED, Cheap, Neg),
    kernel!("Abs", real, SIGNED, Cheap, Abs),
    kernel!("Sign", real, SIGNED, Cheap, Sign),
    kernel!("Square", real, REALS, Cheap, Square),
    kernel!("Round", real, SIGNED, Cheap, Round),
    kernel!("Rint", float, FLOATS, Cheap, Round),
    kernel!("Reciprocal", float, FLOATS, Cheap, Reciprocal),
    kernel!("Inv", float, FLOATS, Cheap, Reciprocal),
    polynomial!("Exp", Exp, polynomial::exp),
    polynomial!("Log", Log, polynomial::log),
    polynomial!("Tanh", Tanh, polynomial::tanh),
    polynomial!("Sigmoid", Sigmoid, polynomial::sigmoid),
    kernel!("Expm1", float, FLOATS, Dear, Expm1),
    kernel!("Log1p", float, FLOATS, Dear, Log1p),
    kernel!("Sqrt", float, FLOATS, Cheap, Sqrt),
    kernel!("Rsqrt", float, FLOATS, Cheap, Rsqrt),
    kernel!("Floor", float, FLOATS, Cheap, Floor),
    kernel!("Ceil", float, FLOATS, Cheap, Ceil),
    kernel!("Sin", float, FLOATS, Dear, Sin),
    kernel!("Cos", float, FLOATS, Dear, Cos),
    kernel!("Tan", float, FLOATS, Dear, Tan),
    kernel!("Asin", float, FLOATS, Dear, Asin),
    kernel!("Acos", float, FLOATS, Dear, Acos),
    kernel!("Atan", float, FLOATS, Dear, Atan),
    kernel!("Sinh", float, FLOATS, Dear, Sinh),
    kernel!("Cosh", float, FLOATS, Dear, Cosh),
    kernel!("Asinh", float, FLOATS, Dear, Asinh),
    kernel!("Acosh", float, FLOATS, Dear, Acosh),
    kernel!("Atanh", float, FLOATS, Dear, Atanh),
    kernel!("Erf", float, FLOATS, Dear, Erf),
    kernel!("Erfc", float, FLOATS, Dear, Erfc),
    kernel!("Lgamma", float, FLOATS, Dear, Lgamma),
    kernel!("Digamma", float, FLOATS, Dear, Digamma),
    kernel!(@to Bool8, "IsNan", float, FLOATS, IsNan),
    kernel!(@to Bool8, "IsInf", float, FLOATS, IsInf),
    kernel!(@to Bool8, "IsFinite", float, FLOATS, IsFinite),
    kernel!("Invert", integer, INTEGERS, Cheap, Invert),
    kernel!(@to u8, "PopulationCount", integer, INTEGERS, PopulationCount),
    gradient!("SqrtGrad", SqrtGrad),
    gradient!("RsqrtGrad", RsqrtGrad),
    gradient!("ReciprocalGrad", ReciprocalGrad),
    gradient!("InvGrad", ReciprocalGrad),
    gradient!("TanhGrad", TanhGrad),
    gradient!("SigmoidGrad", SigmoidGrad),
];

/// How both are walked, element by element: by their sizes, the result having the first one's shape.
pub(super) fn same_size(x: &graph::Tensor, y: &graph::Tensor) -> Result<Plan> {
    if x.num_elements() != y.num_elements() {
        crate::invalid!(
            "The two arguments to a cwise op must have same number of elements, got {} and {}",
            x.num_elements(),
            y.num_elements()
        );
    }
    Ok(Plan::flat(x.shape()))
}
