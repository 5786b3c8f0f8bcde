//! Waiting for another replica to initialise the variables that all share.

use client::Session;
use graph::Output;
use std::time::{Duration, Instant};

/// Why variables are not ready.
#[derive(Debug, thiserror::Error)]
pub enum ReadinessError {
    #[error("after {waited:?} these variables have no value: {missing}; is the chief running?", missing = names.join(", "))]
    TimedOut { waited: Duration, names: Vec<String> },
    #[error(transparent)]
    Client(#[from] client::Error),
}

/// Waits until every probe of [`are_initialized`](crate::Variables::are_initialized) is true.
///
/// # Errors
/// `TimedOut` naming the variables that are missing, or the failure of a step.
pub fn wait_until_initialized(
    session: &Session,
    probes: &[(String, Output)],
    deadline: Duration,
) -> Result<(), ReadinessError> {
    let started = Instant::now();
    let fetches: Vec<Output> = probes.iter().map(|p| p.1).collect();
    let mut pause = Duration::from_millis(5);
    loop {
        let values = session.run(&[], &fetches, &[])?;
        let ready = |value: &graph::Tensor| value.item::<graph::Bool8>().is_ok_and(|b| b.get());
        let missing = probes.iter().zip(&values).filter(|(_, v)| !ready(v));
        let names: Vec<String> = missing.map(|(p, _)| p.0.clone()).collect();
        if names.is_empty() {
            return Ok(());
        }
        if started.elapsed() + pause > deadline {
            return Err(ReadinessError::TimedOut { waited: started.elapsed(), names });
        }
        std::thread::park_timeout(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}
