//! The gRPC service that standbys call.

use super::HELLO_TIMEOUT;
use super::primary::Primary;
use super::standby_state::StandbyLink;
use futures::stream::{BoxStream, StreamExt};
use proto::replication::replication_service_server::ReplicationService;
use proto::replication::{Batch, FollowRequest};
use std::sync::Arc;
use tokio::time::timeout;
use tonic::{Request, Response, Streaming};

/// The replication service of the task that this process serves; empty if the task is not replicated.
#[derive(Clone, Debug)]
pub struct Replication(Option<Arc<Primary>>);

impl Replication {
    /// Makes the service; `primary` is `None` for a task that is not replicated.
    pub(crate) fn new(primary: Option<Arc<Primary>>) -> Replication {
        Replication(primary)
    }
}

#[tonic::async_trait]
impl ReplicationService for Replication {
    type FollowStream = BoxStream<'static, Result<Batch, tonic::Status>>;

    async fn follow(
        &self,
        request: Request<Streaming<FollowRequest>>,
    ) -> Result<Response<Self::FollowStream>, tonic::Status> {
        let mut messages_in = request.into_inner();
        let none = || tonic::Status::failed_precondition("this task has no replicas: see --ps-replicas");
        let primary = self.0.clone().ok_or_else(none)?;
        let late = |_| tonic::Status::deadline_exceeded("a standby must identify itself at once");
        let first = timeout(HELLO_TIMEOUT, messages_in.message()).await.map_err(late)??.unwrap_or_default();
        if first.task != primary.task().to_string() {
            let text = format!("{} is served here, and {} followed", primary.task(), first.task);
            return Err(tonic::Status::invalid_argument(text));
        }
        if primary.try_yield_to(&first) {
            return Err(tonic::Status::aborted("you hold the task's state"));
        }
        let (link, messages) = StandbyLink::new();
        // A separate asynchronous task processes the messages of an accepted standby, even if this call is
        // cancelled meanwhile.
        let welcomed = tokio::spawn(async move {
            let id = primary.add_standby(first, link).await?;
            tokio::spawn(primary.listen(id, messages_in));
            Ok::<_, proto::Status>(())
        });
        welcomed.await.map_err(|e| tonic::Status::internal(e.to_string()))?.map_err(tonic::Status::from)?;
        Ok(Response::new(messages.boxed()))
    }
}
