//! Two-dimensional pooling and its gradients.

use super::dispatch::{FLOATS, REALS, dispatch};
use super::image::{from_nhwc, to_nhwc};
use super::scalar::{Real as _, Semiring};
use super::threads::PARALLEL;
use super::wide::Float;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, KernelContext, KernelDef};
use graph::ops::pool::{Pool, PoolSizes};
use graph::{DType, Element, Shape, Tensor};
use num_traits::{Bounded, Zero as _};
use rayon::prelude::*;

const REAL: &[(&str, &[DType])] = &[("T", REALS)];
const FLOAT: &[(&str, &[DType])] = &[("T", FLOATS)];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("MaxPool", REAL, |i| {
        let pool = Pool::of(i.node)?;
        dispatch!(real, i.output_type(0), T => Kernel::sync(move |ctx| max_pool::<T>(ctx, &pool)))
    }),
    KernelDef::of("MaxPoolGrad", REAL, |i| {
        let pool = Pool::of(i.node)?;
        dispatch!(real, i.output_type(0), T => Kernel::sync(move |ctx| max_pool_grad::<T>(ctx, &pool)))
    }),
    KernelDef::of("MaxPoolGradGrad", REAL, |i| {
        let pool = Pool::of(i.node)?;
        dispatch!(real, i.output_type(0), T => Kernel::sync(move |ctx| max_pool_grad_grad::<T>(ctx, &pool)))
    }),
    KernelDef::of("AvgPool", FLOAT, |i| {
        let pool = Pool::of(i.node)?;
        dispatch!(float, i.output_type(0), T => Kernel::sync(move |ctx| avg_pool::<T>(ctx, &pool)))
    }),
    KernelDef {
        host_memory: &["orig_input_shape"],
        ..KernelDef::of("AvgPoolGrad", FLOAT, |i| {
            let pool = Pool::of(i.node)?;
            dispatch!(float, i.output_type(0), T => Kernel::sync(move |ctx| avg_pool_grad::<T>(ctx, &pool)))
        })
    },
];

/// Calls `work` for each part of `len` elements of `out`, with its number; `cost` is the number of elements
/// that are read altogether.
fn each_part<T: Send>(out: &mut [T], len: usize, cost: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    if out.is_empty() {
        return;
    }
    if cost < PARALLEL {
        out.chunks_exact_mut(len).enumerate().for_each(|(i, part)| work(i, part));
    } else {
        out.par_chunks_exact_mut(len).enumerate().for_each(|(i, part)| work(i, part));
    }
}

/// Elements that all windows together read.
fn cost(sizes: &PoolSizes) -> usize {
    let outputs = sizes.batch.saturating_mul(sizes.rows.output).saturating_mul(sizes.columns.output);
    outputs
        .saturating_mul(sizes.rows.filter)
        .saturating_mul(sizes.columns.filter)
        .saturating_mul(sizes.channels)
}

/// Shapes as `[batch, rows, columns, channels]`.
fn output_nhwc(sizes: &PoolSizes) -> Result<Shape> {
    Ok(Shape::new(&[sizes.batch, sizes.rows.output, sizes.columns.output, sizes.channels])?)
}

fn input_nhwc(sizes: &PoolSizes) -> Result<Shape> {
    Ok(Shape::new(&[sizes.batch, sizes.rows.input, sizes.columns.input, sizes.channels])?)
}

/// Input pixels under the window of output pixel (`row`, `column`) of `image`, by their first element, in the
/// order of rows and columns.
fn under(sizes: &PoolSizes, image: usize, row: usize, column: usize) -> impl Iterator<Item = usize> {
    let (height, width, channels) = (sizes.rows.input, sizes.columns.input, sizes.channels);
    let columns = sizes.columns.range(column);
    sizes
        .rows
        .range(row)
        .flat_map(move |y| columns.clone().map(move |x| ((image * height + y) * width + x) * channels))
}

fn max_pool<T: Element + PartialOrd + Bounded>(ctx: &mut KernelContext<'_>, pool: &Pool) -> Result<()> {
    let input = to_nhwc(ctx.input(0)?, pool.format)?;
    let out = if pool.is_depthwise() {
        max_over_depth::<T>(pool, &input)?
    } else {
        let sizes = pool.sizes(ctx.input(0)?.shape())?;
        let mut out = ctx.allocate(T::DTYPE, output_nhwc(&sizes)?)?;
        let values = input.values::<T>()?;
        let line = sizes.columns.output * sizes.channels;
        each_part(out.values_mut::<T>()?, line, cost(&sizes), |i, line| {
            let (image, row) = (i / sizes.rows.output, i % sizes.rows.output);
            for (column, best) in line.chunks_exact_mut(sizes.channels).enumerate() {
                best.fill(T::min_value());
                for at in under(&sizes, image, row, column) {
                    let pixel = &values[at..at + sizes.channels];
                    best.iter_mut().zip(pixel).for_each(|(b, &v)| *b = if v > *b { v } else { *b });
                }
            }
        });
        out
    };
    ctx.set_output(0, from_nhwc(out, pool.format)?);
    Ok(())
}

