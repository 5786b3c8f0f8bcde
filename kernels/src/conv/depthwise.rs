//! Depthwise convolution and its gradients. Each input channel has `multiplier` filters of its own, so that a tap
//! is an element-wise product along the channels.

use super::{channels_last, check_out_backprop};
use crate::numeric::image::{load, store};
use crate::numeric::product::Threads;
use crate::numeric::scalar::Number;
use crate::numeric::threads::for_parts;
use crate::numeric::widen::wide_dtype;
use crate::plan::conv::{input_shape, sizes_input};
use device::Result;
use device::kernel::KernelContext;
use graph::ops::conv::{Conv, ConvSizes};
use graph::ops::window::DataFormat;
use graph::{Shape, Tensor};

/// The sizes of a depthwise convolution, and the threads that compute it.
pub(super) struct Depthwise {
    sizes: ConvSizes,
    /// Output channels per input channel.
    multiplier: usize,
    threads: Threads,
}

impl Depthwise {
    fn new(sizes: ConvSizes) -> Depthwise {
        let pixels = [sizes.batch, sizes.rows.output, sizes.columns.output];
        let taps = [sizes.rows.filter, sizes.columns.filter, sizes.out_channels];
        let work = pixels.into_iter().chain(taps).fold(1usize, |n, s| n.saturating_mul(s));
        let multiplier = sizes.out_channels / sizes.in_channels.max(1);
        // The work is multiplied by 8, because a tap does one operation per instruction, and a matrix product does a
        // whole vector of operations.
        Depthwise { sizes, multiplier, threads: Threads::for_work(work.saturating_mul(8)) }
    }

    /// Splits `out` into parts of `len` elements and calls `work` with the index of each part and the part; uses
    /// several threads if the convolution is large enough.
    fn for_each_part<W: Send>(&self, out: &mut [W], len: usize, work: impl Fn(usize, &mut [W]) + Sync) {
        for_parts(out, len, self.threads == Threads::All, work);
    }

    /// Returns the range of output columns at which tap `tap` lies inside the image, and the image column under the tap
    /// at the first of them.
    fn columns(&self, tap: usize) -> (std::ops::Range<usize>, usize) {
        let w = &self.sizes.columns;
        let reach = tap * w.dilation;
        let first = w.pad_before.saturating_sub(reach).div_ceil(w.stride);
        let end = (w.input + w.pad_before).saturating_sub(reach).div_ceil(w.stride).min(w.output);
        let first = first.min(end);
        (first..end, (first * w.stride + reach).saturating_sub(w.pad_before))
    }

    /// Returns the filter's elements for the tap in a row and a column of the filter.
    fn tap<'a, W>(&self, filter: &'a [W], row: usize, column: usize) -> &'a [W] {
        let channels = self.sizes.out_channels;
        &filter[(row * self.sizes.columns.filter + column) * channels..][..channels]
    }
}

/// Computes `out[c * m + i] += x[c] * w[c * m + i]`.
#[inline]
fn add_products<W: Number>(out: &mut [W], x: &[W], w: &[W], multiplier: usize) {
    if multiplier == 1 {
        for ((o, &x), &w) in out.iter_mut().zip(x).zip(w) {
            *o = o.plus(x.times(w));
        }
        return;
    }
    let parts = out.chunks_exact_mut(multiplier).zip(w.chunks_exact(multiplier));
    for ((out, w), &x) in parts.zip(x) {
        for (o, &w) in out.iter_mut().zip(w) {
            *o = o.plus(x.times(w));
        }
    }
}

/// Computes `dx[c] += sum over i of dy[c * m + i] * w[c * m + i]`.
#[inline]
fn add_sums<W: Number>(dx: &mut [W], dy: &[W], w: &[W], multiplier: usize) {
    if multiplier == 1 {
        for ((d, &y), &w) in dx.iter_mut().zip(dy).zip(w) {
            *d = d.plus(y.times(w));
        }
        return;
    }
    let parts = dy.chunks_exact(multiplier).zip(w.chunks_exact(multiplier));
    for (d, (dy, w)) in dx.iter_mut().zip(parts) {
        let sum = dy.iter().zip(w).fold(W::ZERO, |sum, (&y, &w)| sum.plus(y.times(w)));
        *d = d.plus(sum);
    }
}

