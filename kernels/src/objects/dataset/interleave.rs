//! Interleaving: the elements of several datasets at a time, a block of each in turn. In parallel, each of the
//! datasets is pulled ahead; the order stays that of the sequential form.

use super::ahead::{Ahead, Limit};
use super::function::{Captured, Instance};
use super::map::given;
use super::transform::dataset;
use super::{Dataset, DatasetIterator, Element, ElementSpec, MakeContext, Pull, UNKNOWN};
use device::Result;
use std::sync::Arc;

/// How datasets are interleaved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interleaving {
    /// Datasets at a time; -1: as many as there are processors.
    pub(crate) cycle_length: i64,
    /// Elements of one before the next.
    pub(crate) block_length: i64,
    /// How the datasets are pulled ahead; `None` if they are not.
    pub(crate) ahead: Option<PulledAhead>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PulledAhead {
    /// Datasets that are pulled ahead; -1: all of the cycle.
    pub(crate) datasets: i64,
    /// Elements of each.
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

/// The elements of the datasets that the function gives, interleaved.
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
    /// The cycle, as far as it has been filled.
    current: Vec<Option<Open>>,
    open: usize,
    /// How many of the open ones are pulled ahead.
    ahead: usize,
    made: usize,
    at: usize,
    in_block: i64,
}

struct Open {
    iterator: Box<dyn DatasetIterator>,
    is_ahead: bool,
}

impl Interleaved {
    fn advance(&mut self) {
        self.in_block = 0;
        self.at += 1;
        // Without an input, places that were never filled stay empty.
        let end = if self.input.is_some() { self.cycle_length } else { self.current.len() };
        if self.at >= end {
            self.at = 0;
        }
    }

    /// Opens the next dataset in the current place.
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
                // Now and not when its turn comes: that is the point.
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
        // In parallel the whole cycle is opened before the first element is waited for.
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
