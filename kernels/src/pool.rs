//! Pooling of images and volumes, and its gradients.

mod argmax;
mod fractional;

use crate::numeric::dispatch::{FLOATS, REALS, dispatch};
use crate::numeric::image::{from_nhwc, to_nhwc};
use crate::numeric::scalar::{Real, Semiring};
use crate::numeric::simd::{Vector, vectorized};
use crate::numeric::threads::{PARALLEL, for_parts};
use crate::numeric::widen::Float;
use crate::plan::pool::{WINDOWS, Windows};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
use graph::ops::pool::{Pool, PoolSizes};
use graph::{DType, Element, Shape, Tensor};
use num_traits::{Bounded, Zero as _};

const REAL: &[(&str, &[DType])] = &[("T", REALS)];
const FLOAT: &[(&str, &[DType])] = &[("T", FLOATS)];

type Compute = fn(&mut KernelContext<'_>, &Pool) -> Result<()>;

fn images(i: &KernelInit<'_>, compute: Compute) -> Result<Kernel> {
    pooling_kernel(Windows::Attrs(Pool::of(i.node)?), compute)
}

fn volumes(i: &KernelInit<'_>, compute: Compute) -> Result<Kernel> {
    pooling_kernel(Windows::Attrs(Pool::of_volumes(i.node)?), compute)
}

fn pooling_kernel(windows: Windows, compute: Compute) -> Result<Kernel> {
    Kernel::sync(move |ctx| {
        let pool = windows.of(ctx)?;
        compute(ctx, &pool)
    })
}

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("MaxPool", REAL, |i| dispatch!(real, i.output_type(0), T => images(i, max_pool::<T>))),
    KernelDef::of(
        "MaxPoolGrad",
        REAL,
        |i| dispatch!(real, i.output_type(0), T => images(i, max_pool_grad::<T>)),
    ),
    KernelDef::of(
        "MaxPoolGradGrad",
        REAL,
        |i| dispatch!(real, i.output_type(0), T => images(i, max_pool_grad_grad::<T>)),
    ),
    KernelDef {
        host_memory: WINDOWS,
        ..KernelDef::of(
            "MaxPoolV2",
            REAL,
            |i| dispatch!(real, i.output_type(0), T => pooling_kernel(Windows::Inputs(1), max_pool::<T>)),
        )
    },
    KernelDef {
        host_memory: WINDOWS,
        ..KernelDef::of(
            "MaxPoolGradV2",
            REAL,
            |i| dispatch!(real, i.output_type(0), T => pooling_kernel(Windows::Inputs(3), max_pool_grad::<T>)),
        )
    },
    KernelDef {
        host_memory: WINDOWS,
        ..KernelDef::of(
            "MaxPoolGradGradV2",
            REAL,
            |i| dispatch!(real, i.output_type(0), T => pooling_kernel(Windows::Inputs(3), max_pool_grad_grad::<T>)),
        )
    },
    KernelDef::of("AvgPool", FLOAT, |i| dispatch!(float, i.output_type(0), T => images(i, avg_pool::<T>))),
    KernelDef {
        host_memory: &["orig_input_shape"],
        ..KernelDef::of(
            "AvgPoolGrad",
            FLOAT,
            |i| dispatch!(float, i.output_type(0), T => images(i, avg_pool_grad::<T>)),
        )
    },
    KernelDef::of(
        "MaxPool3D",
        FLOAT,
        |i| dispatch!(float, i.output_type(0), T => volumes(i, max_pool_3d::<T>)),
    ),
    KernelDef::of(
        "MaxPool3DGrad",
        &[("T", FLOATS), ("TInput", FLOATS)],
        |i| dispatch!(float, i.output_type(0), T => volumes(i, max_pool_3d_grad::<T>)),
    ),
    KernelDef::of(
        "MaxPool3DGradGrad",
        REAL,
        |i| dispatch!(real, i.output_type(0), T => volumes(i, max_pool_grad_grad::<T>)),
    ),
    KernelDef::of("AvgPool3D", FLOAT, |i| dispatch!(float, i.output_type(0), T => volumes(i, avg_pool::<T>))),
    KernelDef {
        host_memory: &["orig_input_shape"],
        ..KernelDef::of(
            "AvgPool3DGrad",
            FLOAT,
            |i| dispatch!(float, i.output_type(0), T => volumes(i, avg_pool_grad::<T>)),
        )
    },
    argmax::FORWARD,
    argmax::GRAD,
    fractional::MAX,
    fractional::MAX_GRAD,
    fractional::MEAN,
    fractional::MEAN_GRAD,
];

