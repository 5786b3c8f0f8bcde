//! Convolutions over images and volumes, and their gradients. Convolutions over images computed in `f32` read the
//! images in place ([`stencil`], [`filter_gradient`]); all other convolutions are products of patches and filter
//! ([`patch_product`]). Depthwise convolutions are separate, because their matrices would be vectors.

mod band;
mod composed;
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
use crate::numeric::image::{load, store};
use crate::numeric::operand_cache::OperandCache;
use crate::numeric::panel::Panels;
use crate::numeric::scalar::Number;
use crate::numeric::widen::wide_dtype;
use crate::plan::conv::{input_shape, sizes_input};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef};
use graph::ops::conv::{Conv, ConvSizes};
use graph::ops::window::DataFormat;
use graph::{DType, Shape, Tensor};

const FLOATS_AND_INT: &[DType] = &[DType::Float, DType::Double, DType::Half, DType::BFloat16, DType::Int32];

/// The types of elements of volumes in the first versions of the gradient ops.
const VOLUMES: &[DType] = &[DType::Float, DType::Double, DType::Half];

/// Evaluates an expression with `$W` as the type in which elements of `$dtype` are computed: a float type or, with the
/// argument `with i32`, also `i32`.
macro_rules! wide {
    ($dtype:expr, $W:ident => $body:expr) => {
        crate::numeric::dispatch::dispatch!(@arms wide_dtype($dtype), $W => $body; Float f32, Double f64)
    };
    (with i32, $dtype:expr, $W:ident => $body:expr) => {
        crate::numeric::dispatch::dispatch!(@arms wide_dtype($dtype), $W => $body; Float f32, Double f64, Int32 i32)
    };
}

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Conv2D", &[("T", FLOATS_AND_INT)], |i| {
        let (conv, packed) = (Conv::of_images(i.node)?, PackedFilterCache::default());
        wide!(with i32, i.output_type(0), W => Kernel::sync(move |ctx| forward::<W>(ctx, &conv, &packed)))
    }),
    KernelDef {
        host_memory: &["input_sizes"],
        ..KernelDef::of("Conv2DBackpropInput", &[("T", FLOATS_AND_INT)], |i| {
            let conv = Conv::of_gradient_of_images(i.node)?;
            wide!(with i32, i.output_type(0), W => Kernel::sync(move |ctx| backprop_input::<W>(ctx, &conv)))
        })
    },
    KernelDef {
        host_memory: &["filter_sizes"],
        ..KernelDef::of("Conv2DBackpropFilter", &[("T", FLOATS)], |i| {
            let conv = Conv::of_gradient_of_images(i.node)?;
            wide!(i.output_type(0), W => Kernel::sync(move |ctx| backprop_filter::<W>(ctx, &conv)))
        })
    },
    KernelDef::of("Conv3D", &[("T", FLOATS)], |i| {
        let (conv, packed) = (Conv::of_volumes(i.node)?, PackedFilterCache::default());
        wide!(i.output_type(0), W => Kernel::sync(move |ctx| forward::<W>(ctx, &conv, &packed)))
    }),
    KernelDef {
        host_memory: &["input_sizes"],
        ..KernelDef::of("Conv3DBackpropInputV2", &[("T", FLOATS), ("Tshape", INDEX)], |i| {
            let conv = Conv::of_volumes(i.node)?;
            wide!(i.output_type(0), W => Kernel::sync(move |ctx| backprop_input::<W>(ctx, &conv)))
        })
    },
    KernelDef::of("Conv3DBackpropInput", &[("T", VOLUMES)], |i| {
        let conv = Conv::of_volumes(i.node)?;
        wide!(i.output_type(0), W => {
            Kernel::sync(move |ctx| {
                let shape = ctx.shape(0)?.clone();
                if ctx.shape(1)?.dims().last() == Some(&0) {
                    device::invalid!("input, filter and out_backprop must all have at least 1 element");
                }
                backprop_input_of_shape::<W>(ctx, &conv, shape)
            })
        })
    }),
    KernelDef::of("Conv3DBackpropFilter", &[("T", VOLUMES)], |i| {
        let conv = Conv::of_volumes(i.node)?;
        wide!(i.output_type(0), W => {
            Kernel::sync(move |ctx| {
                let shape = ctx.shape(1)?.clone();
                backprop_filter_of_shape::<W>(ctx, &conv, shape)
            })
        })
    }),
    KernelDef::of("FusedPadConv2D", &[("T", FLOATS)], composed::pad_and_convolve),
    KernelDef::of("FusedResizeAndPadConv2D", &[("T", VOLUMES)], composed::resize_pad_and_convolve),
    KernelDef::of("Conv", &[("T", FLOATS_AND_INT)], composed::convolve),
    KernelDef {
        host_memory: &["filter_sizes"],
        ..KernelDef::of("Conv3DBackpropFilterV2", &[("T", FLOATS)], |i| {
            let conv = Conv::of_volumes(i.node)?;
            wide!(i.output_type(0), W => Kernel::sync(move |ctx| backprop_filter::<W>(ctx, &conv)))
        })
    },
    KernelDef::of("DepthwiseConv2dNative", &[("T", FLOATS)], |i| {
        let conv = Conv::of_gradient_of_images(i.node)?;
        wide!(i.output_type(0), W => {
            Kernel::sync(move |ctx| depthwise::forward(ctx, &conv, depthwise::add_to_output::<W>))
        })
    }),
    KernelDef {
        host_memory: &["input_sizes"],
        ..KernelDef::of("DepthwiseConv2dNativeBackpropInput", &[("T", FLOATS)], |i| {
            let conv = Conv::of_gradient_of_images(i.node)?;
            wide!(i.output_type(0), W => {
                Kernel::sync(move |ctx| depthwise::backprop_input(ctx, &conv, depthwise::add_to_input::<W>))
            })
        })
    },
    KernelDef {
        host_memory: &["filter_sizes"],
        ..KernelDef::of("DepthwiseConv2dNativeBackpropFilter", &[("T", FLOATS)], |i| {
            let conv = Conv::of_gradient_of_images(i.node)?;
            wide!(i.output_type(0), W => {
                Kernel::sync(move |ctx| depthwise::backprop_filter(ctx, &conv, depthwise::add_to_filter::<W>))
            })
        })
    },
];

