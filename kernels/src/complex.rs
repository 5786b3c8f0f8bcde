//! Complex numbers: construction from real and imaginary parts, and real functions of complex numbers.

use crate::numeric::broadcast;
use crate::numeric::broadcast::Binary;
use crate::numeric::dispatch::{COMPLEX, dispatch};
use crate::numeric::elementwise;
use crate::numeric::elementwise::Unary;
use crate::numeric::scalar::Arithmetic as _;
use crate::numeric::threads::Cost;
use device::Result;
use device::kernel::{Kernel, KernelDef};
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

/// The complex number with a given real and imaginary part, as an element-wise function of both.
struct FromParts;

impl<P: num_traits::Float> Binary<P> for FromParts {
    type Out = Complex<P>;
    #[inline(always)]
    fn apply(re: P, im: P) -> Complex<P> {
        Complex::new(re, im)
    }
}

macro_rules! part {
    ($op:literal, $Function:ident, $types:expr, $P:ty) => {
        KernelDef::of($op, $types, |_| elementwise::kernel::<Complex<$P>, $P, $Function>(Cost::Cheap))
    };
}

const SINGLE_PARTS: &[(&str, &[DType])] = &[("T", &[Complex64]), ("Tout", &[Float])];
const DOUBLE_PARTS: &[(&str, &[DType])] = &[("T", &[Complex128]), ("Tout", &[Double])];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Complex", &[("T", &[Float]), ("Tout", &[Complex64])], |_| {
        broadcast::kernel::<f32, Complex<f32>, FromParts>(Cost::Cheap)
    }),
    KernelDef::of("Complex", &[("T", &[Double]), ("Tout", &[Complex128])], |_| {
        broadcast::kernel::<f64, Complex<f64>, FromParts>(Cost::Cheap)
    }),
    part!("Real", Real, SINGLE_PARTS, f32),
    part!("Real", Real, DOUBLE_PARTS, f64),
    part!("Imag", Imag, SINGLE_PARTS, f32),
    part!("Imag", Imag, DOUBLE_PARTS, f64),
    part!("ComplexAbs", Abs, SINGLE_PARTS, f32),
    part!("ComplexAbs", Abs, DOUBLE_PARTS, f64),
    part!("Angle", Angle, SINGLE_PARTS, f32),
    part!("Angle", Angle, DOUBLE_PARTS, f64),
    KernelDef::of("Conj", &[("T", &[graph::DType::Variant])], crate::csr_matrix::conjugate),
    KernelDef::of("Conj", &[("T", COMPLEX)], |_| {
        Kernel::sync(|ctx| {
            let mut x = ctx.take_input(0)?;
            conjugate(&mut x)?;
            ctx.set_output(0, x);
            Ok(())
        })
    }),
];

/// Replaces every element by its complex conjugate.
pub(super) fn conjugate(x: &mut Tensor) -> Result<()> {
    dispatch!(complex, x.dtype(), T => {
        x.values_mut::<T>()?.iter_mut().for_each(|v| *v = v.conjugated());
        Ok(())
    })
}