/// Windows over channels that do not overlap.
fn max_over_depth<T: Element + PartialOrd + Bounded>(pool: &Pool, input: &Tensor) -> Result<Tensor> {
    let [_, rows, columns, depth] = pool.ksize;
    let &[n, h, w, channels] = input.shape().dims() else {
        crate::invalid!("tensor_in must be 4-dimensional: {}", input.shape());
    };
    if rows != 1 || columns != 1 || pool.strides[1] != 1 || pool.strides[2] != 1 {
        return Err(Error::unimplemented(
            "MaxPooling supports exactly one of pooling across depth or pooling across width/height.",
        ));
    }
    if depth != pool.strides[3] {
        return Err(Error::unimplemented(
            "Depthwise max pooling requires the depth window to equal the depth stride",
        ));
    }
    if !channels.is_multiple_of(depth) {
        return Err(Error::unimplemented(
            "Depthwise max pooling requires the depth window to evenly divide the input depth",
        ));
    }
    let mut out = Tensor::unspecified(T::DTYPE, Shape::new(&[n, h, w, channels / depth])?)?;
    let windows = input.values::<T>()?.chunks_exact(depth);
    for (best, window) in out.values_mut::<T>()?.iter_mut().zip(windows) {
        *best = window.iter().fold(T::min_value(), |b, &v| if v > b { v } else { b });
    }
    Ok(out)
}

/// The inputs of a gradient of max pooling, channels last: image, pooled image, gradient.
fn gradient_inputs(
    ctx: &KernelContext<'_>,
    pool: &Pool,
    grad_is_pooled: bool,
) -> Result<(PoolSizes, [Tensor; 3])> {
    if pool.is_depthwise() {
        let op = ctx.node().op.name();
        return Err(Error::unimplemented(format!("{op} is not yet supported on the depth dimension.")));
    }
    let (input, output, grad) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let sizes = pool.sizes(input.shape())?;
    let pooled = Shape::new(&pool.output_shape(&sizes))?;
    if *output.shape() != pooled {
        crate::invalid!("Expected orig_output shape to be {pooled}, but got {}", output.shape());
    }
    let expected = if grad_is_pooled { &pooled } else { input.shape() };
    if grad.shape() != expected {
        crate::invalid!("Expected grad shape to be {expected}, but got {}", grad.shape());
    }
    let nhwc = |t| to_nhwc(t, pool.format);
    Ok((sizes, [nhwc(input)?, nhwc(output)?, nhwc(grad)?]))
}

/// Each window's gradient goes to its first maximum.
fn max_pool_grad<T: Semiring + PartialOrd>(ctx: &mut KernelContext<'_>, pool: &Pool) -> Result<()> {
    let (sizes, [input, _, grad]) = gradient_inputs(ctx, pool, true)?;
    let mut out = Tensor::zeros(T::DTYPE, input_nhwc(&sizes)?)?;
    let (values, grads) = (input.values::<T>()?, grad.values::<T>()?);
    let channels = sizes.channels;
    let (image_in, line_out) =
        (sizes.rows.input * sizes.columns.input * channels, sizes.columns.output * channels);
    each_part(out.values_mut::<T>()?, image_in, cost(&sizes), |image, out| {
        let mut first = vec![0usize; channels];
        for row in 0..sizes.rows.output {
            for column in 0..sizes.columns.output {
                let mut pixels = under(&sizes, image, row, column);
                let Some(start) = pixels.next() else { continue };
                first.fill(start);
                for at in pixels {
                    let pixel = &values[at..at + channels];
                    for (c, (first, v)) in first.iter_mut().zip(pixel).enumerate() {
                        if *v > values[*first + c] {
                            *first = at;
                        }
                    }
                }
                let at = (image * sizes.rows.output + row) * line_out + column * channels;
                for (c, (&first, &g)) in first.iter().zip(&grads[at..at + channels]).enumerate() {
                    let place = &mut out[first + c - image * image_in];
                    *place = place.plus(g);
                }
            }
        }
    });
    ctx.set_output(0, from_nhwc(out, pool.format)?);
    Ok(())
}

