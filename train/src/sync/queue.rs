//! FIFO queues on the parameter servers, each of scalars of one type; clients find a queue by its name.

use graph::{DType, NodeId, Output, PartialShape, Scope};

/// A FIFO queue of scalars of one type.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    handle: Output,
    dtype: DType,
    /// The number of elements in the queue, `int32`.
    pub(super) size: Output,
    /// The number of elements that [`Queue::dequeued`] takes, an `int32` scalar to be fed.
    pub(super) count: Output,
    /// A vector of `count` elements dequeued together, once the queue has that many.
    pub(super) dequeued: Output,
}

impl Queue {
    /// Returns the unbounded queue named `name`, on the device of the scope.
    pub(super) fn new(scope: &Scope, name: &str, dtype: DType) -> Queue {
        let handle = scope
            .op("FIFOQueueV2")
            .name(name)
            .attr("component_types", vec![dtype])
            .attr("shapes", vec![PartialShape::scalar()])
            .attr("capacity", -1i64)
            .attr("shared_name", name)
            .output();
        let count = scope.placeholder(&format!("{name}/count"), DType::Int32, PartialShape::scalar());
        let dequeued = scope.op("QueueDequeueManyV2").input(handle).input(count);
        let dequeued = dequeued.attr("component_types", vec![dtype]).output();
        let size = scope.op("QueueSizeV2").input(handle).output();
        Queue { handle, dtype, size, count, dequeued }
    }

    /// Adds a node that enqueues one element.
    pub(super) fn enqueue(&self, scope: &Scope, value: Output) -> NodeId {
        scope.op("QueueEnqueueV2").input(self.handle).input(vec![value]).node()
    }

    /// Adds a node that enqueues each element of the vector `values`, which may be empty.
    pub(super) fn enqueue_many(&self, scope: &Scope, values: Output) -> NodeId {
        scope.op("QueueEnqueueManyV2").input(self.handle).input(vec![values]).node()
    }

    /// Adds a node that dequeues one element, and waits until there is one.
    pub(super) fn dequeue(&self, scope: &Scope) -> Output {
        scope.op("QueueDequeueV2").input(self.handle).attr("component_types", vec![self.dtype]).output()
    }
}
