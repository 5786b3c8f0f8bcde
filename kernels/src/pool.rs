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
use smallvec::SmallVec;

const REAL: &[(&str, &[DType])] = &[("T", REALS)];
const FLOAT: &[(&str, &[DType])] = &[("T", FLOATS)];

/// A function `(sizes, inputs, out)` that computes `out` from the inputs of a pooling op; all tensors have channels
/// last. It is compiled for each element type.
type Fill = fn(&PoolSizes, &[Tensor], &mut Tensor) -> Result<()>;

/// A function `(window, input, out)` that sets `out` to the maxima of each `window` consecutive channels of `input`.
type FillOverDepth = fn(usize, &Tensor, &mut Tensor) -> Result<()>;

/// A function that runs an op in one step, given the op's windows and the [`Fill`] of its element type.
type Step = fn(&mut KernelContext<'_>, &Pool, Fill) -> Result<()>;

fn images(i: &KernelInit<'_>, step: Step, fill: Fill) -> Result<Kernel> {
    pooling_kernel(Windows::Attrs(Pool::of(i.node)?), step, fill)
}

fn volumes(i: &KernelInit<'_>, step: Step, fill: Fill) -> Result<Kernel> {
    pooling_kernel(Windows::Attrs(Pool::of_volumes(i.node)?), step, fill)
}

fn pooling_kernel(windows: Windows, step: Step, fill: Fill) -> Result<Kernel> {
    Kernel::sync(move |ctx| {
        let pool = windows.of(ctx)?;
        step(ctx, &pool, fill)
    })
}

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("MaxPool", REAL, |i| {
        let windows = Windows::Attrs(Pool::of(i.node)?);
        dispatch!(real, i.output_type(0), T => {
            max_pool_kernel(windows, write_maxima::<T>, write_maxima_over_depth::<T>)
        })
    }),
    KernelDef::of(
        "MaxPoolGrad",
        REAL,
        |i| dispatch!(real, i.output_type(0), T => images(i, max_pool_grad, add_to_first_maxima::<T>)),
    ),
    KernelDef::of(
        "MaxPoolGradGrad",
        REAL,
        |i| dispatch!(real, i.output_type(0), T => images(i, max_pool_grad_grad, take_at_first_maxima::<T>)),
    ),
    KernelDef {
        host_memory: WINDOWS,
        ..KernelDef::of("MaxPoolV2", REAL, |i| {
            let windows = Windows::Inputs(1);
            dispatch!(real, i.output_type(0), T => {
                max_pool_kernel(windows, write_maxima::<T>, write_maxima_over_depth::<T>)
            })
        })
    },
    KernelDef {
        host_memory: WINDOWS,
        ..KernelDef::of("MaxPoolGradV2", REAL, |i| {
            let windows = Windows::Inputs(3);
            dispatch!(real, i.output_type(0), T => {
                pooling_kernel(windows, max_pool_grad, add_to_first_maxima::<T>)
            })
        })
    },
    KernelDef {
        host_memory: WINDOWS,
        ..KernelDef::of("MaxPoolGradGradV2", REAL, |i| {
            let windows = Windows::Inputs(3);
            dispatch!(real, i.output_type(0), T => {
                pooling_kernel(windows, max_pool_grad_grad, take_at_first_maxima::<T>)
            })
        })
    },
    KernelDef::of(
        "AvgPool",
        FLOAT,
        |i| dispatch!(float, i.output_type(0), T => images(i, avg_pool, write_means::<T>)),
    ),
    KernelDef {
        host_memory: &["orig_input_shape"],
        ..KernelDef::of(
            "AvgPoolGrad",
            FLOAT,
            |i| dispatch!(float, i.output_type(0), T => images(i, avg_pool_grad, divide_equally::<T>)),
        )
    },
    KernelDef::of("MaxPool3D", FLOAT, |i| {
        let windows = Windows::Attrs(Pool::of_volumes(i.node)?);
        dispatch!(float, i.output_type(0), T => {
            max_pool_kernel(windows, write_maxima_3d::<T>, write_maxima_over_depth::<T>)
        })
    }),
    KernelDef::of(
        "MaxPool3DGrad",
        &[("T", FLOATS), ("TInput", FLOATS)],
        |i| dispatch!(float, i.output_type(0), T => volumes(i, max_pool_3d_grad, add_to_near_maxima::<T>)),
    ),
    KernelDef::of(
        "MaxPool3DGradGrad",
        REAL,
        |i| dispatch!(real, i.output_type(0), T => volumes(i, max_pool_grad_grad, take_at_first_maxima::<T>)),
    ),
    KernelDef::of(
        "AvgPool3D",
        FLOAT,
        |i| dispatch!(float, i.output_type(0), T => volumes(i, avg_pool, write_means::<T>)),
    ),
    KernelDef {
        host_memory: &["orig_input_shape"],
        ..KernelDef::of(
            "AvgPool3DGrad",
            FLOAT,
            |i| dispatch!(float, i.output_type(0), T => volumes(i, avg_pool_grad, divide_equally::<T>)),
        )
    },
    argmax::FORWARD,
    argmax::GRAD,
    fractional::MAX,
    fractional::MAX_GRAD,
    fractional::MEAN,
    fractional::MEAN_GRAD,
];

