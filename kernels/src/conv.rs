//! Convolutions over images and volumes, and their gradients. Convolutions over images computed in `f32` read the
//! images in place ([`stencil`], [`filter_gradient`]); the others are products of patches and filter
//! ([`patch_product`]). Depthwise convolutions are separate, because their matrices would be vectors.

mod band;
mod depthwise;
mod filter_gradient;
mod patch;
mod patch_product;
mod phase;
mod stencil;
#[cfg(test)]
mod testing;

use self::filter_gradient::FilterGradient;
use self::patch_product::PatchProduct;
use self::stencil::Stencil;
use crate::numeric::dispatch::{FLOATS, INDEX};
use crate::numeric::image::{from_nhwc, to_nhwc};
use crate::numeric::operand_cache::OperandCache;
use crate::numeric::panel::Panels;
use crate::numeric::scalar::Number;
use crate::numeric::widen::{Lane, narrowed, widened};
use crate::plan::conv::{input_shape, sizes_input};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef};
use graph::ops::conv::{Conv, ConvSizes};
use graph::ops::window::DataFormat;
use graph::{DType, Element as _, Shape, Tensor};

const FLOATS_AND_INT: &[DType] = &[DType::Float, DType::Double, DType::Half, DType::BFloat16, DType::Int32];

macro_rules! typed {
    ($dtype:expr, $T:ident => $body:expr) => {
        crate::numeric::dispatch::dispatch!(@arms $dtype, $T => $body;
            Float f32, Double f64, Half half::f16, BFloat16 half::bf16, Int32 i32)
    };
}

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Conv2D", &[("T", FLOATS_AND_INT)], |i| {
        let (conv, packed) = (Conv::of_images(i.node)?, PackedFilterCache::default());
        typed!(i.output_type(0), T => Kernel::sync(move |ctx| forward::<T>(ctx, &conv, &packed)))
    }),
    KernelDef {
        host_memory: &["input_sizes"],
        ..KernelDef::of("Conv2DBackpropInput", &[("T", FLOATS_AND_INT)], |i| {
            let conv = Conv::of_gradient_of_images(i.node)?;
            typed!(i.output_type(0), T => Kernel::sync(move |ctx| backprop_input::<T>(ctx, &conv)))
        })
    },
    KernelDef {
        host_memory: &["filter_sizes"],
        ..KernelDef::of("Conv2DBackpropFilter", &[("T", FLOATS)], |i| {
            let conv = Conv::of_gradient_of_images(i.node)?;
            typed!(i.output_type(0), T => Kernel::sync(move |ctx| backprop_filter::<T>(ctx, &conv)))
        })
    },
    KernelDef::of("Conv3D", &[("T", FLOATS)], |i| {
        let (conv, packed) = (Conv::of_volumes(i.node)?, PackedFilterCache::default());
        typed!(i.output_type(0), T => Kernel::sync(move |ctx| forward::<T>(ctx, &conv, &packed)))
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
        let conv = Conv::of_gradient_of_images(i.node)?;
        typed!(i.output_type(0), T => Kernel::sync(move |ctx| depthwise::forward::<T>(ctx, &conv)))
    }),
    KernelDef {
        host_memory: &["input_sizes"],
        ..KernelDef::of("DepthwiseConv2dNativeBackpropInput", &[("T", FLOATS)], |i| {
            let conv = Conv::of_gradient_of_images(i.node)?;
            typed!(i.output_type(0), T => Kernel::sync(move |ctx| depthwise::backprop_input::<T>(ctx, &conv)))
        })
    },
    KernelDef {
        host_memory: &["filter_sizes"],
        ..KernelDef::of("DepthwiseConv2dNativeBackpropFilter", &[("T", FLOATS)], |i| {
            let conv = Conv::of_gradient_of_images(i.node)?;
            typed!(i.output_type(0), T => Kernel::sync(move |ctx| depthwise::backprop_filter::<T>(ctx, &conv)))
        })
    },
];

/// The filter packed for products, cached for convolutions of these sizes with any batch.
type PackedFilterCache = OperandCache<ConvSizes, Vec<Panels>>;

/// An element type that has convolutions.
trait Factor: Lane<Wide: Number> {}

impl<T: Lane<Wide: Number>> Factor for T {}

/// Widens images to the type of the computation and moves their channels last.
fn load<T: Factor>(images: &Tensor, format: DataFormat) -> Result<Tensor> {
    widened::<T>(&to_nhwc(images, format)?)
}

/// Converts a result back to the element type and the format of the images: the inverse of [`load`].
fn store<T: Factor>(wide: Tensor, format: DataFormat) -> Result<Tensor> {
    from_nhwc(narrowed::<T>(wide)?, format)
}

/// Returns whether the computation is in `f32`.
fn is_single<T: Factor>() -> bool {
    T::Wide::DTYPE == DType::Float
}

