//! The parameters of a queue, and the check that two nodes may share a queue.

use super::order::{Fifo, Order, Priority, Shuffle};
use device::Result;
use device::kernel::KernelInit;
use graph::{DType, PartialShape};

/// The kind of a queue, which determines the order of its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// First in, first out.
    Fifo,
    /// First in, first out; a batch of dequeued elements is padded to one shape per component.
    Padding,
    /// Random order; `min_after_dequeue` elements remain until the queue is closed.
    Shuffle { min_after_dequeue: i64, seeds: (i64, i64) },
    /// Ascending priorities; the first component is the priority.
    Priority,
}

/// The parameters of a queue; nodes that share a queue must have equal parameters.
#[derive(Clone, Debug)]
pub struct QueueSpec {
    pub kind: QueueKind,
    pub capacity: i64,
    pub types: Vec<DType>,
    /// The shapes of the components; empty if the node does not declare shapes.
    pub shapes: Vec<PartialShape>,
}

impl QueueKind {
    /// Returns the name of TensorFlow's queue class.
    pub(super) fn name(self) -> &'static str {
        match self {
            QueueKind::Fifo => "FIFOQueue",
            QueueKind::Padding => "PaddingFIFOQueue",
            QueueKind::Shuffle { .. } => "RandomShuffleQueue",
            QueueKind::Priority => "PriorityQueue",
        }
    }

    /// Returns the class name in messages about elements, which is TensorFlow's base class for a padding queue.
    pub(super) fn name_of_base(self) -> &'static str {
        if self == QueueKind::Padding { "FIFOQueue" } else { self.name() }
    }
}

/// Capacity of a queue without a bound.
const UNBOUNDED: i64 = i32::MAX as i64;

impl QueueSpec {
    /// Returns the spec from the attributes of a node.
    ///
    /// # Errors
    /// `InvalidArgument` for attributes that contradict each other.
    pub fn of(init: &KernelInit<'_>, kind: QueueKind) -> Result<QueueSpec> {
        let capacity = init.attr::<i64>("capacity")?;
        let mut spec = QueueSpec {
            kind,
            capacity: if capacity < 0 { UNBOUNDED } else { capacity },
            types: init.attr("component_types")?,
            shapes: init.attr("shapes")?,
        };
        let is_defined = PartialShape::is_fully_defined;
        match kind {
            QueueKind::Padding if spec.shapes.len() != spec.types.len() => device::invalid!(
                "Shapes must be provided for all components, but received {} dtypes and {} shapes.",
                spec.types.len(),
                spec.shapes.len()
            ),
            QueueKind::Padding => {
                if let Some(shape) = spec.shapes.iter().find(|shape| shape.rank().is_none()) {
                    device::invalid!("shape {shape} must have known rank.");
                }
            }
            _ => {
                if let Some(shape) = spec.shapes.iter().find(|shape| !is_defined(shape)) {
                    device::invalid!("Shape {shape} is not fully defined");
                }
            }
        }
        if let QueueKind::Shuffle { min_after_dequeue, .. } = kind {
            if min_after_dequeue < 0 {
                device::invalid!("min_after_dequeue {min_after_dequeue} must be >= 0");
            }
            if min_after_dequeue >= spec.capacity {
                device::invalid!(
                    "min_after_dequeue {min_after_dequeue} must be < capacity {}",
                    spec.capacity
                );
            }
        }
        if kind == QueueKind::Priority {
            if spec.shapes.is_empty() && !spec.types.is_empty() {
                device::invalid!("a PriorityQueue needs the shapes of its components");
            }
            spec.types.insert(0, DType::Int64);
            spec.shapes.insert(0, PartialShape::scalar());
        }
        if !spec.shapes.is_empty() && spec.shapes.len() != spec.types.len() {
            device::invalid!(
                "Different number of component types.  Types: {}, Shapes: {}",
                types_text(&spec.types),
                shapes_text(&spec.shapes)
            );
        }
        Ok(spec)
    }

    /// Checks that a node of op `op` whose attributes give the spec `requested` may share the queue `name`, which has
    /// the spec `self`.
    pub(super) fn check_same(&self, requested: &QueueSpec, name: &str, op: &str) -> Result<()> {
        let mine = self;
        let same_kind = std::mem::discriminant(&mine.kind) == std::mem::discriminant(&requested.kind);
        if !same_kind {
            device::invalid!("Expected {}, found {op}", mine.kind.name());
        }
        if mine.capacity != requested.capacity {
            device::invalid!(
                "Shared queue '{name}' has capacity {} but requested capacity was {}",
                mine.capacity,
                requested.capacity
            );
        }
        if let (
            QueueKind::Shuffle { min_after_dequeue, seeds },
            QueueKind::Shuffle { min_after_dequeue: requested_min, seeds: requested_seeds },
        ) = (mine.kind, requested.kind)
        {
            if min_after_dequeue != requested_min {
                device::invalid!(
                    "Shared queue '{name}' has min_after_dequeue {min_after_dequeue} but requested \
                     min_after_dequeue was {requested_min}."
                );
            }
            if seeds != requested_seeds && requested_seeds != (0, 0) {
                device::invalid!(
                    "Shared queue '{name}' has random seeds ({}, {}) but requested seeds are ({}, {}).",
                    seeds.0,
                    seeds.1,
                    requested_seeds.0,
                    requested_seeds.1
                );
            }
        }
        if mine.types != requested.types {
            device::invalid!(
                "Shared queue '{name}' has component types {} but requested component types were {}",
                types_text(&mine.types),
                types_text(&requested.types)
            );
        }
        let fits = match mine.kind {
            QueueKind::Padding => {
                mine.shapes.len() == requested.shapes.len()
                    && mine.shapes.iter().zip(&requested.shapes).all(|(a, b)| a.is_compatible(b))
            }
            _ => mine.shapes == requested.shapes,
        };
        if !fits {
            device::invalid!(
                "Shared queue '{name}' has component shapes {} but requested component shapes were {}",
                shapes_text(&mine.shapes),
                shapes_text(&requested.shapes)
            );
        }
        Ok(())
    }

    /// Returns an order of this kind of queue, without elements.
    pub(super) fn new_order(&self) -> Box<dyn Order> {
        match self.kind {
            QueueKind::Fifo | QueueKind::Padding => Box::<Fifo>::default(),
            QueueKind::Shuffle { min_after_dequeue, seeds } => {
                Box::new(Shuffle::new(usize::try_from(min_after_dequeue).unwrap_or(0), seeds))
            }
            QueueKind::Priority => Box::<Priority>::default(),
        }
    }
}

/// Returns the dtypes as a text for error messages.
pub(crate) fn types_text(types: &[DType]) -> String {
    types.iter().map(|t| t.name()).collect::<Vec<_>>().join(", ")
}

/// Returns the shapes as a text for error messages.
pub(crate) fn shapes_text(shapes: &[PartialShape]) -> String {
    format!("[{}]", shapes.iter().map(PartialShape::to_string).collect::<Vec<_>>().join(", "))
}