/// Each window takes the gradient of its first maximum.
fn max_pool_grad_grad<T: Element + Default>(ctx: &mut KernelContext<'_>, pool: &Pool) -> Result<()> {
    let (sizes, [input, output, grad]) = gradient_inputs(ctx, pool, false)?;
    let mut out = ctx.allocate(T::DTYPE, output_nhwc(&sizes)?)?;
    let (values, pooled, grads) = (input.values::<T>()?, output.values::<T>()?, grad.values::<T>()?);
    let line = sizes.columns.output * sizes.channels;
    each_part(out.values_mut::<T>()?, line, cost(&sizes), |i, out| {
        let (image, row) = (i / sizes.rows.output, i % sizes.rows.output);
        let pooled = &pooled[i * line..(i + 1) * line];
        for (j, (o, max)) in out.iter_mut().zip(pooled).enumerate() {
            let channel = j % sizes.channels;
            let first =
                under(&sizes, image, row, j / sizes.channels).find(|&at| values[at + channel] == *max);
            *o = first.map(|at| grads[at + channel]).unwrap_or_default();
        }
    });
    ctx.set_output(0, from_nhwc(out, pool.format)?);
    Ok(())
}

fn only_spatial(pool: &Pool) -> Result<()> {
    if pool.is_depthwise() {
        return Err(Error::unimplemented("Non-spatial pooling is not yet supported."));
    }
    Ok(())
}

/// The mean of what is under each window; padding does not count.
fn avg_pool<T: Float>(ctx: &mut KernelContext<'_>, pool: &Pool) -> Result<()> {
    only_spatial(pool)?;
    let input = to_nhwc(ctx.input(0)?, pool.format)?;
    let sizes = pool.sizes(ctx.input(0)?.shape())?;
    let mut out = ctx.allocate(T::DTYPE, output_nhwc(&sizes)?)?;
    let values = input.values::<T>()?;
    let line = sizes.columns.output * sizes.channels;
    each_part(out.values_mut::<T>()?, line, cost(&sizes), |i, line| {
        let (image, row) = (i / sizes.rows.output, i % sizes.rows.output);
        let mut sums = vec![T::Wide::zero(); sizes.channels];
        for (column, means) in line.chunks_exact_mut(sizes.channels).enumerate() {
            sums.fill(T::Wide::zero());
            let mut count = 0usize;
            for at in under(&sizes, image, row, column) {
                let pixel = &values[at..at + sizes.channels];
                sums.iter_mut().zip(pixel).for_each(|(s, v)| *s += v.to_wide());
                count += 1;
            }
            let share = T::Wide::of(1.0 / count as f64);
            means.iter_mut().zip(&sums).for_each(|(m, &s)| *m = T::of_wide(s * share));
        }
    });
    ctx.set_output(0, from_nhwc(out, pool.format)?);
    Ok(())
}

/// Each window's gradient goes to what is under it in equal parts.
fn avg_pool_grad<T: Float>(ctx: &mut KernelContext<'_>, pool: &Pool) -> Result<()> {
    only_spatial(pool)?;
    let (shape, grad) = (ctx.input(0)?, ctx.input(1)?);
    if shape.shape().dims() != [4] {
        crate::invalid!("out_backprop must be 1-dimensional and 4 elements: {}", shape.shape());
    }
    let shape = Shape::from_i64(&shape.to_i64s()?)?;
    let sizes = pool.sizes(&shape)?;
    let expected = Shape::new(&pool.output_shape(&sizes))?;
    if *grad.shape() != expected {
        crate::invalid!("Expected grad shape to be {expected}, but got {}", grad.shape());
    }
    let grad = to_nhwc(grad, pool.format)?;
    let grads = grad.values::<T>()?;
    let mut out = ctx.allocate(T::DTYPE, input_nhwc(&sizes)?)?;
    let channels = sizes.channels;
    let image_len = sizes.rows.input * sizes.columns.input * channels;
    each_part(out.values_mut::<T>()?, image_len, cost(&sizes).max(grads.len()), |image, out| {
        let mut sums = vec![T::Wide::zero(); image_len];
        for row in 0..sizes.rows.output {
            for column in 0..sizes.columns.output {
                let count = sizes.rows.range(row).len() * sizes.columns.range(column).len();
                let share = T::Wide::of(1.0 / count as f64);
                let pixel = (image * sizes.rows.output + row) * sizes.columns.output + column;
                let grad = &grads[pixel * channels..(pixel + 1) * channels];
                for at in under(&sizes, image, row, column) {
                    let at = at - image * image_len;
                    let place = &mut sums[at..at + channels];
                    place.iter_mut().zip(grad).for_each(|(s, g)| *s += g.to_wide() * share);
                }
            }
        }
        out.iter_mut().zip(&sums).for_each(|(o, &s)| *o = T::of_wide(s));
    });
    ctx.set_output(0, from_nhwc(out, pool.format)?);
    Ok(())
}

#[cfg(test)]
mod tests;
