//! The calls to the groups' leader by which a member joins a group and agrees on an instance.

use super::terms::kind;
use super::{
    BUCKET_KEY, COLLECTIVES_KEY, RANK_KEY, RENEWAL_KEY, SESSION_KEY, SHARED_KEY, STEP_KEY,
    SessionCollectives, TIMEOUT_KEY,
};
use crate::collective::communicators::{Enter, Entered, entered_of, write_header};
use crate::collective::register::{Agree, Agreement, Join, Members, Met, Terms};
use device::collective::Request;
use graph::{Code, TaskName};
use proto::channel::RetryPolicy;
use proto::convert::{device_to_proto, devices_from_proto, shape_to_proto};
use proto::service::WorkerServiceClient;
use proto::{Status, pb};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tonic::metadata::MetadataValue;

/// Time by which calls to the leader outlast the collective's deadline, so that the collective's own error, which names
/// it, is reported.
const CALL_GRACE: Duration = Duration::from_secs(5);

impl SessionCollectives {
    /// Returns, for each rank, whether the member is TensorFlow's; `None` if no member is.
    pub(super) async fn find_foreign(
        &self,
        members: &Members,
        deadline: Instant,
    ) -> Result<Option<Vec<bool>>, Status> {
        let mut is_foreign = Vec::with_capacity(members.len());
        for member in members.iter() {
            let task = member.name.task_name();
            is_foreign.push(task != self.task && self.is_foreign(&task, deadline).await?);
        }
        let tasks: BTreeSet<TaskName> = members.iter().map(|member| member.name.task_name()).collect();
        match is_foreign.contains(&true) {
            true if tasks.len() < members.len() => {
                let text =
                    "a group with members of TensorFlow and several devices of one task is not implemented";
                Err(Status::new(Code::Unimplemented, text))
            }
            true => Ok(Some(is_foreign)),
            false => Ok(None),
        }
    }

    /// Queries whether a task's members are TensorFlow's.
    pub(super) async fn is_foreign(&self, task: &TaskName, deadline: Instant) -> Result<bool, Status> {
        let peer = self.peers.task(task)?;
        let status = peer.call("GetStatus", RetryPolicy::UntilThere, Some(deadline), |channel| {
            let mut call = tonic::Request::new(pb::GetStatusRequest {});
            call.metadata_mut().insert(COLLECTIVES_KEY, MetadataValue::from_static("1"));
            async move { WorkerServiceClient::new(channel).get_status(call).await }
        });
        Ok(!status.await?.metadata().contains_key(COLLECTIVES_KEY))
    }

    pub(super) async fn join(
        &self,
        request: &Request,
        step_id: i64,
        deadline: Instant,
    ) -> Result<Met, Status> {
        let attributes = request.device.attributes().clone();
        let leader = self.leader_task()?;
        if self.is_default_leader {
            self.own.log_default(leader);
        }
        if *leader == self.task {
            let join = Join {
                session: self.session.clone(),
                group_key: request.group_key,
                group_size: request.group_size as usize,
                device: attributes,
                rank: request.placed.as_ref().map(|placed| placed.rank as usize),
                step_id,
            };
            return self.own.join(join, Some(deadline)).await;
        }
        if request.placed.is_some() && self.is_foreign(leader, deadline).await? {
            let text =
                format!("communicators need a leader of this implementation; {leader} is TensorFlow's");
            return Err(Status::new(Code::Unimplemented, text));
        }
        let message = pb::CompleteGroupRequest {
            group_key: request.group_key,
            group_size: request.group_size as i32,
            device_type: attributes.name.device_type.to_string(),
            collective_type: kind(request.operation),
            device_attributes: Some(device_to_proto(&attributes)),
        };
        let answer = self
            .peers
            .task(leader)?
            .call("CompleteGroup", RetryPolicy::UntilThere, Some(deadline + CALL_GRACE), |channel| {
                let call = self.with_header(message.clone(), request, step_id, deadline);
                async move { WorkerServiceClient::new(channel).complete_group(call).await }
            })
            .await?;
        let is_shared = answer.metadata().contains_key(SHARED_KEY);
        let members = devices_from_proto(answer.into_inner().device_attributes)?.into();
        Ok(Met { members, is_shared })
    }

