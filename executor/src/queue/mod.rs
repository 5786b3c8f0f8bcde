//! Queues of tuples of tensors: bounded, shared by name, with operations that wait their turn. One mechanism over
//! four orders.

mod order;
mod taking;

pub use order::Element;

use crate::cancel::Cancellation;
use crate::error::{Error, Result};
use crate::kernel::KernelInit;
use crate::resource::Resource;
use crate::rows;
use crate::waiting::{Finish, Tried, Waiting};
use graph::{Code, DType, PartialShape, PortType, Shape, Tensor};
use order::{Fifo, Order, Priority, Shuffle};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use taking::Taking;

/// The order of a queue's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Fifo,
    /// Components of a batch are filled up to one shape.
    Padding,
    Shuffle {
        min_after_dequeue: i64,
        seeds: (i64, i64),
    },
    /// The first component is the priority.
    Priority,
}

/// What makes two queues of one name the same.
#[derive(Clone, Debug)]
pub struct QueueSpec {
    pub kind: Kind,
    pub capacity: i64,
    pub types: Vec<DType>,
    /// One for each component, or none at all.
    pub shapes: Vec<PartialShape>,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Fifo => "FIFOQueue",
            Kind::Padding => "PaddingFIFOQueue",
            Kind::Shuffle { .. } => "RandomShuffleQueue",
            Kind::Priority => "PriorityQueue",
        }
    }

    /// The kind in messages about what happens to elements.
    fn name_of_base(self) -> &'static str {
        if self == Kind::Padding { "FIFOQueue" } else { self.name() }
    }
}

/// What a capacity without a bound is.
const UNBOUNDED: i64 = i32::MAX as i64;

impl QueueSpec {
    /// The spec that the attributes of a node that makes queues of this kind say.
    pub fn of(init: &KernelInit<'_>, kind: Kind) -> Result<QueueSpec> {
        let capacity = init.attr::<i64>("capacity")?;
        let mut spec = QueueSpec {
            kind,
            capacity: if capacity < 0 { UNBOUNDED } else { capacity },
            types: init.attr("component_types")?,
            shapes: init.attr("shapes")?,
        };
        let is_defined = PartialShape::is_fully_defined;
        match kind {
            Kind::Padding if spec.shapes.len() != spec.types.len() => crate::invalid!(
                "Shapes must be provided for all components, but received {} dtypes and {} shapes.",
                spec.types.len(),
                spec.shapes.len()
            ),
            Kind::Padding => {
                if let Some(shape) = spec.shapes.iter().find(|shape| shape.rank().is_none()) {
                    crate::invalid!("shape {shape} must have known rank.");
                }
            }
            _ => {
                if let Some(shape) = spec.shapes.iter().find(|shape| !is_defined(shape)) {
                    crate::invalid!("Shape {shape} is not fully defined");
                }
            }
        }
        if let Kind::Shuffle { min_after_dequeue, .. } = kind {
            if min_after_dequeue < 0 {
                crate::invalid!("min_after_dequeue {min_after_dequeue} must be >= 0");
            }
            if min_after_dequeue >= spec.capacity {
                crate::invalid!("min_after_dequeue {min_after_dequeue} must be < capacity {}", spec.capacity);
            }
        }
        if kind == Kind::Priority {
            if spec.shapes.is_empty() && !spec.types.is_empty() {
                crate::invalid!("a PriorityQueue needs the shapes of its components");
            }
            spec.types.insert(0, DType::Int64);
            spec.shapes.insert(0, PartialShape::scalar());
        }
        if !spec.shapes.is_empty() && spec.shapes.len() != spec.types.len() {
            crate::invalid!(
                "Different number of component types.  Types: {}, Shapes: {}",
                types_text(&spec.types),
                shapes_text(&spec.shapes)
            );
        }
        Ok(spec)
    }

    fn new_order(&self) -> Box<dyn Order> {
        match self.kind {
            Kind::Fifo | Kind::Padding => Box::<Fifo>::default(),
            Kind::Shuffle { min_after_dequeue, seeds } => {
                Box::new(Shuffle::new(usize::try_from(min_after_dequeue).unwrap_or(0), seeds))
            }
            Kind::Priority => Box::<Priority>::default(),
        }
    }
}

/// Types as messages list them.
pub(crate) fn types_text(types: &[DType]) -> String {
    types.iter().map(|t| t.name()).collect::<Vec<_>>().join(", ")
}

pub(crate) fn shapes_text(shapes: &[PartialShape]) -> String {
    format!("[{}]", shapes.iter().map(PartialShape::to_string).collect::<Vec<_>>().join(", "))
}

/// Who fills the queue, and who empties it.
const ENQUEUE: usize = 0;
const DEQUEUE: usize = 1;

