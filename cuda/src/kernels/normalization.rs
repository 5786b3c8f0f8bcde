//! Normalisation over batches, by the mean and variance of each channel, and over neighbouring channels.

mod local;

use super::copy::zeros;
use super::reduce::{MIN_PER_PART, part_count};
use super::support::{allocate, allocate_or_reuse, function, kernel_stream, read, type_name, write};
use crate::engine::{Arguments, Function, Source};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{DeviceTensor, Error, Result};
use graph::DType::{self, BFloat16, Float, Half};
use graph::Shape;
use graph::ops::normalization::BatchNorm;
use kernels::plan::fused::{FusedOp, NORMALIZATION_INPUTS, ops_after_normalization, run_ops};
use smallvec::SmallVec;
use std::sync::Arc;

static SOURCE: Source = Source { file: "normalization.cu", text: include_str!("normalization.cu") };

pub(super) const MIXED: &[(&str, &[DType])] = &[("T", &[Float, Half, BFloat16]), ("U", &[Float])];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("FusedBatchNorm", &[("T", &[Float])], forward),
    KernelDef::enqueuing("FusedBatchNormV2", MIXED, forward),
    KernelDef::enqueuing("FusedBatchNormV3", MIXED, forward),
    KernelDef::enqueuing("FusedBatchNormGrad", &[("T", &[Float])], backward),
    KernelDef::enqueuing("FusedBatchNormGradV2", MIXED, backward),
    KernelDef::enqueuing("FusedBatchNormGradV3", MIXED, backward),
    KernelDef::enqueuing("_FusedBatchNormActivationGrad", MIXED, backward_through),
    KernelDef::enqueuing("LRN", &[("T", &[Float, Half, BFloat16])], local::forward),
    KernelDef::enqueuing("LRNGrad", &[("T", &[Float, Half, BFloat16])], local::backward),
];

/// The shape of the data as `[outer, channels, inner]`: `Data` of the `.cu` file.
struct Layout {
    outer: usize,
    channels: usize,
    inner: usize,
}

impl Layout {
    /// Returns the layout of an input.
    fn of(attrs: &BatchNorm, x: &Shape) -> Result<Layout> {
        match x.rank() {
            4 => {}
            5 if attrs.volumes => {}
            _ if attrs.volumes => device::invalid!("input must be 4-dimensional or 5-dimensional{x}"),
            _ => device::invalid!("input must be 4-dimensional{x}"),
        }
        let axis = attrs.channel_axis(x.rank());
        Ok(Layout {
            outer: x[..axis].iter().product(),
            channels: x[axis],
            inner: x[axis + 1..].iter().product(),
        })
    }

    /// Returns the fields of the `Data` structure of `normalization.cu`, in the order of declaration.
    fn words(&self) -> [i64; 3] {
        [self.outer, self.channels, self.inner].map(|n| n as i64)
    }

    /// Returns the number of channels that a thread block handles: several if channels are innermost, else 1.
    fn width(&self) -> usize {
        if self.inner == 1 { self.channels.next_power_of_two().min(32) } else { 1 }
    }

    /// Enqueues a kernel over `n` elements, in packs of [`PACK`] elements if possible; `Data::has_packs` of the
    /// `.cu` file makes the same decision.
    fn over_packs(
        &self,
        ctx: &KernelContext<'_>,
        kernel: &Function,
        n: usize,
        arguments: &Arguments,
    ) -> Result<()> {
        let has_packs =
            self.inner.is_multiple_of(PACK) || (self.inner == 1 && self.channels.is_multiple_of(PACK));
        let pack = if has_packs { PACK } else { 1 };
        let period = if self.inner == 1 { self.channels / pack } else { 1 };
        kernel_stream(ctx)?.launch_strided(kernel, n / pack, period, arguments)
    }

    /// Returns the number of parts into which the elements of each channel are divided.
    fn parts(&self) -> usize {
        let width = self.width();
        part_count(self.outer * self.inner, self.channels.div_ceil(width), MIN_PER_PART / width)
    }

