//! Convolutions over images and volumes and their gradients: patches of the image times the filter as a matrix, a
//! cache's worth of patches at a time. A 1x1 filter needs no patches: the image itself is the matrix. Depthwise
//! convolutions, whose matrices would be vectors, are apart.

mod depthwise;
mod patch;

use self::patch::{gather, patch_len, scatter};
use super::dispatch::{FLOATS, INDEX};
use super::image::{from_nhwc, to_nhwc};
use super::product::{Matrix, Threads, product};
use super::scalar::{Number, Semiring as _};
use super::wide::{Lane, narrowed, widened};
use crate::error::{Error, Result};
use crate::kernel::{Kernel, KernelContext, KernelDef};
use graph::ops::conv::{Conv, ConvSizes};
use graph::ops::window::DataFormat;
use graph::{DType, Element as _, Shape, Tensor};
use rayon::prelude::*;

const FLOATS_AND_INT: &[DType] = &[DType::Float, DType::Double, DType::Half, DType::BFloat16, DType::Int32];

macro_rules! typed {
    ($dtype:expr, $T:ident => $body:expr) => {
        super::dispatch::dispatch!(@arms $dtype, $T => $body;
            Float f32, Double f64, Half half::f16, BFloat16 half::bf16, Int32 i32)
    };
}

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Conv2D", &[("T", FLOATS_AND_INT)], |i| {
        let conv = Conv::of_images(i.node)?;
        typed!(i.output_type(0), T => Kernel::sync(move |ctx| forward::<T>(ctx, &conv)))
    }),
    KernelDef {
        host_memory: &["input_sizes"],
        ..KernelDef::of("Conv2DBackpropInput", &[("T", FLOATS_AND_INT)], |i| {
            let conv = Conv::of_images(i.node)?;
            typed!(i.output_type(0), T => Kernel::sync(move |ctx| backprop_input::<T>(ctx, &conv)))
        })
    },
    KernelDef {
        host_memory: &["filter_sizes"],
        ..KernelDef::of("Conv2DBackpropFilter", &[("T", FLOATS)], |i| {
            let conv = Conv::of_images(i.node)?;
            typed!(i.output_type(0), T => Kernel::sync(move |ctx| backprop_filter::<T>(ctx, &conv)))
        })
    },
    KernelDef::of("Conv3D", &[("T", FLOATS)], |i| {
        let conv = Conv::of_volumes(i.node)?;
        typed!(i.output_type(0), T => Kernel::sync(move |ctx| forward::<T>(ctx, &conv)))
    }),
    KernelDef {
        host_memory: &["input_sizes"],
        ..KernelDef::of("Conv3DBackpropInputV2", &[("T", FLOATS), ("Tshape", INDEX)], |i| {
            let conv = Conv::of_volumes(i.node)?;
            typed!(i.output_type(0), T => Kernel::sync(move |ctx| backprop_input::<T>(ctx, &conv)))
        })
    },
    KernelDef {
        host_memory: &["filter_sizes"],
        ..KernelDef::of("Conv3DBackpropFilterV2", &[("T", FLOATS)], |i| {
            let conv = Conv::of_volumes(i.node)?;
            typed!(i.output_type(0), T => Kernel::sync(move |ctx| backprop_filter::<T>(ctx, &conv)))
        })
    },
    KernelDef::of("DepthwiseConv2dNative", &[("T", FLOATS)], |i| {
        let conv = Conv::of_images(i.node)?;
        typed!(i.output_type(0), T => Kernel::sync(move |ctx| depthwise::forward::<T>(ctx, &conv)))
    }),
    KernelDef {
        host_memory: &["input_sizes"],
        ..KernelDef::of("DepthwiseConv2dNativeBackpropInput", &[("T", FLOATS)], |i| {
            let conv = Conv::of_images(i.node)?;
            typed!(i.output_type(0), T => Kernel::sync(move |ctx| depthwise::backprop_input::<T>(ctx, &conv)))
        })
    },
    KernelDef {
        host_memory: &["filter_sizes"],
        ..KernelDef::of("DepthwiseConv2dNativeBackpropFilter", &[("T", FLOATS)], |i| {
            let conv = Conv::of_images(i.node)?;
            typed!(i.output_type(0), T => Kernel::sync(move |ctx| depthwise::backprop_filter::<T>(ctx, &conv)))
        })
    },
];

