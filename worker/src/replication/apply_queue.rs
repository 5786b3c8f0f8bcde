//! The queue of change sets that a standby applies to its resources one after the other, while it receives
//! further ones.

use super::encode;
use crate::worker::Worker;
use proto::Status;
use proto::replication as pb;
use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use tokio::task::{JoinHandle, spawn_blocking};

/// Changes that a standby applies together: a batch, or one message of a snapshot.
#[derive(Debug)]
pub(super) struct ChangeSet {
    /// The number of the batch whose last changes are in this set; `None` if more of the batch follows.
    pub(super) number: Option<u64>,
    /// Set if the standby has the complete state of the task after this batch.
    pub(super) is_whole: bool,
    pub(super) changes: Vec<pb::Change>,
}

/// The result of applying a [`ChangeSet`], with `number` and `is_whole` of the set.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) number: Option<u64>,
    pub(super) is_whole: bool,
    pub(super) result: Result<(), String>,
}

/// The queue of change sets; the first of them is being applied on a blocking thread.
pub(super) struct ApplyQueue {
    worker: Arc<Worker>,
    running: Option<JoinHandle<Applied>>,
    waiting: VecDeque<ChangeSet>,
}

impl ApplyQueue {
    pub(super) fn new(worker: Arc<Worker>) -> ApplyQueue {
        ApplyQueue { worker, running: None, waiting: VecDeque::new() }
    }

    /// Appends a set of changes.
    pub(super) fn add(&mut self, set: ChangeSet) {
        self.waiting.push_back(set);
        self.begin();
    }

    pub(super) fn is_busy(&self) -> bool {
        self.running.is_some()
    }

    /// Waits until the first set has been applied. Returns its result; waits forever if the queue is empty.
    pub(super) async fn next(&mut self) -> Applied {
        let Some(running) = &mut self.running else { return pending().await };
        let applied = running.await;
        self.running = None;
        self.begin();
        applied.unwrap_or_else(|e| Applied { number: None, is_whole: false, result: Err(e.to_string()) })
    }

    /// Waits until the set that is being applied has been applied, and discards the queued sets. Returns the result;
    /// `None` if no set was being applied.
    pub(super) async fn finish(mut self) -> Option<Applied> {
        self.waiting.clear();
        if self.is_busy() { Some(self.next().await) } else { None }
    }

    /// Starts applying the next set unless one is being applied.
    fn begin(&mut self) {
        if self.running.is_none()
            && let Some(ChangeSet { number, is_whole, changes }) = self.waiting.pop_front()
        {
            let worker = self.worker.clone();
            self.running = Some(spawn_blocking(move || {
                let result = apply(&worker, changes).map_err(|status| status.message);
                Applied { number, is_whole, result }
            }));
        }
    }
}

/// Applies changes to the resource stores of the worker's devices.
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
