//! Complex numbers made of their parts, and what is asked of them.

use super::broadcast::{self, Binary, zip_run};
use super::dispatch::{COMPLEX, dispatch};
use super::elementwise::{self, Unary, map_run};
use super::scalar::Arithmetic as _;
use super::threads::Cost;
use crate::error::Result;
use crate::kernel::{Kernel, KernelDef};
use graph::DType::{self, *};
use graph::Tensor;
use num_complex::Complex;

macro_rules! parts {
    ($($name:ident, |$z:ident| $value:expr;)*) => {$(
        struct $name;
        impl<P: num_traits::Float> Unary<Complex<P>> for $name {
            type Out = P;
            #[inline(always)]
            fn apply($z: Complex<P>) -> P { $value }
        }
    )*};
}

parts! {
    Real, |z| z.re;
    Imag, |z| z.im;
    Abs, |z| z.norm();
    Angle, |z| z.arg();
}

struct Make;

impl<P: num_traits::Float> Binary<P> for Make {
    type Out = Complex<P>;
    #[inline(always)]
    fn apply(re: P, im: P) -> Complex<P> {
        Complex::new(re, im)
    }
}

macro_rules! part {
    ($op:literal, $Function:ident) => {
        KernelDef::of($op, PART, |init| match init.input_type(0) {
            Complex64 => Kernel::sync(|ctx| {
                elementwise::unary::<Complex<f32>, f32>(ctx, Cost::Cheap, &map_run::<_, _, $Function>)
            }),
            _ => Kernel::sync(|ctx| {
                elementwise::unary::<Complex<f64>, f64>(ctx, Cost::Cheap, &map_run::<_, _, $Function>)
            }),
        })
    };
}

const PART: &[(&str, &[DType])] = &[("T", COMPLEX), ("Tout", &[Float, Double])];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Complex", &[("T", &[Float, Double]), ("Tout", COMPLEX)], |init| match init.input_type(0) {
        Float => Kernel::sync(|ctx| {
            broadcast::binary::<f32, Complex<f32>>(ctx, Cost::Cheap, &zip_run::<_, _, Make>)
        }),
        _ => Kernel::sync(|ctx| {
            broadcast::binary::<f64, Complex<f64>>(ctx, Cost::Cheap, &zip_run::<_, _, Make>)
        }),
    }),
    part!("Real", Real),
    part!("Imag", Imag),
    part!("ComplexAbs", Abs),
    part!("Angle", Angle),
    KernelDef::of("Conj", &[("T", COMPLEX)], |_| {
        Kernel::sync(|ctx| {
            let mut x = ctx.take_input(0)?;
            conjugate(&mut x)?;
            ctx.set_output(0, x);
            Ok(())
        })
    }),
];

/// Turns the sign of every imaginary part.
pub(super) fn conjugate(x: &mut Tensor) -> Result<()> {
    dispatch!(complex, x.dtype(), T => {
        x.values_mut::<T>()?.iter_mut().for_each(|v| *v = v.conjugated());
        Ok(())
    })
}
