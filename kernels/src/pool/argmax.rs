//! Max pooling that also returns the flat position of each maximum in its image, or in the batch, and the gradient
//! that uses these positions.

use super::{LineWindows, cost, each_part, image_in, line_out, lines_out, output_nhwc};
use crate::numeric::dispatch::{INDEX, REALS, dispatch};
use crate::numeric::scalar::Semiring;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
use graph::ops::pool::{Pool, PoolSizes};
use graph::{DType, Element, Tensor};

const TYPES: &[(&str, &[DType])] = &[("T", REALS), ("Targmax", INDEX)];

pub(super) const FORWARD: KernelDef = KernelDef::of(
    "MaxPoolWithArgmax",
    TYPES,
    |i| dispatch!(real, i.output_type(0), T => forward_kernel(i, find_maxima::<T>)),
);

pub(super) const GRAD: KernelDef = KernelDef::of(
    "MaxPoolGradWithArgmax",
    TYPES,
    |i| dispatch!(real, i.output_type(0), T => grad_kernel(i, add_at::<T>)),
);

/// A function `(sizes, input, maxima, positions)` that sets the maximum of each window and its flat position in the
/// batch.
type FindMaxima = fn(&PoolSizes, &Tensor, &mut Tensor, &mut [i64]) -> Result<()>;

/// A function `(values, positions, out)` that adds each value to the element of `out` at the value's position.
type AddAt = fn(&Tensor, &[usize], &mut Tensor) -> Result<()>;

fn forward_kernel(i: &KernelInit<'_>, find_maxima: FindMaxima) -> Result<Kernel> {
    let (pool, in_batch) = (Pool::of(i.node)?, i.attr("include_batch_in_index")?);
    Kernel::sync(move |ctx| forward(ctx, &pool, in_batch, find_maxima))
}

fn grad_kernel(i: &KernelInit<'_>, add_at: AddAt) -> Result<Kernel> {
    let (pool, in_batch) = (Pool::of(i.node)?, i.attr("include_batch_in_index")?);
    Kernel::sync(move |ctx| grad(ctx, &pool, in_batch, add_at))
}

fn only_spatial(pool: &Pool) -> Result<()> {
    if pool.is_depthwise() {
        return Err(Error::unimplemented("MaxPoolWithArgmax is not supported on the depth dimension."));
    }
    Ok(())
}

fn forward(ctx: &mut KernelContext<'_>, pool: &Pool, in_batch: bool, find_maxima: FindMaxima) -> Result<()> {
    only_spatial(pool)?;
    let input = ctx.input(0)?;
    if input.num_elements() == 0 {
        device::invalid!("tensor_in must not be empty, has shape {}", input.shape());
    }
    let sizes = pool.sizes(input.shape())?;
    let shape = output_nhwc(pool, &sizes)?;
    let mut out = ctx.allocate(input.dtype(), shape.clone())?;
    let mut places = ctx.allocate(DType::Int64, shape)?;
    find_maxima(&sizes, input, &mut out, places.values_mut::<i64>()?)?;
    if !in_batch {
        let (image_in, image_out) = (image_in(&sizes), lines_out(&sizes) * line_out(&sizes));
        for (i, part) in places.values_mut::<i64>()?.chunks_exact_mut(image_out.max(1)).enumerate() {
            part.iter_mut().for_each(|p| *p -= (i * image_in) as i64);
        }
    }
    let places = match ctx.node().attr::<DType>("Targmax")? {
        DType::Int32 => {
            let narrow: Vec<i32> = places.values::<i64>()?.iter().map(|&p| p as i32).collect();
            Tensor::from_slice(&narrow, places.shape().clone())?
        }
        _ => places,
    };
    ctx.set_output(0, out);
    ctx.set_output(1, places);
    Ok(())
}

fn find_maxima<T: Element + PartialOrd>(
    sizes: &PoolSizes,
    input: &Tensor,
    out: &mut Tensor,
    places: &mut [i64],
) -> Result<()> {
    let (values, channels) = (input.values::<T>()?, sizes.channels);
    each_part(places, line_out(sizes), cost(sizes), |line, places| {
        let mut windows = LineWindows::new(sizes, line);
        for (column, places) in places.chunks_exact_mut(channels).enumerate() {
            let pixels = windows.pixels(column);
            let start = pixels.first().copied().unwrap_or_default();
            places.iter_mut().enumerate().for_each(|(c, p)| *p = (start + c) as i64);
            for &at in pixels.iter().skip(1) {
                for (c, (place, v)) in places.iter_mut().zip(&values[at..at + channels]).enumerate() {
                    if *v > values[*place as usize] {
                        *place = (at + c) as i64;
                    }
                }
            }
        }
    });
    for (o, &place) in out.values_mut::<T>()?.iter_mut().zip(&*places) {
        *o = values[place as usize];
    }
    Ok(())
}

fn grad(ctx: &mut KernelContext<'_>, pool: &Pool, in_batch: bool, add_at: AddAt) -> Result<()> {
    only_spatial(pool)?;
    let (input, grad, places) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let sizes = pool.sizes(input.shape())?;
    let pooled = pool.output_shape(&sizes)?;
    if *grad.shape() != pooled {
        device::invalid!("Expected grad shape to be {pooled}, but got {}", grad.shape());
    }
    if *places.shape() != pooled {
        device::invalid!("Expected argmax shape to be {pooled}, but got {}", places.shape());
    }
    let mut out = Tensor::zeros(grad.dtype(), input.shape().clone())?;
    let (image_in, image_out) = (image_in(&sizes), lines_out(&sizes) * line_out(&sizes));
    let in_whole_batch = |(i, place): (usize, i64)| {
        let first = if in_batch { 0 } else { i / image_out.max(1) * image_in };
        let at = usize::try_from(place).ok().and_then(|p| p.checked_add(first));
        let Some(at) = at.filter(|&at| at < input.num_elements()) else {
            device::invalid!(
                "Invalid input_backprop index: {place}, not in an input of shape {}",
                input.shape()
            );
        };
        Ok(at)
    };
    let places: Vec<usize> =
        places.to_i64s()?.into_iter().enumerate().map(in_whole_batch).collect::<Result<_>>()?;
    add_at(grad, &places, &mut out)?;
    ctx.set_output(0, out);
    Ok(())
}

fn add_at<T: Semiring>(from: &Tensor, places: &[usize], out: &mut Tensor) -> Result<()> {
    let out = out.values_mut::<T>()?;
    for (&value, &at) in from.values::<T>()?.iter().zip(places) {
        out[at] = out[at].plus(value);
    }
    Ok(())
}