/// An element of which there are convolutions.
trait Factor: Lane<Wide: Number> {}

impl<T: Lane<Wide: Number>> Factor for T {}

/// Elements of patches at a time: about what a core's second-level cache holds of `f32`.
const PATCH_ELEMENTS: usize = 256 << 10;

/// In the type that is computed in, channels last.
fn load<T: Factor>(images: &Tensor, format: DataFormat) -> Result<Tensor> {
    widened::<T>(&to_nhwc(images, format)?)
}

/// Back from what [`load`] makes.
fn store<T: Factor>(wide: Tensor, format: DataFormat) -> Result<Tensor> {
    from_nhwc(narrowed::<T>(wide)?, format)
}

/// The product of sizes.
///
/// # Errors
/// `InvalidArgument` if it overflows.
fn checked_product(sizes: &[usize]) -> Result<usize> {
    let product = sizes.iter().try_fold(1usize, |n, &s| n.checked_mul(s));
    product.ok_or_else(|| Error::invalid(format!("sizes {sizes:?} overflow")))
}

/// A convolution as products of matrices.
struct Plan {
    sizes: ConvSizes,
    /// Pixels of one output image, and of all.
    image_pixels: usize,
    pixels: usize,
    /// Elements of a patch of one group.
    patch: usize,
    /// Output channels of a group.
    outputs: usize,
    /// The input is the matrix of patches.
    direct: bool,
    threads: Threads,
    /// Pixels whose patches are made at a time.
    tile: usize,
}

impl Plan {
    fn new(sizes: ConvSizes) -> Result<Plan> {
        let image_pixels = checked_product(&[sizes.planes.output, sizes.rows.output, sizes.columns.output])?;
        let pixels = checked_product(&[image_pixels, sizes.batch])?;
        let patch = patch_len(&sizes);
        let plain = |w: &graph::ops::window::Window| {
            w.filter == 1 && w.stride == 1 && w.pad_before == 0 && w.output == w.input
        };
        let direct = plain(&sizes.planes) && plain(&sizes.rows) && plain(&sizes.columns);
        let threads = Threads::for_work(patch.saturating_mul(pixels).saturating_mul(sizes.out_channels));
        let mut tile = (PATCH_ELEMENTS / patch).clamp(64, 4096);
        if threads == Threads::All {
            // Enough tiles that no thread idles for long at the end.
            tile = tile.min(pixels.div_ceil(4 * rayon::current_num_threads()));
        }
        Ok(Plan {
            sizes,
            image_pixels,
            pixels,
            patch,
            outputs: sizes.out_channels / sizes.groups(),
            direct,
            threads,
            tile: tile.clamp(1, pixels.max(1)),
        })
    }

    /// The patches of `count` pixels from `first` on: the input itself, or gathered into `scratch`.
    fn patches<'a, W: Number>(
        &self,
        input: &'a [W],
        group: usize,
        first: usize,
        count: usize,
        scratch: &'a mut Vec<W>,
    ) -> Matrix<'a, W> {
        let (patch, depth) = (self.patch, self.sizes.in_channels);
        if self.direct {
            return Matrix::new(&input[first * depth + group * patch..], count, patch, depth);
        }
        scratch.resize(count * patch, W::ZERO);
        gather(&self.sizes, group, input, first, scratch);
        Matrix::new(scratch, count, patch, patch)
    }

    /// A group's filter: a column for each output channel.
    fn filter<'a, W>(&self, filter: &'a [W], group: usize) -> Matrix<'a, W> {
        Matrix::new(&filter[group * self.outputs..], self.patch, self.outputs, self.sizes.out_channels)
    }

    /// A group's channels of `count` output pixels from `first` on.
    fn output<'a, W>(&self, output: &'a [W], group: usize, first: usize, count: usize) -> Matrix<'a, W> {
        let channels = self.sizes.out_channels;
        Matrix::new(&output[first * channels + group * self.outputs..], count, self.outputs, channels)
    }
}