    /// Enqueues a kernel over the parts of all channels; `arguments` are its first arguments. The kernel writes
    /// `bytes` bytes per part to the returned memory.
    fn over_parts(
        &self,
        ctx: &KernelContext<'_>,
        kernel: &Function,
        arguments: Arguments,
        bytes: usize,
    ) -> Result<DeviceTensor> {
        let (width, parts, stream) = (self.width(), self.parts(), kernel_stream(ctx)?);
        let found = stream.scratch(&ctx.node().name, self.channels * parts * bytes)?;
        let arguments = arguments.address(write(&found)?).count(width).count(parts).structure(self.words());
        stream.launch_blocks(kernel, self.channels.div_ceil(width) * parts, &arguments)?;
        Ok(found)
    }
}

/// Number of elements in a pack, which a thread reads and writes as one value.
const PACK: usize = 4;

/// Size in bytes of the `Moments` structure of `normalization.cu`.
const MOMENTS: usize = 12;
/// Size in bytes of the `Slopes` structure of `normalization.cu`.
const SLOPES: usize = 8;

/// Returns an input that must be a vector with a value for each channel; `when` is the beginning of the error
/// message.
fn vector<'a>(
    ctx: &'a KernelContext<'_>,
    i: usize,
    name: &str,
    channels: usize,
    when: &str,
) -> Result<&'a DeviceTensor> {
    let vector = ctx.device_input(i)?;
    if vector.shape.rank() != 1 {
        device::invalid!("{name} must be 1-dimensional{}", vector.shape);
    }
    if vector.shape.num_elements() != channels {
        device::invalid!(
            "{when}{name} must have the same number of elements as the channels of x, got {} and {channels}",
            vector.shape.num_elements()
        );
    }
    Ok(vector)
}

/// Loads the kernel `named` of the `.cu` file for the dtype of output 0.
fn kernel_of(init: &KernelInit<'_>, named: &str) -> Result<Arc<Function>> {
    function(init, &SOURCE, format!("{named}<{}>", type_name(init.output_type(0))?))
}

/// Loads the kernel `named` of the `.cu` file, for the dtype of output 0, fused with an activation.
fn kernel_before(init: &KernelInit<'_>, named: &str, activation: &str) -> Result<Arc<Function>> {
    if ![NONE, "Relu", "Relu6"].contains(&activation) {
        let op = init.node.op.name();
        return Err(Error::unimplemented(format!("{op}: activation_mode '{activation}' on GPUs")));
    }
    function(init, &SOURCE, format!("{named}<{}, {activation}>", type_name(init.output_type(0))?))
}

/// The name in `normalization.cu` of the activation that changes nothing.
const NONE: &str = "Identity";

/// The attributes and kernels of a batch normalisation node.
struct Forward {
    attrs: BatchNorm,
    moments: Arc<Function>,
    statistics: Arc<Function>,
    normalize: Arc<Function>,
    /// The normalisation kernel without an activation.
    alone: Arc<Function>,
    /// The ops that follow the normalisation and are fused with it. The ops run one by one if one of them adds
    /// a tensor whose shape does not allow the fusion.
    then: Vec<FusedOp>,
}

/// The statistics of each channel: mean and variance for the running averages, then mean and variance by which
/// the batch is normalised; for ops with six outputs also an unused output.
type Statistics = SmallVec<[DeviceTensor; 5]>;

/// Makes the kernel of a batch normalisation.
fn forward(init: &KernelInit<'_>) -> Result<Kernel> {
    Forward::make(init, NONE, Vec::new())
}

/// Makes the kernel of a batch normalisation with a summand and an activation.
pub(super) fn forward_then(init: &KernelInit<'_>) -> Result<Kernel> {
    Forward::make(init, &init.attr::<String>("activation_mode")?, ops_after_normalization(init)?)
}

impl Forward {
    /// Makes a batch normalisation kernel with an activation. `then` are the ops fused with the normalisation,
    /// which are kept for inputs whose shapes do not allow the fusion.
    fn make(init: &KernelInit<'_>, activation: &str, then: Vec<FusedOp>) -> Result<Kernel> {
        let forward = Forward {
            attrs: BatchNorm::of(init.node)?,
            moments: kernel_of(init, "moments")?,
            statistics: function(init, &SOURCE, "statistics".into())?,
            normalize: kernel_before(init, "normalize", activation)?,
            alone: kernel_before(init, "normalize", NONE)?,
            then,
        };
        Kernel::sync(move |ctx| forward.run(ctx))
    }

