//! Measures the time that a GPU takes for enqueued work, by the host's clock.

use crate::engine::driver::StreamId;
use cudarc::driver::result::stream;
use cudarc::driver::sys;
use device::{Error, Result};
use std::time::{Duration, Instant};

/// Target length of a sample, one measurement of repeated work. The work is enqueued at most [`MAX_RUNS`] times
/// to reach this length, so that the time of waiting for the stream hardly counts.
const SAMPLE_TIME: Duration = Duration::from_micros(300);
const MAX_RUNS: u32 = 16;

/// Number of samples that are measured. The shortest is the result, because other work of the GPU only adds
/// time.
const SAMPLES: usize = 3;

/// Measures the time of the work that `enqueue` enqueues in stream `at`, which must belong to this thread's
/// context and not capture. Blocks until the work has run, after a warm-up. Returns `None` if `enqueue` returns
/// `false`, which means that it enqueued nothing.
///
/// # Errors
/// The errors of `enqueue` and of the driver.
pub(super) fn time(at: StreamId, mut enqueue: impl FnMut() -> Result<bool>) -> Result<Option<Duration>> {
    // The warm-up waits for earlier work of the stream and loads code that is loaded on first use.
    if !enqueue()? {
        return Ok(None);
    }
    wait(at)?;
    let mut sample = |runs: u32| -> Result<Option<Duration>> {
        let start = Instant::now();
        for _ in 0..runs {
            if !enqueue()? {
                return Ok(None);
            }
        }
        wait(at)?;
        Ok(Some(start.elapsed() / runs))
    };
    let Some(mut best) = sample(1)? else { return Ok(None) };
    let runs = SAMPLE_TIME.div_duration_f32(best.max(SAMPLE_TIME / MAX_RUNS)).ceil() as u32;
    for _ in 0..SAMPLES {
        let Some(took) = sample(runs)? else { return Ok(None) };
        best = best.min(took);
    }
    Ok(Some(best))
}

fn wait(at: StreamId) -> Result<()> {
    // SAFETY: the stream lives as long as the driver that made this call.
    unsafe { stream::synchronize(at.0 as sys::CUstream) }
        .map_err(|error| Error::internal(format!("cuStreamSynchronize failed: {}", super::name(error))))
}
