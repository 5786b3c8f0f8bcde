//! The calls of a master to a worker in another process: runs of graphs with small feeds and the ends of
//! steps go over the link for tensors if it is open, and all other calls over gRPC.

use super::link_table::LinkTable;
use super::route::Route;
use graph::{Code, DeviceAttributes};
use proto::channel::Peer;
use proto::convert::worker as convert;
use proto::link::{Call, CreateWorkerSession, RegisterGraph, RunGraph, RunGraphOutcome, WorkerLink};
use proto::remote::request_id;
use proto::step_ids::SequenceEnd;
use proto::{RemoteWorker, Status, pb};
use std::future::ready;
use std::sync::Arc;
use std::time::Instant;
use tokio::time::timeout_at;

/// Largest number of bytes of feeds of a run that is sent over the link; a run with larger feeds is sent over gRPC.
const MAX_FEED_BYTES: usize = 64 << 10;

/// The connection of a master to a worker in another process, over gRPC and a link for tensors.
#[derive(Debug)]
pub(crate) struct LinkedWorker {
    remote: RemoteWorker,
    route: Arc<Route>,
    link_table: Arc<LinkTable>,
}

impl LinkedWorker {
    pub(crate) fn new(remote: RemoteWorker, peer: &Arc<Peer>, link_table: Arc<LinkTable>) -> LinkedWorker {
        LinkedWorker { remote, route: link_table.route(peer), link_table }
    }
}

impl WorkerLink for LinkedWorker {
    fn status(&self, deadline: Option<Instant>) -> Call<'_, Vec<DeviceAttributes>> {
        self.remote.status(deadline)
    }

    fn create_session(&self, session: CreateWorkerSession) -> Call<'_, ()> {
        self.remote.create_session(session)
    }

    fn delete_session<'a>(&'a self, session: &'a str, deadline: Option<Instant>) -> Call<'a, ()> {
        self.remote.delete_session(session, deadline)
    }

    fn register_graph(&self, part: RegisterGraph) -> Call<'_, Arc<str>> {
        // The handshake of the link begins before the first step, so that the step finds the link open.
        self.route.link_or_connect(&self.link_table);
        self.remote.register_graph(part)
    }

    fn next_step_id(&self, graph_key: i64, deadline: Option<Instant>) -> Call<'_, i64> {
        self.remote.next_step_id(graph_key, deadline)
    }

    fn end_step_ids(&self, end: SequenceEnd) -> Call<'_, ()> {
        self.remote.end_step_ids(end)
    }

    fn deregister_graph<'a>(&'a self, session: &'a str, graph: &'a str) -> Call<'a, ()> {
        self.remote.deregister_graph(session, graph)
    }

    fn run_graph(&self, run: RunGraph) -> Call<'_, RunGraphOutcome> {
        Box::pin(async move {
            let fed: usize = run.send.iter().map(|(_, tensor)| tensor.num_bytes()).sum();
            let link = match self.route.link_or_connect(&self.link_table) {
                Some(link) if fed <= MAX_FEED_BYTES => link,
                _ => return self.remote.run_graph(run).await,
            };
            let request = convert::run_graph_to_proto(&run, request_id());
            let timeout = run.deadline.map(|d| d.saturating_duration_since(Instant::now()));
            let answer = link.run(&request, timeout);
            let response = match run.deadline {
                None => answer.await?,
                Some(deadline) => {
                    timeout_at(deadline.into(), answer).await.map_err(|_| self.deadline_error())??
                }
            };
            convert::outcome_from_proto(response, &run.recv)
        })
    }

    fn cleanup_graph(&self, step_id: i64) -> Call<'_, ()> {
        match self.forget_step(step_id) {
            true => Box::pin(ready(Ok(()))),
            false => self.remote.cleanup_graph(step_id),
        }
    }

    fn forget_step(&self, step_id: i64) -> bool {
        self.route.link().map(|link| link.send_cleanup(step_id)).is_some()
    }

    fn logging(&self, request: pb::LoggingRequest) -> Call<'_, Vec<pb::LabeledStepStats>> {
        self.remote.logging(request)
    }

    fn cleanup_all<'a>(&'a self, containers: &'a [String]) -> Call<'a, ()> {
        self.remote.cleanup_all(containers)
    }
}

impl LinkedWorker {
    fn deadline_error(&self) -> Status {
        let text = format!("RunGraph to {} did not end by its deadline", self.route.name());
        Status::new(Code::DeadlineExceeded, text)
    }
}
