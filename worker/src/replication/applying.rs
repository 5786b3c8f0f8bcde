//! What a standby has heard and applies, one after the other, while it hears on.

use super::encode;
use crate::worker::Worker;
use proto::Status;
use proto::replication as pb;
use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use tokio::task::{JoinHandle, spawn_blocking};

/// Changes that are to be applied together.
#[derive(Debug)]
pub(super) struct Part {
    /// Of the batch that ends with this part.
    pub(super) number: Option<u64>,
    /// The standby holds all that there is with this batch.
    pub(super) is_whole: bool,
    pub(super) changes: Vec<pb::Change>,
}

/// What has become of a part.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) number: Option<u64>,
    pub(super) is_whole: bool,
    pub(super) result: Result<(), String>,
}

/// Parts, the first of which is being applied.
pub(super) struct Applying {
    worker: Arc<Worker>,
    running: Option<JoinHandle<Applied>>,
    ready: VecDeque<Part>,
}

impl Applying {
    pub(super) fn new(worker: Arc<Worker>) -> Applying {
        Applying { worker, running: None, ready: VecDeque::new() }
    }

    pub(super) fn add(&mut self, part: Part) {
        self.ready.push_back(part);
        self.begin();
    }

    pub(super) fn is_busy(&self) -> bool {
        self.running.is_some()
    }

    /// What has become of the first part, once that is known; never without one.
    pub(super) async fn next(&mut self) -> Applied {
        let Some(running) = &mut self.running else { return pending().await };
        let applied = running.await;
        self.running = None;
        self.begin();
        applied.unwrap_or_else(|e| Applied { number: None, is_whole: false, result: Err(e.to_string()) })
    }

    /// Waits for the first part, and forgets those after it.
    pub(super) async fn finish(mut self) -> Option<Applied> {
        self.ready.clear();
        if self.is_busy() { Some(self.next().await) } else { None }
    }

    fn begin(&mut self) {
        if self.running.is_none()
            && let Some(Part { number, is_whole, changes }) = self.ready.pop_front()
        {
            let worker = self.worker.clone();
            self.running = Some(spawn_blocking(move || {
                let result = apply(&worker, changes).map_err(|status| status.message);
                Applied { number, is_whole, result }
            }));
        }
    }
}

fn apply(worker: &Worker, changes: Vec<pb::Change>) -> Result<(), Status> {
    for change in changes {
        let change = encode::from_proto(change)?;
        let store = worker.stores().nth(change.store as usize).ok_or_else(|| {
            Status::invalid(format!("{} has no CPU device {}", worker.task(), change.store))
        })?;
        change.apply(store).map_err(|e| crate::failure(&e))?;
    }
    Ok(())
}