/// Calls `work(index, part)` for consecutive parts of `out`, which have `len` elements each. The parts run in parallel
/// if `cost`, the number of elements that all parts read, is large enough.
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

/// Returns the shape of the pooled output in the layout with channels last.
fn output_nhwc(pool: &Pool, sizes: &PoolSizes) -> Result<Shape> {
    Ok(last(pool, sizes, [sizes.planes.output, sizes.rows.output, sizes.columns.output])?)
}

/// Returns the shape of the input in the layout with channels last.
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

/// Returns the number of elements of an output line, which is a row of pixels.
fn line_out(sizes: &PoolSizes) -> usize {
    sizes.columns.output * sizes.channels
}

/// Returns the number of output lines per image.
fn lines_out(sizes: &PoolSizes) -> usize {
    sizes.planes.output * sizes.rows.output
}

/// Offsets of pixels or lines in a tensor; up to 32 offsets need no allocation.
type Offsets = SmallVec<[usize; 32]>;

/// The windows of a line of output pixels, and the input lines that these windows read.
struct LineWindows<'a> {
    sizes: &'a PoolSizes,
    /// The offset of each input line under the windows, in the order of planes and rows.
    lines: Offsets,
    /// The offset of each input pixel in the window that [`LineWindows::pixels`] returned last.
    pixels: Offsets,
}

impl<'a> LineWindows<'a> {
    /// Returns the windows of output line `line`; the numbering of lines continues from image to image.
    fn new(sizes: &'a PoolSizes, line: usize) -> LineWindows<'a> {
        let (image, place) = (line / lines_out(sizes), line % lines_out(sizes));
        let mut lines = Offsets::new();
        for z in sizes.planes.range(place / sizes.rows.output) {
            for y in sizes.rows.range(place % sizes.rows.output) {
                let line = (image * sizes.planes.input + z) * sizes.rows.input + y;
                lines.push(line * sizes.columns.input * sizes.channels);
            }
        }
        LineWindows { sizes, lines, pixels: Offsets::new() }
    }

    /// Returns the offset of each input pixel in the window of an output column, in the order of planes, rows and
    /// columns.
    fn pixels(&mut self, column: usize) -> &[usize] {
        self.pixels.clear();
        let columns = self.sizes.columns.range(column);
        for line in &self.lines {
            self.pixels.extend(columns.clone().map(|x| line + x * self.sizes.channels));
        }
        &self.pixels
    }

    /// Returns whether the window of an output column contains no padding.
    fn has_no_padding(&self, column: usize) -> bool {
        let PoolSizes { planes, rows, columns, .. } = self.sizes;
        self.lines.len() == planes.filter * rows.filter && columns.range(column).len() == columns.filter
    }
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
        let mut windows = LineWindows::new(sizes, number);
        for (column, best) in best.chunks_exact_mut(sizes.channels).enumerate() {
            best.fill(if windows.has_no_padding(column) { floor } else { T::min_value() });
            for &at in windows.pixels(column) {
                let pixel = &values[at..at + sizes.channels];
                best.iter_mut().zip(pixel).for_each(|(b, &v)| *b = if v > *b { v } else { *b });
            }
        }
    }
}

