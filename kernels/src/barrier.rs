//! Kernels of barriers, which collect the components of keyed elements and release complete elements.

use crate::objects::barrier::Barrier;
use crate::objects::queue::{Element, types_text};
use device::Result;
use device::handle::{HandleInput, ObjectName, Owner};
use device::kernel::{AsyncContext, Kernel, KernelDef, KernelInit};
use device::value::Value;
use graph::{DType, PartialShape, Tensor};
use smallvec::SmallVec;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Barrier", &[], make),
    KernelDef::of("BarrierInsertMany", &[], insert),
    KernelDef::of("BarrierTakeMany", &[], take),
    KernelDef::of("BarrierClose", &[], |init| {
        let handle = HandleInput::<Barrier>::default();
        let cancel_pending = init.attr::<bool>("cancel_pending_enqueues")?;
        Kernel::sync(move |ctx| {
            let value = ctx.take_value(0);
            handle.get(ctx.device(), &value)?.close(&ctx.step().cancellation, cancel_pending)
        })
    }),
    KernelDef::of("BarrierReadySize", &[], |_| size(Barrier::ready_size)),
    KernelDef::of("BarrierIncompleteSize", &[], |_| size(Barrier::incomplete_size)),
];

fn make(init: &KernelInit<'_>) -> Result<Kernel> {
    let types = init.attr::<Vec<DType>>("component_types")?;
    let shapes = init.attr::<Vec<PartialShape>>("shapes")?;
    if init.attr::<i64>("capacity")? != -1 {
        device::invalid!(
            "Barrier only accepts capacity=-1.  Feed the inputs to your Barrier through a queue to enforce a limited capacity."
        );
    }
    if shapes.len() != types.len() {
        device::invalid!("All of the component shapes must be specified");
    }
    let (expected_types, expected_shapes) = (types.clone(), shapes.clone());
    Owner::new(init, ObjectName::of(init, false)?).kernel(
        move |_, name| Ok(Barrier::new(name.clone(), types.clone(), shapes.clone())),
        move |_, barrier: &Barrier| barrier.check_same(&expected_types, &expected_shapes),
    )
}

fn size(size: fn(&Barrier) -> usize) -> Result<Kernel> {
    let handle = HandleInput::<Barrier>::default();
    Kernel::sync(move |ctx| {
        let value = ctx.take_value(0);
        let size = size(&*handle.get(ctx.device(), &value)?);
        ctx.set_output(0, Tensor::from(i32::try_from(size).unwrap_or(i32::MAX)));
        Ok(())
    })
}

fn insert(init: &KernelInit<'_>) -> Result<Kernel> {
    let handle = HandleInput::<Barrier>::default();
    let index = init.attr::<i64>("component_index")?;
    Kernel::asynchronous(move |ctx| {
        let value = ctx.inputs.first().cloned().unwrap_or_default();
        let resolved = handle.get(&ctx.device, &value).and_then(|barrier| {
            let (keys, values) = (ctx.input(1)?.clone(), ctx.input(2)?.clone());
            let component = usize::try_from(index).ok().filter(|&i| i < barrier.types().len());
            let Some(component) = component else {
                device::invalid!(
                    "The component ID is out of range {index} > num_components (= {})",
                    barrier.types().len()
                );
            };
            let expected = barrier.types()[component];
            if values.dtype() != expected {
                device::invalid!(
                    "Signature mismatch, have: string_ref, string, {}-> expected: string_ref, string, {expected}->",
                    values.dtype()
                );
            }
            Ok((barrier, keys, values, component))
        });
        let AsyncContext { step, done, .. } = ctx;
        match resolved {
            Err(error) => done(Err(error)),
            Ok((barrier, keys, values, component)) => {
                let done =
                    Box::new(move |result: Result<Vec<Element>>| done(result.map(|_| SmallVec::new())));
                barrier.insert(&step.cancellation, &keys, &values, component, done);
            }
        }
    })
}

fn take(init: &KernelInit<'_>) -> Result<Kernel> {
    let handle = HandleInput::<Barrier>::default();
    let allow_small = init.attr::<bool>("allow_small_batch")?;
    let types = init.attr::<Vec<DType>>("component_types")?;
    if init.attr::<i64>("timeout_ms")? != -1 {
        device::invalid!("Timeout not supported yet.");
    }
    Kernel::asynchronous(move |ctx| {
        let value = ctx.inputs.first().cloned().unwrap_or_default();
        let resolved = handle.get(&ctx.device, &value).and_then(|barrier| {
            if barrier.types() != types {
                device::invalid!(
                    "Signature mismatch, have: string_ref, int32->int64, string, {} expected: string_ref, \
                     int32->int64, string, {}",
                    types_text(&types),
                    types_text(barrier.types())
                );
            }
            let count = ctx.input(1)?.item::<i32>()?;
            let Ok(count) = usize::try_from(count) else {
                device::invalid!("num_elements must not be negative, got {count}");
            };
            Ok((barrier, count))
        });
        let AsyncContext { step, done, .. } = ctx;
        match resolved {
            Err(error) => done(Err(error)),
            Ok((barrier, count)) => {
                let source = barrier.clone();
                let to_outputs =
                    move |taken: Vec<Element>| Ok(source.batch(&taken)?.map(Value::Host).collect());
                let done = Box::new(move |taken: Result<Vec<Element>>| done(taken.and_then(to_outputs)));
                barrier.take(&step.cancellation, count, allow_small, done);
            }
        }
    })
}
