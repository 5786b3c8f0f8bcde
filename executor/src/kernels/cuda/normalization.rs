//! Normalisation over batches, by the mean and variance of each channel, and over neighbouring channels.

mod local;

use super::moved::zeros;
use super::reduce::{WORTH_A_PART, parts_of};
use super::support::{allocate, function, lane, launch, read, type_name, write};
use crate::cuda::{Arguments, Function, Source};
use crate::device::DeviceTensor;
use crate::error::Result;
use crate::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::DType::{self, BFloat16, Float, Half};
use graph::Shape;
use graph::ops::normalization::BatchNorm;
use std::sync::Arc;

static SOURCE: Source = Source { file: "normalization.cu", text: include_str!("normalization.cu") };

const MIXED: &[(&str, &[DType])] = &[("T", &[Float, Half, BFloat16]), ("U", &[Float])];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("FusedBatchNorm", &[("T", &[Float])], forward),
    KernelDef::enqueuing("FusedBatchNormV2", MIXED, forward),
    KernelDef::enqueuing("FusedBatchNormV3", MIXED, forward),
    KernelDef::enqueuing("FusedBatchNormGrad", &[("T", &[Float])], backward),
    KernelDef::enqueuing("FusedBatchNormGradV2", MIXED, backward),
    KernelDef::enqueuing("FusedBatchNormGradV3", MIXED, backward),
    KernelDef::enqueuing("LRN", &[("T", &[Float, Half, BFloat16])], local::forward),
    KernelDef::enqueuing("LRNGrad", &[("T", &[Float, Half, BFloat16])], local::backward),
];

/// How data lie: `Data` of the `.cu` file.
struct Layout {
    outer: usize,
    channels: usize,
    inner: usize,
}

impl Layout {
    fn of(attrs: &BatchNorm, x: &Shape) -> Result<Layout> {
        match x.rank() {
            4 => {}
            5 if attrs.volumes => {}
            _ if attrs.volumes => crate::invalid!("input must be 4-dimensional or 5-dimensional{x}"),
            _ => crate::invalid!("input must be 4-dimensional{x}"),
        }
        let axis = attrs.channel_axis(x.rank());
        Ok(Layout {
            outer: x[..axis].iter().product(),
            channels: x[axis],
            inner: x[axis + 1..].iter().product(),
        })
    }

    fn words(&self) -> [i64; 3] {
        [self.outer, self.channels, self.inner].map(|n| n as i64)
    }

    /// Channels of a block: several where neighbours in memory are of different ones.
    fn width(&self) -> usize {
        if self.inner == 1 { self.channels.next_power_of_two().min(32) } else { 1 }
    }

    /// Threads for so many elements: each takes a pack where there are any, `Data::has_packs` of the `.cu` file.
    fn threads(&self, n: usize) -> usize {
        let has_packs =
            self.inner.is_multiple_of(PACK) || (self.inner == 1 && self.channels.is_multiple_of(PACK));
        if has_packs { n / PACK } else { n }
    }

    /// Parts of each channel.
    fn parts(&self) -> usize {
        let width = self.width();
        parts_of(self.outer * self.inner, self.channels.div_ceil(width), WORTH_A_PART / width)
    }

    /// Enqueues a kernel over the parts of the channels, which reads `inputs` and gives `bytes` for each part.
    fn over_parts(
        &self,
        ctx: &KernelContext<'_>,
        kernel: &Function,
        inputs: &[&DeviceTensor],
        bytes: usize,
    ) -> Result<DeviceTensor> {
        let (width, parts, lane) = (self.width(), self.parts(), lane(ctx)?);
        let found = lane.scratch(&ctx.node().name, self.channels * parts * bytes)?;
        let mut arguments = Arguments::new();
        for input in inputs {
            arguments = arguments.address(read(input)?);
        }
        let arguments = arguments.address(write(&found)?).count(width).count(parts).structure(self.words());
        lane.launch_blocks(kernel, self.channels.div_ceil(width) * parts, &arguments)?;
        Ok(found)
    }
}

/// Elements that a thread takes at once.
const PACK: usize = 4;

/// Bytes of `Moments` and `Slopes` of the `.cu` file.
const MOMENTS: usize = 12;
const SLOPES: usize = 8;

/// A vector with a value for each channel.
fn vector<'a>(
    ctx: &'a KernelContext<'_>,
    i: usize,
    name: &str,
    channels: usize,
    when: &str,
) -> Result<&'a DeviceTensor> {
    let vector = ctx.device_input(i)?;
    if vector.shape.rank() != 1 {
        crate::invalid!("{name} must be 1-dimensional{}", vector.shape);
    }
    if vector.shape.num_elements() != channels {
        crate::invalid!(
            "{when}{name} must have the same number of elements as the channels of x, got {} and {channels}",
            vector.shape.num_elements()
        );
    }
    Ok(vector)
}

fn kernel_of(init: &KernelInit<'_>, named: &str) -> Result<Arc<Function>> {
    function(init, &SOURCE, format!("{named}<{}>", type_name(init.output_type(0))?))
}

