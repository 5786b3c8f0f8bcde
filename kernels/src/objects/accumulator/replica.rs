//! Replication of accumulators: the state that a standby receives.

use super::sparse::SparseSum;
use super::{Accumulator, Reduction, Sum};
use device::Result;
use device::journal::{Extent, Record, ReplicaState, Replicated};
use device::resource::ResourceStore;
use graph::{DType, PartialShape, Tensor};

/// A copy of an accumulator, with the gradients applied since the last take.
#[derive(Clone, Debug)]
pub struct AccumulatorState {
    pub dtype: DType,
    pub shape: PartialShape,
    pub reduction: Reduction,
    pub is_sparse: bool,
    pub step: i64,
    pub count: usize,
    pub dropped: u64,
    pub sum: Option<GradientSum>,
}

/// The sum of the gradients applied to an accumulator.
#[derive(Clone, Debug)]
pub enum GradientSum {
    Dense(Tensor),
    Sparse {
        indices: Vec<i64>,
        values: Tensor,
        /// For each row of the sum, the number of applied gradients that contained the row.
        counts: Vec<usize>,
    },
}

impl Replicated for Accumulator {
    fn attach(&self, record: Record) {
        self.waiting.attach(record);
    }

    fn state(&self, _extent: &Extent) -> Box<dyn ReplicaState> {
        let Accumulator { dtype, reduction, is_sparse, .. } = *self;
        Box::new(self.waiting.look(|state| AccumulatorState {
            dtype,
            shape: self.shape.clone(),
            reduction,
            is_sparse,
            step: state.step,
            count: state.count,
            dropped: state.dropped,
            sum: state.sum.as_ref().map(|sum| match sum {
                Sum::Dense(sum) => GradientSum::Dense(sum.clone()),
                Sum::Sparse(SparseSum { indices, values, counts }) => GradientSum::Sparse {
                    indices: indices.clone(),
                    values: values.clone(),
                    counts: counts.clone(),
                },
            }),
        }))
    }
}

impl ReplicaState for AccumulatorState {
    fn apply(self: Box<Self>, store: &ResourceStore, container: &str, _: &str, name: &str) -> Result<()> {
        let AccumulatorState { dtype, shape, reduction, is_sparse, step, count, dropped, sum } = *self;
        let make = || Ok(Accumulator::new(name.into(), dtype, shape, reduction, is_sparse));
        let accumulator = store.lookup_or_create(container, name, make)?;
        accumulator.waiting.with(|state| {
            (state.step, state.count, state.dropped) = (step, count, dropped);
            state.sum = sum.map(|sum| match sum {
                GradientSum::Dense(sum) => Sum::Dense(sum),
                GradientSum::Sparse { indices, values, counts } => {
                    Sum::Sparse(SparseSum { indices, values, counts })
                }
            });
        });
        Ok(())
    }
}
