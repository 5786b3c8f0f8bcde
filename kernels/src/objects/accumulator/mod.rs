//! Accumulators of gradients: what several replicas push is taken as one, their mean or sum, once enough is
//! there. Gradients of an earlier step than the accumulator's are dropped, and counted.

mod replica;
mod sparse;

pub use replica::{AccumulatorState, GradientSum};
pub use sparse::SparseGradient;

use crate::numeric::dispatch::dispatch;
use crate::numeric::scalar::{Arithmetic as _, Stored};
use device::cancel::Cancellation;
use device::journal::Replica;
use device::resource::Resource;
use device::waiting::{Finish, Tried, Waiting};
use device::{Error, Result};
use graph::{DType, PartialShape, Tensor};
use sparse::SparseSum;
use std::fmt;
use std::sync::Arc;

/// How gradients are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    Mean,
    Sum,
}

impl Reduction {
    /// By the name that attributes give it.
    pub fn of(name: &str) -> Result<Reduction> {
        match name {
            "MEAN" => Ok(Reduction::Mean),
            "SUM" => Ok(Reduction::Sum),
            other => Err(Error::invalid(format!("reduction_type {other} is neither MEAN nor SUM"))),
        }
    }
}

/// A gradient on its way in or out.
#[derive(Clone, Debug)]
pub enum Gradient {
    Dense(Tensor),
    Sparse(SparseGradient),
}

/// An accumulator.
pub struct Accumulator {
    name: Arc<str>,
    dtype: DType,
    shape: PartialShape,
    reduction: Reduction,
    is_sparse: bool,
    waiting: Waiting<State, Gradient>,
}

#[derive(Default)]
struct State {
    /// Gradients of earlier steps are stale.
    step: i64,
    count: usize,
    sum: Option<Sum>,
    dropped: u64,
}

enum Sum {
    Dense(Tensor),
    Sparse(SparseSum),
}

impl Resource for Accumulator {
    const KIND: &'static str = "ConditionalAccumulator";

    fn replica(resource: &Arc<Accumulator>) -> Replica {
        Replica::Follows(resource.clone())
    }
}

impl Accumulator {
    pub fn new(
        name: Arc<str>,
        dtype: DType,
        shape: PartialShape,
        reduction: Reduction,
        is_sparse: bool,
    ) -> Accumulator {
        Accumulator { name, dtype, shape, reduction, is_sparse, waiting: Waiting::new(State::default(), 1) }
    }

    /// # Errors
    /// `InvalidArgument` if gradients of the accumulator are of another type or form.
    pub fn check(&self, dtype: DType, is_sparse: bool) -> Result<()> {
        if dtype != self.dtype {
            device::invalid!("Accumulator {} holds gradients of {}, not of {dtype}", self.name, self.dtype);
        }
        let form = |is_sparse| if is_sparse { "sparse" } else { "dense" };
        if is_sparse != self.is_sparse {
            let (mine, theirs) = (form(self.is_sparse), form(is_sparse));
            device::invalid!("Accumulator {} holds {mine} gradients, not {theirs} ones", self.name);
        }
        Ok(())
    }

    /// How many gradients there are.
    pub fn count(&self) -> usize {
        self.waiting.look(|state| state.count)
    }

    /// How many stale gradients have been dropped.
    pub fn dropped(&self) -> u64 {
        self.waiting.look(|state| state.dropped)
    }

    pub fn set_global_step(&self, step: i64) {
        self.waiting.with(|state| state.step = step);
    }

