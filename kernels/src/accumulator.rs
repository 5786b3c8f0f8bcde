//! Kernels of gradient accumulators: creation, adding gradients, and taking their mean or sum.

use crate::objects::accumulator::{Accumulator, Gradient, Reduction, SparseGradient};
use device::Result;
use device::handle::{HandleInput, ObjectName, Owner};
use device::kernel::{AsyncContext, Kernel, KernelContext, KernelDef, KernelInit};
use device::value::Value;
use graph::DType::{self, Double, Float, Half};
use graph::{PartialShape, Tensor};
use smallvec::smallvec;

const FLOATS: &[DType] = &[Half, Float, Double];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("ConditionalAccumulator", &[("dtype", FLOATS)], |init| make(init, false)),
    KernelDef::of("ResourceConditionalAccumulator", &[("dtype", FLOATS)], |init| make(init, false)),
    KernelDef::of("SparseConditionalAccumulator", &[("dtype", FLOATS)], |init| make(init, true)),
    KernelDef::of("AccumulatorApplyGradient", &[], apply),
    KernelDef::of("ResourceAccumulatorApplyGradient", &[], apply),
    KernelDef::of("SparseAccumulatorApplyGradient", &[], apply_sparse),
    KernelDef::of("AccumulatorTakeGradient", &[], |init| take(init, false)),
    KernelDef::of("ResourceAccumulatorTakeGradient", &[], |init| take(init, false)),
    KernelDef::of("SparseAccumulatorTakeGradient", &[], |init| take(init, true)),
    KernelDef::of("AccumulatorNumAccumulated", &[], |_| Kernel::sync(count())),
    KernelDef::of("ResourceAccumulatorNumAccumulated", &[], |_| Kernel::sync(count())),
    KernelDef::of("AccumulatorSetGlobalStep", &[], |_| Kernel::sync(set_global_step())),
    KernelDef::of("ResourceAccumulatorSetGlobalStep", &[], |_| Kernel::sync(set_global_step())),
];

fn make(init: &KernelInit<'_>, is_sparse: bool) -> Result<Kernel> {
    let (dtype, shape) = (init.attr::<DType>("dtype")?, init.attr::<PartialShape>("shape")?);
    let reduction = Reduction::of(&init.attr::<String>("reduction_type")?)?;
    Owner::new(init, ObjectName::of(init, false)?).kernel(
        move |_, name| Ok(Accumulator::new(name.clone(), dtype, shape.clone(), reduction, is_sparse)),
        |_, _| Ok(()),
    )
}

fn count() -> impl Fn(&mut KernelContext<'_>) -> Result<()> {
    let handle = HandleInput::<Accumulator>::default();
    move |ctx| {
        let value = ctx.take_value(0);
        let count = handle.get(ctx.device(), &value)?.count();
        ctx.set_output(0, Tensor::from(i32::try_from(count).unwrap_or(i32::MAX)));
        Ok(())
    }
}

/// Returns the global step, the scalar in input 1; `argument` is the name of that input in error messages.
fn step(ctx: &KernelContext<'_>, argument: &str) -> Result<i64> {
    let step = ctx.input(1)?;
    if step.num_elements() != 1 {
        device::invalid!("Argument {argument} must be scalar, but had bad shape {}", step.shape());
    }
    Ok(step.item::<i64>()?)
}

fn set_global_step() -> impl Fn(&mut KernelContext<'_>) -> Result<()> {
    let handle = HandleInput::<Accumulator>::default();
    move |ctx| {
        let value = ctx.take_value(0);
        handle.get(ctx.device(), &value)?.set_global_step(step(ctx, "new_global_step")?);
        Ok(())
    }
}

fn apply(_: &KernelInit<'_>) -> Result<Kernel> {
    let handle = HandleInput::<Accumulator>::default();
    Kernel::sync(move |ctx| {
        let value = ctx.take_value(0);
        let accumulator = handle.get(ctx.device(), &value)?;
        let step = step(ctx, "local_step")?;
        let gradient = ctx.take_input(2)?;
        accumulator.check(gradient.dtype(), false)?;
        accumulator.apply(step, Gradient::Dense(gradient))
    })
}

fn apply_sparse(init: &KernelInit<'_>) -> Result<Kernel> {
    let handle = HandleInput::<Accumulator>::default();
    let has_known_shape = init.attr::<bool>("has_known_shape")?;
    Kernel::sync(move |ctx| {
        let value = ctx.take_value(0);
        let accumulator = handle.get(ctx.device(), &value)?;
        let step = step(ctx, "local_step")?;
        let (indices, values, shape) = (ctx.take_input(2)?, ctx.take_input(3)?, ctx.take_input(4)?);
        accumulator.check(values.dtype(), true)?;
        let shape = has_known_shape.then_some(shape);
        accumulator.apply(step, Gradient::Sparse(SparseGradient { indices, values, shape }))
    })
}

fn take(init: &KernelInit<'_>, is_sparse: bool) -> Result<Kernel> {
    let handle = HandleInput::<Accumulator>::default();
    let dtype = init.attr::<DType>("dtype")?;
    Kernel::asynchronous(move |ctx| {
        let value = ctx.inputs.first().cloned().unwrap_or_default();
        let resolved = handle.get(&ctx.device, &value).and_then(|accumulator| {
            accumulator.check(dtype, is_sparse)?;
            let required = ctx.input(1)?;
            if required.num_elements() != 1 {
                device::invalid!(
                    "Argument num_required must be scalar, but had bad shape {}",
                    required.shape()
                );
            }
            Ok((accumulator, required.item::<i32>()?))
        });
        let AsyncContext { step, done, .. } = ctx;
        match resolved {
            Err(error) => done(Err(error)),
            Ok((accumulator, required)) => {
                let to_outputs = |gradient: Gradient| match gradient {
                    Gradient::Dense(tensor) => Ok(smallvec![Value::Host(tensor)]),
                    Gradient::Sparse(SparseGradient { indices, values, shape: Some(shape) }) => {
                        Ok(smallvec![Value::Host(indices), Value::Host(values), Value::Host(shape)])
                    }
                    Gradient::Sparse(_) => Err(device::Error::internal("a sparse gradient without a shape")),
                };
                let done = Box::new(move |taken: Result<Gradient>| done(taken.and_then(to_outputs)));
                accumulator.take(&step.cancellation, required, done);
            }
        }
    })
}
