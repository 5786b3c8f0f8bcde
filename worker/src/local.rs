//! The worker as a master in the same process calls it, without serialization.

use crate::run::within;
use crate::worker::Worker;
use async_trait::async_trait;
use graph::DeviceAttributes;
use proto::link::{CreateWorkerSession, RegisterGraph, RunGraph, RunGraphOutcome, WorkerLink};
use proto::{Status, pb};
use std::sync::Arc;
use std::time::Instant;

/// The link from a master to the worker of the same process.
#[derive(Debug)]
pub(crate) struct LocalWorker {
    worker: Arc<Worker>,
}

impl LocalWorker {
    pub(crate) fn new(worker: Arc<Worker>) -> LocalWorker {
        LocalWorker { worker }
    }
}

#[async_trait]
impl WorkerLink for LocalWorker {
    async fn status(&self, _: Option<Instant>) -> Result<Vec<DeviceAttributes>, Status> {
        Ok(self.worker.devices())
    }

    async fn create_session(&self, session: CreateWorkerSession) -> Result<(), Status> {
        self.worker.create_session(&session).await
    }

    async fn delete_session(&self, session: &str, _: Option<Instant>) -> Result<(), Status> {
        self.worker.delete_session(session);
        Ok(())
    }

    async fn register_graph(&self, part: RegisterGraph) -> Result<Arc<str>, Status> {
        let deadline = part.deadline;
        within(&self.worker, "RegisterGraph", deadline, self.worker.register_graph(part)).await
    }

    async fn deregister_graph(&self, session: &str, graph: &str) -> Result<(), Status> {
        self.worker.deregister_graph(session, graph)
    }

    async fn run_graph(&self, run: RunGraph) -> Result<RunGraphOutcome, Status> {
        self.worker.run_graph(run).await
    }

    async fn cleanup_graph(&self, step_id: i64) -> Result<(), Status> {
        self.forget_step(step_id);
        Ok(())
    }

    fn forget_step(&self, step_id: i64) -> bool {
        self.worker.steps.cleanup(step_id);
        true
    }

    async fn logging(&self, request: pb::LoggingRequest) -> Result<Vec<pb::LabeledStepStats>, Status> {
        Ok(self.worker.transfers.control(&request))
    }

    async fn cleanup_all(&self, containers: &[String]) -> Result<(), Status> {
        self.worker.cleanup_all(containers).await?;
        Ok(())
    }
}
