//! Elementwise functions of one operand, and the elementwise factors of their gradients.

pub(super) mod polynomial;

use crate::numeric::broadcast::{Binary, Plan, ZipFunction, zip_run, zip_tensors};
use crate::numeric::dispatch::{COMPLEX, FLOATS, FRACTIONS, INTEGERS, NUMBERS, dispatch};
use crate::numeric::elementwise;
use crate::numeric::elementwise::Unary;
use crate::numeric::scalar::{Analytic, Arithmetic, Integer, Number, Real};
use crate::numeric::threads::Cost;
use crate::numeric::widen::{Lane, LaneType};
use device::Result;
use device::kernel::{Kernel, KernelDef};
use graph::Bool8;
use graph::DType::{self, *};
use half::{bf16, f16};
use num_complex::Complex;

/// Defines elementwise functions, each for the number types of a trait.
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

/// A complex number type; the sign of a complex number is its direction.
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
    ($op:literal, $group:ident, $types:expr, $Function:ident) => {
        KernelDef::of($op, &[("T", $types)], |init| {
            dispatch!($group, init.input_type(0), T => elementwise::kernel::<T, T, $Function>(Cost::Cheap))
        })
    };
    (@to $out:ty, $op:literal, $group:ident, $types:expr, $Function:ident) => {
        KernelDef::of($op, &[("T", $types)], |init| {
            dispatch!($group, init.input_type(0), T => elementwise::kernel::<T, $out, $Function>(Cost::Cheap))
        })
    };
}

/// Defines the kernel of a function for the dtypes [`SIGNED`].
macro_rules! signed {
    ($op:literal, $Function:ident) => {
        KernelDef::of($op, &[("T", SIGNED)], |init| {
            dispatch!(@arms init.input_type(0), T => elementwise::kernel::<T, T, $Function>(Cost::Cheap);
                Float f32, Double f64, Half f16, BFloat16 bf16, Int8 i8, Int16 i16, Int32 i32, Int64 i64)
        })
    };
}

/// Defines the kernel of a function that calls a library for each element, so that it has no vector instructions.
macro_rules! calls {
    ($op:literal, $group:ident, $types:expr, $Function:ident) => {
        KernelDef::of($op, &[("T", $types)], |init| {
            dispatch!($group, init.input_type(0), T => elementwise::unvectorized_kernel::<T, T, $Function>())
        })
    };
}

/// Defines a kernel whose `f32` variant is a polynomial.
macro_rules! polynomial {
    ($op:literal, $Function:ident, $single:path) => {
        KernelDef::of($op, &[("T", FLOATS)], |init| match init.input_type(0) {
            Double => elementwise::unvectorized_kernel::<f64, f64, $Function>(),
            single => elementwise::map_kernel([single; 2], Cost::Expensive, |out, x| {
                $single(bytemuck::cast_slice_mut(out), bytemuck::cast_slice(x));
            }),
        })
    };
}

/// A type with its own implementation of a function: the polynomial for `f32`, the library's function for `f64`.
pub(super) trait Polynomial: Sized {
    fn pick(single: fn(&mut [f32], &[f32]), double: fn(&mut [f64], &[f64])) -> fn(&mut [Self], &[Self]);
}

impl Polynomial for f32 {
    fn pick(single: fn(&mut [f32], &[f32]), _: fn(&mut [f64], &[f64])) -> fn(&mut [f32], &[f32]) {
        single
    }
}

impl Polynomial for f64 {
    fn pick(_: fn(&mut [f32], &[f32]), double: fn(&mut [f64], &[f64])) -> fn(&mut [f64], &[f64]) {
        double
    }
}

macro_rules! gradient {
    ($op:literal, $Function:ident) => {
        KernelDef::of($op, &[("T", FRACTIONS)], |init| {
            let zip = dispatch!(fraction, init.input_type(0), T => {
                Ok(zip_run::<<T as Lane>::Wide, _, $Function> as ZipFunction)
            });
            gradient_kernel(init.input_type(0), zip?)
        })
    };
}

