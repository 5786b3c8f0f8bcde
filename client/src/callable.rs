//! Callables: steps whose feeds, fetches and targets are fixed, which the master plans once and runs many
//! times.

use crate::error::Result;
use crate::runtime;
use crate::session::Session;
use graph::{NodeId, Output, Tensor};
use proto::link::{MakeCallable, RunCallable};
use proto::pb;

/// A prepared step. Dropping it releases the master's plan.
#[derive(Debug)]
pub struct Callable<'a> {
    session: &'a Session,
    handle: i64,
}

impl<'a> Callable<'a> {
    pub(crate) fn new(
        session: &'a Session,
        feeds: &[Output],
        fetches: &[Output],
        targets: &[NodeId],
    ) -> Result<Callable<'a>> {
        let options = pb::CallableOptions {
            feed: session.names_of(feeds)?,
            fetch: session.names_of(fetches)?,
            target: session.targets_of(targets)?,
            ..Default::default()
        };
        let (master, session_handle) = (session.master()?, session.handle().clone());
        let make = MakeCallable { session: session_handle, options };
        let handle = runtime::wait(async move { master.make_callable(make).await })??;
        Ok(Callable { session, handle })
    }

    /// Runs the step with one value for each feed, in the order of the feeds.
    ///
    /// # Errors
    /// `InvalidArgument` if the number of values differs from the number of feeds.
    pub fn call(&self, values: &[Tensor]) -> Result<Vec<Tensor>> {
        let (session, feeds) = (self.session.handle().clone(), values.to_vec());
        let run = RunCallable { session, handle: self.handle, feeds, deadline: None };
        let master = self.session.master()?;
        Ok(runtime::wait(async move { master.run_callable(run).await })??.fetches)
    }
}

impl Drop for Callable<'_> {
    fn drop(&mut self) {
        let (master, runtime) = (self.session.master(), runtime::handle());
        let (session, handle) = (self.session.handle().clone(), self.handle);
        // A closed session has released its callables already.
        if let (Ok(master), Ok(runtime)) = (master, runtime) {
            runtime.spawn(async move { master.release_callable(&session, handle).await });
        }
    }
}