/// The forward convolution of images or volumes.
fn forward<T: Factor>(ctx: &mut KernelContext<'_>, conv: &Conv, packed: &PackedFilterCache) -> Result<()> {
    let (input, filter) = (ctx.input(0)?, ctx.input(1)?);
    let sizes = conv.sizes(input.shape(), filter.shape())?;
    let shape = conv.output_shape(&sizes)?;
    if shape.num_elements() == 0 {
        ctx.set_output(0, Tensor::zeros(T::DTYPE, shape)?);
        return Ok(());
    }
    let images = load::<T>(input, conv.format)?;
    let images = images.values::<T::Wide>()?;
    let mut out = ctx.allocate(T::Wide::DTYPE, channels_last(&shape, conv.format)?)?;
    let wide = || load::<T>(filter, DataFormat::Nhwc);
    match Stencil::forward(&sizes).filter(|_| is_single::<T>()) {
        Some(stencil) => {
            let pack = || stencil.pack(bytemuck::cast_slice(wide()?.values::<T::Wide>()?));
            let images = bytemuck::cast_slice(images);
            match packed.get(filter, ConvSizes { batch: 0, ..sizes }, pack)? {
                Some(panels) => stencil.run(images, &panels, out.values_mut()?),
                None => stencil.run(images, &pack()?, out.values_mut()?),
            }
        }
        None => PatchProduct::new(sizes)?.forward(images, wide()?.values()?, out.values_mut()?),
    }
    let out = store::<T>(out, conv.format)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Checks that the incoming gradient has the shape of the convolution's output.
fn check_out_backprop(ctx: &KernelContext<'_>, conv: &Conv, sizes: &ConvSizes, dy: &Tensor) -> Result<()> {
    let expected = conv.output_shape(sizes)?;
    if *dy.shape() != expected {
        device::invalid!(
            "{}: Size of out_backprop doesn't match computed: actual = {}, computed = {expected}",
            ctx.node().op.name(),
            dy.shape()
        );
    }
    Ok(())
}

/// Returns the shape with the channels moved to the end.
fn channels_last(shape: &Shape, format: DataFormat) -> Result<Shape> {
    Ok(match *shape.dims() {
        [a, b, c, d] => Shape::new(&format.to_nhwc([a, b, c, d]))?,
        [a, b, c, d, e] => Shape::new(&format.to_nhwc([a, b, c, d, e]))?,
        _ => shape.clone(),
    })
}

/// The gradient with respect to the input.
fn backprop_input<T: Factor>(ctx: &mut KernelContext<'_>, conv: &Conv) -> Result<()> {
    let (filter, dy) = (ctx.input(1)?, ctx.input(2)?);
    let shape = input_shape(ctx, conv)?;
    let sizes = conv.sizes(&shape, filter.shape())?;
    check_out_backprop(ctx, conv, &sizes, dy)?;
    if shape.num_elements() == 0 || dy.num_elements() == 0 {
        ctx.set_output(0, Tensor::zeros(T::DTYPE, shape)?);
        return Ok(());
    }
    let (dy, filter) = (load::<T>(dy, conv.format)?, load::<T>(filter, DataFormat::Nhwc)?);
    let (dy, filter) = (dy.values::<T::Wide>()?, filter.values::<T::Wide>()?);
    let shape = channels_last(&shape, conv.format)?;
    let dx = match Stencil::backward(&sizes).filter(|_| is_single::<T>()) {
        Some(stencil) => {
            let mut dx = ctx.allocate(T::Wide::DTYPE, shape)?;
            stencil.run(
                bytemuck::cast_slice(dy),
                &stencil.pack(bytemuck::cast_slice(filter))?,
                dx.values_mut()?,
            );
            dx
        }
        None => {
            let mut dx = Tensor::zeros(T::Wide::DTYPE, shape)?;
            PatchProduct::new(sizes)?.input_gradient(dy, filter, dx.values_mut()?);
            dx
        }
    };
    let dx = store::<T>(dx, conv.format)?;
    ctx.set_output(0, dx);
    Ok(())
}

/// The gradient with respect to the filter.
fn backprop_filter<T: Factor>(ctx: &mut KernelContext<'_>, conv: &Conv) -> Result<()> {
    let (input, dy) = (ctx.input(0)?, ctx.input(2)?);
    let shape = Shape::from_i64(&sizes_input(ctx, 1, "filter_sizes")?)?;
    if shape.num_elements() == 0 {
        ctx.set_output(0, Tensor::zeros(T::DTYPE, shape)?);
        return Ok(());
    }
    let sizes = conv.sizes(input.shape(), &shape)?;
    check_out_backprop(ctx, conv, &sizes, dy)?;
    let gradient = FilterGradient::new(&sizes).filter(|_| is_single::<T>() && dy.num_elements() > 0);
    let mut dw = match gradient {
        Some(_) => Tensor::unspecified(T::Wide::DTYPE, shape)?,
        None => Tensor::zeros(T::Wide::DTYPE, shape)?,
    };
    if dy.num_elements() > 0 {
        let (input, dy) = (load::<T>(input, conv.format)?, load::<T>(dy, conv.format)?);
        let (input, dy) = (input.values::<T::Wide>()?, dy.values::<T::Wide>()?);
        let dw = dw.values_mut::<T::Wide>()?;
        match gradient {
            Some(gradient) => gradient.write(
                bytemuck::cast_slice(input),
                bytemuck::cast_slice(dy),
                bytemuck::cast_slice_mut(dw),
            )?,
            None => PatchProduct::new(sizes)?.filter_gradient(input, dy, dw),
        }
    }
    let dw = store::<T>(dw, DataFormat::Nhwc)?;
    ctx.set_output(0, dw);
    Ok(())
}

#[cfg(test)]
mod tests;
