//! The calls of this task's workers to the assemblies of their jobs.

use super::super::assembly::{AssemblyRequest, answer_of};
use super::SessionCollectives;
use crate::rendezvous::to_error;
use device::collective::{AssemblyCall, Finish, StepCollectives};
use device::{Error, Result};
use graph::{Code, Shape, Tensor};
use proto::Status;
use proto::channel::RetryPolicy;
use proto::service::WorkerServiceClient;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Time by which a call to the leader may outlast the worker's patience.
const GRACE: Duration = Duration::from_secs(2);

impl SessionCollectives {
    /// Calls the assembly of a job; the step's cancellation ends the call. See
    /// [`Collectives::assemble`](device::collective::Collectives::assemble).
    pub(super) fn call_assembly(&self, step: &StepCollectives, call: AssemblyCall, finish: Finish) {
        let Some(own) = self.this.upgrade() else { return };
        let cancellation = step.cancellation.clone();
        let (cancelled, reason) = oneshot::channel();
        let registered = cancellation.register(move |reason| drop(cancelled.send(reason.clone())));
        let registration = match registered {
            Ok(registration) => registration,
            Err(reason) => return finish(Err(reason.derived())),
        };
        self.runtime.spawn(async move {
            let answer = tokio::select! {
                biased;
                Ok(reason) = reason => Err(reason.derived()),
                answer = own.ask_assembly(&call) => answer.map_err(|status| to_error(named(&call, status))),
            };
            cancellation.deregister(registration);
            finish(answer.and_then(|numbers| Ok(vector(&numbers)?.into())));
        });
    }

    async fn ask_assembly(&self, call: &AssemblyCall) -> Result<Vec<i64>, Status> {
        let request = AssemblyRequest::new(self.session.clone(), call);
        let leader = self.leader_task()?;
        if self.is_default_leader {
            self.own.log_default(leader);
        }
        if *leader == self.task {
            return self.own.assemblies.call(request).await;
        }
        let deadline = Instant::now() + call.patience + GRACE;
        if self.is_foreign(leader, deadline).await? {
            let text = format!(
                "workers that come and go need a leader of this implementation; {leader} is TensorFlow's"
            );
            return Err(Status::new(Code::Unimplemented, text));
        }
        let peer = self.peers.task(leader)?;
        let response = peer.call("CompleteGroup", RetryPolicy::UntilThere, Some(deadline), |channel| {
            let call = request.to_call();
            async move { WorkerServiceClient::new(channel).complete_group(call).await }
        });
        answer_of(&response.await?)
    }
}

/// Returns the error of a call to an assembly; its message names the node.
fn named(call: &AssemblyCall, status: Status) -> Status {
    let message = format!("{} '{}': {}", call.node.op.name(), call.node.name, status.message);
    Status { message, ..status }
}

fn vector(numbers: &[i64]) -> Result<Tensor, Error> {
    Ok(Tensor::from_slice(numbers, Shape::new(&[numbers.len()])?)?)
}