fn forward(init: &KernelInit<'_>) -> Result<Kernel> {
    let attrs = BatchNorm::of(init.node)?;
    let (moments, normalize) = (kernel_of(init, "moments")?, kernel_of(init, "normalize")?);
    let statistics_of = function(init, &SOURCE, "statistics".into())?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let layout = Layout::of(&attrs, &x.shape)?;
        let channels = layout.channels;
        let (scale, offset) =
            (vector(ctx, 1, "scale", channels, "")?, vector(ctx, 2, "offset", channels, "")?);
        let (when, given) = match (attrs.training, attrs.average) {
            (false, _) => ("When is_training=false, ", true),
            (true, factor) => ("When exponential_avg_factor != 1, ", factor != 1.0),
        };
        if given {
            vector(ctx, 3, "mean", channels, when)?;
            vector(ctx, 4, "variance", channels, when)?;
        }
        let (old_mean, old_variance) = (ctx.device_input(3)?, ctx.device_input(4)?);
        let per_channel = || allocate(ctx, Float, Shape::new(&[channels])?);
        let y = allocate(ctx, x.dtype, x.shape.clone())?;
        let n = y.shape.num_elements();
        let statistics: [DeviceTensor; 4] = if n == 0 {
            // What has no elements has no mean.
            let (running, nan) = ([per_channel()?, per_channel()?], [0xff, 0xff]);
            for (tensor, byte) in running.iter().zip(nan) {
                lane(ctx)?.fill(tensor, byte)?;
            }
            let zero = zeros(ctx, Float, Shape::new(&[channels])?)?;
            let [mean, variance] = running;
            [mean, variance, zero.clone(), zero]
        } else if attrs.training {
            let made = [per_channel()?, per_channel()?, per_channel()?, per_channel()?];
            let [running_mean, running_variance, mean, variance] = &made;
            let found = layout.over_parts(ctx, &moments, &[x], MOMENTS)?;
            let arguments = Arguments::new()
                .address(read(&found)?)
                .address(read(old_mean)?)
                .address(read(old_variance)?)
                .address(write(mean)?)
                .address(write(variance)?)
                .address(write(running_mean)?)
                .address(write(running_variance)?)
                .real(attrs.average.into())
                .count(channels)
                .count(layout.parts());
            lane(ctx)?.launch_blocks(&statistics_of, channels, &arguments)?;
            made
        } else {
            [old_mean.clone(), old_variance.clone(), old_mean.clone(), old_variance.clone()]
        };
        let arguments = Arguments::new()
            .address(read(x)?)
            .address(read(scale)?)
            .address(read(offset)?)
            .address(read(&statistics[2])?)
            .address(read(&statistics[3])?)
            .address(write(&y)?)
            .count(n)
            .real(attrs.epsilon.into())
            .structure(layout.words());
        launch(ctx, &normalize, layout.threads(n), arguments)?;
        let third = match ctx.num_outputs() {
            6 => Some(zeros(ctx, Float, Shape::scalar())?),
            _ => None,
        };
        ctx.set_output(0, y);
        for (i, tensor) in statistics.into_iter().chain(third).enumerate() {
            ctx.set_output(1 + i, tensor);
        }
        Ok(())
    })
}

fn backward(init: &KernelInit<'_>) -> Result<Kernel> {
    let attrs = BatchNorm::of(init.node)?;
    let (slopes, of_data) = (kernel_of(init, "slopes")?, kernel_of(init, "data_gradient")?);
    let of_scale = function(init, &SOURCE, "scale_gradients".into())?;
    Kernel::sync(move |ctx| {
        let (dy, x) = (ctx.device_input(0)?, ctx.device_input(1)?);
        let layout = Layout::of(&attrs, &x.shape)?;
        let channels = layout.channels;
        if dy.shape != x.shape {
            crate::invalid!(
                "x and y_backprop must have same shape, but x has shape {} and y_backprop has shape {}",
                x.shape,
                dy.shape
            );
        }
        let scale = vector(ctx, 2, "scale", channels, "")?;
        let mean = vector(ctx, 3, "saved mean", channels, "")?;
        let variance = vector(ctx, 4, "saved variance", channels, "")?;
        let (d_scale, d_offset) = (
            allocate(ctx, Float, Shape::new(&[channels])?)?,
            allocate(ctx, Float, Shape::new(&[channels])?)?,
        );
        let dx = allocate(ctx, x.dtype, x.shape.clone())?;
        let n = dx.shape.num_elements();
        let found = layout.over_parts(ctx, &slopes, &[dy, x, mean], SLOPES)?;
        let arguments = Arguments::new()
            .address(read(&found)?)
            .address(read(variance)?)
            .address(write(&d_scale)?)
            .address(write(&d_offset)?)
            .real(attrs.epsilon.into())
            .count(channels)
            .count(layout.parts());
        lane(ctx)?.launch_blocks(&of_scale, channels, &arguments)?;
        let arguments = Arguments::new()
            .address(read(dy)?)
            .address(read(x)?)
            .address(read(scale)?)
            .address(read(mean)?)
            .address(read(variance)?)
            .address(read(&d_scale)?)
            .address(read(&d_offset)?)
            .address(write(&dx)?)
            .count(n)
            .real(attrs.epsilon.into())
            .flag(attrs.training)
            .structure(layout.words());
        launch(ctx, &of_data, layout.threads(n), arguments)?;
        let none = allocate(ctx, Float, Shape::new(&[0])?)?;
        for (i, tensor) in [dx, d_scale, d_offset, none.clone(), none].into_iter().enumerate() {
            ctx.set_output(i, tensor);
        }
        Ok(())
    })
}
