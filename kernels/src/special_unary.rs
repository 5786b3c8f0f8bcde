//! Special functions of one operand, computed in double precision.

mod functions;

use crate::numeric::elementwise;
use crate::numeric::elementwise::Unary;
use device::kernel::KernelDef;
use graph::DType::{self, *};

const TYPES: &[DType] = &[Float, Double];

macro_rules! kernel {
    ($op:literal, $Function:ident) => {
        KernelDef::of($op, &[("T", TYPES)], |init| match init.input_type(0) {
            Float => elementwise::unvectorized_kernel::<f32, f32, $Function>(),
            _ => elementwise::unvectorized_kernel::<f64, f64, $Function>(),
        })
    };
}

pub(super) const KERNELS: &[KernelDef] = &[
    kernel!("Dawsn", Dawson),
    kernel!("Expint", ExponentialIntegral),
    kernel!("FresnelCos", FresnelCosine),
    kernel!("FresnelSin", FresnelSine),
    kernel!("Spence", Dilogarithm),
    kernel!("Ndtri", NormalQuantile),
    kernel!("Erfinv", InverseErf),
];

/// Defines functions for `f32` and `f64` by a function of `f64`.
macro_rules! functions {
    ($($name:ident = $function:path;)*) => {$(
        struct $name;
        impl Unary<f64> for $name {
            type Out = f64;
            fn apply(x: f64) -> f64 { $function(x) }
        }
        impl Unary<f32> for $name {
            type Out = f32;
            fn apply(x: f32) -> f32 { $function(x.into()) as f32 }
        }
    )*};
}

struct Dilogarithm;

// The reciprocal of a large argument is subnormal, which TensorFlow takes as zero: the result is then NaN.
impl Unary<f64> for Dilogarithm {
    type Out = f64;
    fn apply(x: f64) -> f64 {
        if (1.0 / x).is_subnormal() { f64::NAN } else { functions::dilogarithm(x) }
    }
}

impl Unary<f32> for Dilogarithm {
    type Out = f32;
    fn apply(x: f32) -> f32 {
        if (1.0 / x).is_subnormal() { f32::NAN } else { functions::dilogarithm(x.into()) as f32 }
    }
}

functions! {
    Dawson = functions::dawson;
    ExponentialIntegral = functions::exponential_integral;
    FresnelCosine = functions::fresnel_cosine;
    FresnelSine = functions::fresnel_sine;
    NormalQuantile = functions::normal_quantile;
    InverseErf = functions::inverse_erf;
}
