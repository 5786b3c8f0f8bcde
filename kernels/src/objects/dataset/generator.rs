//! The generator dataset, whose elements a function returns one by one until it reports the end.

use super::function::{CapturedFunction, FunctionInstance, end_or_error};
use super::on_device::spec_of;
use super::state::{ExchangedState, StateExchange};
use super::{Dataset, DatasetIterator, DatasetKind, Element, ElementSpec, IteratorContext, Pull, UNKNOWN};
use device::Result;
use device::cancel::Cancellation;
use std::sync::Arc;

/// A dataset of three functions: `init` returns a state, `next` returns the next element of the state, and `finalize`
/// releases the state.
#[derive(Debug)]
pub(crate) struct Generator {
    pub(crate) init: CapturedFunction,
    pub(crate) next: CapturedFunction,
    pub(crate) finalize: CapturedFunction,
    pub(crate) spec: ElementSpec,
}

impl Generator {
    /// Returns the dataset of the elements that `next` returns.
    pub(crate) fn dataset(self) -> Result<Arc<Dataset>> {
        Dataset::new(self.spec.clone(), UNKNOWN, &[], self)
    }
}

impl DatasetKind for Generator {
    fn name(&self) -> &'static str {
        "Generator"
    }

    fn iterate(&self, ctx: &IteratorContext) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(GeneratorIterator {
            init: self.init.instance(ctx)?,
            next: self.next.instance(ctx)?,
            finalize: self.finalize.instance(ctx)?,
            spec: self.spec.clone(),
            state: GeneratorState::Uninitialized,
        }))
    }
}

struct GeneratorIterator {
    init: FunctionInstance,
    next: FunctionInstance,
    finalize: FunctionInstance,
    spec: ElementSpec,
    state: GeneratorState,
}

/// The state of a generator iterator.
enum GeneratorState {
    /// `init` has not been called.
    Uninitialized,
    /// The state of the generator: the results of `init`.
    Initialized(Element),
    /// `finalize` has been started.
    Finalized,
}

impl ExchangedState for GeneratorIterator {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        Err(exchange.unsupported("Generator"))
    }
}

impl DatasetIterator for GeneratorIterator {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        let state = match &self.state {
            GeneratorState::Finalized => return Ok(None),
            GeneratorState::Initialized(state) => state.clone(),
            GeneratorState::Uninitialized => {
                let state = self.init.call(pull, Element::new())?;
                self.state = GeneratorState::Initialized(state.clone());
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
            self.finalize_once();
        }
        Ok(next)
    }
}

impl GeneratorIterator {
    /// Starts `finalize` once, without waiting; its error is logged, because no step depends on its result.
    fn finalize_once(&mut self) {
        if let GeneratorState::Initialized(state) =
            std::mem::replace(&mut self.state, GeneratorState::Finalized)
        {
            let log_error = |result: Result<Element>| {
                if let Err(error) = result {
                    tracing::warn!("a generator of elements was not finalized: {error}");
                }
            };
            self.finalize.start(&Arc::new(Cancellation::new()), state, Box::new(log_error));
        }
    }
}

impl Drop for GeneratorIterator {
    fn drop(&mut self) {
        self.finalize_once();
    }
}