/// Calls `work` with each consecutive part of `len` elements of `out` and its number. Parts run in parallel if
/// `cost`, the number of elements read altogether, is large enough.
fn each_part<T: Send>(out: &mut [T], len: usize, cost: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    if out.is_empty() {
        return;
    }
    for_parts(out, len, cost >= PARALLEL, work);
}

/// Returns the number of elements that all windows together read.
fn cost(sizes: &PoolSizes) -> usize {
    let lines = sizes.batch.saturating_mul(sizes.planes.output).saturating_mul(sizes.rows.output);
    lines
        .saturating_mul(sizes.columns.output)
        .saturating_mul(sizes.planes.filter)
        .saturating_mul(sizes.rows.filter)
        .saturating_mul(sizes.columns.filter)
        .saturating_mul(sizes.channels)
}

/// Returns the output's shape with channels last.
fn output_nhwc(pool: &Pool, sizes: &PoolSizes) -> Result<Shape> {
    Ok(last(pool, sizes, [sizes.planes.output, sizes.rows.output, sizes.columns.output])?)
}

/// Returns the input's shape with channels last.
fn input_nhwc(pool: &Pool, sizes: &PoolSizes) -> Result<Shape> {
    Ok(last(pool, sizes, [sizes.planes.input, sizes.rows.input, sizes.columns.input])?)
}

fn last(pool: &Pool, sizes: &PoolSizes, [d, h, w]: [usize; 3]) -> graph::Result<Shape> {
    let (n, c) = (sizes.batch, sizes.channels);
    if pool.volumes { Shape::new(&[n, d, h, w, c]) } else { Shape::new(&[n, h, w, c]) }
}

/// Returns the number of elements of an input image.
fn image_in(sizes: &PoolSizes) -> usize {
    sizes.planes.input * sizes.rows.input * sizes.columns.input * sizes.channels
}

/// Returns the number of elements of an output line.
fn line_out(sizes: &PoolSizes) -> usize {
    sizes.columns.output * sizes.channels
}

/// Returns the number of output lines per image.
fn lines_out(sizes: &PoolSizes) -> usize {
    sizes.planes.output * sizes.rows.output
}

/// Returns the offset of each input pixel in the window of an output pixel, in the order of planes, rows and columns.
/// The output pixel is in `column` of output line `line`; lines are numbered through the batch.
#[inline(always)]
fn pixels_under(sizes: &PoolSizes, line: usize, column: usize) -> impl Iterator<Item = usize> {
    let (depth, height, width, channels) =
        (sizes.planes.input, sizes.rows.input, sizes.columns.input, sizes.channels);
    let (image, place) = (line / lines_out(sizes), line % lines_out(sizes));
    let rows = sizes.rows.range(place % sizes.rows.output);
    let columns = sizes.columns.range(column);
    let lines = sizes
        .planes
        .range(place / sizes.rows.output)
        .flat_map(move |z| rows.clone().map(move |y| (image * depth + z) * height + y));
    lines.flat_map(move |y| columns.clone().map(move |x| (y * width + x) * channels))
}

/// Returns whether the window of an output pixel contains no padding.
fn has_no_padding(sizes: &PoolSizes, line: usize, column: usize) -> bool {
    let place = line % lines_out(sizes);
    sizes.planes.range(place / sizes.rows.output).len() == sizes.planes.filter
        && sizes.rows.range(place % sizes.rows.output).len() == sizes.rows.filter
        && sizes.columns.range(column).len() == sizes.columns.filter
}

/// The computation of output line `number` of max pooling.
struct MaxLine<'a, T> {
    sizes: &'a PoolSizes,
    values: &'a [T],
    number: usize,
    /// The initial maximum of a window without padding. Windows with padding start at the dtype's lowest number.
    floor: T,
    best: &'a mut [T],
}

