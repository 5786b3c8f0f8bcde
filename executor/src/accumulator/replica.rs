//! What a standby knows of an accumulator.

use super::sparse::SparseSum;
use super::{Accumulator, Sum};
use crate::journal::{self, AccumulatorState, Extent, Record, Replicated, State};

impl Replicated for Accumulator {
    fn attach(&self, record: Record) {
        self.waiting.attach(record);
    }

    fn state(&self, _extent: &Extent) -> State {
        let Accumulator { dtype, reduction, is_sparse, .. } = *self;
        State::Accumulator(self.waiting.look(|state| AccumulatorState {
            dtype,
            shape: self.shape.clone(),
            reduction,
            is_sparse,
            step: state.step,
            count: state.count,
            dropped: state.dropped,
            sum: state.sum.as_ref().map(|sum| match sum {
                Sum::Dense(sum) => journal::Sum::Dense(sum.clone()),
                Sum::Sparse(SparseSum { indices, values, counts }) => journal::Sum::Sparse {
                    indices: indices.clone(),
                    values: values.clone(),
                    counts: counts.clone(),
                },
            }),
        }))
    }
}

impl Accumulator {
    pub(crate) fn set_state(&self, new: AccumulatorState) {
        let AccumulatorState { step, count, dropped, sum, .. } = new;
        self.waiting.with(|state| {
            (state.step, state.count, state.dropped) = (step, count, dropped);
            state.sum = sum.map(|sum| match sum {
                journal::Sum::Dense(sum) => Sum::Dense(sum),
                journal::Sum::Sparse { indices, values, counts } => {
                    Sum::Sparse(SparseSum { indices, values, counts })
                }
            });
        });
    }
}
