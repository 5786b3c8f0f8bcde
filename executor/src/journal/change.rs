//! One change of a store, and how another store follows it.

use crate::accumulator::{Accumulator, Reduction};
use crate::error::{Error, Result};
use crate::queue::{Element, Queue, QueueSpec};
use crate::resource::{Resource, ResourceStore};
use crate::variable::{RefVariable, Variable};
use graph::{DType, PartialShape, Tensor};
use std::sync::Arc;

/// What has become of a resource, or of a container.
#[derive(Clone, Debug)]
pub struct Change {
    /// The number of the store's device.
    pub store: u32,
    pub container: Arc<str>,
    pub what: What,
}

#[derive(Clone, Debug)]
pub enum What {
    /// The resource has this state now.
    State {
        kind: Arc<str>,
        name: Arc<str>,
        state: Box<State>,
    },
    Removed {
        kind: Arc<str>,
        name: Arc<str>,
    },
    /// All resources of the container are gone.
    Cleared,
}

/// The state of a resource, with what it takes to make it.
#[derive(Clone, Debug)]
pub enum State {
    Variable(VariableState),
    /// Of a variable, the slices of these numbers: a matrix of them.
    Slices {
        numbers: Vec<usize>,
        values: Tensor,
    },
    Queue {
        spec: QueueSpec,
        elements: Vec<Element>,
        is_closed: bool,
    },
    Accumulator(AccumulatorState),
}

#[derive(Clone, Debug)]
pub struct VariableState {
    /// The node's that made it.
    pub name: Arc<str>,
    pub dtype: DType,
    pub shape: PartialShape,
    pub value: Option<Tensor>,
}

#[derive(Clone, Debug)]
pub struct AccumulatorState {
    pub dtype: DType,
    pub shape: PartialShape,
    pub reduction: Reduction,
    pub is_sparse: bool,
    pub step: i64,
    pub count: usize,
    pub dropped: u64,
    pub sum: Option<Sum>,
}

/// What an accumulator has been given.
#[derive(Clone, Debug)]
pub enum Sum {
    Dense(Tensor),
    Sparse {
        indices: Vec<i64>,
        values: Tensor,
        /// For each row, how many gradients had it.
        counts: Vec<usize>,
    },
}

impl Change {
    /// Makes the store what the change's own is.
    ///
    /// # Errors
    /// `Internal` if the store did not follow all changes before this one.
    pub fn apply(self, store: &ResourceStore) -> Result<()> {
        let container = &*self.container;
        match self.what {
            What::Cleared => store.clear(container),
            What::Removed { kind, name } => {
                // It may have been made and removed between two takes.
                let _was_there = store.remove_kind(container, &kind, &name);
            }
            What::State { kind, name, state } => follow(store, container, &kind, &name, *state)?,
        }
        Ok(())
    }
}

fn follow(store: &ResourceStore, container: &str, kind: &str, name: &str, state: State) -> Result<()> {
    store.is_used();
    match state {
        State::Variable(state) => {
            let make = || Variable::new(state.name.clone(), state.dtype, state.shape.clone());
            let variable = match kind {
                RefVariable::KIND => {
                    store.lookup_or_create(container, name, || Ok(RefVariable(Arc::new(make()))))?.0.clone()
                }
                _ => store.lookup_or_create(container, name, || Ok(make()))?,
            };
            *variable.lock() = state.value;
        }
        State::Slices { numbers, values } => {
            let variable = match kind {
                RefVariable::KIND => store.lookup::<RefVariable>(container, name)?.0.clone(),
                _ => store.lookup::<Variable>(container, name)?,
            };
            variable.set_slices(&numbers, &values)?;
        }
        State::Queue { spec, elements, is_closed } => {
            let queue = store.lookup_or_create(container, name, || Ok(Queue::new(name.into(), spec)))?;
            queue.set_state(elements, is_closed);
        }
        State::Accumulator(state) => {
            let AccumulatorState { dtype, reduction, is_sparse, .. } = state;
            let accumulator = store.lookup_or_create(container, name, || {
                Ok(Accumulator::new(name.into(), dtype, state.shape.clone(), reduction, is_sparse))
            })?;
            accumulator.set_state(state);
        }
    }
    Ok(())
}

impl Variable {
    fn set_slices(&self, numbers: &[usize], values: &Tensor) -> Result<()> {
        let length = values.num_elements().checked_div(numbers.len()).unwrap_or(0);
        let mut locked = self.lock();
        let slices = locked.slices_mut(numbers.iter().copied(), length)?;
        let value = slices.as_mut().ok_or_else(|| self.uninitialized())?;
        let size = length * value.dtype().size().unwrap_or(0);
        let from = values.bytes()?;
        let to = value.bytes_mut()?;
        for (place, number) in numbers.iter().enumerate() {
            let from = from.get(place * size..(place + 1) * size);
            let start = number.checked_mul(size);
            let to = start.and_then(|start| to.get_mut(start..)?.get_mut(..size));
            match (from, to) {
                (Some(from), Some(to)) => to.copy_from_slice(from),
                _ => return Err(Error::internal(format!("{} has no slice {number}", self.name()))),
            }
        }
        Ok(())
    }
}
