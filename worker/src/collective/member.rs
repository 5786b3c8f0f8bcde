//! The members in one session: they join groups and agree on instances at first use, and run collectives.

use super::buffer::BufferCalls;
use super::course::{Course, ForeignMembers, Plan};
use super::leader::Leader;
use super::register::{Agree, BROADCAST, Join, Members, Terms};
use super::schedule::{Member, Schedule};
use crate::peers::Peers;
use crate::rendezvous::to_error;
use crate::worker::Worker;
use device::cancel::{Cancellation, Registration};
use device::collective::{Collectives, Finish, Merge, Operation, Reduction, Request, StepCollectives};
use device::{Error, Pool};
use graph::{Code, DeviceName, TaskName, Tensor};
use parking_lot::Mutex;
use proto::channel::RetryPolicy;
use proto::convert::{device_to_proto, devices_from_proto, shape_to_proto};
use proto::service::WorkerServiceClient;
use proto::{Status, pb};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tonic::metadata::MetadataValue;

/// Time by which calls to the leader outlast the collective's deadline, so that the error names the collective.
const CALL_GRACE: Duration = Duration::from_secs(5);

/// The header field by which a member tells a leader of this implementation its session.
pub(crate) const SESSION_KEY: &str = "anabranch-session";

/// The header field of CompleteInstance by which a member tells a leader of this implementation the id of its step. A
/// leader of TensorFlow would take the message's own field as a part of the instance's key.
pub(crate) const STEP_KEY: &str = "anabranch-step";

/// The header field of GetStatus by which a member asks whether a task's members are of this implementation, and by which
/// such a task answers.
pub(crate) const COLLECTIVES_KEY: &str = "anabranch-collectives";

/// The members of a session on this task.
pub(crate) struct SessionCollectives {
    this: Weak<SessionCollectives>,
    own: Arc<Leader>,
    /// The task that leads the session's groups; `None` if no task does.
    leader: Option<TaskName>,
    task: TaskName,
    session: Arc<str>,
    peers: Arc<Peers>,
    runtime: Handle,
    pool: Arc<Pool>,
    /// The deadline of a collective whose node sets none.
    timeout: Duration,
    agreed: Mutex<Agreed>,
}

/// The groups and instances on which members of this task have agreed with their leader.
#[derive(Debug, Default)]
struct Agreed {
    /// By the group's key and the member's device.
    groups: FxHashMap<(i32, DeviceName), Group>,
    /// By the keys of group and instance and the member's device, with the rank of a broadcast's source.
    instances: FxHashMap<(i32, i32, DeviceName), (Terms, Option<usize>)>,
}

/// A complete group.
#[derive(Clone, Debug)]
struct Group {
    members: Members,
    /// For each rank, whether the member is TensorFlow's; `None` if no member is.
    is_foreign: Option<Vec<bool>>,
}

impl SessionCollectives {
    pub(crate) fn new(
        worker: &Worker,
        session: &Arc<str>,
        task: &TaskName,
        peers: &Arc<Peers>,
    ) -> Arc<SessionCollectives> {
        Arc::new_cyclic(|this| SessionCollectives {
            this: this.clone(),
            own: worker.leader.clone(),
            leader: peers.leader(worker.config.collective_leader.as_ref()),
            task: task.clone(),
            session: session.clone(),
            peers: peers.clone(),
            runtime: worker.runtime.clone(),
            pool: worker.pool.clone(),
            timeout: worker.config.collective_timeout,
            agreed: Mutex::default(),
        })
    }

    /// Returns the members of the request's group and the rank of its source, if this member has agreed before.
    fn known(&self, request: &Request, terms: &Terms) -> Option<(Group, Option<usize>)> {
        let agreed = self.agreed.lock();
        let device = request.device.name().clone();
        let group = agreed.groups.get(&(request.group_key, device.clone()))?;
        let (known, source) = agreed.instances.get(&(request.group_key, request.instance_key, device))?;
        let is_known = known == terms && group.members.len() == request.group_size as usize;
        is_known.then(|| (group.clone(), *source))
    }

    /// Joins the request's group and agrees on its instance.
    async fn agree(
        &self,
        request: &Request,
        terms: &Terms,
        step_id: i64,
        deadline: Instant,
    ) -> Result<(Group, Option<usize>), Status> {
        let device = request.device.name().clone();
        let at = (request.group_key, device.clone());
        let known = self.agreed.lock().groups.get(&at).cloned();
        let group = match known.filter(|group| group.members.len() == request.group_size as usize) {
            Some(group) => group,
            None => {
                let members = self.join(request, deadline).await?;
                let is_foreign = self.find_foreign(&members, deadline).await?;
                let group = Group { members, is_foreign };
                self.agreed.lock().groups.insert(at, group.clone());
                group
            }
        };
        let source = self.agree_on_instance(request, terms, step_id, deadline).await?;
        let key = (request.group_key, request.instance_key, device);
        self.agreed.lock().instances.insert(key, (terms.clone(), source));
        Ok((group, source))
    }

