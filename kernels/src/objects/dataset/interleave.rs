//! Interleaving: takes blocks of elements in turn from a cycle of datasets. The parallel form prefetches each dataset
//! of the cycle and returns the elements in the order of the sequential form.

use super::ahead::{Ahead, Limit};
use super::function::{Captured, Instance};
use super::map::given;
use super::transform::dataset;
use super::{Dataset, DatasetIterator, Element, ElementSpec, MakeContext, Pull, UNKNOWN};
use device::Result;
use std::sync::Arc;

/// The parameters of an interleaving.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interleaving {
    /// Number of datasets in the cycle; -1 means the number of CPUs.
    pub(crate) cycle_length: i64,
    /// Number of consecutive elements taken from a dataset.
    pub(crate) block_length: i64,
    /// The prefetching of the datasets; `None` for the sequential form.
    pub(crate) ahead: Option<PulledAhead>,
}

/// The prefetching of a parallel interleaving.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PulledAhead {
    /// Number of datasets that are prefetched; -1 means the whole cycle.
    pub(crate) datasets: i64,
    /// Number of elements prefetched of each dataset.
    pub(crate) elements: i64,
}

impl Interleaving {
    fn check(&self) -> Result<()> {
        if self.cycle_length <= 0 && self.cycle_length != -1 {
            device::invalid!("cycle_length must be greater than zero.");
        }
        if self.block_length <= 0 {
            device::invalid!("block_length must be greater than zero.");
        }
        if let Some(ahead) = self.ahead {
            if ahead.datasets <= 0 && ahead.datasets != -1 {
                device::invalid!("num_parallel_calls must be greater than zero.");
            }
            if ahead.elements < -1 {
                device::invalid!("`buffer_output_elements` must be -1 (AUTOTUNE) or at least 0.");
            }
        }
        Ok(())
    }
}

/// Returns the dataset of the interleaved elements of the datasets that the function returns.
pub(crate) fn interleave(
    input: Arc<Dataset>,
    f: Captured,
    spec: ElementSpec,
    how: Interleaving,
) -> Result<Arc<Dataset>> {
    how.check()?;
    let inner = input.clone();
    let cardinality = if input.cardinality == 0 { 0 } else { UNKNOWN };
    let name = if how.ahead.is_some() { "ParallelInterleaveV4" } else { "Interleave" };
    dataset(name, spec, cardinality, &[&input], move |ctx| {
        let cycle_length = match how.cycle_length {
            -1 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n as usize,
        };
        Ok(Box::new(Interleaved {
            how,
            cycle_length,
            input: Some(inner.iterator(ctx)?),
            f: f.instance(ctx)?,
            ctx: ctx.clone(),
            current: Vec::new(),
            open: 0,
            ahead: 0,
            made: 0,
            at: 0,
            in_block: 0,
        }))
    })
}

struct Interleaved {
    how: Interleaving,
    cycle_length: usize,
    input: Option<Box<dyn DatasetIterator>>,
    f: Instance,
    ctx: MakeContext,
    /// Open datasets by position in the cycle; positions beyond its end have not been filled.
    current: Vec<Option<Open>>,
    /// Number of open datasets.
    open: usize,
    /// Number of open datasets that are prefetched.
    ahead: usize,
    /// Number of datasets opened so far.
    made: usize,
    /// Current position in the cycle.
    at: usize,
    /// Number of elements taken from the current dataset in this block.
    in_block: i64,
}

struct Open {
    iterator: Box<dyn DatasetIterator>,
    is_ahead: bool,
}

impl Interleaved {
    /// Moves to the next position in the cycle.
    fn advance(&mut self) {
        self.in_block = 0;
        self.at += 1;
        // Once the input has ended, positions that were never filled stay empty, so the cycle ends at the last filled
        // one.
        let end = if self.input.is_some() { self.cycle_length } else { self.current.len() };
        if self.at >= end {
            self.at = 0;
        }
    }

    /// Opens the next dataset at the current position.
    fn open_next(&mut self, pull: &Pull) -> Result<()> {
        let Some(input) = &mut self.input else { return Ok(()) };
        let Some(element) = input.next(pull)? else {
            self.input = None;
            return Ok(());
        };
        let iterator = given(&self.f.call(pull, element)?, &self.ctx, self.made)?;
        self.made += 1;
        let wants_ahead = self
            .how
            .ahead
            .filter(|ahead| usize::try_from(ahead.datasets).map_or(true, |most| self.ahead < most));
        let open = match wants_ahead {
            None => Open { iterator, is_ahead: false },
            Some(how) => {
                let elements = how.elements.max(self.how.block_length).max(1);
                let limit = Limit::Fixed(usize::try_from(elements).unwrap_or(usize::MAX));
                let mut ahead = Ahead::lazily(iterator, limit);
                // Prefetching starts now rather than at the first pull, so that it overlaps with the other datasets.
                ahead.start()?;
                self.ahead += 1;
                Open { iterator: Box::new(ahead), is_ahead: true }
            }
        };
        if self.at >= self.current.len() {
            self.current.resize_with(self.at + 1, || None);
        }
        self.current[self.at] = Some(open);
        self.open += 1;
        Ok(())
    /// Closes the dataset at the current position.
    }

    fn close(&mut self) {
        if let Some(closed) = self.current.get_mut(self.at).and_then(Option::take) {
            self.open -= 1;
            self.ahead -= usize::from(closed.is_ahead);
        }
    }
}

impl DatasetIterator for Interleaved {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        // The parallel form opens the whole cycle before it waits for the first element.
        if self.how.ahead.is_some() && self.made == 0 {
            while self.at < self.cycle_length && self.input.is_some() {
                pull.check()?;
                self.open_next(pull)?;
                self.at += 1;
            }
            self.at = 0;
        }
        while self.input.is_some() || self.open > 0 {
            pull.check()?;
            match self.current.get_mut(self.at) {
                Some(Some(open)) => {
                    if let Some(element) = open.iterator.next(pull)? {
                        self.in_block += 1;
                        if self.in_block == self.how.block_length {
                            self.advance();
                        }
                        return Ok(Some(element));
                    }
                    self.close();
                    self.advance();
                }
                _ if self.input.is_some() => self.open_next(pull)?,
                _ => self.advance(),
            }
        }
        Ok(None)
    }
}
