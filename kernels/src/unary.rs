//! Elementwise functions of one operand, and the elementwise factors of their gradients.

pub(super) mod polynomial;

use crate::numeric::broadcast::{Binary, Plan, zip_run, zip_tensors};
use crate::numeric::dispatch::{COMPLEX, FLOATS, FRACTIONS, INTEGERS, NUMBERS, dispatch};
use crate::numeric::elementwise;
use crate::numeric::elementwise::{Map, Unary, map_run};
use crate::numeric::scalar::{Analytic, Arithmetic, Integer, Number, Real};
use crate::numeric::threads::Cost;
use crate::numeric::widen::Lane;
use device::Result;
use device::kernel::{Kernel, KernelDef};
use graph::Bool8;
use graph::DType::{self, *};
use num_complex::Complex;

/// Defines functions of one element, with the types for which they are defined.
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
    ComplexNeg: Analytic -> T, |x| -x;
    Abs: Number -> T, |x| x.magnitude();
    Sign: Number -> T, |x| Number::sign(x);
    Square: Arithmetic -> T, |x| x.times(x);
    Round: Number -> T, |x| x.round_even();
    Reciprocal: Arithmetic -> T, |x| T::ONE.over(x);
    Exp: Analytic -> T, |x| x.exp();
    Expm1: Analytic -> T, |x| x.exp_m1();
    Log: Analytic -> T, |x| x.ln();
    Log1p: Analytic -> T, |x| x.ln_1p();
    Sqrt: Analytic -> T, |x| x.sqrt();
    Rsqrt: Analytic -> T, |x| T::ONE.over(x.sqrt());
    Floor: Real -> T, |x| x.floor();
    Ceil: Real -> T, |x| x.ceil();
    Sin: Analytic -> T, |x| x.sin();
    Cos: Analytic -> T, |x| x.cos();
    Tan: Analytic -> T, |x| x.tan();
    Asin: Analytic -> T, |x| x.asin();
    Acos: Analytic -> T, |x| x.acos();
    Atan: Analytic -> T, |x| x.atan();
    Sinh: Analytic -> T, |x| x.sinh();
    Cosh: Analytic -> T, |x| x.cosh();
    Asinh: Analytic -> T, |x| x.asinh();
    Acosh: Analytic -> T, |x| x.acosh();
    Atanh: Analytic -> T, |x| x.atanh();
    Tanh: Analytic -> T, |x| x.tanh();
    Sigmoid: Analytic -> T, |x| T::ONE.over(T::ONE.plus((-x).exp()));
    ComplexSign: Direction -> T, |x| x.direction();
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

/// A complex number with a direction.
trait Direction: Copy {
    /// Returns the number divided by its absolute value; 0 for 0.
    fn direction(self) -> Self;
}

macro_rules! unit {
    ($($part:ty),*) => {$(
        impl Direction for Complex<$part> {
            fn direction(self) -> Self {
                let length = self.norm();
                if length == 0.0 { Complex::new(0.0, 0.0) } else { self / length }
            }
        }
    )*};
}

unit!(f32, f64);

/// Defines gradients as functions of an op's output `y` and of the incoming gradient `dy`.
macro_rules! gradients {
    ($($name:ident, |$y:ident, $dy:ident| $value:expr;)*) => {$(
        pub(super) struct $name;
        impl<T: Analytic> Binary<T> for $name {
            type Out = T;
            #[inline(always)]
            fn apply($y: T, $dy: T) -> T { $value }
        }
    )*};
}

