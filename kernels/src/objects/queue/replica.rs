//! Replication of queues: the state that a standby receives. The standby's shuffling queue draws in a different
//! random order.

use super::{Element, Queue, QueueSpec};
use device::Result;
use device::journal::{Extent, Record, ReplicaState, Replicated};
use device::resource::ResourceStore;

/// A copy of a queue; the next element to dequeue is the first.
#[derive(Clone, Debug)]
pub struct QueueState {
    pub spec: QueueSpec,
    pub elements: Vec<Element>,
    pub is_closed: bool,
}

impl Replicated for Queue {
    fn attach(&self, record: Record) {
        self.waiting.attach(record);
    }

    fn state(&self, _extent: &Extent) -> Box<dyn ReplicaState> {
        // The copy includes the elements that a waiting dequeue has taken, because the dequeue fails if the process
        // ends.
        let (elements, is_closed) = self.waiting.look(|state| {
            let elements = state.taken_elements.iter().cloned().chain(state.order.elements()).collect();
            (elements, state.is_closed)
        });
        Box::new(QueueState { spec: self.spec.clone(), elements, is_closed })
    }
}

impl ReplicaState for QueueState {
    fn apply(self: Box<Self>, store: &ResourceStore, container: &str, _: &str, name: &str) -> Result<()> {
        let QueueState { spec, elements, is_closed } = *self;
        let queue = store.lookup_or_create(container, name, || Ok(Queue::new(name.into(), spec)))?;
        queue.waiting.with(|state| {
            state.order = queue.spec.new_order();
            state.taken_elements.clear();
            state.is_closed = is_closed;
            elements.into_iter().for_each(|element| state.order.push(element));
        });
        Ok(())
    }
}
