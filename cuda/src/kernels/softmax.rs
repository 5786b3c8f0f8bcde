//! Softmax, and cross entropies of the softmax.

use super::support::{allocate, allocate_or_reuse, function, kernel_stream, read, type_name, write};
use crate::engine::{Arguments, Source};
use device::Result;
use device::kernel::{Kernel, KernelDef, KernelInit};
use graph::{PartialShape, Shape};
use kernels::numeric::dispatch::{FLOATS, INDEX};

static SOURCE: Source = Source { file: "softmax.cu", text: include_str!("softmax.cu") };

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("Softmax", &[("T", FLOATS)], |init| rows(init, false)),
    KernelDef::enqueuing("LogSoftmax", &[("T", FLOATS)], |init| rows(init, true)),
    KernelDef::enqueuing("SoftmaxCrossEntropyWithLogits", &[("T", FLOATS)], dense),
    KernelDef::enqueuing("SparseSoftmaxCrossEntropyWithLogits", &[("T", FLOATS), ("Tlabels", INDEX)], sparse),
];

/// Makes the kernel of `Softmax` or `LogSoftmax`.
fn rows(init: &KernelInit<'_>, logarithm: bool) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let softmax = function(init, &SOURCE, format!("softmax<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let mut x = ctx.take_device_input(0)?;
        let shape = x.shape.clone();
        let Some(&classes) = shape.last() else {
            device::invalid!("logits must have >= 1 dimension, got {shape}");
        };
        let y = allocate_or_reuse(ctx, &mut x, dtype, shape)?;
        let rows = y.shape.num_elements().checked_div(classes).unwrap_or(0);
        let arguments = Arguments::new()
            .address(read(&x)?)
            .address(write(&y)?)
            .count(rows)
            .count(classes)
            .flag(logarithm);
        kernel_stream(ctx)?.launch_blocks(&softmax, rows, &arguments)?;
        ctx.set_output(0, y);
        Ok(())
    })
}

/// Makes the kernel of `SoftmaxCrossEntropyWithLogits`, whose labels are probability distributions.
fn dense(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let entropy = function(init, &SOURCE, format!("cross_entropy<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let (features, labels) = (ctx.device_input(0)?, ctx.device_input(1)?);
        let Ok(shape) = PartialShape::broadcast(&(&features.shape).into(), &(&labels.shape).into()) else {
            device::invalid!(
                "logits and labels must be broadcastable: logits_size={} labels_size={}",
                features.shape,
                labels.shape
            );
        };
        let Some(&[Some(batch), Some(classes)]) = shape.dims() else {
            device::invalid!(
                "logits and labels must be either 2-dimensional, or broadcasted to be 2-dimensional"
            );
        };
        let shape = Shape::new(&[batch, classes])?;
        let loss = allocate(ctx, dtype, Shape::new(&[batch])?)?;
        let gradient = allocate(ctx, dtype, shape.clone())?;
        let steps = [&features.shape, &labels.shape].map(|from| super::support::repeated(from, &shape));
        let arguments = Arguments::new()
            .address(read(features)?)
            .address(read(labels)?)
            .address(write(&loss)?)
            .address(write(&gradient)?)
            .count(batch)
            .count(classes)
            .structure(steps.iter().flatten().map(|&step| step as i64));
        match classes {
            0 => kernel_stream(ctx)?.fill(&loss, 0)?,
            _ => kernel_stream(ctx)?.launch_blocks(&entropy, batch, &arguments)?,
        }
        ctx.set_output(0, loss);
        ctx.set_output(1, gradient);
        Ok(())
    })
}

/// Makes the kernel of `SparseSoftmaxCrossEntropyWithLogits`, whose labels are class numbers.
fn sparse(init: &KernelInit<'_>) -> Result<Kernel> {
    let (dtype, index) = (init.output_type(0), init.input_type(1));
    let name = format!("sparse_cross_entropy<{}, {}>", type_name(dtype)?, type_name(index)?);
    let entropy = function(init, &SOURCE, name)?;
    Kernel::sync(move |ctx| {
        let (logits, labels) = (ctx.device_input(0)?, ctx.device_input(1)?);
        let &[batch, classes] = logits.shape.dims() else {
            device::invalid!("logits must be 2-D, but got shape {}", logits.shape);
        };
        if labels.shape.rank() != 1 {
            device::invalid!("labels must be 1-D, but got shape {}", labels.shape);
        }
        if labels.shape.num_elements() != batch {
            device::invalid!(
                "logits and labels must have the same first dimension, got logits shape {} and labels shape {}",
                logits.shape,
                labels.shape
            );
        }
        if classes == 0 {
            device::invalid!("Must have at least one class, but got logits shape {}", logits.shape);
        }
        let loss = allocate(ctx, dtype, Shape::new(&[batch])?)?;
        let gradient = allocate(ctx, dtype, logits.shape.clone())?;
        let arguments = Arguments::new()
            .address(read(logits)?)
            .address(read(labels)?)
            .address(write(&loss)?)
            .address(write(&gradient)?)
            .count(batch)
            .count(classes);
        kernel_stream(ctx)?.launch_blocks(&entropy, batch, &arguments)?;
        ctx.set_output(0, loss);
        ctx.set_output(1, gradient);
        Ok(())
    })
}