/// A function that adds products of the elements of two operands to the tensor in its last argument. It is the part of
/// a kernel that is compiled for each number type in which kernels compute.
type AddProducts = fn(&Depthwise, [&Tensor; 2], &mut Tensor) -> Result<()>;

/// Computes the forward depthwise convolution.
pub(super) fn forward(ctx: &mut KernelContext<'_>, conv: &Conv, add: AddProducts) -> Result<()> {
    let (input, filter) = (ctx.input(0)?, ctx.input(1)?);
    let sizes = conv.depthwise_sizes(input.shape(), filter.shape())?;
    let (shape, dtype) = (conv.output_shape(&sizes)?, input.dtype());
    if shape.num_elements() == 0 || filter.num_elements() == 0 {
        ctx.set_output(0, Tensor::zeros(dtype, shape)?);
        return Ok(());
    }
    let plan = Depthwise::new(sizes);
    let (input, filter) = (load(input, conv.format)?, load(filter, DataFormat::Nhwc)?);
    let mut out = Tensor::zeros(wide_dtype(dtype), channels_last(&shape, conv.format)?)?;
    add(&plan, [&input, &filter], &mut out)?;
    let out = store(out, dtype, conv.format)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Adds the products of the input's pixels and the filter's taps to `out`, the output of the convolution.
pub(super) fn add_to_output<W: Number>(
    plan: &Depthwise,
    [input, filter]: [&Tensor; 2],
    out: &mut Tensor,
) -> Result<()> {
    let (input, filter) = (input.values::<W>()?, filter.values::<W>()?);
    let (depth, channels) = (plan.sizes.in_channels, plan.sizes.out_channels);
    let (rows, columns) = (&plan.sizes.rows, &plan.sizes.columns);
    plan.for_each_part(out.values_mut::<W>()?, columns.output * channels, |line, out| {
        let (image, row) = (line / rows.output, line % rows.output);
        for i in 0..rows.filter {
            let Some(y) = rows.at(row, i) else { continue };
            let from = &input[(image * rows.input + y) * columns.input * depth..][..columns.input * depth];
            for j in 0..columns.filter {
                let (inside, x) = plan.columns(j);
                let w = plan.tap(filter, i, j);
                let out = out[inside.start * channels..inside.end * channels].chunks_exact_mut(channels);
                for (k, out) in out.enumerate() {
                    let x = &from[(x + k * columns.stride) * depth..][..depth];
                    add_products(out, x, w, plan.multiplier);
                }
            }
        }
    });
    Ok(())
}

/// Computes the gradient of a depthwise convolution with respect to its input.
pub(super) fn backprop_input(ctx: &mut KernelContext<'_>, conv: &Conv, add: AddProducts) -> Result<()> {
    let (filter, dy) = (ctx.input(1)?, ctx.input(2)?);
    let (shape, dtype) = (input_shape(ctx, conv)?, dy.dtype());
    let sizes = conv.depthwise_sizes(&shape, filter.shape())?;
    check_out_backprop(ctx, conv, &sizes, dy)?;
    if shape.num_elements() == 0 || dy.num_elements() == 0 || filter.num_elements() == 0 {
        ctx.set_output(0, Tensor::zeros(dtype, shape)?);
        return Ok(());
    }
    let plan = Depthwise::new(sizes);
    let (dy, filter) = (load(dy, conv.format)?, load(filter, DataFormat::Nhwc)?);
    let mut dx = Tensor::zeros(wide_dtype(dtype), channels_last(&shape, conv.format)?)?;
    add(&plan, [&dy, &filter], &mut dx)?;
    let dx = store(dx, dtype, conv.format)?;
    ctx.set_output(0, dx);
    Ok(())
}

/// Adds the products of the pixels of `dy`, the output's gradient, and the filter's taps to `dx`, the gradient of the
/// input.
pub(super) fn add_to_input<W: Number>(
    plan: &Depthwise,
    [dy, filter]: [&Tensor; 2],
    dx: &mut Tensor,
) -> Result<()> {
    let (dy, filter) = (dy.values::<W>()?, filter.values::<W>()?);
    let (depth, channels) = (plan.sizes.in_channels, plan.sizes.out_channels);
    let (rows, columns) = (&plan.sizes.rows, &plan.sizes.columns);
    // Windows overlap only within an image, so each image is a unit of work.
    plan.for_each_part(dx.values_mut::<W>()?, rows.input * columns.input * depth, |image, dx| {
        for row in 0..rows.output {
            let from = &dy[(image * rows.output + row) * columns.output * channels..];
            for i in 0..rows.filter {
                let Some(y) = rows.at(row, i) else { continue };
                let dx = &mut dx[y * columns.input * depth..][..columns.input * depth];
                for j in 0..columns.filter {
                    let (inside, x) = plan.columns(j);
                    let w = plan.tap(filter, i, j);
                    for (k, column) in inside.enumerate() {
                        let dx = &mut dx[(x + k * columns.stride) * depth..][..depth];
                        add_sums(dx, &from[column * channels..][..channels], w, plan.multiplier);
                    }
                }
            }
        }
    });
    Ok(())
}

/// Computes the gradient of a depthwise convolution with respect to its filter.
pub(super) fn backprop_filter(ctx: &mut KernelContext<'_>, conv: &Conv, add: AddProducts) -> Result<()> {
    let (input, dy) = (ctx.input(0)?, ctx.input(2)?);
    let (shape, dtype) = (Shape::from_i64(&sizes_input(ctx, 1, "filter_sizes")?)?, dy.dtype());
    let sizes = conv.depthwise_sizes(input.shape(), &shape)?;
    check_out_backprop(ctx, conv, &sizes, dy)?;
    if shape.num_elements() == 0 {
        ctx.set_output(0, Tensor::zeros(dtype, shape)?);
        return Ok(());
    }
    let mut dw = Tensor::zeros(wide_dtype(dtype), shape)?;
    let plan = Depthwise::new(sizes);
    let (input, dy) = (load(input, conv.format)?, load(dy, conv.format)?);
    add(&plan, [&input, &dy], &mut dw)?;
    let dw = store(dw, dtype, DataFormat::Nhwc)?;
    ctx.set_output(0, dw);
    Ok(())
}

/// Adds the products of the pixels of the input and of `dy`, the output's gradient, to `dw`, the gradient of the
/// filter.
pub(super) fn add_to_filter<W: Number>(
    plan: &Depthwise,
    [input, dy]: [&Tensor; 2],
    dw: &mut Tensor,
) -> Result<()> {
    let (input, dy) = (input.values::<W>()?, dy.values::<W>()?);
    let (depth, channels) = (plan.sizes.in_channels, plan.sizes.out_channels);
    let (rows, columns) = (&plan.sizes.rows, &plan.sizes.columns);
    // Each tap is summed over all pixels in their order, regardless of the thread, so the result is reproducible.
    plan.for_each_part(dw.values_mut::<W>()?, channels, |tap, dw| {
        let (i, j) = (tap / columns.filter, tap % columns.filter);
        let (inside, x) = plan.columns(j);
        for line in 0..plan.sizes.batch * rows.output {
            let (image, row) = (line / rows.output, line % rows.output);
            let Some(y) = rows.at(row, i) else { continue };
            let from = &input[(image * rows.input + y) * columns.input * depth..][..columns.input * depth];
            for (k, column) in inside.clone().enumerate() {
                let x = &from[(x + k * columns.stride) * depth..][..depth];
                let dy = &dy[(line * columns.output + column) * channels..][..channels];
                add_products(dw, x, dy, plan.multiplier);
            }
        }
    });
    Ok(())
}
