//! The generator dataset: elements come from a function until it reports the end.

use super::function::{Captured, Instance, end_or_error};
use super::placed::spec_of;
use super::{Dataset, DatasetIterator, DatasetKind, Element, ElementSpec, MakeContext, Pull, UNKNOWN};
use device::Result;
use device::cancel::Cancellation;
use std::sync::Arc;

/// A dataset of three functions: `init` returns a state, `next` returns the next element of the state, and `finalize`
/// releases the state.
#[derive(Debug)]
pub(crate) struct Generator {
    pub(crate) init: Captured,
    pub(crate) next: Captured,
    pub(crate) finalize: Captured,
    pub(crate) spec: ElementSpec,
}

impl Generator {
    /// Returns the dataset of the generator.
    pub(crate) fn dataset(self) -> Result<Arc<Dataset>> {
        Dataset::new(self.spec.clone(), UNKNOWN, &[], self)
    }
}

impl DatasetKind for Generator {
    fn name(&self) -> &'static str {
        "Generator"
    }

    fn iterate(&self, ctx: &MakeContext) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(Generating {
            init: self.init.instance(ctx)?,
            next: self.next.instance(ctx)?,
            finalize: self.finalize.instance(ctx)?,
            spec: self.spec.clone(),
            state: State::Unmade,
        }))
    }
}

struct Generating {
    init: Instance,
    next: Instance,
    finalize: Instance,
    spec: ElementSpec,
    state: State,
}

/// The state of a generator iterator.
enum State {
    /// `init` has not been called.
    Unmade,
    /// The results of `init`.
    Made(Element),
    /// `finalize` has been started, or was not necessary.
    Over,
}

impl DatasetIterator for Generating {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        let state = match &self.state {
            State::Over => return Ok(None),
            State::Made(state) => state.clone(),
            State::Unmade => {
                let state = self.init.call(pull, Element::new())?;
                self.state = State::Made(state.clone());
                state
            }
        };
        let next = match self.next.call(pull, state) {
            Ok(element) => {
                self.spec.check(&spec_of(&element))?;
                Some(element)
            }
            Err(error) => end_or_error(error, false)?,
        };
        if next.is_none() {
            self.end();
        }
        Ok(next)
    }
}

impl Generating {
    /// Starts `finalize` once, without waiting; its error is logged, because no step depends on its result.
    fn end(&mut self) {
        if let State::Made(state) = std::mem::replace(&mut self.state, State::Over) {
            let told = |result: Result<Element>| {
                if let Err(error) = result {
                    tracing::warn!("a generator of elements was not finalized: {error}");
                }
            };
            self.finalize.start(&Arc::new(Cancellation::new()), state, Box::new(told));
        }
    }
}

impl Drop for Generating {
    fn drop(&mut self) {
        self.end();
    }
}
