//! The formation of a group: each process requests the device of every other process.

use crate::collective::COLLECTIVES_KEY;
use crate::worker::Worker;
use futures::future::join_all;
use graph::{Code, DeviceAttributes, TaskName};
use proto::channel::RetryPolicy;
use proto::convert::devices_from_proto;
use proto::service::WorkerServiceClient;
use proto::{Status, pb};
use std::time::Instant;
use tonic::metadata::MetadataValue;

impl Worker {
    /// Waits until each of these tasks of the cluster serves, and returns the first device of each.
    ///
    /// # Errors
    /// The code of the first task that fails; the message names all tasks that did not serve in time.
    pub async fn meet(&self, tasks: &[TaskName], deadline: Instant) -> Result<Vec<DeviceAttributes>, Status> {
        let devices = join_all(tasks.iter().map(|task| self.device_of(task, deadline))).await;
        let mut found = Vec::with_capacity(tasks.len());
        let mut missing = Vec::new();
        for (rank, device) in devices.into_iter().enumerate() {
            match device {
                Ok(device) => found.push(device),
                Err(status) => missing.push((rank, status)),
            }
        }
        let Some((_, first)) = missing.first() else { return Ok(found) };
        let code = first.code;
        let names: Vec<String> = missing
            .iter()
            .map(|(rank, status)| format!("rank {rank} ({}): {}", tasks[*rank], status.message))
            .collect();
        Err(Status::new(code, format!("these members did not come: {}", names.join("; "))))
    }

    /// Returns the first device of a task.
    async fn device_of(&self, task: &TaskName, deadline: Instant) -> Result<DeviceAttributes, Status> {
        let none = || Status::new(Code::Internal, format!("{task} has no device"));
        if task == self.task() {
            return self.devices().into_iter().next().ok_or_else(none);
        }
        let peer = self.sessions.get("")?.peers.task(task)?;
        let answer = peer.call("GetStatus", RetryPolicy::UntilThere, Some(deadline), |channel| {
            let mut call = tonic::Request::new(pb::GetStatusRequest {});
            call.metadata_mut().insert(COLLECTIVES_KEY, MetadataValue::from_static("1"));
            async move { WorkerServiceClient::new(channel).get_status(call).await }
        });
        let answer = answer.await?;
        if !answer.metadata().contains_key(COLLECTIVES_KEY) {
            let text = format!("{task} is a server of another implementation, which has no process groups");
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        devices_from_proto(answer.into_inner().device_attributes)?.into_iter().next().ok_or_else(none)
    }
}
