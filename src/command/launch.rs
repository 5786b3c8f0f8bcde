//! The processes that a launcher such as `mpirun` or `torchrun` has started, as the tasks of one cluster.

use client::process_group::{Environment, LaunchedTask};
use std::error::Error;
use std::time::Duration;

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Debug, clap::Args)]
pub(super) struct LaunchFlags {
    /// Seconds that the processes which a launcher (torchrun, mpirun, srun) has started wait for each other
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    launch_deadline: f64,
}

/// Returns the rank and meeting address of this process, if a launcher has started it; else `None`.
///
/// # Errors
/// For a variable of a launcher that is missing or malformed, with its name.
pub(super) fn find() -> Fallible<Option<Environment>> {
    let found = Environment::find(|name| std::env::var(name).ok());
    found.map_err(|e| format!("the variables of a launcher: {e}").into())
}

impl LaunchFlags {
    /// Waits until all processes of the launcher have registered. Returns this process's task in the cluster that they
    /// form.
    ///
    /// # Errors
    /// Those of [`Environment::meet`]; after the deadline, with the ranks that have not registered.
    pub(super) fn meet(&self, environment: &Environment) -> Fallible<LaunchedTask> {
        let seconds = self.launch_deadline;
        let deadline = Duration::try_from_secs_f64(seconds)
            .map_err(|_| format!("--launch-deadline is {seconds}, no duration"))?;
        let Environment { rank, size, .. } = environment;
        let met = environment.meet(deadline);
        Ok(met.map_err(|e| format!("rank {rank} of the {size} processes of a launcher: {e}"))?)
    }
}