fn max_pool_kernel(windows: Windows, over_space: Fill, over_depth: FillOverDepth) -> Result<Kernel> {
    Kernel::sync(move |ctx| {
        let pool = windows.of(ctx)?;
        let input = to_nhwc(ctx.input(0)?, pool.format)?;
        if !pool.is_depthwise() {
            return pool_space(ctx, &pool, input, over_space);
        }
        let mut out = Tensor::unspecified(input.dtype(), depthwise_output(&pool, input.shape())?)?;
        over_depth(pool.ksize[4], &input, &mut out)?;
        ctx.set_output(0, from_nhwc(out, pool.format)?);
        Ok(())
    })
}

/// Pools planes, rows and columns of an input that has channels last.
fn pool_space(ctx: &mut KernelContext<'_>, pool: &Pool, input: Tensor, fill: Fill) -> Result<()> {
    let sizes = pool.forward_sizes(ctx.input(0)?.shape())?;
    let out = ctx.allocate(input.dtype(), output_nhwc(pool, &sizes)?)?;
    fill_output(ctx, pool, &sizes, &[input], out, fill)
}

/// Computes `out`, which has channels last, with `fill`, and sets output 0 to it.
fn fill_output(
    ctx: &mut KernelContext<'_>,
    pool: &Pool,
    sizes: &PoolSizes,
    inputs: &[Tensor],
    mut out: Tensor,
    fill: Fill,
) -> Result<()> {
    fill(sizes, inputs, &mut out)?;
    ctx.set_output(0, from_nhwc(out, pool.format)?);
    Ok(())
}

fn write_maxima<T: Element + PartialOrd + Bounded>(
    sizes: &PoolSizes,
    inputs: &[Tensor],
    out: &mut Tensor,
) -> Result<()> {
    write_maxima_above(sizes, inputs, out, T::min_value())
}

/// Sets the maxima of windows in volumes. The maximum of a window without padding may be negative infinity.
fn write_maxima_3d<T: Float + PartialOrd + Bounded>(
    sizes: &PoolSizes,
    inputs: &[Tensor],
    out: &mut Tensor,
) -> Result<()> {
    write_maxima_above(sizes, inputs, out, T::of_wide(num_traits::Float::neg_infinity()))
}

fn write_maxima_above<T: Element + PartialOrd + Bounded>(
    sizes: &PoolSizes,
    inputs: &[Tensor],
    out: &mut Tensor,
    floor: T,
) -> Result<()> {
    let values = inputs[0].values::<T>()?;
    each_part(out.values_mut::<T>()?, line_out(sizes), cost(sizes), |number, best| {
        vectorized(MaxLine { sizes, values, number, floor, best });
    });
    Ok(())
}

/// Returns the output shape of a pooling over channels, in windows that do not overlap. The input has channels last.
fn depthwise_output(pool: &Pool, input: &Shape) -> Result<Shape> {
    let [_, _, rows, columns, depth] = pool.ksize;
    let &[n, h, w, channels] = input.dims() else {
        device::invalid!("tensor_in must be 4-dimensional: {input}");
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
    Ok(Shape::new(&[n, h, w, channels / depth])?)
}

fn write_maxima_over_depth<T>(depth: usize, input: &Tensor, out: &mut Tensor) -> Result<()>
where
    T: Element + PartialOrd + Bounded,
{
    let windows = input.values::<T>()?.chunks_exact(depth);
    for (best, window) in out.values_mut::<T>()?.iter_mut().zip(windows) {
        *best = window.iter().fold(T::min_value(), |b, &v| if v > b { v } else { b });
    }
    Ok(())
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

/// The computation that adds the gradients of output line `line` to the first maximum of each window.
struct ToFirstMaxima<'a, T> {
    sizes: &'a PoolSizes,
    values: &'a [T],
    line: usize,
    grads: &'a [T],
    /// The gradient of one image, whose elements start at `start` in `values`.
    out: &'a mut [T],
    start: usize,
    /// For each channel, the maximum of the window so far, and the index of the maximum's pixel in the window.
    best: &'a mut [T],
    places: &'a mut [u32],
}

impl<T: Semiring + PartialOrd> Vector for ToFirstMaxima<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let ToFirstMaxima { sizes, values, line, grads, out, start, best, places } = self;
        let channels = sizes.channels;
        let mut windows = LineWindows::new(sizes, line);
        for (column, grads) in grads.chunks_exact(channels).enumerate() {
            let pixels = windows.pixels(column);
            for (i, &at) in pixels.iter().enumerate() {
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
            for (i, &at) in pixels.iter().enumerate() {
                let to = &mut out[at - start..at - start + channels];
                for ((to, &place), &g) in to.iter_mut().zip(places.iter()).zip(grads) {
                    *to = if place == i as u32 { to.plus(g) } else { *to };
                }
            }
        }
    }
}

