//! Collectives over several GPUs of one task. An all-reduce uses NCCL; the inputs of a reduction and the
//! outputs of a broadcast are copied from GPU to GPU by Send and Recv.

use super::binary;
use super::support::{allocate_or_reuse, function, launch, read, type_name, write};
use crate::engine::driver::Reduction;
use crate::engine::{Arguments, Collective, CollectiveInput, CollectiveSignature, Participant, engine_of};
use device::DeviceTensor;
use device::kernel::{AsyncContext, Kernel, KernelDef, KernelInit};
use device::value::Value;
use device::{Error, Result};
use graph::DType::{self, Double, Float, Half, Int64};
use smallvec::smallvec;

/// Dtypes of the collective ops, except `int32`, whose tensors stay in host memory.
const TYPES: &[DType] = &[Half, Float, Double, Int64];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("NcclAllReduce", &[("T", TYPES)], all_reduce),
    KernelDef::of("NcclReduce", &[("T", TYPES)], reduce),
    KernelDef::of("NcclBroadcast", &[("T", TYPES)], broadcast),
];

/// Returns the reduction that the node's attribute names.
fn reduction(init: &KernelInit<'_>) -> Result<Reduction> {
    Ok(match &*init.attr::<String>("reduction")? {
        "sum" => Reduction::Sum,
        "prod" => Reduction::Product,
        "min" => Reduction::Minimum,
        "max" => Reduction::Maximum,
        other => return Err(Error::invalid(format!("Unsupported reduction: {other}"))),
    })
}

/// Makes the kernel of `NcclAllReduce`. The nodes with one `shared_name` form a collective in their step; the
/// last to join enqueues the work for all.
fn all_reduce(init: &KernelInit<'_>) -> Result<Kernel> {
    let (reduction, dtype) = (reduction(init)?, init.attr::<DType>("T")?);
    let participants = init.attr::<i64>("num_devices")?;
    let participants = usize::try_from(participants).ok().filter(|&count| count > 0);
    let participants = participants.ok_or_else(|| Error::invalid("num_devices must be at least 1"))?;
    let shared_name: String = init.attr("shared_name")?;
    Kernel::asynchronous(move |ctx| {
        let AsyncContext { node, device, step, mut inputs, done, .. } = ctx;
        let joined = engine_of(&device).and_then(|engine| {
            let tensor = device_tensor(inputs.get_mut(0).map(std::mem::take))?;
            let make = || Ok(Collective::default());
            let collective = step.resources.lookup_or_create_private("", &shared_name, make)?;
            Ok((engine.clone(), tensor, collective))
        });
        match joined {
            Ok((engine, tensor, collective)) => {
                let signature =
                    CollectiveSignature { participants, reduction, dtype, shape: tensor.shape.clone() };
                let done = Box::new(move |result: Result<DeviceTensor>| {
                    done(result.map(|tensor| smallvec![tensor.into()]));
                });
                let (device, node) = (device.name().clone(), node.name.clone());
                let input = CollectiveInput { engine, tensor, done };
                collective.join(&step.cancellation, signature, Participant { device, node, input });
            }
            Err(error) => done(Err(error)),
        }
    })
}

/// Returns the device tensor of a value; fails if the value is not in a GPU's memory.
fn device_tensor(value: Option<Value>) -> Result<DeviceTensor> {
    match value {
        Some(Value::Device(tensor)) => Ok(tensor),
        other => Err(Error::internal(format!("{other:?} is not in a GPU's memory"))),
    }
}

/// Makes the kernel of `NcclReduce`, whose inputs have already been copied to this GPU.
fn reduce(init: &KernelInit<'_>) -> Result<Kernel> {
    let named = match reduction(init)? {
        Reduction::Sum => "AddV2",
        Reduction::Product => "Mul",
        Reduction::Minimum => "Minimum",
        Reduction::Maximum => "Maximum",
        // The function `reduction` never returns a mean.
        Reduction::Mean => return Err(Error::invalid("Unsupported reduction: mean")),
    };
    let dtype = init.output_type(0);
    let name = type_name(dtype)?;
    let zip = function(init, &binary::SOURCE, format!("zip<{named}, {name}, {name}>"))?;
    Kernel::sync(move |ctx| {
        let mut result = ctx.take_device_input(0)?;
        for i in 1..ctx.num_inputs() {
            let next = ctx.take_device_input(i)?;
            if next.shape != result.shape {
                device::invalid!(
                    "Inputs of {} must be of one shape: input {i} is {}, input 0 {}",
                    ctx.node().name,
                    next.shape,
                    result.shape
                );
            }
            let shape = result.shape.clone();
            let sum = allocate_or_reuse(ctx, &mut result, dtype, shape)?;
            let n = sum.shape.num_elements();
            let arguments = Arguments::new()
                .address(read(&result)?)
                .address(read(&next)?)
                .address(write(&sum)?)
                .count(n)
                .real(0.0);
            launch(ctx, &zip, n, arguments)?;
            result = sum;
        }
        ctx.set_output(0, result);
        Ok(())
    })
}

/// Makes the kernel of `NcclBroadcast`, whose output is copied to the GPUs of its consumers.
fn broadcast(init: &KernelInit<'_>) -> Result<Kernel> {
    let shape: graph::PartialShape = init.attr("shape")?;
    Kernel::sync(move |ctx| {
        let input = ctx.take_device_input(0)?;
        if !shape.accepts(&input.shape) {
            device::invalid!("{} has shape {}, its input {}", ctx.node().name, shape, input.shape);
        }
        ctx.set_output(0, input);
        Ok(())
    })
}
