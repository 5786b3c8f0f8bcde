//! Queues of tuples of tensors, bounded and shared by name; waiting operations are served in the order of their
//! arrival. The four kinds of queues share this code and differ in the order of their elements.

mod dequeue;
mod order;
mod replica;
mod spec;

pub use order::Element;
pub use replica::QueueState;
pub use spec::{QueueKind, QueueSpec};
pub(crate) use spec::{shapes_text, types_text};

use crate::objects::rows;
use dequeue::DequeueAttempt;
use device::attempt::{AttemptQueues, Finish, Progress};
use device::cancel::Cancellation;
use device::journal::Replica;
use device::resource::Resource;
use device::value::{AnyTensor, ListElement};
use device::{Error, Result};
use graph::{Code, PartialShape, PortType, Shape, Tensor};
use order::Order;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// Indices of the lists of waiting operations: enqueues in the first list, dequeues in the second.
const ENQUEUE: usize = 0;
const DEQUEUE: usize = 1;

/// A resource that holds a queue of tuples and the enqueues and dequeues that wait.
pub struct Queue {
    name: Arc<str>,
    spec: QueueSpec,
    waiting: AttemptQueues<QueueContents, Vec<Element>>,
}

/// The elements of a queue in their order, and whether the queue is closed.
struct QueueContents {
    order: Box<dyn Order>,
    /// Elements that the first waiting dequeue has taken so far.
    taken_elements: Vec<Element>,
    is_closed: bool,
}

impl QueueContents {
    /// Puts the elements that an unfinished dequeue has taken back into `order`.
    fn put_back_taken(&mut self) {
        while let Some(element) = self.taken_elements.pop() {
            self.order.put_back(element);
        }
    }
}

impl Resource for Queue {
    const KIND: &'static str = "Queue";

    fn replica(resource: &Arc<Queue>) -> Replica {
        Replica::Follows(resource.clone())
    }
}

impl Queue {
    /// Returns an open, empty queue.
    pub fn new(name: Arc<str>, spec: QueueSpec) -> Queue {
        let state = QueueContents { order: spec.new_order(), taken_elements: Vec::new(), is_closed: false };
        Queue { name, spec, waiting: AttemptQueues::new(state, 2) }
    }

    /// Returns the parameters of the queue: kind, capacity, dtypes and shapes.
    pub fn spec(&self) -> &QueueSpec {
        &self.spec
    }

    /// Checks that a node of op `op` whose attributes give the spec `requested` may share the queue.
    pub fn check_same(&self, requested: &QueueSpec, op: &str) -> Result<()> {
        self.spec.check_same(requested, &self.name, op)
    }

    /// Checks that a node's dtypes match the queue's components: the dtypes of its inputs after the handle if the node
    /// `enqueues`, else of its outputs.
    pub fn check_ports(&self, inputs: &[PortType], outputs: &[PortType], enqueues: bool) -> Result<()> {
        let components = if enqueues { inputs.get(1..).unwrap_or_default() } else { outputs };
        if components.iter().map(|port| port.dtype).eq(self.spec.types.iter().copied()) {
            return Ok(());
        }
        let text = |port: &PortType| format!("{}{}", port.dtype, if port.is_ref { "_ref" } else { "" });
        let ports = |ports: &[PortType]| ports.iter().map(text).collect::<Vec<_>>().join(", ");
        let (have, expected) =
            (format!("{}->{}", ports(inputs), ports(outputs)), types_text(&self.spec.types));
        let expected = if enqueues {
            format!("{}, {expected}->", ports(&inputs[..1]))
        } else {
            format!("{}->{expected}", ports(inputs))
        };
        device::invalid!("Signature mismatch, have: {have} expected: {expected}")
    }

    /// Returns the number of elements that can be dequeued.
    pub fn len(&self) -> usize {
        self.waiting.look(|state| state.order.len())
    }