impl<T: Element + PartialOrd + Bounded> Vector for MaxLine<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let MaxLine { sizes, values, number, floor, best } = self;
        for (column, best) in best.chunks_exact_mut(sizes.channels).enumerate() {
            best.fill(if has_no_padding(sizes, number, column) { floor } else { T::min_value() });
            for at in pixels_under(sizes, number, column) {
                let pixel = &values[at..at + sizes.channels];
                best.iter_mut().zip(pixel).for_each(|(b, &v)| *b = if v > *b { v } else { *b });
            }
        }
    }
}

fn max_pool<T: Element + PartialOrd + Bounded>(ctx: &mut KernelContext<'_>, pool: &Pool) -> Result<()> {
    max_pool_above(ctx, pool, T::min_value())
}

/// Max pooling of volumes. The maximum of a window without padding may be negative infinity.
fn max_pool_3d<T: Float + PartialOrd + Bounded>(ctx: &mut KernelContext<'_>, pool: &Pool) -> Result<()> {
    max_pool_above(ctx, pool, T::of_wide(num_traits::Float::neg_infinity()))
}

fn max_pool_above<T>(ctx: &mut KernelContext<'_>, pool: &Pool, floor: T) -> Result<()>
where
    T: Element + PartialOrd + Bounded,
{
    let input = to_nhwc(ctx.input(0)?, pool.format)?;
    let out = if pool.is_depthwise() {
        max_over_depth::<T>(pool, &input)?
    } else {
        let sizes = pool.forward_sizes(ctx.input(0)?.shape())?;
        let mut out = ctx.allocate(T::DTYPE, output_nhwc(pool, &sizes)?)?;
        let values = input.values::<T>()?;
        let line = line_out(&sizes);
        each_part(out.values_mut::<T>()?, line, cost(&sizes), |number, best| {
            vectorized(MaxLine { sizes: &sizes, values, number, floor, best });
        });
        out
    };
    ctx.set_output(0, from_nhwc(out, pool.format)?);
    Ok(())
}

/// Pools over channels, in windows that do not overlap.
fn max_over_depth<T: Element + PartialOrd + Bounded>(pool: &Pool, input: &Tensor) -> Result<Tensor> {
    let [_, _, rows, columns, depth] = pool.ksize;
    let &[n, h, w, channels] = input.shape().dims() else {
        device::invalid!("tensor_in must be 4-dimensional: {}", input.shape());
    };
    if rows != 1 || columns != 1 || pool.strides[2] != 1 || pool.strides[3] != 1 {
        return Err(Error::unimplemented(
            "MaxPooling supports exactly one of pooling across depth or pooling across width/height.",
        ));
    }
    if depth != pool.strides[4] {
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

/// Returns the sizes and the inputs of a max pooling gradient with channels last: image, pooled image, gradient.
fn gradient_inputs(
    ctx: &KernelContext<'_>,
    pool: &Pool,
    grad_is_pooled: bool,
) -> Result<(PoolSizes, [Tensor; 3])> {
    if pool.is_over_depth() {
        let op = ctx.node().op.name();
        return Err(Error::unimplemented(format!("{op} is not yet supported on the depth dimension.")));
    }
    let (input, output, grad) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let sizes = pool.sizes(input.shape())?;
    let pooled = pool.output_shape(&sizes)?;
    if *output.shape() != pooled {
        device::invalid!("Expected orig_output shape to be {pooled}, but got {}", output.shape());
    }
    let expected = if grad_is_pooled { &pooled } else { input.shape() };
    if grad.shape() != expected {
        device::invalid!("Expected grad shape to be {expected}, but got {}", grad.shape());
    }
    let nhwc = |t| to_nhwc(t, pool.format);
    Ok((sizes, [nhwc(input)?, nhwc(output)?, nhwc(grad)?]))
}

/// Adds the gradients of output line `line` to the first maximum of each window.
struct ToFirstMaxima<'a, T> {
    sizes: &'a PoolSizes,
    values: &'a [T],
    line: usize,
    grads: &'a [T],
    /// The gradient of one image, whose elements start at `start` in `values`.
    out: &'a mut [T],
    start: usize,
    /// For each channel, the maximum so far, and the index of its pixel in the window.
    best: &'a mut [T],
    places: &'a mut [u32],
}

impl<T: Semiring + PartialOrd> Vector for ToFirstMaxima<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let ToFirstMaxima { sizes, values, line, grads, out, start, best, places } = self;
        let channels = sizes.channels;
        for (column, grads) in grads.chunks_exact(channels).enumerate() {
            for (i, at) in pixels_under(sizes, line, column).enumerate() {
                let pixel = &values[at..at + channels];
                if i == 0 {
                    best.copy_from_slice(pixel);
                    places.fill(0);
                    continue;
                }
                for ((best, place), &v) in best.iter_mut().zip(places.iter_mut()).zip(pixel) {
                    let is_larger = v > *best;
                    *best = if is_larger { v } else { *best };
                    *place = if is_larger { i as u32 } else { *place };
                }
            }
            for (i, at) in pixels_under(sizes, line, column).enumerate() {
                let to = &mut out[at - start..at - start + channels];
                for ((to, &place), &g) in to.iter_mut().zip(places.iter()).zip(grads) {
                    *to = if place == i as u32 { to.plus(g) } else { *to };
                }
            }
        }
    }
}