    /// Computes the outputs of the node.
    fn run(&self, ctx: &mut KernelContext<'_>) -> Result<()> {
        let x = ctx.device_input(0)?;
        let layout = Layout::of(&self.attrs, &x.shape)?;
        self.check(ctx, layout.channels)?;
        let statistics = self.statistics(ctx, &layout)?;
        let mut x = ctx.take_device_input(0)?;
        let (dtype, shape) = (x.dtype, x.shape.clone());
        // A summand with the shape of `x` is added by the normalisation kernel. With a summand that broadcasts,
        // the fused ops run one by one.
        let mut side = match ctx.num_inputs() - NORMALIZATION_INPUTS {
            1 if *ctx.shape(NORMALIZATION_INPUTS)? == shape => {
                Some(ctx.take_device_input(NORMALIZATION_INPUTS)?)
            }
            _ => None,
        };
        let is_whole = side.is_some() || ctx.num_inputs() == NORMALIZATION_INPUTS;
        let y = allocate_or_reuse(ctx, side.as_mut().unwrap_or(&mut x), dtype, shape)?;
        let n = y.shape.num_elements();
        let arguments = match &side {
            Some(side) => Arguments::new().address(read(&x)?).address(read(side)?),
            None => Arguments::new().address(read(&x)?).count(0),
        };
        let arguments = arguments
            .address(read(ctx.device_input(1)?)?)
            .address(read(ctx.device_input(2)?)?)
            .address(read(&statistics[2])?)
            .address(read(&statistics[3])?)
            .address(write(&y)?)
            .count(n)
            .real(self.attrs.epsilon.into())
            .structure(layout.words());
        let kernel = if is_whole { &self.normalize } else { &self.alone };
        layout.over_packs(ctx, kernel, n, &arguments)?;
        ctx.set_output(0, y);
        for (i, tensor) in statistics.into_iter().enumerate() {
            ctx.set_output(1 + i, tensor);
        }
        if is_whole { Ok(()) } else { run_ops(ctx, &self.then, NORMALIZATION_INPUTS) }
    }

    /// Checks the inputs that are vectors with a value for each channel.
    fn check(&self, ctx: &KernelContext<'_>, channels: usize) -> Result<()> {
        vector(ctx, 1, "scale", channels, "")?;
        vector(ctx, 2, "offset", channels, "")?;
        let (when, given) = match (self.attrs.training, self.attrs.average) {
            (false, _) => ("When is_training=false, ", true),
            (true, factor) => ("When exponential_avg_factor != 1, ", factor != 1.0),
        };
        if given {
            vector(ctx, 3, "mean", channels, when)?;
            vector(ctx, 4, "variance", channels, when)?;
        }
        Ok(())
    }

    /// Computes the statistics of the batch in training, and else takes them from the inputs.
    fn statistics(&self, ctx: &KernelContext<'_>, layout: &Layout) -> Result<Statistics> {
        let (x, old_mean, old_variance) = (ctx.device_input(0)?, ctx.device_input(3)?, ctx.device_input(4)?);
        let per_channel = || allocate(ctx, Float, Shape::new(&[layout.channels])?);
        let has_reserved = ctx.num_outputs() == 6;
        let with_reserved = |known: [DeviceTensor; 4]| -> Result<Statistics> {
            let reserved = has_reserved.then(|| zeros(ctx, Float, Shape::scalar())).transpose()?;
            Ok(known.into_iter().chain(reserved).collect())
        };
        if x.shape.num_elements() == 0 {
            // For a batch without elements mean and variance are NaN; bytes of 0xff make a NaN.
            let (mean, variance) = (per_channel()?, per_channel()?);
            for tensor in [&mean, &variance] {
                kernel_stream(ctx)?.fill(tensor, 0xff)?;
            }
            let zero = zeros(ctx, Float, Shape::new(&[layout.channels])?)?;
            return with_reserved([mean, variance, zero.clone(), zero]);
        }
        if !self.attrs.training {
            return with_reserved([old_mean, old_variance, old_mean, old_variance].map(Clone::clone));
        }
        let made = [per_channel()?, per_channel()?, per_channel()?, per_channel()?];
        let reserved = has_reserved.then(|| allocate(ctx, Float, Shape::scalar())).transpose()?;
        let [running_mean, running_variance, mean, variance] = &made;
        let found = layout.over_parts(ctx, &self.moments, Arguments::new().address(read(x)?), MOMENTS)?;
        let arguments = Arguments::new()
            .address(read(&found)?)
            .address(read(old_mean)?)
            .address(read(old_variance)?)
            .address(write(mean)?)
            .address(write(variance)?)
            .address(write(running_mean)?)
            .address(write(running_variance)?);
        let arguments = match &reserved {
            Some(reserved) => arguments.address(write(reserved)?),
            None => arguments.count(0),
        };
        let arguments =
            arguments.real(self.attrs.average.into()).count(layout.channels).count(layout.parts());
        kernel_stream(ctx)?.launch_blocks(&self.statistics, layout.channels, &arguments)?;
        Ok(made.into_iter().chain(reserved).collect())
    }
}

