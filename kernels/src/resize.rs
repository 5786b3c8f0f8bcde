//! Resizing of batches of images, and its gradients. Each method computes one table per axis and step: the input
//! positions and weights of each output position.

pub mod area;
pub mod bicubic;
pub mod bilinear;
pub mod nearest;
mod scale;

use crate::numeric::dispatch::{FLOATS, REALS, dispatch};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
use graph::{DType, Shape, Tensor};

const REAL: &[(&str, &[DType])] = &[("T", REALS)];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["size"],
        ..KernelDef::of("ResizeBilinear", REAL, |i| {
            let grid = Grid::of(i)?;
            dispatch!(real, i.input_type(0), T => Kernel::sync(move |ctx| bilinear::forward::<T>(ctx, grid)))
        })
    },
    KernelDef::of("ResizeBilinearGrad", &[("T", FLOATS)], |i| {
        let grid = Grid::of(i)?;
        dispatch!(float, i.output_type(0), T => Kernel::sync(move |ctx| bilinear::backward::<T>(ctx, grid)))
    }),
    KernelDef {
        host_memory: &["size"],
        ..KernelDef::of("ResizeBicubic", REAL, |i| {
            let grid = Grid::of(i)?;
            dispatch!(real, i.input_type(0), T => Kernel::sync(move |ctx| bicubic::forward::<T>(ctx, grid)))
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
            dispatch!(real, i.input_type(0), T => Kernel::sync(move |ctx| area::forward::<T>(ctx, grid)))
        })
    },
    KernelDef {
        host_memory: &["size"],
        ..KernelDef::of("ResizeNearestNeighbor", REAL, |i| {
            let grid = Grid::of(i)?;
            dispatch!(real, i.output_type(0), T => Kernel::sync(move |ctx| nearest::forward::<T>(ctx, grid)))
        })
    },
    KernelDef {
        host_memory: &["size"],
        ..KernelDef::of("ResizeNearestNeighborGrad", REAL, |i| {
            let grid = Grid::of_grad(i)?;
            dispatch!(real, i.output_type(0), T => Kernel::sync(move |ctx| nearest::backward::<T>(ctx, grid)))
        })
    },
    KernelDef {
        host_memory: &["size", "scale", "translation"],
        ..KernelDef::of("ScaleAndTranslate", REAL, |i| {
            let sampler = scale::Sampler::of(i)?;
            dispatch!(real, i.input_type(0), T => Kernel::sync(move |ctx| scale::forward::<T>(ctx, sampler)))
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

/// The mapping from output positions to input positions.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// True if the centres of the corner pixels coincide in the input and the output.
    align_corners: bool,
    /// True if a pixel is an area whose position is its centre.
    centers: bool,
}

impl Grid {
    /// Returns the grid of a gradient op, which does not check the combination of attributes.
    pub fn of_grad(init: &KernelInit<'_>) -> Result<Grid> {
        Ok(Grid { align_corners: init.attr("align_corners")?, centers: init.attr("half_pixel_centers")? })
    }

    pub fn of(init: &KernelInit<'_>) -> Result<Grid> {
        let grid = Grid::of_grad(init)?;
        if grid.align_corners && grid.centers {
            device::invalid!("If half_pixel_centers is True, align_corners must be False.");
        }
        Ok(grid)
    }

    /// Returns the grid of an op that has only the attribute `align_corners`.
    pub fn of_corners(init: &KernelInit<'_>) -> Result<Grid> {
        Ok(Grid { align_corners: init.attr("align_corners")?, centers: false })
    }

    /// Returns the distance between neighbouring output positions, in input positions.
    fn scale(self, input: usize, output: usize) -> f32 {
        if self.align_corners && output > 1 {
            (input as f32 - 1.0) / (output - 1) as f32
        } else {
            input as f32 / output as f32
        }
    }

    /// Returns the input position of output position `x`.
    fn at(self, x: usize, scale: f32) -> f32 {
        if self.centers { (x as f32 + 0.5) * scale - 0.5 } else { x as f32 * scale }
    }
}

/// The sizes of the input and output images.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub batch: usize,
    /// Rows and columns of the input.
    pub input: [usize; 2],
    pub output: [usize; 2],
    pub channels: usize,
}

impl Sizes {
    /// Returns the sizes of an op that resizes input 0 to the size in input 1.
    pub fn forward(ctx: &KernelContext<'_>) -> Result<Sizes> {
        let x = ctx.shape(0)?;
        let &[batch, rows, columns, channels] = x.dims() else {
            device::invalid!("input must be 4-dimensional{x}");
        };
        let output = size_input(ctx, 1)?;
        if rows == 0 || columns == 0 {
            device::invalid!("input image must be of non-zero size");
        }
        if channels == 0 {
            device::invalid!("image must have at least one channel");
        }
        Ok(Sizes { batch, input: [rows, columns], output, channels })
    }

    /// Returns the sizes of a gradient: input 0 is the gradient, input 1 the image that was resized.
    pub fn backward(ctx: &KernelContext<'_>) -> Result<Sizes> {
        let (dy, x) = (ctx.shape(0)?, ctx.shape(1)?);
        let &[batch, rows, columns, channels] = x.dims() else {
            device::invalid!("original_image must be 4-dimensional{x}");
        };
        let &[given, output_rows, output_columns, given_channels] = dy.dims() else {
            device::invalid!("input_grad must be 4-dimensional{dy}");
        };
        if given != batch || given_channels != channels {
            device::invalid!("grads of shape {dy} do not fit an image of shape {x}");
        }
        let (input, output) = ([rows, columns], [output_rows, output_columns]);
        if [input, output].concat().contains(&0) {
            device::invalid!("images must be of non-zero size");
        }
        Ok(Sizes { batch, input, output, channels })
    }

    pub fn output_shape(&self) -> Result<Shape> {
        Ok(Shape::new(&[self.batch, self.output[0], self.output[1], self.channels])?)
    }

    pub fn input_shape(&self) -> Result<Shape> {
        Ok(Shape::new(&[self.batch, self.input[0], self.input[1], self.channels])?)
    }

    fn input_line(&self) -> usize {
        self.input[1] * self.channels
    }

    fn output_line(&self) -> usize {
        self.output[1] * self.channels
    }
}

/// Returns the size, in rows and columns, given by input `i`.
fn size_input(ctx: &KernelContext<'_>, i: usize) -> Result<[usize; 2]> {
    let size = ctx.input(i)?;
    if size.shape().rank() != 1 {
        device::invalid!("shape_t must be 1-dimensional{}", size.shape());
    }
    let &[rows, columns] = size.values::<i32>()? else {
        device::invalid!("shape_t must have two elements{}", size.shape());
    };
    let positive = |v: i32| {
        let size = usize::try_from(v).ok().filter(|&v| v > 0);
        size.ok_or_else(|| Error::invalid("output dimensions must be positive"))
    };
    Ok([positive(rows)?, positive(columns)?])
}

/// An element that converts to `f32`.
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

/// Returns the elements as `f32`.
fn as_single<T: Sample>(x: &Tensor) -> Result<Tensor> {
    if x.dtype() == DType::Float {
        return Ok(x.clone());
    }
    let mut out = Tensor::unspecified(DType::Float, x.shape().clone())?;
    out.values_mut::<f32>()?.iter_mut().zip(x.values::<T>()?).for_each(|(o, v)| *o = v.sample());
    Ok(out)
}