/// Computes the gradient of max pooling: each window's gradient goes to its first maximum.
fn max_pool_grad(ctx: &mut KernelContext<'_>, pool: &Pool, fill: Fill) -> Result<()> {
    let (sizes, inputs) = gradient_inputs(ctx, pool, true)?;
    let out = Tensor::zeros(inputs[2].dtype(), input_nhwc(pool, &sizes)?)?;
    fill_output(ctx, pool, &sizes, &inputs, out, fill)
}

/// Adds the gradient of each window to the window's first maximum; the output is initially zero.
fn add_to_first_maxima<T: Semiring + PartialOrd>(
    sizes: &PoolSizes,
    inputs: &[Tensor],
    out: &mut Tensor,
) -> Result<()> {
    let (values, grads) = (inputs[0].values::<T>()?, inputs[2].values::<T>()?);
    let (image_in, lines, line_out) = (image_in(sizes), lines_out(sizes), line_out(sizes));
    let channels = sizes.channels;
    each_part(out.values_mut::<T>()?, image_in, cost(sizes), |image, out| {
        let (mut best, mut places) = (vec![T::ZERO; channels], vec![0u32; channels]);
        for line in image * lines..(image + 1) * lines {
            let grads = &grads[line * line_out..(line + 1) * line_out];
            let start = image * image_in;
            let (best, places) = (&mut best, &mut places);
            vectorized(ToFirstMaxima { sizes, values, line, grads, out, start, best, places });
        }
    });
    Ok(())
}

/// The largest difference from a window's maximum at which an element of a volume counts as equal to the maximum.
const NEAR_MAXIMUM: f64 = 1e-5;

/// Computes the gradient of max pooling of volumes: each window's gradient goes to all elements that equal the window's
/// maximum or nearly so, like in TensorFlow.
fn max_pool_3d_grad(ctx: &mut KernelContext<'_>, pool: &Pool, fill: Fill) -> Result<()> {
    let (sizes, inputs) = gradient_inputs(ctx, pool, true)?;
    let out = ctx.allocate(inputs[2].dtype(), input_nhwc(pool, &sizes)?)?;
    fill_output(ctx, pool, &sizes, &inputs, out, fill)
}