/// A queue.
pub struct Queue {
    name: Arc<str>,
    spec: QueueSpec,
    waiting: Waiting<State, Vec<Element>>,
}

struct State {
    order: Box<dyn Order>,
    is_closed: bool,
}

impl Resource for Queue {
    const KIND: &'static str = "Queue";
}

impl Queue {
    pub fn new(name: Arc<str>, spec: QueueSpec) -> Queue {
        let state = State { order: spec.new_order(), is_closed: false };
        Queue { name, spec, waiting: Waiting::new(state, 2) }
    }

    pub fn spec(&self) -> &QueueSpec {
        &self.spec
    }

    /// Whether a node that asks for `wanted` may have this queue; `op` is the node's.
    pub fn check_same(&self, wanted: &QueueSpec, op: &str) -> Result<()> {
        let (name, mine) = (&self.name, &self.spec);
        let same_kind = std::mem::discriminant(&mine.kind) == std::mem::discriminant(&wanted.kind);
        if !same_kind {
            crate::invalid!("Expected {}, found {op}", mine.kind.name());
        }
        if mine.capacity != wanted.capacity {
            crate::invalid!(
                "Shared queue '{name}' has capacity {} but requested capacity was {}",
                mine.capacity,
                wanted.capacity
            );
        }
        if let (
            Kind::Shuffle { min_after_dequeue, seeds },
            Kind::Shuffle { min_after_dequeue: wanted_min, seeds: wanted_seeds },
        ) = (mine.kind, wanted.kind)
        {
            if min_after_dequeue != wanted_min {
                crate::invalid!(
                    "Shared queue '{name}' has min_after_dequeue {min_after_dequeue} but requested \
                     min_after_dequeue was {wanted_min}."
                );
            }
            if seeds != wanted_seeds && wanted_seeds != (0, 0) {
                crate::invalid!(
                    "Shared queue '{name}' has random seeds ({}, {}) but requested seeds are ({}, {}).",
                    seeds.0,
                    seeds.1,
                    wanted_seeds.0,
                    wanted_seeds.1
                );
            }
        }
        if mine.types != wanted.types {
            crate::invalid!(
                "Shared queue '{name}' has component types {} but requested component types were {}",
                types_text(&mine.types),
                types_text(&wanted.types)
            );
        }
        let fits = match mine.kind {
            Kind::Padding => {
                mine.shapes.len() == wanted.shapes.len()
                    && mine.shapes.iter().zip(&wanted.shapes).all(|(a, b)| a.is_compatible(b))
            }
            _ => mine.shapes == wanted.shapes,
        };
        if !fits {
            crate::invalid!(
                "Shared queue '{name}' has component shapes {} but requested component shapes were {}",
                shapes_text(&mine.shapes),
                shapes_text(&wanted.shapes)
            );
        }
        Ok(())
    }