    /// Adds a gradient, in the order in which they come; one that was computed at an earlier step than the
    /// accumulator's is dropped.
    pub fn apply(&self, local_step: i64, gradient: Gradient) -> Result<()> {
        if matches!(gradient, Gradient::Sparse(_)) != self.is_sparse {
            device::invalid!("Accumulator {} takes no gradients of this form", self.name);
        }
        self.waiting.with(|state| {
            if local_step < state.step {
                state.dropped += 1;
                return Ok(());
            }
            let sum = state.sum.take();
            let (sum, added) = match (sum, gradient) {
                (Some(Sum::Dense(sum)), Gradient::Dense(gradient)) => add_dense(sum, &gradient),
                (None, Gradient::Dense(gradient)) => {
                    self.check_shape(&gradient)?;
                    state.sum = Some(Sum::Dense(gradient));
                    state.count += 1;
                    return Ok(());
                }
                (sum, Gradient::Sparse(gradient)) => {
                    let sum = match sum {
                        Some(Sum::Sparse(sum)) => Some(sum),
                        _ => None,
                    };
                    let (sum, added) = sparse::add(sum, gradient, &self.shape);
                    state.sum = sum.map(Sum::Sparse);
                    state.count += usize::from(added.is_ok());
                    return added;
                }
                (sum, Gradient::Dense(_)) => {
                    state.sum = sum;
                    return Err(Error::internal("a dense gradient for a sparse accumulator"));
                }
            };
            state.sum = Some(Sum::Dense(sum));
            state.count += usize::from(added.is_ok());
            added
        })
    }

    fn check_shape(&self, gradient: &Tensor) -> Result<()> {
        if !self.shape.accepts(gradient.shape()) {
            device::invalid!("Shape mismatch: expected {}, got {}", self.shape, gradient.shape());
        }
        Ok(())
    }

    /// Takes what has been added, as soon as it is `required` gradients or more; the accumulator's step is then
    /// the next.
    pub fn take(&self, step: &Arc<Cancellation>, required: i32, done: Finish<Gradient>) {
        let Some(required) = usize::try_from(required).ok().filter(|&n| n > 0) else {
            let message = format!("Argument num_required must be positive, but was {required}");
            return done(Err(Error::invalid(message)));
        };
        let (reduction, shape) = (self.reduction, self.shape.clone());
        let attempt = move |state: &mut State| {
            if state.count < required {
                return Tried::Waits;
            }
            let count = std::mem::take(&mut state.count);
            state.step += 1;
            Tried::Over(match state.sum.take() {
                Some(Sum::Dense(sum)) => match reduction {
                    Reduction::Mean => mean(sum, count).map(Gradient::Dense),
                    Reduction::Sum => Ok(Gradient::Dense(sum)),
                },
                Some(Sum::Sparse(sum)) => sum.finish(reduction, &shape).map(Gradient::Sparse),
                None => Err(Error::internal("gradients were counted that are not there")),
            })
        };
        self.waiting.attempt(0, step, attempt, done);
    }
}

/// The sum, and whether the gradient is in it.
fn add_dense(mut sum: Tensor, gradient: &Tensor) -> (Tensor, Result<()>) {
    if sum.shape() != gradient.shape() {
        let message = format!("Shape mismatch: expected {}, got {}", sum.shape(), gradient.shape());
        return (sum, Err(Error::invalid(message)));
    }
    let added = dispatch!(float, sum.dtype(), T => add::<T>(&mut sum, gradient));
    (sum, added)
}

fn add<T: Stored>(sum: &mut Tensor, gradient: &Tensor) -> Result<()> {
    let by = gradient.values::<T>()?;
    for (sum, &by) in sum.values_mut::<T>()?.iter_mut().zip(by) {
        *sum = sum.plus(by);
    }
    Ok(())
}

fn mean(mut sum: Tensor, count: usize) -> Result<Tensor> {
    dispatch!(float, sum.dtype(), T => {
        for sum in sum.values_mut::<T>()? {
            *sum = sum.over_count(count);
        }
        Ok(sum)
    })
}

impl fmt::Debug for Accumulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Accumulator '{}' of {} {} {:?}", self.name, self.dtype, self.shape, self.waiting)
    }
}

#[cfg(test)]
mod tests;