    /// Asks the leader for the epoch after `last` of the communicator of the request's group. `identity` is the name of the
    /// member's physical device, `offer` the key of an epoch that the member has created.
    pub(super) async fn ask_epoch(
        &self,
        request: &Request,
        step_id: i64,
        last: u64,
        identity: &str,
        offer: Option<(u64, Vec<u8>)>,
        deadline: Instant,
    ) -> Result<Entered, Status> {
        let leader = self.leader_task()?;
        let attributes = request.device.attributes();
        let enter = Enter {
            session: self.session.clone(),
            group: (request.group_key, request.placed.is_some()),
            size: request.group_size as usize,
            device: attributes.name.clone(),
            identity: identity.to_owned(),
            after: last,
            offer,
            step_id,
        };
        if *leader == self.task {
            return self.own.enter(enter, &self.task, Some(deadline)).await;
        }
        if self.is_foreign(leader, deadline).await? {
            return Ok(Entered::Refused(format!("the leader of the group, {leader}, is TensorFlow's")));
        }
        let message = pb::CompleteGroupRequest {
            group_key: request.group_key,
            group_size: request.group_size as i32,
            device_type: attributes.name.device_type.to_string(),
            collective_type: kind(request.operation),
            device_attributes: Some(device_to_proto(attributes)),
        };
        let peer = self.peers.task(leader)?;
        let response =
            peer.call("CompleteGroup", RetryPolicy::Harmless, Some(deadline + CALL_GRACE), |channel| {
                let mut call = self.with_header(message.clone(), request, step_id, deadline);
                write_header(&enter, call.metadata_mut());
                async move { WorkerServiceClient::new(channel).complete_group(call).await }
            });
        entered_of(response.await?)
    }

    pub(super) async fn agree_on_instance(
        &self,
        request: &Request,
        terms: &Terms,
        step_id: i64,
        renewal: Option<u64>,
        deadline: Instant,
    ) -> Result<Agreement, Status> {
        let leader = self.leader_task()?;
        let device = request.device.name().to_string();
        let is_source = request.is_source();
        let bucket = request.digest();
        if *leader == self.task {
            let agree = Agree {
                group_key: request.group_key,
                is_communicator: request.placed.is_some(),
                instance_key: request.instance_key,
                device,
                node: request.node.name.to_string(),
                terms: terms.clone(),
                is_source,
                step_id,
                renewal,
                bucket,
            };
            return self.own.agree(agree, Some(deadline)).await;
        }
        let message = pb::CompleteInstanceRequest {
            name: format!("{}: Reduce({})", request.node.name, terms.functions),
            r#type: terms.kind,
            data_type: terms.dtype,
            shape: terms.shape.as_ref().map(shape_to_proto),
            group_key: request.group_key,
            group_size: request.group_size as i32,
            instance_key: request.instance_key,
            device_type: request.device.name().device_type.to_string(),
            device,
            is_source,
            ..Default::default()
        };
        let answer = self
            .peers
            .task(leader)?
            .call("CompleteInstance", RetryPolicy::Harmless, Some(deadline + CALL_GRACE), |channel| {
                let mut call = self.with_header(message.clone(), request, step_id, deadline);
                if let Some(number) = renewal {
                    call.metadata_mut().insert(RENEWAL_KEY, number.into());
                }
                if let Some(digest) = bucket {
                    call.metadata_mut().insert(BUCKET_KEY, digest.into());
                }
                async move { WorkerServiceClient::new(channel).complete_instance(call).await }
            })
            .await?;
        let is_bucketed = answer.metadata().contains_key(BUCKET_KEY);
        Ok(Agreement { source: usize::try_from(answer.into_inner().source_rank).ok(), is_bucketed })
    }

    pub(super) fn leader_task(&self) -> Result<&TaskName, Status> {
        self.leader.as_ref().ok_or_else(|| {
            let text = "no task leads the groups of collectives: the cluster has no tasks";
            Status::new(Code::FailedPrecondition, text)
        })
    }

    /// Returns a call with the member's session, step, time limit and rank in its header, which a leader of TensorFlow
    /// ignores.
    fn with_header<T>(
        &self,
        message: T,
        request: &Request,
        step_id: i64,
        deadline: Instant,
    ) -> tonic::Request<T> {
        let mut call = tonic::Request::new(message);
        let header = call.metadata_mut();
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        header.insert(TIMEOUT_KEY, u64::try_from(left).unwrap_or(u64::MAX).into());
        if let Ok(session) = self.session.parse() {
            header.insert(SESSION_KEY, session);
        }
        header.insert(STEP_KEY, step_id.into());
        if let Some(placed) = &request.placed {
            header.insert(RANK_KEY, placed.rank.into());
        }
        call
    }
}