fn add_to_near_maxima<T: Float>(sizes: &PoolSizes, inputs: &[Tensor], out: &mut Tensor) -> Result<()> {
    let (values, maxima, grads) =
        (inputs[0].values::<T>()?, inputs[1].values::<T>()?, inputs[2].values::<T>()?);
    let (channels, image_in, lines) = (sizes.channels, image_in(sizes), lines_out(sizes));
    let near = T::Wide::of(NEAR_MAXIMUM);
    each_part(out.values_mut::<T>()?, image_in, cost(sizes), |image, out| {
        let mut sums = vec![T::Wide::zero(); image_in];
        for line in image * lines..(image + 1) * lines {
            let mut windows = LineWindows::new(sizes, line);
            for column in 0..sizes.columns.output {
                let at = line * line_out(sizes) + column * channels;
                let (maxima, grads) = (&maxima[at..at + channels], &grads[at..at + channels]);
                for &at in windows.pixels(column) {
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
    Ok(())
}

/// Computes the gradient of the max pooling gradient: for each window, the incoming gradient at the window's first
/// maximum.
fn max_pool_grad_grad(ctx: &mut KernelContext<'_>, pool: &Pool, fill: Fill) -> Result<()> {
    let (sizes, inputs) = gradient_inputs(ctx, pool, false)?;
    if pool.volumes && inputs[0].num_elements() == 0 {
        device::invalid!("orig_input must not be empty, got shape {}", inputs[0].shape());
    }
    let out = ctx.allocate(inputs[2].dtype(), output_nhwc(pool, &sizes)?)?;
    fill_output(ctx, pool, &sizes, &inputs, out, fill)
}

fn take_at_first_maxima<T: Element + Default>(
    sizes: &PoolSizes,
    inputs: &[Tensor],
    out: &mut Tensor,
) -> Result<()> {
    let (values, pooled, grads) =
        (inputs[0].values::<T>()?, inputs[1].values::<T>()?, inputs[2].values::<T>()?);
    let (line, channels) = (line_out(sizes), sizes.channels);
    each_part(out.values_mut::<T>()?, line, cost(sizes), |i, out| {
        let mut windows = LineWindows::new(sizes, i);
        let pooled = pooled[i * line..(i + 1) * line].chunks_exact(channels);
        for (column, (out, pooled)) in out.chunks_exact_mut(channels).zip(pooled).enumerate() {
            let pixels = windows.pixels(column);
            for (channel, (o, max)) in out.iter_mut().zip(pooled).enumerate() {
                let first = pixels.iter().find(|&at| values[at + channel] == *max);
                *o = first.map(|at| grads[at + channel]).unwrap_or_default();
            }
        }
    });
    Ok(())
}

const NOT_SPATIAL: &str = "Non-spatial pooling is not yet supported.";

/// Outputs the mean of each window; padding does not count.
fn avg_pool(ctx: &mut KernelContext<'_>, pool: &Pool, fill: Fill) -> Result<()> {
    if pool.ksize[4] != 1 {
        return Err(Error::unimplemented(NOT_SPATIAL));
    }
    let input = to_nhwc(ctx.input(0)?, pool.format)?;
    pool_space(ctx, pool, input, fill)
}

fn write_means<T: Float>(sizes: &PoolSizes, inputs: &[Tensor], out: &mut Tensor) -> Result<()> {
    let values = inputs[0].values::<T>()?;
    each_part(out.values_mut::<T>()?, line_out(sizes), cost(sizes), |line, means| {
        let mut windows = LineWindows::new(sizes, line);
        let mut sums = vec![T::Wide::zero(); sizes.channels];
        for (column, means) in means.chunks_exact_mut(sizes.channels).enumerate() {
            sums.fill(T::Wide::zero());
            let pixels = windows.pixels(column);
            for &at in pixels {
                let pixel = &values[at..at + sizes.channels];
                sums.iter_mut().zip(pixel).for_each(|(s, v)| *s += v.to_wide());
            }
            let share = T::Wide::of(1.0 / pixels.len() as f64);
            means.iter_mut().zip(&sums).for_each(|(m, &s)| *m = T::of_wide(s * share));
        }
    });
    Ok(())
}

/// Computes the gradient of mean pooling: each window's gradient is divided equally among its elements.
fn avg_pool_grad(ctx: &mut KernelContext<'_>, pool: &Pool, fill: Fill) -> Result<()> {
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
        // If the image is empty, the windows and the gradient's sizes need no check.
        ctx.set_output(0, Tensor::zeros(grad.dtype(), shape)?);
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
    let out = ctx.allocate(grad.dtype(), input_nhwc(pool, &sizes)?)?;
    fill_output(ctx, pool, &sizes, &[grad], out, fill)
}

/// Divides the gradient of each window equally among its elements.
fn divide_equally<T: Float>(sizes: &PoolSizes, inputs: &[Tensor], out: &mut Tensor) -> Result<()> {
    let grads = inputs[0].values::<T>()?;
    let (channels, image_in, lines) = (sizes.channels, image_in(sizes), lines_out(sizes));
    each_part(out.values_mut::<T>()?, image_in, cost(sizes).max(grads.len()), |image, out| {
        let mut sums = vec![T::Wide::zero(); image_in];
        for line in image * lines..(image + 1) * lines {
            let mut windows = LineWindows::new(sizes, line);
            for column in 0..sizes.columns.output {
                let pixels = windows.pixels(column);
                let share = T::Wide::of(1.0 / pixels.len() as f64);
                let grad = &grads[(line * sizes.columns.output + column) * channels..][..channels];
                for &at in pixels {
                    let place = &mut sums[at - image * image_in..][..channels];
                    place.iter_mut().zip(grad).for_each(|(s, g)| *s += g.to_wide() * share);
                }
            }
        }
        out.iter_mut().zip(&sums).for_each(|(o, &s)| *o = T::of_wide(s));
    });
    Ok(())
}

#[cfg(test)]
mod tests;