    /// Returns, for each rank, whether the member is TensorFlow's; `None` if no member is.
    async fn find_foreign(&self, members: &Members, deadline: Instant) -> Result<Option<Vec<bool>>, Status> {
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

    /// Asks a task whether its members are TensorFlow's.
    async fn is_foreign(&self, task: &TaskName, deadline: Instant) -> Result<bool, Status> {
        let peer = self.peers.task(task)?;
        let status = peer.call("GetStatus", RetryPolicy::UntilThere, Some(deadline), |channel| {
            let mut call = tonic::Request::new(pb::GetStatusRequest {});
            call.metadata_mut().insert(COLLECTIVES_KEY, MetadataValue::from_static("1"));
            async move { WorkerServiceClient::new(channel).get_status(call).await }
        });
        Ok(!status.await?.metadata().contains_key(COLLECTIVES_KEY))
    }

    async fn join(&self, request: &Request, deadline: Instant) -> Result<Members, Status> {
        let attributes = request.device.attributes().clone();
        let leader = self.leader_task()?;
        if *leader == self.task {
            let join = Join {
                session: self.session.clone(),
                group_key: request.group_key,
                group_size: request.group_size as usize,
                device: attributes,
            };
            return self.own.join(join).await;
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
            .call("CompleteGroup", RetryPolicy::UntilThere, Some(deadline), |channel| {
                let call = self.with_session(message.clone());
                async move { WorkerServiceClient::new(channel).complete_group(call).await }
            })
            .await?
            .into_inner();
        Ok(devices_from_proto(answer.device_attributes)?.into())
    }

    async fn agree_on_instance(
        &self,
        request: &Request,
        terms: &Terms,
        step_id: i64,
        deadline: Instant,
    ) -> Result<Option<usize>, Status> {
        let leader = self.leader_task()?;
        let device = request.device.name().to_string();
        let is_source = request.operation == Operation::Broadcast { is_source: true };
        if *leader == self.task {
            let agree = Agree {
                group_key: request.group_key,
                instance_key: request.instance_key,
                device,
                node: request.node.name.to_string(),
                terms: terms.clone(),
                is_source,
                step_id,
            };
            return self.own.agree(agree).await;
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
            .call("CompleteInstance", RetryPolicy::Harmless, Some(deadline), |channel| {
                let mut call = self.with_session(message.clone());
                call.metadata_mut().insert(STEP_KEY, step_id.into());
                async move { WorkerServiceClient::new(channel).complete_instance(call).await }
            })
            .await?
            .into_inner();
        Ok(usize::try_from(answer.source_rank).ok())
    }

    fn leader_task(&self) -> Result<&TaskName, Status> {
        self.leader.as_ref().ok_or_else(|| {
            let text = "no task leads the groups of collectives: the cluster has no tasks";
            Status::new(Code::FailedPrecondition, text)
        })
    }

    /// Returns a call with the member's session in its header, which the members of a foreign leader do without.
    fn with_session<T>(&self, message: T) -> tonic::Request<T> {
        let mut call = tonic::Request::new(message);
        if let Ok(session) = self.session.parse() {
            call.metadata_mut().insert(SESSION_KEY, session);
        }
        call
    }

    /// Runs a collective whose members have agreed.
    fn run(
        &self,
        step: &StepCollectives,
        request: Request,
        group: Group,
        source: Option<usize>,
        run: &Arc<Running>,
    ) {
        let Group { members, is_foreign } = group;
        let own = request.device.name();
        let Some(rank) = members.iter().position(|member| member.name == *own) else {
            return run.end(Err(Error::internal(format!("{own} is no member of its group"))));
        };
        let Some(width) = request.dtype.size() else {
            return run.end(Err(Error::unimplemented(format!("collectives of {}", request.dtype))));
        };
        let count = request.input.as_ref().map_or(request.shape.num_elements(), Tensor::num_elements);
        let member = Member { rank, size: members.len(), source, count, width };
        let schedule = match is_foreign {
            None => Some(Schedule::new(request.operation, member)),
            Some(_) => Schedule::foreign(request.operation, member),
        };
        let Some(schedule) = schedule else {
            let text = "a group with members of TensorFlow has no reduce-scatter";
            return run.end(Err(Error::unimplemented(text)));
        };
        let foreign = is_foreign.map(|is_foreign| {
            let buffers = BufferCalls::new(step.id, self.peers.clone(), self.runtime.clone());
            ForeignMembers { is_foreign, buffers }
        });
        let plan = Plan {
            foreign,
            members,
            rank,
            operation: request.operation,
            dtype: request.dtype,
            width,
            output: request.shape,
            name: format!("{}:{}:0:0", request.group_key, request.instance_key),
            schedule,
        };
        let finish = run.clone();
        let course = Course::start(
            plan,
            request.input,
            step.rendezvous.clone(),
            self.pool.clone(),
            Box::new(move |output| finish.end(output)),
        );
        *run.course.lock() = Some(course);
    }
}

impl Collectives for SessionCollectives {
    fn start(&self, step: &StepCollectives, request: Request, finish: Finish) {
        let Some(run) = Running::start(step, finish) else { return };
        let terms = Terms::of(&request);
        let timeout = request.timeout.unwrap_or(self.timeout);
        run.expire_after(timeout, &self.runtime, &request);
        if let Some((group, source)) = self.known(&request, &terms) {
            return self.run(step, request, group, source, &run);
        }
        let Some(own) = self.this.upgrade() else { return };
        let (step, deadline) = (step.clone(), Instant::now() + timeout + CALL_GRACE);
        self.runtime.spawn(async move {
            match own.agree(&request, &terms, step.id, deadline).await {
                Ok((group, source)) => own.run(&step, request, group, source, &run),
                Err(status) => run.end(Err(to_error(status))),
            }
        });
    }
}

/// A collective of a node, from the start of the node's kernel to its end.
struct Running {
    finish: Mutex<Option<Finish>>,
    cancellation: Arc<Cancellation>,
    /// The callback by which the step's cancellation ends the collective.
    on_cancel: Mutex<Option<Registration>>,
    timer: Mutex<Option<AbortHandle>>,
    /// `None` until the members have agreed.
    course: Mutex<Option<Arc<Course>>>,
}

impl Running {
    /// Begins a collective, which ends when the step is cancelled; `None` if the step has been cancelled.
    fn start(step: &StepCollectives, finish: Finish) -> Option<Arc<Running>> {
        let run = Arc::new(Running {
            finish: Mutex::new(Some(finish)),
            cancellation: step.cancellation.clone(),
            on_cancel: Mutex::default(),
            timer: Mutex::default(),
            course: Mutex::default(),
        });
        let cancelled = run.clone();
        match step.cancellation.register(move |reason| cancelled.end(Err(reason.clone().derived()))) {
            Ok(registration) => *run.on_cancel.lock() = Some(registration),
            Err(reason) => {
                run.end(Err(reason));
                return None;
            }
        }
        Some(run)
    }

    /// Ends the collective with `DeadlineExceeded` after a time.
    fn expire_after(self: &Arc<Self>, timeout: Duration, runtime: &Handle, request: &Request) {
        let run = self.clone();
        let name = format!(
            "{} '{}' (group {} of {}, instance {})",
            request.node.op.name(),
            request.node.name,
            request.group_key,
            request.group_size,
            request.instance_key
        );
        let timer = runtime.spawn(async move {
            tokio::time::sleep(timeout).await;
            let text = format!("{name}: {}; waited {:.1} s", run.awaited(), timeout.as_secs_f64());
            run.end(Err(Error::new(Code::DeadlineExceeded, text)));
        });
        *self.timer.lock() = Some(timer.abort_handle());
    }

    /// Says for what the collective waits.
    fn awaited(&self) -> String {
        let course = self.course.lock().clone();
        match course {
            None => "not all members have come".into(),
            Some(course) => {
                let members: Vec<String> =
                    course.awaited().iter().map(|member| member.name.to_string()).collect();
                format!("waits for {}", members.join(", "))
            }
        }
    }

    /// Ends the collective, unless it has ended.
    fn end(&self, output: device::Result<Tensor>) {
        let finish = self.finish.lock().take();
        let Some(finish) = finish else { return };
        if let Some(registration) = self.on_cancel.lock().take() {
            self.cancellation.deregister(registration);
        }
        if let Some(timer) = self.timer.lock().take() {
            timer.abort();
        }
        // A course that has not ended still refers to this object, and may wait for members of TensorFlow.
        let course = self.course.lock().take();
        if let (Some(course), Err(error)) = (course, &output) {
            course.fail(error.clone());
        }
        finish(output);
    }
}

impl Terms {
    /// Returns the terms of a member's request.
    fn of(request: &Request) -> Terms {
        let shape = match (request.operation, &request.input) {
            (Operation::Gather | Operation::Broadcast { .. }, _) | (_, None) => &request.shape,
            (_, Some(input)) => input.shape(),
        };
        Terms {
            kind: kind(request.operation),
            dtype: request.dtype.number(),
            shape: Some(shape.clone()),
            functions: functions(request.operation),
        }
    }
}

/// Returns the number by which TensorFlow's protocol denotes an operation.
fn kind(operation: Operation) -> i32 {
    match operation {
        Operation::Reduce(_) => 0,
        Operation::Broadcast { .. } => BROADCAST,
        Operation::Gather => 2,
        Operation::AllToAll => 4,
        Operation::ReduceScatter(_) => 5,
    }
}

/// Returns the names of a reduction's functions, such as `Add,Div`; empty for other operations.
fn functions(operation: Operation) -> String {
    let (Operation::Reduce(reduction) | Operation::ReduceScatter(reduction)) = operation else {
        return String::new();
    };
    let Reduction { merge, is_mean } = reduction;
    let merge = match merge {
        Merge::Add => "Add",
        Merge::Mul => "Mul",
        Merge::Min => "Min",
        Merge::Max => "Max",
    };
    format!("{merge},{}", if is_mean { "Div" } else { "Id" })
}

impl fmt::Debug for SessionCollectives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionCollectives({}, led by {:?})", self.session, self.leader)
    }
}
