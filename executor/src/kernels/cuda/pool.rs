//! Pooling over images and volumes, and its gradients.

use super::support::{allocate, function, launch, read, type_name, write};
use crate::cuda::{Arguments, Function, Source};
use crate::device::DeviceTensor;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use crate::kernels::cpu::dispatch::FLOATS;
use graph::DType::{self, BFloat16, Float, Half};
use graph::Shape;
use graph::ops::pool::{Pool, PoolSizes};
use graph::ops::window::{DataFormat, Window};
use std::sync::Arc;

static SOURCE: Source = Source { file: "pool.cu", text: include_str!("pool.cu") };

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("MaxPool", &[("T", FLOATS)], |init| forward(init, Pool::of(init.node)?, "max_pool")),
    KernelDef::enqueuing("AvgPool", &[("T", FLOATS)], |init| {
        forward(init, Pool::of(init.node)?, "average_pool")
    }),
    KernelDef::enqueuing("MaxPoolGrad", &[("T", FLOATS)], |init| max_gradient(init, Pool::of(init.node)?)),
    KernelDef {
        host_memory: &["orig_input_shape"],
        ..KernelDef::enqueuing("AvgPoolGrad", &[("T", FLOATS)], |init| {
            average_gradient(init, Pool::of(init.node)?)
        })
    },
    KernelDef::enqueuing("MaxPool3D", &[("T", SMALL)], |init| {
        forward(init, Pool::of_volumes(init.node)?, "max_pool")
    }),
    KernelDef::enqueuing("AvgPool3D", &[("T", FLOATS)], |init| {
        forward(init, Pool::of_volumes(init.node)?, "average_pool")
    }),
    of_volumes_and_slopes(&[("T", &[Float]), ("TInput", &[Float])]),
    of_volumes_and_slopes(&[("T", &[Half]), ("TInput", &[Half])]),
    of_volumes_and_slopes(&[("T", &[BFloat16]), ("TInput", &[BFloat16])]),
    KernelDef {
        host_memory: &["orig_input_shape"],
        ..KernelDef::enqueuing("AvgPool3DGrad", &[("T", FLOATS)], |init| {
            average_gradient(init, Pool::of_volumes(init.node)?)
        })
    },
];

/// Types of volumes whose maxima are taken.
const SMALL: &[DType] = &[Float, Half, BFloat16];

/// Volumes and what comes back to them are of one type.
const fn of_volumes_and_slopes(types: &'static [(&'static str, &'static [DType])]) -> KernelDef {
    KernelDef::enqueuing("MaxPool3DGrad", types, |init| max_gradient(init, Pool::of_volumes(init.node)?))
}

/// A pooling of one node.
struct Pooling {
    pool: Pool,
    function: Arc<Function>,
}

impl Pooling {
    fn new(init: &KernelInit<'_>, pool: Pool, named: &str) -> Result<Pooling> {
        let name = format!("{named}<{}, {}>", type_name(init.output_type(0))?, pool.rank() - 2);
        Ok(Pooling { pool, function: function(init, &SOURCE, name)? })
    }

    fn check(&self, ctx: &KernelContext<'_>) -> Result<()> {
        if self.pool.is_depthwise() {
            let op = ctx.node().op.name();
            return Err(Error::unimplemented(format!("{op} over channels has no GPU kernel")));
        }
        Ok(())
    }

    fn sizes(&self, ctx: &KernelContext<'_>, input: &[usize]) -> Result<PoolSizes> {
        self.check(ctx)?;
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
        let all = [&sizes.planes, &sizes.rows, &sizes.columns];
        let space = &all[5 - self.pool.rank()..];
        let shape = |of: fn(&Window) -> usize| -> Vec<usize> {
            [sizes.batch, sizes.channels].into_iter().chain(space.iter().map(|window| of(window))).collect()
        };
        // Elements from one index to the next, of axes in this order.
        let strides = |shape: &[usize]| -> Vec<usize> {
            let order: Vec<usize> = match self.pool.format {
                DataFormat::Nhwc => [0].into_iter().chain(2..shape.len()).chain([1]).collect(),
                DataFormat::Nchw => (0..shape.len()).collect(),
            };
            let (mut strides, mut step) = (vec![0; shape.len()], 1);
            for axis in order.into_iter().rev() {
                strides[axis] = step;
                step *= shape[axis];
            }
            strides
        };
        let (input, output) = (shape(|window| window.input), shape(|window| window.output));
        let steps = [strides(&input), strides(&output)].concat();
        let words = [input, output, steps].concat().into_iter().map(|word| word as i64).collect();
        let per_axis =
            |of: fn(&Window) -> i64| -> Vec<i64> { space.iter().map(|window| of(window)).collect() };
        let before = per_axis(|window| window.pad_before as i64 - window.skip_before as i64);
        [words, per_axis(|window| window.filter as i64), per_axis(|window| window.stride as i64), before]
            .concat()
    }
}

fn forward(init: &KernelInit<'_>, pool: Pool, named: &str) -> Result<Kernel> {
    let pooling = Pooling::new(init, pool, named)?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        pooling.check(ctx)?;
        let sizes = pooling.pool.forward_sizes(&x.shape)?;
        let out = allocate(ctx, x.dtype, pooling.pool.output_shape(&sizes)?)?;
        pooling.run(ctx, &[x], &out, &sizes)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn max_gradient(init: &KernelInit<'_>, pool: Pool) -> Result<Kernel> {
    let named = if pool.volumes { "near_max_pool_gradient" } else { "max_pool_gradient" };
    let pooling = Pooling::new(init, pool, named)?;
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
        match pool.volumes {
            true => pooling.run(ctx, &[x, pooled, dy], &out, &sizes)?,
            false => pooling.run(ctx, &[x, dy], &out, &sizes)?,
        }
        ctx.set_output(0, out);
        Ok(())
    })
}

fn average_gradient(init: &KernelInit<'_>, pool: Pool) -> Result<Kernel> {
    let pooling = Pooling::new(init, pool, "average_pool_gradient")?;
    Kernel::sync(move |ctx| {
        let (given, dy) = (ctx.input(0)?, ctx.device_input(1)?);
        let rank = pooling.pool.rank();
        if given.shape().dims() != [rank] {
            crate::invalid!(
                "out_backprop must be 1-dimensional and of {rank} elements, not {}",
                given.shape()
            );
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
