//! Queues of tuples of tensors, behind a handle that is a reference (`FIFOQueue`) or a resource (`FIFOQueueV2`).

use super::check::scalar;
use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

/// The op table row of an op that returns a handle.
pub(super) const HANDLE: OpDef =
    OpDef { infer: handle, gradient: Gradient::Leaf, traits: Traits::STATEFUL, ..OpDef::NEW };

/// The op table row of an op that takes a resource handle. Like in TensorFlow, such ops are stateful, and ops on
/// reference handles are not.
pub(super) const BY_RESOURCE: OpDef =
    OpDef { gradient: Gradient::Leaf, traits: Traits::STATEFUL, ..OpDef::NEW };
pub(super) const BY_REFERENCE: OpDef = OpDef { gradient: Gradient::Leaf, ..OpDef::NEW };

const QUEUE: &[&str] = &[
    "component_types: list(type) >= 1",
    "shapes: list(shape) >= 0 = []",
    "capacity: int = -1",
    "container: string = ''",
    "shared_name: string = ''",
];

const SHUFFLED: &[&str] = &[
    "component_types: list(type) >= 1",
    "shapes: list(shape) >= 0 = []",
    "capacity: int = -1",
    "min_after_dequeue: int = 0",
    "seed: int = 0",
    "seed2: int = 0",
    "container: string = ''",
    "shared_name: string = ''",
];

const PRIORITY: &[&str] = &[
    "component_types: list(type) >= 0 = []",
    "shapes: list(shape) >= 0",
    "capacity: int = -1",
    "container: string = ''",
    "shared_name: string = ''",
];

const ENQUEUE_ATTRS: &[&str] = &["Tcomponents: list(type) >= 1", "timeout_ms: int = -1"];
const DEQUEUE_ATTRS: &[&str] = &["component_types: list(type) >= 1", "timeout_ms: int = -1"];

pub(super) const OPS: &[OpDef] = &[
    OpDef { name: "FIFOQueue", outputs: &["handle: Ref(string)"], attrs: QUEUE, ..HANDLE },
    OpDef { name: "FIFOQueueV2", outputs: &["handle: resource"], attrs: QUEUE, ..HANDLE },
    OpDef { name: "PaddingFIFOQueue", outputs: &["handle: Ref(string)"], attrs: QUEUE, ..HANDLE },
    OpDef { name: "PaddingFIFOQueueV2", outputs: &["handle: resource"], attrs: QUEUE, ..HANDLE },
    OpDef { name: "RandomShuffleQueue", outputs: &["handle: Ref(string)"], attrs: SHUFFLED, ..HANDLE },
    OpDef { name: "RandomShuffleQueueV2", outputs: &["handle: resource"], attrs: SHUFFLED, ..HANDLE },
    OpDef { name: "PriorityQueue", outputs: &["handle: Ref(string)"], attrs: PRIORITY, ..HANDLE },
    OpDef { name: "PriorityQueueV2", outputs: &["handle: resource"], attrs: PRIORITY, ..HANDLE },
    OpDef { name: "FakeQueue", inputs: &["resource: resource"], outputs: &["handle: Ref(string)"], ..HANDLE },
    OpDef {
        name: "QueueEnqueue",
        inputs: &["handle: Ref(string)", "components: Tcomponents"],
        attrs: ENQUEUE_ATTRS,
        ..BY_REFERENCE
    },
    OpDef {
        name: "QueueEnqueueV2",
        inputs: &["handle: resource", "components: Tcomponents"],
        attrs: ENQUEUE_ATTRS,
        ..BY_RESOURCE
    },
    OpDef {
        name: "QueueEnqueueMany",
        inputs: &["handle: Ref(string)", "components: Tcomponents"],
        attrs: ENQUEUE_ATTRS,
        ..BY_REFERENCE
    },
    OpDef {
        name: "QueueEnqueueManyV2",
        inputs: &["handle: resource", "components: Tcomponents"],
        attrs: ENQUEUE_ATTRS,
        ..BY_RESOURCE
    },
    OpDef {
        name: "QueueDequeue",
        inputs: &["handle: Ref(string)"],
        outputs: &["components: component_types"],
        attrs: DEQUEUE_ATTRS,
        ..BY_REFERENCE
    },
    OpDef {
        name: "QueueDequeueV2",
        inputs: &["handle: resource"],
        outputs: &["components: component_types"],
        attrs: DEQUEUE_ATTRS,
        ..BY_RESOURCE
    },
    OpDef {
        name: "QueueDequeueMany",
        inputs: &["handle: Ref(string)", "n: int32"],
        outputs: &["components: component_types"],
        attrs: DEQUEUE_ATTRS,
        infer: batch,
        ..BY_REFERENCE
    },
    OpDef {
        name: "QueueDequeueManyV2",
        inputs: &["handle: resource", "n: int32"],
        outputs: &["components: component_types"],
        attrs: DEQUEUE_ATTRS,
        infer: batch,
        ..BY_RESOURCE
    },
    OpDef {
        name: "QueueDequeueUpTo",
        inputs: &["handle: Ref(string)", "n: int32"],
        outputs: &["components: component_types"],
        attrs: DEQUEUE_ATTRS,
        infer: batch,
        ..BY_REFERENCE
    },
    OpDef {
        name: "QueueDequeueUpToV2",
        inputs: &["handle: resource", "n: int32"],
        outputs: &["components: component_types"],
        attrs: DEQUEUE_ATTRS,
        infer: batch,
        ..BY_RESOURCE
    },
    OpDef {
        name: "QueueClose",
        inputs: &["handle: Ref(string)"],
        attrs: &["cancel_pending_enqueues: bool = false"],
        ..BY_REFERENCE
    },
    OpDef {
        name: "QueueCloseV2",
        inputs: &["handle: resource"],
        attrs: &["cancel_pending_enqueues: bool = false"],
        ..BY_RESOURCE
    },
    OpDef {
        name: "QueueIsClosed",
        inputs: &["handle: Ref(string)"],
        outputs: &["is_closed: bool"],
        infer: scalar,
        ..BY_REFERENCE
    },
    OpDef {
        name: "QueueIsClosedV2",
        inputs: &["handle: resource"],
        outputs: &["is_closed: bool"],
        infer: scalar,
        ..BY_RESOURCE
    },
    OpDef {
        name: "QueueSize",
        inputs: &["handle: Ref(string)"],
        outputs: &["size: int32"],
        infer: scalar,
        ..BY_REFERENCE
    },
    OpDef {
        name: "QueueSizeV2",
        inputs: &["handle: resource"],
        outputs: &["size: int32"],
        infer: scalar,
        ..BY_RESOURCE
    },
];

/// Sets the shape of a handle: a scalar resource, or a reference to two strings.
pub(super) fn handle(infer: &mut Infer<'_>) -> Result<()> {
    let is_ref = infer.op().outputs.first().is_some_and(|output| output.is_ref);
    infer.set(0, if is_ref { PartialShape::vector(Some(2)) } else { PartialShape::scalar() });
    Ok(())
}

/// Checks that the number of requested elements is not negative. The shapes of the outputs depend on the queue.
fn batch(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(1, 0)?;
    if let Some(count) = infer.value(1).and_then(|count| count.to_i64s().ok())
        && count.iter().any(|&n| n < 0)
    {
        crate::invalid!("Input 'n' must be >= 0, but is {}", count[0]);
    }
    Ok(())
}
