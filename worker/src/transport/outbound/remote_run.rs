//! Runs of registered graphs on the worker at the other end of a link.

use super::Outbound;
use crate::transport::frame::Frame;
use graph::Code;
use prost::Message;
use proto::{Status, pb};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;

impl Outbound {
    /// Runs a registered graph on the worker at the other end; dropping the future cancels the run.
    ///
    /// # Errors
    /// The run's own failure; `Unavailable`, naming the peer, if the link breaks.
    pub(crate) async fn run(
        &self,
        request: &pb::RunGraphRequest,
        timeout: Option<Duration>,
    ) -> Result<pb::RunGraphResponse, Status> {
        let id = self.next_run.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.runs.lock().insert(id, sender);
        let mut cancel_on_drop = CancelOnDrop { link: self, id: Some(id) };
        let posted = self.post(&Frame::Run { id, timeout }, Some(request.encode_to_vec().into()));
        posted.map_err(|e| crate::failure(&e))?;
        self.flush();
        if self.connection.is_broken() {
            self.end_runs();
        }
        let answer = self.spin.wait(answer).await.unwrap_or_else(|_| Err(self.run_lost_error()));
        cancel_on_drop.id = None;
        answer
    }

    /// Returns the error for a run whose link has broken.
    fn run_lost_error(&self) -> Status {
        let why = self.connection.end_message("the connection to", &self.peer);
        Status::new(Code::Unavailable, format!("RunGraph failed: {why}"))
    }

    /// Completes a run with its answer; the run's caller continues on this thread.
    pub(super) fn end_run(&self, id: u64, response: Result<pb::RunGraphResponse, Status>) {
        let sender = self.runs.lock().remove(&id);
        if let Some(sender) = sender {
            // Corked writes are released first, so that they do not wait for the work of the run's caller, which
            // continues on this thread.
            visit::release_cork();
            // An error means that the caller has cancelled the run.
            visit::wake_inline(|| drop(sender.send(response)));
        }
    }

    /// Fails the runs in progress, because the link has broken.
    pub(super) fn end_runs(&self) {
        let runs = std::mem::take(&mut *self.runs.lock());
        for sender in runs.into_values() {
            let _ = sender.send(Err(self.run_lost_error()));
        }
    }
}

/// The guard of a run in progress, which cancels the run at the other end if the run's future is dropped.
struct CancelOnDrop<'a> {
    link: &'a Outbound,
    id: Option<u64>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let was_open = self.link.runs.lock().remove(&id).is_some();
            if was_open && self.link.post(&Frame::Cancel { id }, None).is_ok() {
                self.link.flush();
            }
        }
    }
}
