//! Kernels of queues, for resource handles and for reference handles.

use crate::objects::queue::{Element, Queue, QueueKind, QueueSpec};
use device::attempt::Finish;
use device::handle;
use device::handle::{HandleInput, ObjectName, Owner};
use device::kernel::{AsyncContext, Done, Kernel, KernelDef, KernelInit};
use device::value::{AnyTensor, Value};
use device::{Error, Result};
use graph::{PortType, ResourceHandle, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("FIFOQueue", &[], |init| make(init, QueueKind::Fifo)),
    KernelDef::of("FIFOQueueV2", &[], |init| make(init, QueueKind::Fifo)),
    KernelDef::of("PaddingFIFOQueue", &[], |init| make(init, QueueKind::Padding)),
    KernelDef::of("PaddingFIFOQueueV2", &[], |init| make(init, QueueKind::Padding)),
    KernelDef::of("RandomShuffleQueue", &[], make_shuffle),
    KernelDef::of("RandomShuffleQueueV2", &[], make_shuffle),
    KernelDef::of("PriorityQueue", &[], |init| make(init, QueueKind::Priority)),
    KernelDef::of("PriorityQueueV2", &[], |init| make(init, QueueKind::Priority)),
    KernelDef::of("FakeQueue", &[], |_| Kernel::sync(by_reference)),
    KernelDef::of("QueueEnqueue", &[], enqueue),
    KernelDef::of("QueueEnqueueV2", &[], enqueue),
    KernelDef::of("QueueEnqueueMany", &[], enqueue_many),
    KernelDef::of("QueueEnqueueManyV2", &[], enqueue_many),
    KernelDef::of("QueueDequeue", &[], dequeue),
    KernelDef::of("QueueDequeueV2", &[], dequeue),
    KernelDef::of("QueueDequeueMany", &[], |init| dequeue_many(init, false)),
    KernelDef::of("QueueDequeueManyV2", &[], |init| dequeue_many(init, false)),
    KernelDef::of("QueueDequeueUpTo", &[], |init| dequeue_many(init, true)),
    KernelDef::of("QueueDequeueUpToV2", &[], |init| dequeue_many(init, true)),
    KernelDef::of("QueueClose", &[], close),
    KernelDef::of("QueueCloseV2", &[], close),
    KernelDef::of("QueueIsClosed", &[], |_| query(|queue| queue.is_closed().into())),
    KernelDef::of("QueueIsClosedV2", &[], |_| query(|queue| queue.is_closed().into())),
    KernelDef::of("QueueSize", &[], |_| query(size)),
    KernelDef::of("QueueSizeV2", &[], |_| query(size)),
];

fn make_shuffle(init: &KernelInit<'_>) -> Result<Kernel> {
    let min_after_dequeue = init.attr("min_after_dequeue")?;
    make(init, QueueKind::Shuffle { min_after_dequeue, seeds: (init.attr("seed")?, init.attr("seed2")?) })
}

fn make(init: &KernelInit<'_>, kind: QueueKind) -> Result<Kernel> {
    let spec = QueueSpec::of(init, kind)?;
    let (expected, op) = (spec.clone(), init.node.op.name());
    Owner::new(init, ObjectName::of(init, false)?).kernel(
        move |_, name| Ok(Queue::new(name.clone(), spec.clone())),
        move |_, queue: &Queue| queue.check_same(&expected, op),
    )
}

/// Converts a resource handle to a reference handle, a tensor of two strings that name the same object.
fn by_reference(ctx: &mut device::kernel::KernelContext<'_>) -> Result<()> {
    let ResourceHandle { container, name, .. } = handle::single_handle(ctx.input(0)?)?;
    let reference = handle::string_handle(container, name)?;
    ctx.set_output(0, reference);
    Ok(())
}

fn size(queue: &Queue) -> Tensor {
    Tensor::from(i32::try_from(queue.len()).unwrap_or(i32::MAX))
}

fn query(answer: fn(&Queue) -> Tensor) -> Result<Kernel> {
    let handle = HandleInput::<Queue>::default();
    Kernel::sync(move |ctx| {
        let value = ctx.take_value(0);
        let queue = handle.get(ctx.device(), &value)?;
        ctx.set_output(0, answer(&queue));
        Ok(())
    })
}

