//! Max pooling that also returns the flat position of each maximum in its image, or in the batch, and the gradient
//! that uses these positions.

use super::{cost, each_part, image_in, line_out, lines_out, output_nhwc, pixels_under};
use crate::numeric::dispatch::{INDEX, REALS, dispatch};
use crate::numeric::scalar::Semiring;
use device::kernel::{Kernel, KernelContext, KernelDef};
use device::{Error, Result};
use graph::ops::pool::Pool;
use graph::{DType, Element, Tensor};

const TYPES: &[(&str, &[DType])] = &[("T", REALS), ("Targmax", INDEX)];

pub(super) const FORWARD: KernelDef = KernelDef::of("MaxPoolWithArgmax", TYPES, |i| {
    let (pool, in_batch) = (Pool::of(i.node)?, i.attr("include_batch_in_index")?);
    dispatch!(real, i.output_type(0), T => Kernel::sync(move |ctx| forward::<T>(ctx, &pool, in_batch)))
});

pub(super) const GRAD: KernelDef = KernelDef::of("MaxPoolGradWithArgmax", TYPES, |i| {
    let (pool, in_batch) = (Pool::of(i.node)?, i.attr("include_batch_in_index")?);
    dispatch!(real, i.output_type(0), T => Kernel::sync(move |ctx| grad::<T>(ctx, &pool, in_batch)))
});

fn only_spatial(pool: &Pool) -> Result<()> {
    if pool.is_depthwise() {
        return Err(Error::unimplemented("MaxPoolWithArgmax is not supported on the depth dimension."));
    }
    Ok(())
}

fn forward<T: Element + PartialOrd>(ctx: &mut KernelContext<'_>, pool: &Pool, in_batch: bool) -> Result<()> {
    only_spatial(pool)?;
    let input = ctx.input(0)?;
    if input.num_elements() == 0 {
        device::invalid!("tensor_in must not be empty, has shape {}", input.shape());
    }
    let sizes = pool.sizes(input.shape())?;
    let shape = output_nhwc(pool, &sizes)?;
    let mut out = ctx.allocate(T::DTYPE, shape.clone())?;
    let mut places = ctx.allocate(DType::Int64, shape)?;
    let values = input.values::<T>()?;
    let (channels, line, image_in, lines) =
        (sizes.channels, line_out(&sizes), image_in(&sizes), lines_out(&sizes));
    each_part(places.values_mut::<i64>()?, line, cost(&sizes), |i, places| {
        for (column, places) in places.chunks_exact_mut(channels).enumerate() {
            let mut pixels = pixels_under(&sizes, i, column);
            let start = pixels.next().unwrap_or_default();
            places.iter_mut().enumerate().for_each(|(c, p)| *p = (start + c) as i64);
            for at in pixels {
                for (c, (place, v)) in places.iter_mut().zip(&values[at..at + channels]).enumerate() {
                    if *v > values[*place as usize] {
                        *place = (at + c) as i64;
                    }
                }
            }
        }
    });
    for (o, &place) in out.values_mut::<T>()?.iter_mut().zip(places.values::<i64>()?) {
        *o = values[place as usize];
    }
    if !in_batch {
        for (i, part) in places.values_mut::<i64>()?.chunks_exact_mut((lines * line).max(1)).enumerate() {
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

fn grad<T: Semiring>(ctx: &mut KernelContext<'_>, pool: &Pool, in_batch: bool) -> Result<()> {
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
    let mut out = Tensor::zeros(T::DTYPE, input.shape().clone())?;
    let (image_in, per_image) = (image_in(&sizes), lines_out(&sizes) * line_out(&sizes));
    let values = out.values_mut::<T>()?;
    for (i, (&g, place)) in grad.values::<T>()?.iter().zip(places.to_i64s()?).enumerate() {
        let first = if in_batch { 0 } else { i / per_image.max(1) * image_in };
        let at = usize::try_from(place).ok().and_then(|p| p.checked_add(first));
        let Some(o) = at.and_then(|at| values.get_mut(at)) else {
            device::invalid!(
                "Invalid input_backprop index: {place}, not in an input of shape {}",
                input.shape()
            );
        };
        *o = o.plus(g);
    }
    ctx.set_output(0, out);
    Ok(())
}