fn forward<T: Factor>(ctx: &mut KernelContext<'_>, conv: &Conv) -> Result<()> {
    let (input, filter) = (ctx.input(0)?, ctx.input(1)?);
    let sizes = conv.sizes(input.shape(), filter.shape())?;
    let shape = conv.output_shape(&sizes)?;
    if shape.num_elements() == 0 {
        ctx.set_output(0, Tensor::zeros(T::DTYPE, shape)?);
        return Ok(());
    }
    let plan = Plan::new(sizes)?;
    let (input, filter) = (load::<T>(input, conv.format)?, load::<T>(filter, DataFormat::Nhwc)?);
    let (input, filter) = (input.values::<T::Wide>()?, filter.values::<T::Wide>()?);
    let channels = sizes.out_channels;
    let mut out = ctx.allocate(T::Wide::DTYPE, channels_last(&shape, conv.format)?)?;
    let tile = |scratch: &mut Vec<T::Wide>, (i, out): (usize, &mut [T::Wide])| {
        let count = out.len() / channels;
        for group in 0..sizes.groups() {
            let patches = plan.patches(input, group, i * plan.tile, count, scratch);
            let place = &mut out[group * plan.outputs..];
            product(place, channels, patches, plan.filter(filter, group), false, Threads::One);
        }
    };
    each_tile(out.values_mut()?, plan.tile * channels, plan.threads, tile);
    let out = store::<T>(out, conv.format)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Calls `work` for each part of `len` elements, with its number and memory that it may keep between parts.
fn each_tile<W: Number>(
    out: &mut [W],
    len: usize,
    threads: Threads,
    work: impl Fn(&mut Vec<W>, (usize, &mut [W])) + Sync,
) {
    match threads {
        Threads::One => {
            let mut scratch = Vec::new();
            out.chunks_mut(len).enumerate().for_each(|part| work(&mut scratch, part));
        }
        Threads::All => {
            out.par_chunks_mut(len).enumerate().for_each_init(Vec::new, |scratch, part| work(scratch, part))
        }
    }
}

/// A vector input of sizes as a shape.
fn sizes_input(ctx: &KernelContext<'_>, i: usize, name: &str) -> Result<Vec<i64>> {
    let sizes = ctx.input(i)?;
    if sizes.shape().rank() != 1 {
        crate::invalid!("{}: {name} input must be 1-dim, not {}", ctx.node().op.name(), sizes.shape().rank());
    }
    Ok(sizes.to_i64s()?)
}

fn check_out_backprop(ctx: &KernelContext<'_>, conv: &Conv, sizes: &ConvSizes, dy: &Tensor) -> Result<()> {
    let expected = conv.output_shape(sizes)?;
    if *dy.shape() != expected {
        crate::invalid!(
            "{}: Size of out_backprop doesn't match computed: actual = {}, computed = {expected}",
            ctx.node().op.name(),
            dy.shape()
        );
    }
    Ok(())
}

/// The shape of the input that the gradient is taken of, from its sizes: all of them, or of images the rows and
/// columns alone.
fn input_shape(ctx: &KernelContext<'_>, conv: &Conv) -> Result<Shape> {
    let (filter, dy) = (ctx.input(1)?, ctx.input(2)?);
    let given = sizes_input(ctx, 0, "input_sizes")?;
    Ok(match (given.as_slice(), dy.shape().dims(), filter.shape().dims()) {
        (&[h, w], &[n, _, _, _], &[_, _, c, _]) => {
            Shape::from_i64(&conv.input_shape([h, w], n as i64, c as i64))?
        }
        _ => Shape::from_i64(&given)?,
    })
}

/// The same shape with the channels moved to the end.
fn channels_last(shape: &Shape, format: DataFormat) -> Result<Shape> {
    Ok(match *shape.dims() {
        [a, b, c, d] => Shape::new(&format.to_nhwc([a, b, c, d]))?,
        [a, b, c, d, e] => Shape::new(&format.to_nhwc([a, b, c, d, e]))?,
        _ => shape.clone(),
    })
}

fn backprop_input<T: Factor>(ctx: &mut KernelContext<'_>, conv: &Conv) -> Result<()> {
    let (filter, dy) = (ctx.input(1)?, ctx.input(2)?);
    let shape = input_shape(ctx, conv)?;
    let sizes = conv.sizes(&shape, filter.shape())?;
    check_out_backprop(ctx, conv, &sizes, dy)?;
    if shape.num_elements() == 0 || dy.num_elements() == 0 {
        ctx.set_output(0, Tensor::zeros(T::DTYPE, shape)?);
        return Ok(());
    }
    let plan = Plan::new(sizes)?;
    let (dy, filter) = (load::<T>(dy, conv.format)?, load::<T>(filter, DataFormat::Nhwc)?);
    let (dy, filter) = (dy.values::<T::Wide>()?, filter.values::<T::Wide>()?);
    let depth = sizes.in_channels;
    let mut dx = Tensor::zeros(T::Wide::DTYPE, channels_last(&shape, conv.format)?)?;
    if plan.direct {
        each_tile(dx.values_mut()?, plan.tile * depth, plan.threads, |_, (i, dx)| {
            let count = dx.len() / depth;
            for group in 0..sizes.groups() {
                let dy = plan.output(dy, group, i * plan.tile, count);
                let filter = plan.filter(filter, group).transposed();
                product(&mut dx[group * plan.patch..], depth, dy, filter, false, Threads::One);
            }
        });
    } else {
        // Patches overlap within an image, never between images: a thread has an image to itself. Of few
        // images, the threads share the products.
        let image = sizes.planes.input * sizes.rows.input * sizes.columns.input * depth;
        let many = sizes.batch >= rayon::current_num_threads();
        let (outside, inside) = match plan.threads {
            Threads::All if many => (Threads::All, Threads::One),
            threads => (Threads::One, threads),
        };
        each_tile(dx.values_mut()?, image, outside, |scratch, (n, dx)| {
            let end = (n + 1) * plan.image_pixels;
            for first in (n * plan.image_pixels..end).step_by(plan.tile) {
                let count = plan.tile.min(end - first);
                scratch.resize(count * plan.patch, T::Wide::ZERO);
                for group in 0..sizes.groups() {
                    let dy = plan.output(dy, group, first, count);
                    let filter = plan.filter(filter, group).transposed();
                    product(scratch, plan.patch, dy, filter, false, inside);
                    scatter(&sizes, group, scratch, first, dx, n);
                }
            }
        });
    }
    let dx = store::<T>(dx, conv.format)?;
    ctx.set_output(0, dx);
    Ok(())
}

fn backprop_filter<T: Factor>(ctx: &mut KernelContext<'_>, conv: &Conv) -> Result<()> {
    let (input, dy) = (ctx.input(0)?, ctx.input(2)?);
    let shape = Shape::from_i64(&sizes_input(ctx, 1, "filter_sizes")?)?;
    if shape.num_elements() == 0 {
        ctx.set_output(0, Tensor::zeros(T::DTYPE, shape)?);
        return Ok(());
    }
    let sizes = conv.sizes(input.shape(), &shape)?;
    check_out_backprop(ctx, conv, &sizes, dy)?;
    let mut dw = Tensor::zeros(T::Wide::DTYPE, shape.clone())?;
    if dy.num_elements() > 0 {
        let plan = Plan::new(sizes)?;
        let (input, dy) = (load::<T>(input, conv.format)?, load::<T>(dy, conv.format)?);
        let (input, dy) = (input.values::<T::Wide>()?, dy.values::<T::Wide>()?);
        let dw = dw.values_mut::<T::Wide>()?;
        let tile = if plan.direct {
            plan.pixels
        } else {
            (PATCH_ELEMENTS / plan.patch).clamp(64, plan.pixels.max(64))
        };
        let mut scratch = Vec::new();
        for group in 0..sizes.groups() {
            for first in (0..plan.pixels).step_by(tile) {
                let count = tile.min(plan.pixels - first);
                let patches = plan.patches(input, group, first, count, &mut scratch).transposed();
                let dy = plan.output(dy, group, first, count);
                let place = &mut dw[group * plan.outputs..];
                product(place, sizes.out_channels, patches, dy, true, plan.threads);
            }
        }
    }
    let dw = store::<T>(dw, DataFormat::Nhwc)?;
    ctx.set_output(0, dw);
    Ok(())
}

#[cfg(test)]
mod tests;
