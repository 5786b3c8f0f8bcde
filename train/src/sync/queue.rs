//! Queues of one component on the parameter servers, by name.

use graph::{DType, NodeId, Output, PartialShape, Scope};

/// A FIFO queue of scalars of one type.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    handle: Output,
    dtype: DType,
    /// How many elements there are, `int32`.
    pub(super) size: Output,
    /// How many [`Queue::taken`] takes, an `int32` scalar to be fed.
    pub(super) count: Output,
    /// Takes so many elements; waits until they are there.
    pub(super) taken: Output,
}

impl Queue {
    /// The queue of this name where the scope is, without a limit.
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
        let taken = scope.op("QueueDequeueManyV2").input(handle).input(count);
        let taken = taken.attr("component_types", vec![dtype]).output();
        let size = scope.op("QueueSizeV2").input(handle).output();
        Queue { handle, dtype, size, count, taken }
    }

    pub(super) fn enqueue(&self, scope: &Scope, value: Output) -> NodeId {
        scope.op("QueueEnqueueV2").input(self.handle).input(vec![value]).node()
    }

    /// Enqueues each element of a vector, which may be empty.
    pub(super) fn enqueue_many(&self, scope: &Scope, values: Output) -> NodeId {
        scope.op("QueueEnqueueManyV2").input(self.handle).input(vec![values]).node()
    }

    /// Takes one element; waits until it is there.
    pub(super) fn dequeue(&self, scope: &Scope) -> Output {
        scope.op("QueueDequeueV2").input(self.handle).attr("component_types", vec![self.dtype]).output()
    }
}
