//! Sources of values.

use super::moved::{Filler, SOURCE, zeros};
use super::support::{MOVED, NUMBERS, allocate, function, launch, moved_type_name, read, type_name, write};
use crate::cuda::{Arguments, CudaDevice};
use crate::error::Result;
use crate::kernel::{Kernel, KernelDef, KernelInit};
use graph::DType::{self, Int32, Int64, UInt8};
use graph::{Shape, Tensor};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("Const", &[("dtype", MOVED)], constant),
    KernelDef { host_memory: &["dims"], ..KernelDef::enqueuing("Fill", &[("T", MOVED)], fill) },
    KernelDef::enqueuing("ZerosLike", &[("T", MOVED)], |_| {
        Kernel::sync(|ctx| {
            let x = ctx.device_input(0)?;
            let out = zeros(ctx, x.dtype, x.shape.clone())?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef::enqueuing("OnesLike", &[("T", NUMBERS)], ones_like),
    KernelDef {
        host_memory: &["depth"],
        ..KernelDef::enqueuing("OneHot", &[("T", MOVED), ("TI", &[UInt8, Int32, Int64])], one_hot)
    },
];

/// The value is brought over once; a step shares it.
fn constant(init: &KernelInit<'_>) -> Result<Kernel> {
    let (value, dtype) = (init.attr::<Tensor>("value")?, init.attr::<DType>("dtype")?);
    if value.dtype() != dtype {
        crate::invalid!("a Const of {dtype} has a value of {}", value.dtype());
    }
    let value = CudaDevice::engine_of(&**init.device)?.upload(&init.node.name, &value)?;
    Kernel::sync(move |ctx| {
        ctx.set_output(0, value.clone());
        Ok(())
    })
}

fn fill(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let filler = Filler::new(init, dtype)?;
    Kernel::sync(move |ctx| {
        let (dims, value) = (ctx.input(0)?, ctx.device_input(1)?);
        if dims.shape().rank() > 1 {
            crate::invalid!("dims must represent a vector, got shape {}", dims.shape());
        }
        if value.shape.num_elements() != 1 {
            crate::invalid!("value must represent a scalar, got shape {}", value.shape);
        }
        let out = allocate(ctx, dtype, Shape::from_i64(&dims.to_i64s()?)?)?;
        filler.fill(ctx, value, &out)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn ones_like(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let ones = function(init, &SOURCE, format!("ones<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let out = allocate(ctx, dtype, ctx.shape(0)?.clone())?;
        let n = out.shape.num_elements();
        launch(ctx, &ones, n, Arguments::new().address(write(&out)?).count(n))?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn one_hot(init: &KernelInit<'_>) -> Result<Kernel> {
    let axis: i64 = init.attr("axis")?;
    let (dtype, index) = (init.output_type(0), init.input_type(0));
    let name = format!("one_hot<{}, {}>", moved_type_name(dtype)?, type_name(index)?);
    let one_hot = function(init, &SOURCE, name)?;
    Kernel::sync(move |ctx| {
        let (indices, on, off) = (ctx.device_input(0)?, ctx.device_input(2)?, ctx.device_input(3)?);
        let rank = indices.shape.rank();
        let at = if axis == -1 { rank } else { usize::try_from(axis).unwrap_or(usize::MAX) };
        if at > rank {
            crate::invalid!("Expected axis to be -1 or between [0, {}).  But received: {axis}", rank + 1);
        }
        for (i, name) in [(1, "depth"), (2, "on_value"), (3, "off_value")] {
            if ctx.shape(i)?.rank() != 0 {
                crate::invalid!("{name} must be a scalar, but got: {}", ctx.shape(i)?);
            }
        }
        let depth = ctx.input(1)?.item::<i32>()?;
        let Ok(depth) = usize::try_from(depth) else {
            crate::invalid!("depth must be non-negative, got: {depth}");
        };
        let mut dims = indices.shape.dims().to_vec();
        let inner: usize = dims[at..].iter().product();
        dims.insert(at, depth);
        let out = allocate(ctx, dtype, Shape::new(&dims)?)?;
        let n = out.shape.num_elements();
        let arguments = Arguments::new()
            .address(read(indices)?)
            .address(read(on)?)
            .address(read(off)?)
            .address(write(&out)?)
            .count(n)
            .count(depth)
            .count(inner);
        launch(ctx, &one_hot, n, arguments)?;
        ctx.set_output(0, out);
        Ok(())
    })
}