/// The gradient of max pooling: each window's gradient goes to its first maximum.
fn max_pool_grad<T: Semiring + PartialOrd>(ctx: &mut KernelContext<'_>, pool: &Pool) -> Result<()> {
    let (sizes, [input, _, grad]) = gradient_inputs(ctx, pool, true)?;
    let mut out = Tensor::zeros(T::DTYPE, input_nhwc(pool, &sizes)?)?;
    let (values, grads) = (input.values::<T>()?, grad.values::<T>()?);
    let (image_in, lines, line_out) = (image_in(&sizes), lines_out(&sizes), line_out(&sizes));
    let channels = sizes.channels;
    each_part(out.values_mut::<T>()?, image_in, cost(&sizes), |image, out| {
        let (mut best, mut places) = (vec![T::ZERO; channels], vec![0u32; channels]);
        for line in image * lines..(image + 1) * lines {
            let grads = &grads[line * line_out..(line + 1) * line_out];
            let start = image * image_in;
            let (best, places) = (&mut best, &mut places);
            vectorized(ToFirstMaxima { sizes: &sizes, values, line, grads, out, start, best, places });
        }
    });
    ctx.set_output(0, from_nhwc(out, pool.format)?);
    Ok(())
}

/// The largest difference from a window's maximum at which an element of a volume counts as equal to it.
const NEAR_MAXIMUM: f64 = 1e-5;

/// The gradient of max pooling of volumes: each window's gradient goes to all elements that equal its maximum or
/// nearly so, like in TensorFlow.
fn max_pool_3d_grad<T: Float>(ctx: &mut KernelContext<'_>, pool: &Pool) -> Result<()> {
    let (sizes, [input, output, grad]) = gradient_inputs(ctx, pool, true)?;
    let mut out = ctx.allocate(T::DTYPE, input_nhwc(pool, &sizes)?)?;
    let (values, maxima, grads) = (input.values::<T>()?, output.values::<T>()?, grad.values::<T>()?);
    let (channels, image_in, lines) = (sizes.channels, image_in(&sizes), lines_out(&sizes));
    let near = T::Wide::of(NEAR_MAXIMUM);
    each_part(out.values_mut::<T>()?, image_in, cost(&sizes), |image, out| {
        let mut sums = vec![T::Wide::zero(); image_in];
        for line in image * lines..(image + 1) * lines {
            for column in 0..sizes.columns.output {
                let at = line * line_out(&sizes) + column * channels;
                let (maxima, grads) = (&maxima[at..at + channels], &grads[at..at + channels]);
                for at in pixels_under(&sizes, line, column) {
                    let place = &mut sums[at - image * image_in..][..channels];
                    let pixel = &values[at..at + channels];
                    for (((s, v), max), g) in place.iter_mut().zip(pixel).zip(maxima).zip(grads) {
                        if num_traits::Float::abs(v.to_wide() - max.to_wide()) < near {
                            *s += g.to_wide();
                        }
                    }
                }
            }
        }
        out.iter_mut().zip(&sums).for_each(|(o, &s)| *o = T::of_wide(s));
    });
    ctx.set_output(0, from_nhwc(out, pool.format)?);
    Ok(())
}

