//! A step that runs in parts: each feeds and fetches some of what was announced.

use crate::error::Result;
use crate::runtime;
use crate::session::Session;
use graph::{NodeId, Output, Tensor};
use proto::link::{PartialRunSetup, RunStep};
use std::sync::Arc;

/// A step in parts. It ends when all that was announced has been fed and fetched, or with the first part that
/// fails; else with the session.
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

    /// Feeds more values, and gives the fetched ones in order.
    ///
    /// # Errors
    /// `InvalidArgument` for what was not announced, has been fed or fetched before, or needs what has not been
    /// fed; the step goes on. Any other failure ends it.
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
