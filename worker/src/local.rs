//! The calls of a master to the worker in the same process, without serialization.

use crate::collective;
use crate::run::within;
use crate::worker::Worker;
use graph::DeviceAttributes;
use proto::link::{Call, CreateWorkerSession, RegisterGraph, RunGraph, RunGraphOutcome, WorkerLink};
use proto::pb;
use proto::step_ids::SequenceEnd;
use std::future::ready;
use std::sync::Arc;
use std::time::Instant;

/// The connection of a master to the worker in the same process, by function calls.
#[derive(Debug)]
pub(crate) struct LocalWorker {
    worker: Arc<Worker>,
}

impl LocalWorker {
    pub(crate) fn new(worker: Arc<Worker>) -> LocalWorker {
        LocalWorker { worker }
    }
}

impl WorkerLink for LocalWorker {
    fn status(&self, _: Option<Instant>) -> Call<'_, Vec<DeviceAttributes>> {
        Box::pin(ready(Ok(self.worker.devices())))
    }

    fn create_session(&self, session: CreateWorkerSession) -> Call<'_, ()> {
        Box::pin(async move { self.worker.create_session(&session).await })
    }

    fn delete_session<'a>(&'a self, session: &'a str, _: Option<Instant>) -> Call<'a, ()> {
        self.worker.delete_session(session);
        Box::pin(ready(Ok(())))
    }

    fn register_graph(&self, part: RegisterGraph) -> Call<'_, Arc<str>> {
        Box::pin(async move {
            let deadline = part.deadline;
            within(&self.worker, "RegisterGraph", deadline, self.worker.register_graph(part)).await
        })
    }

    fn next_step_id(&self, graph_key: i64, _: Option<Instant>) -> Call<'_, i64> {
        Box::pin(ready(Ok(self.worker.leader.next_step_id(graph_key, false))))
    }

    fn end_step_ids(&self, end: SequenceEnd) -> Call<'_, ()> {
        collective::end_sequence(&self.worker, &end);
        Box::pin(ready(Ok(())))
    }

    fn deregister_graph<'a>(&'a self, session: &'a str, graph: &'a str) -> Call<'a, ()> {
        Box::pin(ready(self.worker.deregister_graph(session, graph)))
    }

    fn run_graph(&self, run: RunGraph) -> Call<'_, RunGraphOutcome> {
        Box::pin(async move { self.worker.run_graph(run).await })
    }

    fn cleanup_graph(&self, step_id: i64) -> Call<'_, ()> {
        self.forget_step(step_id);
        Box::pin(ready(Ok(())))
    }

    fn forget_step(&self, step_id: i64) -> bool {
        self.worker.steps.cleanup(step_id);
        true
    }

    fn logging(&self, request: pb::LoggingRequest) -> Call<'_, Vec<pb::LabeledStepStats>> {
        Box::pin(ready(Ok(self.worker.transfers.control(&request))))
    }

    fn cleanup_all<'a>(&'a self, containers: &'a [String]) -> Call<'a, ()> {
        Box::pin(async move {
            self.worker.cleanup_all(containers).await?;
            Ok(())
        })
    }
}
