//! Gradient accumulators, which collect the gradients of several replicas and return their mean or sum once enough
//! gradients have been applied. Gradients of a step before the accumulator's step are dropped and counted.

mod replica;
mod sparse;

pub use replica::{AccumulatorState, GradientSum};
pub use sparse::SparseGradient;

use crate::numeric::dispatch::dispatch;
use crate::numeric::scalar::{Arithmetic as _, Stored};
use device::attempt::{AttemptQueues, Finish, Progress};
use device::cancel::Cancellation;
use device::journal::Replica;
use device::resource::Resource;
use device::{Error, Result};
use graph::{DType, PartialShape, Tensor};
use sparse::SparseSum;
use std::fmt;
use std::sync::Arc;

/// The way in which an accumulator combines the applied gradients: their mean or their sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    Mean,
    Sum,
}

impl Reduction {
    /// Returns the reduction that an attribute names.
    pub fn of(name: &str) -> Result<Reduction> {
        match name {
            "MEAN" => Ok(Reduction::Mean),
            "SUM" => Ok(Reduction::Sum),
            other => Err(Error::invalid(format!("reduction_type {other} is neither MEAN nor SUM"))),
        }
    }
}

/// A gradient that is added to an accumulator or taken from it, dense or sparse.
#[derive(Clone, Debug)]
pub enum Gradient {
    Dense(Tensor),
    Sparse(SparseGradient),
}

/// A resource that accumulates the gradients of a variable from several replicas.
pub struct Accumulator {
    name: Arc<str>,
    dtype: DType,
    shape: PartialShape,
    reduction: Reduction,
    is_sparse: bool,
    waiting: AttemptQueues<AccumulatorContents, Gradient>,
}

/// The step of an accumulator, and the sum of the gradients applied since the last take.
#[derive(Default)]
struct AccumulatorContents {
    /// The accumulator's global step; gradients of earlier steps are stale.
    step: i64,
    /// Number of gradients in the sum, applied since the last take.
    count: usize,
    sum: Option<Sum>,
    /// Number of stale gradients dropped.
    dropped: u64,
}

/// The sum of the gradients applied since the last take.
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
    /// Returns an accumulator at step 0 to which no gradient has been applied.
    pub fn new(
        name: Arc<str>,
        dtype: DType,
        shape: PartialShape,
        reduction: Reduction,
        is_sparse: bool,
    ) -> Accumulator {
        Accumulator {
            name,
            dtype,
            shape,
            reduction,
            is_sparse,
            waiting: AttemptQueues::new(AccumulatorContents::default(), 1),
        }
    }

    /// Checks that the accumulator takes gradients of dtype `dtype`, sparse ones if `is_sparse` and dense ones
    /// otherwise.
    ///
    /// # Errors
    /// `InvalidArgument` if the accumulator takes gradients of another dtype, or dense instead of sparse ones or the
    /// reverse.
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

    /// Returns the number of gradients applied since the last take.
    pub fn count(&self) -> usize {
        self.waiting.look(|state| state.count)
    }

    /// Returns the number of stale gradients dropped.
    pub fn dropped(&self) -> u64 {
        self.waiting.look(|state| state.dropped)
    }

    /// Sets the accumulator's global step; gradients of earlier steps that are applied later are dropped.
    pub fn set_global_step(&self, step: i64) {
        self.waiting.with(|state| state.step = step);
    }

    /// Adds a gradient to the sum, in the order of the calls. The gradient is dropped if `local_step` is before the
    /// accumulator's step.
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

    /// Takes the mean or the sum of the gradients when at least `required` have been applied, and advances the
    /// accumulator's step.
    pub fn take(&self, step: &Arc<Cancellation>, required: i32, done: Finish<Gradient>) {
        let Some(required) = usize::try_from(required).ok().filter(|&n| n > 0) else {
            let message = format!("Argument num_required must be positive, but was {required}");
            return done(Err(Error::invalid(message)));
        };
        let (reduction, shape) = (self.reduction, self.shape.clone());
        let attempt = move |state: &mut AccumulatorContents| {
            if state.count < required {
                return Progress::Waits;
            }
            let count = std::mem::take(&mut state.count);
            state.step += 1;
            Progress::Done(match state.sum.take() {
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

/// Adds `gradient` to `sum`. Returns the sum and the result; if the result is an error, the sum is unchanged.
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