/// Makes the kernel of a queue operation that may wait; `start` gets the queue, and the context with the completion
/// callback.
fn operation(
    init: &KernelInit<'_>,
    start: impl Fn(&Arc<Queue>, AsyncContext) -> Result<(), (Done, Error)> + Send + Sync + 'static,
) -> Result<Kernel> {
    if let Ok(timeout) = init.attr::<i64>("timeout_ms")
        && timeout != -1
    {
        device::invalid!("Timeout not supported yet.");
    }
    handle::operation(start)
}

/// Makes the kernel of an enqueue or dequeue operation, whose inputs or outputs are the components of queue elements.
fn transfer(
    init: &KernelInit<'_>,
    enqueues: bool,
    start: impl Fn(&Arc<Queue>, &AsyncContext) -> Result<QueueTransfer> + Send + Sync + 'static,
) -> Result<Kernel> {
    let (inputs, outputs): (Vec<PortType>, Vec<PortType>) = (init.inputs.to_vec(), init.outputs.to_vec());
    operation(init, move |queue, ctx| {
        let begun = queue.check_ports(&inputs, &outputs, enqueues).and_then(|()| start(queue, &ctx));
        let AsyncContext { step, done, .. } = ctx;
        let (queue, step) = (queue.clone(), &step.cancellation);
        match begun {
            Err(error) => return Err((done, error)),
            Ok(QueueTransfer::Enqueue(element)) => queue.enqueue(step, element, finish_without_outputs(done)),
            Ok(QueueTransfer::EnqueueMany(batch)) => {
                queue.enqueue_many(step, &batch, finish_without_outputs(done))
            }
            Ok(QueueTransfer::Dequeue) => {
                let give = move |taken: Vec<Element>| {
                    Ok(taken.into_iter().next().unwrap_or_default().into_iter().map(Value::from).collect())
                };
                queue.dequeue(step, Box::new(move |taken| done(taken.and_then(give))));
            }
            Ok(QueueTransfer::DequeueMany { count, up_to }) => {
                let of = queue.clone();
                let give =
                    move |taken: Vec<Element>| Ok(of.batch(&taken)?.into_iter().map(Value::Host).collect());
                queue.dequeue_many(step, count, up_to, Box::new(move |taken| done(taken.and_then(give))));
            }
        }
        Ok(())
    })
}

/// An operation that moves tensors into or out of the queue.
enum QueueTransfer {
    Enqueue(Element),
    EnqueueMany(Vec<Tensor>),
    Dequeue,
    DequeueMany { count: usize, up_to: bool },
}

/// Returns the completion callback of a node without outputs.
fn finish_without_outputs(done: Done) -> Finish<Vec<Element>> {
    Box::new(move |result| done(result.map(|_| SmallVec::new())))
}

fn enqueue(init: &KernelInit<'_>) -> Result<Kernel> {
    transfer(init, true, |_, ctx| {
        let element = ctx.inputs[1..].iter().map(|input| AnyTensor::persisted(input.clone(), &ctx.device));
        let element = element.collect::<Result<_>>()?;
        Ok(QueueTransfer::Enqueue(element))
    })
}

fn enqueue_many(init: &KernelInit<'_>) -> Result<Kernel> {
    transfer(init, true, |_, ctx| {
        let batch = (1..ctx.inputs.len()).map(|i| ctx.input(i).cloned()).collect::<Result<_>>()?;
        Ok(QueueTransfer::EnqueueMany(batch))
    })
}

fn dequeue(init: &KernelInit<'_>) -> Result<Kernel> {
    transfer(init, false, |_, _| Ok(QueueTransfer::Dequeue))
}

fn dequeue_many(init: &KernelInit<'_>, up_to: bool) -> Result<Kernel> {
    transfer(init, false, move |queue, ctx| {
        let count = ctx.input(1)?;
        if count.shape().rank() != 0 {
            device::invalid!("n must be a scalar, got shape {}", count.shape());
        }
        let count = count.item::<i32>()?;
        let op = if up_to { "DequeueUpTo" } else { "DequeueMany" };
        let Ok(count) = usize::try_from(count) else {
            device::invalid!("{op}Op requested {count} < 0 elements");
        };
        queue.check_shapes_known()?;
        Ok(QueueTransfer::DequeueMany { count, up_to })
    })
}

fn close(init: &KernelInit<'_>) -> Result<Kernel> {
    let cancel_pending = init.attr::<bool>("cancel_pending_enqueues")?;
    operation(init, move |queue, ctx| {
        queue.close(&ctx.step.cancellation, cancel_pending, finish_without_outputs(ctx.done));
        Ok(())
    })
}