    /// Returns whether there is no element that can be dequeued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the queue has been closed to new elements.
    pub fn is_closed(&self) -> bool {
        self.waiting.look(|state| state.is_closed)
    }

    /// Adds one element as soon as there is room, and then calls `done`.
    pub fn enqueue(&self, step: &Arc<Cancellation>, element: Element, done: Finish<Vec<Element>>) {
        match self.check_element(&element) {
            Ok(()) => self.start_enqueue(step, VecDeque::from([element]), done),
            Err(error) => done(Err(error)),
        }
    }

    /// Adds the rows of a batch one by one as there is room, and then calls `done`.
    pub fn enqueue_many(&self, step: &Arc<Cancellation>, batch: &[Tensor], done: Finish<Vec<Element>>) {
        match self.split_batch(batch) {
            Ok(elements) if elements.is_empty() => done(Ok(Vec::new())),
            Ok(elements) => self.start_enqueue(step, elements, done),
            Err(error) => done(Err(error)),
        }
    }

    /// Adds elements, whose shapes the caller has checked, one by one as there is room, and then calls `done`.
    pub(crate) fn enqueue_all(
        &self,
        step: &Arc<Cancellation>,
        elements: Vec<Element>,
        done: Finish<Vec<Element>>,
    ) {
        self.start_enqueue(step, elements.into(), done);
    }

    fn start_enqueue(
        &self,
        step: &Arc<Cancellation>,
        mut elements: VecDeque<Element>,
        done: Finish<Vec<Element>>,
    ) {
        let capacity = usize::try_from(self.spec.capacity).unwrap_or(0);
        let closed = self.closed_error();
        let attempt = move |state: &mut QueueContents| {
            if state.is_closed {
                return Progress::Done(Err(closed.clone()));
            }
            let mut tried = Progress::Waits;
            while state.order.len() < capacity {
                tried = Progress::Advanced;
                if let Some(element) = elements.pop_front() {
                    state.order.push(element);
                }
                if elements.is_empty() {
                    return Progress::Done(Ok(Vec::new()));
                }
            }
            tried
        };
        self.waiting.attempt(ENQUEUE, step, attempt, done);
    }

    fn closed_error(&self) -> Error {
        let message = format!("{} '{}' is closed.", self.spec.kind.name_of_base(), self.name);
        Error::new(Code::Cancelled, message)
    }

    /// Takes `count` elements as soon as they arrive and passes them to `done`; with `up_to`, a closed queue returns
    /// its remaining elements.
    pub fn dequeue_many(
        &self,
        step: &Arc<Cancellation>,
        count: usize,
        up_to: bool,
        done: Finish<Vec<Element>>,
    ) {
        if count == 0 {
            return done(Ok(Vec::new()));
        }
        self.take(step, self.spec.kind.name(), DequeueAttempt::of(count, up_to), done);
    }

    /// Takes one element as soon as there is one, and passes it to `done`.
    pub fn dequeue(&self, step: &Arc<Cancellation>, done: Finish<Vec<Element>>) {
        self.take(step, self.spec.kind.name_of_base(), DequeueAttempt::of(1, false), done);
    }

    fn take(
        &self,
        step: &Arc<Cancellation>,
        kind: &str,
        attempt: DequeueAttempt,
        done: Finish<Vec<Element>>,
    ) {
        self.waiting.attempt(DEQUEUE, step, attempt.with_queue(format!("{kind} '{}'", self.name)), done);
    }

