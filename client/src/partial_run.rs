//! Partial runs: steps that run in parts, each with some of the feeds and fetches declared at the start.

use crate::error::Result;
use crate::runtime;
use crate::session::Session;
use graph::{NodeId, Output, Tensor};
use proto::link::{PartialRunSetup, RunStep};
use std::sync::Arc;

/// A partial run. It ends when all declared tensors have been fed and fetched, with the first part that
/// fails, or with the session.
#[derive(Debug)]
pub struct PartialRun<'a> {
    session: &'a Session,
    handle: Arc<str>,
}

impl<'a> PartialRun<'a> {
    pub(crate) fn new(
        session: &'a Session,
        feeds: &[Output],
        fetches: &[Output],
        targets: &[NodeId],
    ) -> Result<PartialRun<'a>> {
        let setup = PartialRunSetup {
            session: session.handle().clone(),
            feeds: session.names_of(feeds)?,
            fetches: session.names_of(fetches)?,
            targets: session.targets_of(targets)?,
        };
        let master = session.master()?;
        let handle = runtime::wait(async move { master.partial_run_setup(setup).await })??;
        Ok(PartialRun { session, handle })
    }

    /// Feeds values, and returns the fetched values in the order of `fetches`.
    ///
    /// # Errors
    /// `InvalidArgument` for a tensor that was not declared or has been fed or fetched before, and for a
    /// fetch that depends on a missing feed; the partial run continues. Any other error ends the partial run.
    pub fn run(&self, feeds: &[(Output, Tensor)], fetches: &[Output]) -> Result<Vec<Tensor>> {
        let names = self.session.names_of(&feeds.iter().map(|f| f.0).collect::<Vec<_>>())?;
        let step = RunStep {
            session: self.session.handle().clone(),
            feeds: names.into_iter().zip(feeds.iter().map(|f| f.1.clone())).collect(),
            fetches: self.session.names_of(fetches)?,
            partial_run: Some(self.handle.clone()),
            ..RunStep::default()
        };
        let master = self.session.master()?;
        let outcome = runtime::wait(async move { master.run_step(step).await })??;
        Ok(outcome.fetches.into_iter().map(|(_, value)| value).collect())
    }
}
