//! The wait of a replica until another replica has initialised the shared variables.

use crate::error::{Error, Result};
use client::Session;
use graph::{Bool8, Output};
use std::time::{Duration, Instant};

/// Waits until every probe of [`are_initialized`](crate::Variables::are_initialized) is true.
///
/// # Errors
/// `NotReady` with the names of the variables without a value, or the failure of a step.
pub fn wait_until_initialized(
    session: &Session,
    probes: &[(String, Output)],
    deadline: Duration,
) -> Result<()> {
    wait_until_none(deadline, || missing(session, probes))
}

/// Calls `missing` repeatedly, with growing pauses, until it returns no variable names or the deadline has passed.
pub(crate) fn wait_until_none(deadline: Duration, missing: impl Fn() -> Result<Vec<String>>) -> Result<()> {
    let started = Instant::now();
    let mut pause = Duration::from_millis(5);
    loop {
        let names = missing()?;
        if names.is_empty() {
            return Ok(());
        }
        if started.elapsed() + pause > deadline {
            return Err(Error::NotReady { waited: started.elapsed(), names });
        }
        std::thread::park_timeout(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// Returns the names of the variables without a value.
pub(crate) fn missing(session: &Session, probes: &[(String, Output)]) -> Result<Vec<String>> {
    let fetches: Vec<Output> = probes.iter().map(|probe| probe.1).collect();
    let values = session.run(&[], &fetches, &[])?;
    let mut names = Vec::new();
    for ((name, _), value) in probes.iter().zip(&values) {
        if !value.item::<Bool8>()?.get() {
            names.push(name.clone());
        }
    }
    Ok(names)
}