/// Makes the kernel of a gradient, whose two inputs have equally many elements.
fn gradient_kernel(dtype: DType, zip: ZipFunction) -> Result<Kernel> {
    let types = [LaneType::of(dtype); 2];
    Kernel::sync(move |ctx| {
        let (y, dy) = (ctx.take_input(0)?, ctx.take_input(1)?);
        let plan = same_size(&y, &dy)?;
        let out = zip_tensors(&plan, [y, dy], types, Cost::Cheap, &zip)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

const SIGNED: &[DType] = &[BFloat16, Half, Float, Double, Int8, Int16, Int32, Int64];

pub(super) const KERNELS: &[KernelDef] = &[
    signed!("Neg", Neg),
    signed!("Abs", Abs),
    signed!("Sign", Sign),
    kernel!("Square", number, NUMBERS, Square),
    signed!("Round", Round),
    kernel!("Rint", float, FLOATS, Round),
    kernel!("Reciprocal", fraction, FRACTIONS, Reciprocal),
    kernel!("Inv", fraction, FRACTIONS, Reciprocal),
    kernel!("Neg", complex, COMPLEX, ComplexNeg),
    kernel!("Sign", complex, COMPLEX, ComplexSign),
    calls!("Exp", complex, COMPLEX, Exp),
    calls!("Log", complex, COMPLEX, Log),
    calls!("Tanh", complex, COMPLEX, Tanh),
    calls!("Sigmoid", complex, COMPLEX, Sigmoid),
    polynomial!("Exp", Exp, polynomial::exp),
    polynomial!("Log", Log, polynomial::log),
    polynomial!("Tanh", Tanh, polynomial::tanh),
    polynomial!("Sigmoid", Sigmoid, polynomial::sigmoid),
    calls!("Expm1", fraction, FRACTIONS, Expm1),
    calls!("Log1p", fraction, FRACTIONS, Log1p),
    kernel!("Sqrt", fraction, FRACTIONS, Sqrt),
    kernel!("Rsqrt", fraction, FRACTIONS, Rsqrt),
    kernel!("Floor", float, FLOATS, Floor),
    kernel!("Ceil", float, FLOATS, Ceil),
    calls!("Sin", fraction, FRACTIONS, Sin),
    calls!("Cos", fraction, FRACTIONS, Cos),
    calls!("Tan", fraction, FRACTIONS, Tan),
    calls!("Asin", fraction, FRACTIONS, Asin),
    calls!("Acos", fraction, FRACTIONS, Acos),
    calls!("Atan", fraction, FRACTIONS, Atan),
    calls!("Sinh", fraction, FRACTIONS, Sinh),
    calls!("Cosh", fraction, FRACTIONS, Cosh),
    calls!("Asinh", fraction, FRACTIONS, Asinh),
    calls!("Acosh", fraction, FRACTIONS, Acosh),
    calls!("Atanh", fraction, FRACTIONS, Atanh),
    calls!("Erf", float, FLOATS, Erf),
    calls!("Erfc", float, FLOATS, Erfc),
    calls!("Lgamma", float, FLOATS, Lgamma),
    calls!("Digamma", float, FLOATS, Digamma),
    kernel!(@to Bool8, "IsNan", float, FLOATS, IsNan),
    kernel!(@to Bool8, "IsInf", float, FLOATS, IsInf),
    kernel!(@to Bool8, "IsFinite", float, FLOATS, IsFinite),
    kernel!("Invert", integer, INTEGERS, Invert),
    kernel!(@to u8, "PopulationCount", integer, INTEGERS, PopulationCount),
    gradient!("SqrtGrad", SqrtGrad),
    gradient!("RsqrtGrad", RsqrtGrad),
    gradient!("ReciprocalGrad", ReciprocalGrad),
    gradient!("InvGrad", ReciprocalGrad),
    gradient!("TanhGrad", TanhGrad),
    gradient!("SigmoidGrad", SigmoidGrad),
];

/// Returns the plan of an elementwise operation on two tensors of the same number of elements; the result has the shape
/// of `x`.
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
