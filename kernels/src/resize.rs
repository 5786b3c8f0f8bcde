//! Resizing of batches of images, and its gradients. Each method computes one table per axis and step: the input
//! positions and weights of each output position.

mod area;
mod bicubic;
pub(crate) mod bilinear;
mod nearest;
mod scale;

use crate::numeric::dispatch::{FLOATS, REALS, dispatch};
use crate::plan::resize::Grid;
use device::Result;
use device::kernel::{Kernel, KernelDef};
use graph::{DType, Tensor};

const REAL: &[(&str, &[DType])] = &[("T", REALS)];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["size"],
        ..KernelDef::of("ResizeBilinear", REAL, |i| {
            let grid = Grid::of(i)?;
            Kernel::sync(move |ctx| bilinear::forward(ctx, grid))
        })
    },
    KernelDef::of("ResizeBilinearGrad", &[("T", FLOATS)], |i| {
        let grid = Grid::of(i)?;
        let dtype = i.output_type(0);
        dispatch!(float, dtype, T => {
            Kernel::sync(move |ctx| bilinear::backward(ctx, grid, dtype, bilinear::write_gradient::<T>))
        })
    }),
    KernelDef {
        host_memory: &["size"],
        ..KernelDef::of("ResizeBicubic", REAL, |i| {
            let grid = Grid::of(i)?;
            Kernel::sync(move |ctx| bicubic::forward(ctx, grid))
        })
    },
    KernelDef::of("ResizeBicubicGrad", &[("T", &[DType::Float, DType::Double])], |i| {
        let grid = Grid::of(i)?;
        dispatch!(@arms i.output_type(0), T => Kernel::sync(move |ctx| bicubic::backward::<T>(ctx, grid));
            Float f32, Double f64)
    }),
    KernelDef {
        host_memory: &["size"],
        ..KernelDef::of("ResizeArea", REAL, |i| {
            let grid = Grid::of_corners(i)?;
            Kernel::sync(move |ctx| area::forward(ctx, grid))
        })
    },
    KernelDef {
        host_memory: &["size"],
        ..KernelDef::of("ResizeNearestNeighbor", REAL, |i| {
            let grid = Grid::of(i)?;
            Kernel::sync(move |ctx| nearest::forward(ctx, grid))
        })
    },
    KernelDef {
        host_memory: &["size"],
        ..KernelDef::of("ResizeNearestNeighborGrad", REAL, |i| {
            let grid = Grid::of_grad(i)?;
            dispatch!(real, i.output_type(0), T => {
                Kernel::sync(move |ctx| nearest::backward(ctx, grid, nearest::add::<T>))
            })
        })
    },
    KernelDef {
        host_memory: &["size", "scale", "translation"],
        ..KernelDef::of("ScaleAndTranslate", REAL, |i| {
            let sampler = scale::Sampler::of(i)?;
            Kernel::sync(move |ctx| scale::forward(ctx, sampler))
        })
    },
    KernelDef {
        host_memory: &["scale", "translation"],
        ..KernelDef::of("ScaleAndTranslateGrad", &[("T", &[DType::Float])], |i| {
            let sampler = scale::Sampler::of(i)?;
            Kernel::sync(move |ctx| scale::backward(ctx, sampler))
        })
    },
];

/// An element type of images that converts to `f32`.
trait Sample: graph::Element {
    fn sample(self) -> f32;
}

macro_rules! samples {
    ($($t:ty => $convert:expr;)*) => {$(
        impl Sample for $t {
            #[inline(always)]
            fn sample(self) -> f32 {
                $convert(self)
            }
        }
    )*};
    (numbers: $($t:ty),*) => { samples! { $($t => |v| v as f32;)* } };
}

samples!(numbers: f32, f64, i8, i16, i32, i64, u8, u16, u32, u64);
samples! {
    half::f16 => half::f16::to_f32;
    half::bf16 => half::bf16::to_f32;
}

/// Returns the elements of a tensor of real numbers as `f32`.
fn as_single(x: &Tensor) -> Result<Tensor> {
    if x.dtype() == DType::Float {
        return Ok(x.clone());
    }
    let mut out = Tensor::unspecified(DType::Float, x.shape().clone())?;
    dispatch!(real, x.dtype(), T => convert::<T>(x, out.values_mut()?))?;
    Ok(out)
}

fn convert<T: Sample>(x: &Tensor, out: &mut [f32]) -> Result<()> {
    out.iter_mut().zip(x.values::<T>()?).for_each(|(o, v)| *o = v.sample());
    Ok(())
}
