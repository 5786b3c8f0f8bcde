//! Bias vectors added to a channel axis.

use super::reduce::Reduction;
use super::support::{allocate, allocate_or_reuse, function, launch, read, type_name, write};
use crate::engine::{Arguments, Source};
use device::Result;
use device::kernel::{Kernel, KernelDef, KernelInit};
use graph::Shape;
use graph::ops::bias::data_format;
use graph::ops::window::DataFormat;
use kernels::numeric::dispatch::FLOATS;
use kernels::plan::bias::axes;

static SOURCE: Source = Source { file: "bias.cu", text: include_str!("bias.cu") };

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("BiasAdd", &[("T", FLOATS)], |init| add(init, data_format(init.node)?)),
    KernelDef::enqueuing("BiasAddV1", &[("T", FLOATS)], |init| add(init, DataFormat::Nhwc)),
    KernelDef::enqueuing("BiasAddGrad", &[("T", FLOATS)], gradient),
];

fn add(init: &KernelInit<'_>, format: DataFormat) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let add = function(init, &SOURCE, format!("add_bias<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let mut x = ctx.take_device_input(0)?;
        let shape = x.shape.clone();
        let [_, channels, inner] = axes(&shape, format)?;
        let bias = ctx.device_input(1)?;
        if bias.shape.rank() != 1 {
            device::invalid!("Biases must be 1D: {}", bias.shape);
        }
        if bias.shape.num_elements() != channels {
            let which = if format == DataFormat::Nhwc { "last" } else { "channel" };
            device::invalid!(
                "Must provide as many biases as the {which} dimension of the input tensor: {} vs. {shape}",
                bias.shape
            );
        }
        let y = allocate_or_reuse(ctx, &mut x, dtype, shape)?;
        let n = y.shape.num_elements();
        let arguments = Arguments::new()
            .address(read(&x)?)
            .address(read(bias)?)
            .address(write(&y)?)
            .count(n)
            .count(channels)
            .count(inner);
        launch(ctx, &add, n, arguments)?;
        ctx.set_output(0, y);
        Ok(())
    })
}

fn gradient(init: &KernelInit<'_>) -> Result<Kernel> {
    let format = data_format(init.node)?;
    let dtype = init.output_type(0);
    let sum = Reduction::new(init, "Sum", dtype)?;
    Kernel::sync(move |ctx| {
        let dy = ctx.device_input(0)?;
        let [outer, channels, inner] = axes(&dy.shape, format)?;
        let out = allocate(ctx, dtype, Shape::new(&[channels])?)?;
        match inner {
            1 => sum.run(ctx, dy, &out, &[(outer, true), (channels, false)])?,
            _ => sum.run(ctx, dy, &out, &[(outer, true), (channels, false), (inner, true)])?,
        }
        ctx.set_output(0, out);
        Ok(())
    })
}
