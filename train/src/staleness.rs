//! Bounded staleness: workers update as they come, but none runs further ahead of the slowest than agreed (Ho and
//! others, 2013). Each counts its steps in a vector on a parameter server, and looks at it before a step.

use crate::error::{Error, Result};
use crate::initializer::Initializer;
use crate::variables::Variables;
use client::Session;
use graph::{DType, NodeId, Output, Scope};
use std::time::{Duration, Instant};

/// The clock of a worker that has finished: nobody is too far ahead of it.
const FINISHED: i64 = i64::MAX;

/// A replica that keeps within reach of the others.
#[derive(Clone, Debug)]
pub struct BoundedStaleness {
    pub worker: usize,
    /// How many steps ahead of the slowest worker a step may start.
    pub steps: i64,
    /// Steps of each worker; [`FINISHED`] for those that do no more.
    clocks: Output,
    is_open: Output,
    pub(crate) initialize: NodeId,
    finish: NodeId,
    /// Sets this worker's clock to a number that is fed.
    set: NodeId,
    number: Output,
}

impl BoundedStaleness {
    /// Adds the clocks, and their tick after a step's updates.
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
        let tick = at.control(&[updated]).resource_scatter_add(clocks.handle, me, one);
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
        (scope.group(&[updated, tick]), bounded)
    }

    /// Whether the clocks have been set.
    pub(crate) fn is_open(&self, session: &Session) -> Result<bool> {
        Ok(session.run(&[], &[self.is_open], &[])?[0].item::<graph::Bool8>()?.get())
    }

    /// Joins at the step of the slowest of the others.
    pub(crate) fn join(&self, session: &Session) -> Result<()> {
        let clocks = self.clocks(session)?;
        let others = clocks.iter().enumerate().filter(|(w, clock)| *w != self.worker && **clock != FINISHED);
        let own = clocks.get(self.worker).copied().filter(|clock| *clock != FINISHED).unwrap_or_default();
        let at = others.map(|(_, clock)| *clock).min().map_or(own, |slowest| slowest.max(own));
        session.run(&[(self.number, graph::Tensor::vector(&[at])?)], &[], &[self.set])?;
        Ok(())
    }

    /// Waits until the next step is within reach of the slowest worker's.
    ///
    /// # Errors
    /// `Ahead` by the slowest worker when the deadline has passed.
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
                return Err(Error::Ahead {
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

    /// Says that no more steps come.
    pub(crate) fn finish(&self, session: &Session) -> Result<()> {
        session.run(&[], &[], &[self.finish])?;
        Ok(())
    }

    fn clocks(&self, session: &Session) -> Result<Vec<i64>> {
        Ok(session.run(&[], &[self.clocks], &[])?[0].to_i64s()?)
    }
}