/// The filter packed for products, cached by the sizes of the convolution except the batch size.
type PackedFilterCache = OperandCache<ConvSizes, Vec<Panels>>;

/// Returns whether `W` is `f32`.
fn is_single<W: Number>() -> bool {
    W::DTYPE == DType::Float
}

/// Computes the forward convolution of images or volumes.
fn forward<W: Number>(ctx: &mut KernelContext<'_>, conv: &Conv, packed: &PackedFilterCache) -> Result<()> {
    let (input, filter, dtype) = (ctx.input(0)?, ctx.input(1)?, ctx.input(0)?.dtype());
    let sizes = conv.sizes_or_empty(input.shape(), filter.shape())?;
    conv.check_filter(&sizes)?;
    let shape = conv.output_shape(&sizes)?;
    if shape.num_elements() == 0 || input.num_elements() == 0 {
        ctx.set_output(0, Tensor::zeros(dtype, shape)?);
        return Ok(());
    }
    let images = load(input, conv.format)?;
    let images = images.values::<W>()?;
    let mut out = ctx.allocate(W::DTYPE, channels_last(&shape, conv.format)?)?;
    let wide = || load(filter, DataFormat::Nhwc);
    match Stencil::forward(&sizes).filter(|_| is_single::<W>()) {
        Some(stencil) => {
            let pack = || stencil.pack(bytemuck::cast_slice(wide()?.values::<W>()?));
            let images = bytemuck::cast_slice(images);
            match packed.get(filter, ConvSizes { batch: 0, ..sizes }, pack)? {
                Some(panels) => stencil.run(images, &panels, out.values_mut()?),
                None => stencil.run(images, &pack()?, out.values_mut()?),
            }
        }
        None => PatchProduct::new(sizes)?.forward(images, wide()?.values()?, out.values_mut()?),
    }
    let out = store(out, dtype, conv.format)?;
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

/// Returns the shape with its channel dimension moved to the end.
fn channels_last(shape: &Shape, format: DataFormat) -> Result<Shape> {
    Ok(match *shape.dims() {
        [a, b, c, d] => Shape::new(&format.to_nhwc([a, b, c, d]))?,
        [a, b, c, d, e] => Shape::new(&format.to_nhwc([a, b, c, d, e]))?,
        _ => shape.clone(),
    })
}

/// Computes the gradient of a convolution with respect to its input.
fn backprop_input<W: Number>(ctx: &mut KernelContext<'_>, conv: &Conv) -> Result<()> {
    let shape = input_shape(ctx, conv)?;
    backprop_input_of_shape::<W>(ctx, conv, shape)
}

fn backprop_input_of_shape<W: Number>(ctx: &mut KernelContext<'_>, conv: &Conv, shape: Shape) -> Result<()> {
    let (filter, dy, dtype) = (ctx.input(1)?, ctx.input(2)?, ctx.input(2)?.dtype());
    let sizes = conv.sizes_or_empty(&shape, filter.shape())?;
    check_out_backprop(ctx, conv, &sizes, dy)?;
    if shape.num_elements() == 0 || dy.num_elements() == 0 || filter.num_elements() == 0 {
        ctx.set_output(0, Tensor::zeros(dtype, shape)?);
        return Ok(());
    }
    let (dy, filter) = (load(dy, conv.format)?, load(filter, DataFormat::Nhwc)?);
    let (dy, filter) = (dy.values::<W>()?, filter.values::<W>()?);
    let shape = channels_last(&shape, conv.format)?;
    let dx = match Stencil::backward(&sizes).filter(|_| is_single::<W>()) {
        Some(stencil) => {
            let mut dx = ctx.allocate(W::DTYPE, shape)?;
            stencil.run(
                bytemuck::cast_slice(dy),
                &stencil.pack(bytemuck::cast_slice(filter))?,
                dx.values_mut()?,
            );
            dx
        }
        None => {
            let mut dx = Tensor::zeros(W::DTYPE, shape)?;
            PatchProduct::new(sizes)?.input_gradient(dy, filter, dx.values_mut()?);
            dx
        }
    };
    let dx = store(dx, dtype, conv.format)?;
    ctx.set_output(0, dx);
    Ok(())
}

/// Computes the gradient of a convolution with respect to its filter.
fn backprop_filter<W: Number>(ctx: &mut KernelContext<'_>, conv: &Conv) -> Result<()> {
    let shape = Shape::from_i64(&sizes_input(ctx, 1, "filter_sizes")?)?;
    backprop_filter_of_shape::<W>(ctx, conv, shape)
}

fn backprop_filter_of_shape<W: Number>(ctx: &mut KernelContext<'_>, conv: &Conv, shape: Shape) -> Result<()> {
    let (input, dy, dtype) = (ctx.input(0)?, ctx.input(2)?, ctx.input(2)?.dtype());
    let sizes = conv.sizes_or_empty(input.shape(), &shape)?;
    if sizes.in_channels == 0 {
        device::invalid!("{}: filter depth must be strictly greater than zero", ctx.node().op.name());
    }
    check_out_backprop(ctx, conv, &sizes, dy)?;
    if shape.num_elements() == 0 {
        ctx.set_output(0, Tensor::zeros(dtype, shape)?);
        return Ok(());
    }
    let gradient = FilterGradient::new(&sizes).filter(|_| is_single::<W>() && dy.num_elements() > 0);
    let mut dw = match gradient {
        Some(_) => Tensor::unspecified(W::DTYPE, shape)?,
        None => Tensor::zeros(W::DTYPE, shape)?,
    };
    if dy.num_elements() > 0 {
        let (input, dy) = (load(input, conv.format)?, load(dy, conv.format)?);
        let (input, dy) = (input.values::<W>()?, dy.values::<W>()?);
        let dw = dw.values_mut::<W>()?;
        match gradient {
            Some(gradient) => gradient.write(
                bytemuck::cast_slice(input),
                bytemuck::cast_slice(dy),
                bytemuck::cast_slice_mut(dw),
            )?,
            None => PatchProduct::new(sizes)?.filter_gradient(input, dy, dw),
        }
    }
    let dw = store(dw, dtype, DataFormat::Nhwc)?;
    ctx.set_output(0, dw);
    Ok(())
}

#[cfg(test)]
mod tests;
