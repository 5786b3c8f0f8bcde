//! Bounded staleness: workers update independently, but none runs further ahead of the slowest than a given
//! number of steps (Ho and others, 2013). Each worker counts its steps in a vector on a parameter server, and
//! reads this vector before a step.

use crate::error::{Error, Result};
use crate::initializer::Initializer;
use crate::variables::Variables;
use client::Session;
use graph::{DType, NodeId, Output, Scope};
use std::time::{Duration, Instant};

/// The clock (number of completed steps) of a finished worker: the largest number, so that no other worker waits for
/// it.
const FINISHED: i64 = i64::MAX;

/// The nodes of a replica under bounded staleness, with its worker index and the bound.
#[derive(Clone, Debug)]
pub struct BoundedStaleness {
    /// The index of this worker.
    pub worker: usize,
    /// The number of steps that a worker may be ahead of the slowest when it starts a step.
    pub steps: i64,
    /// The number of steps done by each worker; [`FINISHED`] for workers that have finished.
    clocks: Output,
    is_open: Output,
    pub(crate) initialize: NodeId,
    finish: NodeId,
    /// Sets this worker's clock to `number`, a vector of one `int64` to be fed.
    set: NodeId,
    number: Output,
}

impl BoundedStaleness {
    /// Adds the vector of clocks (the number of steps done by each worker), and a node that adds 1 to this worker's
    /// clock after the update `updated`. Returns a node that ends when the update and the addition are done.
    pub(crate) fn build(
        scope: &Scope,
        variables: &Variables,
        updated: NodeId,
        worker: usize,
        workers: usize,
        steps: i64,
    ) -> (NodeId, BoundedStaleness) {
        let at = scope.colocate_with(variables.global_step().handle.node);
        let clocks = Variables::new(&at).get_untrained(
            "bounded_staleness_clocks",
            DType::Int64,
            &[workers],
            &Initializer::Zeros,
        );
        let me = at.constant_vector(&[worker as i64]);
        let one = at.constant_vector(&[1i64]);
        let count_step = at.control(&[updated]).resource_scatter_add(clocks.handle, me, one);
        let number =
            scope.placeholder("bounded_staleness/clock", DType::Int64, graph::PartialShape::from([1usize]));
        let finished = at.constant_vector(&[FINISHED]);
        let bounded = BoundedStaleness {
            worker,
            steps,
            clocks: clocks.value,
            is_open: at.var_is_initialized(clocks.handle),
            initialize: clocks.initializer,
            finish: at.resource_scatter_update(clocks.handle, me, finished),
            set: at.resource_scatter_update(clocks.handle, me, number),
            number,
        };
        (scope.group(&[updated, count_step]), bounded)
    }

    /// Returns whether the clocks have been initialised.
    pub(crate) fn is_open(&self, session: &Session) -> Result<bool> {
        Ok(session.run(&[], &[self.is_open], &[])?[0].item::<graph::Bool8>()?.get())
    }

    /// Raises this worker's clock to the smallest clock of all other workers that have not finished.
    pub(crate) fn join(&self, session: &Session) -> Result<()> {
        let clocks = self.clocks(session)?;
        let others = clocks.iter().enumerate().filter(|(w, clock)| *w != self.worker && **clock != FINISHED);
        let own = clocks.get(self.worker).copied().filter(|clock| *clock != FINISHED).unwrap_or_default();
        let at = others.map(|(_, clock)| *clock).min().map_or(own, |slowest| slowest.max(own));
        session.run(&[(self.number, graph::Tensor::vector(&[at])?)], &[], &[self.set])?;
        Ok(())
    }

    /// Waits until this worker is few enough steps ahead of the slowest worker to start its next step.
    ///
    /// # Errors
    /// `TooFarAhead` with the slowest worker, if the deadline has passed.
    pub(crate) fn wait(
        &self,
        session: &Session,
        deadline: Duration,
        should_stop: impl Fn() -> bool,
    ) -> Result<()> {
        let started = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            let clocks = self.clocks(session)?;
            let own = clocks.get(self.worker).copied().unwrap_or_default();
            let slowest = clocks.iter().enumerate().min_by_key(|(_, clock)| **clock);
            let (slowest, ahead) =
                slowest.map_or((self.worker, 0), |(w, clock)| (w, own.saturating_sub(*clock)));
            if ahead <= self.steps || should_stop() {
                return Ok(());
            }
            let waited = started.elapsed();
            if waited > deadline {
                return Err(Error::TooFarAhead {
                    worker: self.worker,
                    ahead,
                    slowest,
                    allowed: self.steps,
                    waited,
                });
            }
            std::thread::park_timeout(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Records that this worker has finished.
    pub(crate) fn finish(&self, session: &Session) -> Result<()> {
        session.run(&[], &[], &[self.finish])?;
        Ok(())
    }

    /// Returns the clocks of all workers.
    fn clocks(&self, session: &Session) -> Result<Vec<i64>> {
        Ok(session.run(&[], &[self.clocks], &[])?[0].to_i64s()?)
    }
}
