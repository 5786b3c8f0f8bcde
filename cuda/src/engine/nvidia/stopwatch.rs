//! How long a GPU takes for work, by the host's clock.

use crate::engine::driver::StreamId;
use cudarc::driver::result::stream;
use cudarc::driver::sys;
use device::{Error, Result};
use std::time::{Duration, Instant};

/// Work is enqueued as often, one after the other, as takes about as long, but not more often than [`MOST_RUNS`]: to wait
/// for it takes some time as well.
const WINDOW: Duration = Duration::from_micros(300);
const MOST_RUNS: u32 = 16;

/// The best of so many windows counts: what else the GPU does only adds to them.
const WINDOWS: usize = 3;

/// The time of work that may be enqueued over and over, once it has been warmed up, in a stream of this thread's context
/// that runs it; `None` if `enqueue` says that it has not enqueued it. Waits for it.
///
/// # Errors
/// Those of `enqueue`, and the driver's.
pub(super) fn time(at: StreamId, mut enqueue: impl FnMut() -> Result<bool>) -> Result<Option<Duration>> {
    // What the stream was given before, and code that is loaded when it first runs.
    if !enqueue()? {
        return Ok(None);
    }
    wait(at)?;
    let mut window = |runs: u32| -> Result<Option<Duration>> {
        let start = Instant::now();
        for _ in 0..runs {
            if !enqueue()? {
                return Ok(None);
            }
        }
        wait(at)?;
        Ok(Some(start.elapsed() / runs))
    };
    let Some(mut best) = window(1)? else { return Ok(None) };
    let runs = WINDOW.div_duration_f32(best.max(WINDOW / MOST_RUNS)).ceil() as u32;
    for _ in 0..WINDOWS {
        let Some(took) = window(runs)? else { return Ok(None) };
        best = best.min(took);
    }
    Ok(Some(best))
}

fn wait(at: StreamId) -> Result<()> {
    // SAFETY: the stream lives as long as the driver whose call this is.
    unsafe { stream::synchronize(at.0 as sys::CUstream) }
        .map_err(|error| Error::internal(format!("cuStreamSynchronize failed: {}", super::name(error))))
}