/// The gradient of the max pooling gradient: each window takes the gradient at its first maximum.
fn max_pool_grad_grad<T: Element + Default>(ctx: &mut KernelContext<'_>, pool: &Pool) -> Result<()> {
    let (sizes, [input, output, grad]) = gradient_inputs(ctx, pool, false)?;
    let mut out = ctx.allocate(T::DTYPE, output_nhwc(pool, &sizes)?)?;
    let (values, pooled, grads) = (input.values::<T>()?, output.values::<T>()?, grad.values::<T>()?);
    let line = line_out(&sizes);
    each_part(out.values_mut::<T>()?, line, cost(&sizes), |i, out| {
        let pooled = &pooled[i * line..(i + 1) * line];
        for (j, (o, max)) in out.iter_mut().zip(pooled).enumerate() {
            let channel = j % sizes.channels;
            let first = pixels_under(&sizes, i, j / sizes.channels).find(|&at| values[at + channel] == *max);
            *o = first.map(|at| grads[at + channel]).unwrap_or_default();
        }
    });
    ctx.set_output(0, from_nhwc(out, pool.format)?);
    Ok(())
}

const NOT_SPATIAL: &str = "Non-spatial pooling is not yet supported.";

/// Returns the mean of each window; padding does not count.
fn avg_pool<T: Float>(ctx: &mut KernelContext<'_>, pool: &Pool) -> Result<()> {
    if pool.ksize[4] != 1 {
        return Err(Error::unimplemented(NOT_SPATIAL));
    }
    let input = to_nhwc(ctx.input(0)?, pool.format)?;
    let sizes = pool.forward_sizes(ctx.input(0)?.shape())?;
    let mut out = ctx.allocate(T::DTYPE, output_nhwc(pool, &sizes)?)?;
    let values = input.values::<T>()?;
    let line = line_out(&sizes);
    each_part(out.values_mut::<T>()?, line, cost(&sizes), |i, line| {
        let mut sums = vec![T::Wide::zero(); sizes.channels];
        for (column, means) in line.chunks_exact_mut(sizes.channels).enumerate() {
            sums.fill(T::Wide::zero());
            let mut count = 0usize;
            for at in pixels_under(&sizes, i, column) {
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

/// The gradient of mean pooling: each window's gradient is divided equally among its elements.
fn avg_pool_grad<T: Float>(ctx: &mut KernelContext<'_>, pool: &Pool) -> Result<()> {
    let (shape, grad) = (ctx.input(0)?, ctx.input(1)?);
    if shape.shape().dims() != [pool.rank()] {
        device::invalid!(
            "out_backprop must be 1-dimensional and {} elements: {}",
            pool.rank(),
            shape.shape()
        );
    }
    if grad.shape().rank() != pool.rank() {
        device::invalid!("out_backprop must be {}-dimensional", pool.rank());
    }
    let shape = Shape::from_i64(&shape.to_i64s()?)?;
    if !pool.volumes && shape.num_elements() == 0 {
        // An empty image needs no check of the windows or of the gradient's sizes.
        ctx.set_output(0, Tensor::zeros(T::DTYPE, shape)?);
        return Ok(());
    }
    if pool.ksize[4] != 1 {
        return Err(Error::unimplemented(NOT_SPATIAL));
    }
    let sizes = pool.sizes(&shape)?;
    let expected = pool.output_shape(&sizes)?;
    if *grad.shape() != expected {
        device::invalid!("Expected grad shape to be {expected}, but got {}", grad.shape());
    }
    let grad = to_nhwc(grad, pool.format)?;
    let grads = grad.values::<T>()?;
    let mut out = ctx.allocate(T::DTYPE, input_nhwc(pool, &sizes)?)?;
    let channels = sizes.channels;
    let (image_in, lines) = (image_in(&sizes), lines_out(&sizes));
    each_part(out.values_mut::<T>()?, image_in, cost(&sizes).max(grads.len()), |image, out| {
        let mut sums = vec![T::Wide::zero(); image_in];
        for line in 0..lines {
            let [plane, row] = [line / sizes.rows.output, line % sizes.rows.output];
            let under_line = sizes.planes.range(plane).len() * sizes.rows.range(row).len();
            for column in 0..sizes.columns.output {
                let count = under_line * sizes.columns.range(column).len();
                let share = T::Wide::of(1.0 / count as f64);
                let line = image * lines + line;
                let pixel = line * sizes.columns.output + column;
                let grad = &grads[pixel * channels..(pixel + 1) * channels];
                for at in pixels_under(&sizes, line, column) {
                    let place = &mut sums[at - image * image_in..][..channels];
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