/// Makes the kernel of the gradient of a batch normalisation.
fn backward(init: &KernelInit<'_>) -> Result<Kernel> {
    make_backward(init, NONE)
}

/// Makes the kernel of the gradient of a batch normalisation fused with an activation.
fn backward_through(init: &KernelInit<'_>) -> Result<Kernel> {
    make_backward(init, &init.attr::<String>("activation_mode")?)
}

/// Makes the kernel of the gradient of a batch normalisation followed by the activation.
fn make_backward(init: &KernelInit<'_>, activation: &str) -> Result<Kernel> {
    let attrs = BatchNorm::of(init.node)?;
    let slopes = kernel_before(init, "slopes", activation)?;
    let of_data = kernel_before(init, "data_gradient", activation)?;
    let of_scale = function(init, &SOURCE, "scale_gradients".into())?;
    let has_offset = activation != NONE;
    Kernel::sync(move |ctx| {
        let mut dy = ctx.take_device_input(0)?;
        let x = ctx.device_input(1)?;
        let layout = Layout::of(&attrs, &x.shape)?;
        let channels = layout.channels;
        if dy.shape != x.shape {
            device::invalid!(
                "x and y_backprop must have same shape, but x has shape {} and y_backprop has shape {}",
                x.shape,
                dy.shape
            );
        }
        let scale = vector(ctx, 2, "scale", channels, "")?;
        let mean = vector(ctx, 3, "saved mean", channels, "")?;
        let variance = vector(ctx, 4, "saved variance", channels, "")?;
        let dx = allocate_or_reuse(ctx, &mut dy, x.dtype, x.shape.clone())?;
        let given = || -> Result<Arguments> {
            let arguments = Arguments::new().address(read(&dy)?).address(read(x)?).address(read(scale)?);
            let arguments = match has_offset {
                true => arguments.address(read(vector(ctx, 5, "offset", channels, "")?)?),
                false => arguments.count(0),
            };
            Ok(arguments.address(read(mean)?).address(read(variance)?))
        };
        let (d_scale, d_offset) = (
            allocate(ctx, Float, Shape::new(&[channels])?)?,
            allocate(ctx, Float, Shape::new(&[channels])?)?,
        );
        let n = dx.shape.num_elements();
        let found = layout.over_parts(ctx, &slopes, given()?.real(attrs.epsilon.into()), SLOPES)?;
        let arguments = Arguments::new()
            .address(read(&found)?)
            .address(read(variance)?)
            .address(write(&d_scale)?)
            .address(write(&d_offset)?)
            .real(attrs.epsilon.into())
            .count(channels)
            .count(layout.parts());
        kernel_stream(ctx)?.launch_blocks(&of_scale, channels, &arguments)?;
        let arguments = given()?
            .address(read(&d_scale)?)
            .address(read(&d_offset)?)
            .address(write(&dx)?)
            .count(n)
            .real(attrs.epsilon.into())
            .flag(attrs.training)
            .structure(layout.words());
        layout.over_packs(ctx, &of_data, n, &arguments)?;
        let none = allocate(ctx, Float, Shape::new(&[0])?)?;
        for (i, tensor) in [dx, d_scale, d_offset, none.clone(), none].into_iter().enumerate() {
            ctx.set_output(i, tensor);
        }
        Ok(())
    })
}