gradients! {
    SqrtGrad, |y, dy| if dy == T::ZERO { T::ZERO } else { dy.times(T::of_real(0.5)).over(y.conjugated()) };
    RsqrtGrad, |y, dy| {
        let y = y.conjugated();
        T::of_real(-0.5).times(dy.times(y)).times(y.times(y))
    };
    ReciprocalGrad, |y, dy| {
        let y = y.conjugated();
        -dy.times(y.times(y))
    };
    TanhGrad, |y, dy| dy.times(T::ONE.minus(y.times(y)));
    SigmoidGrad, |y, dy| dy.times(y.times(T::ONE.minus(y)));
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

/// Defines a kernel whose `f32` variant is a polynomial.
macro_rules! polynomial {
    ($op:literal, $Function:ident, $single:path) => {
        KernelDef::of($op, &[("T", FLOATS)], |init| {
            dispatch!(float, init.input_type(0), T => Kernel::sync(|ctx| {
                elementwise::unary::<T, T>(ctx, Cost::Expensive, <<T as Lane>::Wide as Polynomial>::pick(
                    &$single,
                    &map_run::<f64, f64, $Function>,
                ))
            }))
        })
    };
}

/// A type with its own variant of a function: the polynomial for `f32`, the library's function for `f64`.
pub(super) trait Polynomial: Sized {
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
        KernelDef::of($op, &[("T", FRACTIONS)], |init| {
            dispatch!(fraction, init.input_type(0), T => Kernel::sync(|ctx| {
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
    kernel!("Square", number, NUMBERS, Cheap, Square),
    kernel!("Round", real, SIGNED, Cheap, Round),
    kernel!("Rint", float, FLOATS, Cheap, Round),
    kernel!("Reciprocal", fraction, FRACTIONS, Cheap, Reciprocal),
    kernel!("Inv", fraction, FRACTIONS, Cheap, Reciprocal),
    kernel!("Neg", complex, COMPLEX, Cheap, ComplexNeg),
    kernel!("Sign", complex, COMPLEX, Cheap, ComplexSign),
    kernel!("Exp", complex, COMPLEX, Expensive, Exp),
    kernel!("Log", complex, COMPLEX, Expensive, Log),
    kernel!("Tanh", complex, COMPLEX, Expensive, Tanh),
    kernel!("Sigmoid", complex, COMPLEX, Expensive, Sigmoid),
    polynomial!("Exp", Exp, polynomial::exp),
    polynomial!("Log", Log, polynomial::log),
    polynomial!("Tanh", Tanh, polynomial::tanh),
    polynomial!("Sigmoid", Sigmoid, polynomial::sigmoid),
    kernel!("Expm1", fraction, FRACTIONS, Expensive, Expm1),
    kernel!("Log1p", fraction, FRACTIONS, Expensive, Log1p),
    kernel!("Sqrt", fraction, FRACTIONS, Cheap, Sqrt),
    kernel!("Rsqrt", fraction, FRACTIONS, Cheap, Rsqrt),
    kernel!("Floor", float, FLOATS, Cheap, Floor),
    kernel!("Ceil", float, FLOATS, Cheap, Ceil),
    kernel!("Sin", fraction, FRACTIONS, Expensive, Sin),
    kernel!("Cos", fraction, FRACTIONS, Expensive, Cos),
    kernel!("Tan", fraction, FRACTIONS, Expensive, Tan),
    kernel!("Asin", fraction, FRACTIONS, Expensive, Asin),
    kernel!("Acos", fraction, FRACTIONS, Expensive, Acos),
    kernel!("Atan", fraction, FRACTIONS, Expensive, Atan),
    kernel!("Sinh", fraction, FRACTIONS, Expensive, Sinh),
    kernel!("Cosh", fraction, FRACTIONS, Expensive, Cosh),
    kernel!("Asinh", fraction, FRACTIONS, Expensive, Asinh),
    kernel!("Acosh", fraction, FRACTIONS, Expensive, Acosh),
    kernel!("Atanh", fraction, FRACTIONS, Expensive, Atanh),
    kernel!("Erf", float, FLOATS, Expensive, Erf),
    kernel!("Erfc", float, FLOATS, Expensive, Erfc),
    kernel!("Lgamma", float, FLOATS, Expensive, Lgamma),
    kernel!("Digamma", float, FLOATS, Expensive, Digamma),
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

/// Returns the plan of an elementwise operation on two tensors of the same number of elements; the result has the
/// first one's shape.
pub(super) fn same_size(x: &graph::Tensor, y: &graph::Tensor) -> Result<Plan> {
    if x.num_elements() != y.num_elements() {
        device::invalid!(
            "The two arguments to a cwise op must have same number of elements, got {} and {}",
            x.num_elements(),
            y.num_elements()
        );
    }
    Ok(Plan::flat(x.shape()))
}