    /// Whether a node with these ports moves this queue's elements: after the handle its inputs are components
    /// if it `enqueues`, else its outputs are.
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
        crate::invalid!("Signature mismatch, have: {have} expected: {expected}")
    }

    pub fn len(&self) -> usize {
        self.waiting.with(|state| state.order.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn is_closed(&self) -> bool {
        self.waiting.with(|state| state.is_closed)
    }

    /// Adds one element, as soon as there is room.
    pub fn enqueue(&self, step: &Arc<Cancellation>, element: Element, done: Finish<Vec<Element>>) {
        match self.check_element(&element) {
            Ok(()) => self.fill(step, VecDeque::from([element]), done),
            Err(error) => done(Err(error)),
        }
    }

    /// Adds the rows of a batch one by one, as there is room.
    pub fn enqueue_many(&self, step: &Arc<Cancellation>, batch: &[Tensor], done: Finish<Vec<Element>>) {
        match self.take_apart(batch) {
            Ok(elements) if elements.is_empty() => done(Ok(Vec::new())),
            Ok(elements) => self.fill(step, elements, done),
            Err(error) => done(Err(error)),
        }
    }

    /// Adds elements that are known to fit one by one, as there is room.
    pub(crate) fn enqueue_all(
        &self,
        step: &Arc<Cancellation>,
        elements: Vec<Element>,
        done: Finish<Vec<Element>>,
    ) {
        self.fill(step, elements.into(), done);
    }

    fn fill(&self, step: &Arc<Cancellation>, mut elements: VecDeque<Element>, done: Finish<Vec<Element>>) {
        let capacity = usize::try_from(self.spec.capacity).unwrap_or(0);
        let closed = self.closed();
        let attempt = move |state: &mut State| {
            if state.is_closed {
                return Tried::Over(Err(closed.clone()));
            }
            let mut tried = Tried::Waits;
            while state.order.len() < capacity {
                tried = Tried::Advanced;
                if let Some(element) = elements.pop_front() {
                    state.order.push(element);
                }
                if elements.is_empty() {
                    return Tried::Over(Ok(Vec::new()));
                }
            }
            tried
        };
        self.waiting.attempt(ENQUEUE, step, attempt, done);
    }

    fn closed(&self) -> Error {
        let message = format!("{} '{}' is closed.", self.spec.kind.name_of_base(), self.name);
        Error::new(Code::Cancelled, message)
    }

    /// Takes `count` elements, all or none, as soon as they are there; of a closed queue with `up_to`, what is
    /// left.
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
        self.take(step, self.spec.kind.name(), Taking::of(count, up_to), done);
    }

    /// Takes one element, as soon as it is there.
    pub fn dequeue(&self, step: &Arc<Cancellation>, done: Finish<Vec<Element>>) {
        self.take(step, self.spec.kind.name_of_base(), Taking::of(1, false), done);
    }

    fn take(&self, step: &Arc<Cancellation>, kind: &str, taking: Taking, done: Finish<Vec<Element>>) {
        self.waiting.attempt(DEQUEUE, step, taking.from(format!("{kind} '{}'", self.name)), done);
    }

    /// No element is added from now on. Enqueues that wait are let through first, or cancelled.
    pub fn close(&self, step: &Arc<Cancellation>, cancel_pending: bool, done: Finish<Vec<Element>>) {
        if cancel_pending {
            let cancelled = Error::new(Code::Cancelled, "Enqueue operation was cancelled");
            self.waiting.cancel_lane(ENQUEUE, |state| state.is_closed = true, &cancelled);
            return done(Ok(Vec::new()));
        }
        let name = self.name.clone();
        let attempt = move |state: &mut State| {
            if state.is_closed {
                let message = format!("Queue '{name}' is already closed.");
                return Tried::Over(Err(Error::new(Code::Cancelled, message)));
            }
            state.is_closed = true;
            Tried::Over(Ok(Vec::new()))
        };
        self.waiting.attempt(ENQUEUE, step, attempt, done);
    }

    /// The components of a batch of elements.
    ///
    /// # Errors
    /// `InvalidArgument` if the queue does not know its components' shapes.
    pub fn batch(&self, elements: &[Element]) -> Result<SmallVec<[Tensor; 4]>> {
        self.check_shapes_known()?;
        let components = self.spec.types.iter().zip(&self.spec.shapes).enumerate();
        components
            .map(|(i, (&dtype, declared))| {
                let rows: Vec<&Tensor> = elements.iter().filter_map(|element| element.get(i)).collect();
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

    /// # Errors
    /// `InvalidArgument` if the queue does not know its components' shapes.
    pub fn check_shapes_known(&self) -> Result<()> {
        if self.spec.shapes.is_empty() {
            crate::invalid!(
                "{}'s DequeueMany and DequeueUpTo require the components to have specified shapes.",
                self.spec.kind.name()
            );
        }
        Ok(())
    }

    fn check_element(&self, element: &[Tensor]) -> Result<()> {
        for (i, (tensor, declared)) in element.iter().zip(&self.spec.shapes).enumerate() {
            if !declared.accepts(tensor.shape()) {
                crate::invalid!(
                    "Shape mismatch in tuple component {i}. Expected {declared}, got {}",
                    tensor.shape()
                );
            }
        }
        Ok(())
    }

    fn take_apart(&self, batch: &[Tensor]) -> Result<VecDeque<Element>> {
        let Some(&count) = batch.first().and_then(|first| first.shape().first()) else {
            crate::invalid!("a batch needs a first axis, component 0 is a scalar");
        };
        for (i, tensor) in batch.iter().enumerate() {
            if let Some(declared) = self.spec.shapes.get(i) {
                let dims = declared.dims().unwrap_or_default().iter().copied();
                let expected = PartialShape::of_dims(std::iter::once(Some(count)).chain(dims));
                if !expected.accepts(tensor.shape()) {
                    crate::invalid!(
                        "Shape mismatch in tuple component {i}. Expected {expected}, got {}",
                        tensor.shape()
                    );
                }
            } else if tensor.shape().first() != Some(&count) {
                crate::invalid!(
                    "All input tensors must have the same size in the 0th dimension. Component {i} has {}, and \
                     should have {count}",
                    tensor.shape().first().map_or_else(|| "none".to_owned(), usize::to_string)
                );
            }
        }
        let mut elements: VecDeque<Element> = (0..count).map(|_| Element::new()).collect();
        for tensor in batch {
            for (element, row) in elements.iter_mut().zip(rows::split(tensor)?) {
                element.push(row);
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
