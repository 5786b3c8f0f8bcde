//! Pooling over images, and its gradients.

use super::support::{allocate, function, launch, read, type_name, write};
use crate::cuda::{Arguments, Function, Source};
use crate::device::DeviceTensor;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use crate::kernels::cpu::dispatch::FLOATS;
use graph::Shape;
use graph::ops::pool::{Pool, PoolSizes};
use graph::ops::window::DataFormat;
use std::sync::Arc;

static SOURCE: Source = Source { file: "pool.cu", text: include_str!("pool.cu") };

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("MaxPool", &[("T", FLOATS)], |init| forward(init, "max_pool")),
    KernelDef::enqueuing("AvgPool", &[("T", FLOATS)], |init| forward(init, "average_pool")),
    KernelDef::enqueuing("MaxPoolGrad", &[("T", FLOATS)], max_gradient),
    KernelDef {
        host_memory: &["orig_input_shape"],
        ..KernelDef::enqueuing("AvgPoolGrad", &[("T", FLOATS)], average_gradient)
    },
];

/// A pooling of one node.
struct Pooling {
    pool: Pool,
    function: Arc<Function>,
}

impl Pooling {
    fn new(init: &KernelInit<'_>, named: &str) -> Result<Pooling> {
        let name = format!("{named}<{}>", type_name(init.output_type(0))?);
        Ok(Pooling { pool: Pool::of(init.node)?, function: function(init, &SOURCE, name)? })
    }

    fn sizes(&self, ctx: &KernelContext<'_>, input: &[usize]) -> Result<PoolSizes> {
        if self.pool.is_depthwise() {
            let op = ctx.node().op.name();
            return Err(Error::unimplemented(format!("{op} over channels has no GPU kernel")));
        }
        Ok(self.pool.sizes(input)?)
    }

    /// Enqueues the kernel, which reads `inputs` and writes `out`.
    fn run(
        &self,
        ctx: &KernelContext<'_>,
        inputs: &[&DeviceTensor],
        out: &DeviceTensor,
        sizes: &PoolSizes,
    ) -> Result<()> {
        let n = out.shape.num_elements();
        let mut arguments = Arguments::new();
        for input in inputs {
            arguments = arguments.address(read(input)?);
        }
        let arguments = arguments.address(write(out)?).count(n).structure(self.windows(sizes));
        launch(ctx, &self.function, n, arguments)
    }

    /// `Windows` of the `.cu` file.
    fn windows(&self, sizes: &PoolSizes) -> Vec<i64> {
        let (n, c) = (sizes.batch, sizes.channels);
        let input = [n, c, sizes.rows.input, sizes.columns.input];
        let output = [n, c, sizes.rows.output, sizes.columns.output];
        let strides = |[_, c, h, w]: [usize; 4]| match self.pool.format {
            DataFormat::Nhwc => [c * h * w, 1, c * w, c],
            DataFormat::Nchw => [c * h * w, h * w, w, 1],
        };
        let of_axes = |of: fn(&graph::ops::window::Window) -> usize| [of(&sizes.rows), of(&sizes.columns)];
        [
            &input[..],
            &output,
            &strides(input),
            &strides(output),
            &of_axes(|w| w.filter),
            &of_axes(|w| w.stride),
            &of_axes(|w| w.pad_before),
        ]
        .concat()
        .into_iter()
        .map(|v| v as i64)
        .collect()
    }
}

fn forward(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let pooling = Pooling::new(init, named)?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let sizes = pooling.sizes(ctx, &x.shape)?;
        let out = allocate(ctx, x.dtype, pooling.pool.output_shape(&sizes)?)?;
        pooling.run(ctx, &[x], &out, &sizes)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn max_gradient(init: &KernelInit<'_>) -> Result<Kernel> {
    let pooling = Pooling::new(init, "max_pool_gradient")?;
    Kernel::sync(move |ctx| {
        let (x, pooled, dy) = (ctx.device_input(0)?, ctx.device_input(1)?, ctx.device_input(2)?);
        let sizes = pooling.sizes(ctx, &x.shape)?;
        let expected = pooling.pool.output_shape(&sizes)?;
        if pooled.shape != expected {
            crate::invalid!("Expected orig_output shape to be {expected}, but got {}", pooled.shape);
        }
        if dy.shape != expected {
            crate::invalid!("Expected grad shape to be {expected}, but got {}", dy.shape);
        }
        let out = allocate(ctx, x.dtype, x.shape.clone())?;
        pooling.run(ctx, &[x, dy], &out, &sizes)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn average_gradient(init: &KernelInit<'_>) -> Result<Kernel> {
    let pooling = Pooling::new(init, "average_pool_gradient")?;
    Kernel::sync(move |ctx| {
        let (given, dy) = (ctx.input(0)?, ctx.device_input(1)?);
        if given.shape().dims() != [4] {
            crate::invalid!("out_backprop must be 1-dimensional and of 4 elements, not {}", given.shape());
        }
        let shape = Shape::from_i64(&given.to_i64s()?)?;
        let sizes = pooling.sizes(ctx, &shape)?;
        let expected = pooling.pool.output_shape(&sizes)?;
        if dy.shape != expected {
            crate::invalid!("Expected grad shape to be {expected}, but got {}", dy.shape);
        }
        let out = allocate(ctx, dy.dtype, shape)?;
        pooling.run(ctx, &[dy], &out, &sizes)?;
        ctx.set_output(0, out);
        Ok(())
    })
}