    /// Closes the queue to new elements. Waiting enqueues complete before; with `cancel_pending`, they are cancelled
    /// instead.
    pub fn close(&self, step: &Arc<Cancellation>, cancel_pending: bool, done: Finish<Vec<Element>>) {
        if cancel_pending {
            let cancelled = Error::new(Code::Cancelled, "Enqueue operation was cancelled");
            self.waiting.cancel_queue(ENQUEUE, |state| state.is_closed = true, &cancelled);
            return done(Ok(Vec::new()));
        }
        let name = self.name.clone();
        let attempt = move |state: &mut QueueContents| {
            if state.is_closed {
                let message = format!("Queue '{name}' is already closed.");
                return Progress::Done(Err(Error::new(Code::Cancelled, message)));
            }
            state.is_closed = true;
            Progress::Done(Ok(Vec::new()))
        };
        self.waiting.attempt(ENQUEUE, step, attempt, done);
    }

    /// Batches the elements: returns one tensor per component, with the elements along its first dimension.
    ///
    /// # Errors
    /// `InvalidArgument` if the queue has no component shapes.
    pub fn batch(&self, elements: &[Element]) -> Result<SmallVec<[Tensor; 4]>> {
        self.check_shapes_known()?;
        let components = self.spec.types.iter().zip(&self.spec.shapes).enumerate();
        components
            .map(|(i, (&dtype, declared))| {
                let rows = elements.iter().filter_map(|element| element.get(i));
                let rows: Vec<&Tensor> = rows.map(AnyTensor::tensor).collect::<Result<_>>()?;
                let shape = match declared.as_shape() {
                    Some(shape) => shape,
                    None if rows.is_empty() => {
                        let dims = declared.dims().unwrap_or_default().iter().map(|d| d.unwrap_or(0));
                        Shape::new(&dims.collect::<Vec<_>>())?
                    }
                    None => rows::bounds(&rows)?,
                };
                rows::stack(&rows, dtype, &shape)
            })
            .collect()
    }

    /// Checks that the shapes of the components are known, which is necessary for batches of elements.
    ///
    /// # Errors
    /// `InvalidArgument` if the node that made the queue declares no shapes.
    pub fn check_shapes_known(&self) -> Result<()> {
        if self.spec.shapes.is_empty() {
            device::invalid!(
                "{}'s DequeueMany and DequeueUpTo require the components to have specified shapes.",
                self.spec.kind.name()
            );
        }
        Ok(())
    }

    fn check_element(&self, element: &[AnyTensor]) -> Result<()> {
        for (i, (tensor, declared)) in element.iter().zip(&self.spec.shapes).enumerate() {
            if !declared.accepts(tensor.shape()) {
                device::invalid!(
                    "Shape mismatch in tuple component {i}. Expected {declared}, got {}",
                    tensor.shape()
                );
            }
        }
        Ok(())
    }

    /// Splits a batch into its rows.
    fn split_batch(&self, batch: &[Tensor]) -> Result<VecDeque<Element>> {
        let Some(&count) = batch.first().and_then(|first| first.shape().first()) else {
            device::invalid!("a batch needs a first axis, component 0 is a scalar");
        };
        for (i, tensor) in batch.iter().enumerate() {
            if let Some(declared) = self.spec.shapes.get(i) {
                let dims = declared.dims().unwrap_or_default().iter().copied();
                let expected = PartialShape::of_dims(std::iter::once(Some(count)).chain(dims));
                if !expected.accepts(tensor.shape()) {
                    device::invalid!(
                        "Shape mismatch in tuple component {i}. Expected {expected}, got {}",
                        tensor.shape()
                    );
                }
            } else if tensor.shape().first() != Some(&count) {
                device::invalid!(
                    "All input tensors must have the same size in the 0th dimension. Component {i} has {}, and \
                     should have {count}",
                    tensor.shape().first().map_or_else(|| "none".to_owned(), usize::to_string)
                );
            }
        }
        let mut elements: VecDeque<Element> = (0..count).map(|_| Element::new()).collect();
        for tensor in batch {
            for (element, row) in elements.iter_mut().zip(rows::split(tensor)?) {
                element.push(row.into());
            }
        }
        Ok(elements)
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} '{}' {:?}", self.spec.kind.name(), self.name, self.waiting)
    }
}

#[cfg(test)]
mod tests;
