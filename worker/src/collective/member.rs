//! The members in one session: they join groups and agree on instances at first use, and run collectives.

mod assembling;

use super::buffer::BufferCalls;
use super::claims::Claims;
use super::course::{Course, ForeignMembers, Plan, Renew, transfer_key};
use super::leader::Leader;
use super::register::{Agree, BROADCAST, Join, Members, Met, Terms};
use super::schedule::{Member, Schedule};
use crate::peers::Peers;
use crate::rendezvous::to_error;
use crate::steps::{StepState, Steps};
use crate::transport::{LinkTable, Route};
use crate::worker::Worker;
use device::cancel::{Cancellation, Registration};
use device::collective::{AssemblyCall, Collectives, Finish, Operation, Placed, Request, StepCollectives};
use device::rendezvous::Sent;
use device::{Error, Pool};
use graph::{Code, DeviceName, TaskName, Tensor, fingerprint};
use parking_lot::Mutex;
use proto::channel::RetryPolicy;
use proto::convert::{device_to_proto, devices_from_proto, shape_to_proto};
use proto::service::WorkerServiceClient;
use proto::{Status, pb};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tonic::metadata::MetadataValue;

/// Time by which calls to the leader outlast the collective's deadline, so that the error names the collective.
const CALL_GRACE: Duration = Duration::from_secs(5);

/// Time by which the leader's answer may be later than the collective's deadline.
const LEADER_GRACE: Duration = Duration::from_millis(150);

/// The header field by which a member tells a leader of this implementation its session.
pub(crate) const SESSION_KEY: &str = "anabranch-session";

/// The header field by which a member tells a leader of this implementation the id of its step. A leader of TensorFlow
/// would take the field of CompleteInstance's message as a part of the instance's key.
pub(crate) const STEP_KEY: &str = "anabranch-step";

/// The header field by which a member tells a leader of this implementation within how many milliseconds it needs the
/// answer.
pub(crate) const TIMEOUT_KEY: &str = "anabranch-timeout";

/// The header field by which a leader of this implementation tells a member that its group has members in several
/// sessions.
pub(crate) const SHARED_KEY: &str = "anabranch-shared";

/// The header field by which the member of a communicator tells a leader of this implementation its rank.
pub(crate) const RANK_KEY: &str = "anabranch-rank";

/// The header field of CompleteInstance by which a member tells a leader of this implementation that the members agree
/// anew on an instance, with the number of the iteration.
pub(crate) const RENEWAL_KEY: &str = "anabranch-renewal";

/// The header field of GetStatus by which a member asks whether a task's members are of this implementation, and by which
/// such a task answers.
pub(crate) const COLLECTIVES_KEY: &str = "anabranch-collectives";

/// The members of a session on this task.
pub(crate) struct SessionCollectives {
    this: Weak<SessionCollectives>,
    own: Arc<Leader>,
    /// The task that leads the session's groups; `None` if no task does.
    leader: Option<TaskName>,
    /// True if no configuration names the leader.
    is_default_leader: bool,
    task: TaskName,
    session: Arc<str>,
    peers: Arc<Peers>,
    runtime: Handle,
    pool: Arc<Pool>,
    link_table: Arc<LinkTable>,
    steps: Arc<Steps>,
    /// The deadline of a collective whose node sets none.
    timeout: Duration,
    agreed: Mutex<Agreed>,
    claims: Arc<Claims>,
}

/// The groups and instances on which members of this task have agreed with their leader.
#[derive(Debug, Default)]
struct Agreed {
    groups: FxHashMap<GroupKey, Group>,
    /// By the group and the instance's key, with the rank of a broadcast's source.
    instances: FxHashMap<(GroupKey, i32), (Terms, Option<usize>)>,
    /// The routes to the tasks of the members of groups that several sessions share.
    routes: Vec<Arc<Route>>,
}

/// The agreement of earlier steps on an instance.
struct Known {
    group: Group,
    source: Option<usize>,
    /// False if the member has other terms now, or is a broadcast's source now and was not, or the reverse.
    is_current: bool,
}

/// A member of this task in a group: the group's key, whether the group is that of a communicator, and the device.
type GroupKey = (i32, bool, DeviceName);

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
        leader: Option<&TaskName>,
    ) -> Arc<SessionCollectives> {
        let named = leader.or(worker.config.collective_leader.as_ref());
        let (is_default_leader, leader) = (named.is_none(), peers.leader(named));
        Arc::new_cyclic(|this| SessionCollectives {
            this: this.clone(),
            own: worker.leader.clone(),
            leader,
            is_default_leader,
            task: task.clone(),
            session: session.clone(),
            peers: peers.clone(),
            runtime: worker.runtime.clone(),
            pool: worker.pool.clone(),
            link_table: worker.link_table.clone(),
            steps: worker.steps.clone(),
            timeout: worker.config.collective_timeout,
            agreed: Mutex::default(),
            claims: Arc::default(),
        })
    }

    /// Prepares for a step of a graph with collectives. If other sessions take part in them, the members' tasks will learn
    /// the step's failure, after which nothing that was agreed on holds. Returns the registration of the callback, to be removed when the step succeeds.
    pub(crate) fn begin_step(self: &Arc<Self>, step: &StepState) -> Option<Registration> {
        step.rendezvous.add_members(self.agreed.lock().routes.clone());
        let own = self.clone();
        let registered = step.cancellation.register(move |_| own.forget());
        registered.inspect_err(|_| self.forget()).ok()
    }

    /// Forgets all groups and instances if other sessions have members in them, which may have restarted or have left.
    fn forget(&self) {
        let mut agreed = self.agreed.lock();
        if !agreed.routes.is_empty() {
            *agreed = Agreed::default();
        }
    }

    /// Records the tasks of a group's members, which learn failures of this step and later ones.
    fn add_routes(&self, members: &Members, step_id: i64) {
        let tasks: BTreeMap<TaskName, &DeviceName> =
            members.iter().map(|member| (member.name.task_name(), &member.name)).collect();
        let others = tasks.into_iter().filter(|(task, _)| *task != self.task);
        let routes: Vec<Arc<Route>> =
            others.filter_map(|(_, device)| self.peers.route_to(&device.to_string().into())).collect();
        // The handshakes of the links begin before the first transfer.
        routes.iter().for_each(|route| drop(route.link_or_connect(&self.link_table)));
        self.agreed.lock().routes.extend(routes.iter().cloned());
        if let Some(step) = self.steps.get(step_id) {
            step.rendezvous.add_members(routes);
        }
    }

    /// Returns the agreement of this member's earlier steps on the request's instance, if there is one.
    fn known(&self, request: &Request, terms: &Terms) -> Option<Known> {
        let agreed = self.agreed.lock();
        let key = group_key(request);
        let group = agreed.groups.get(&key).filter(|group| group.suits(request))?.clone();
        if request.operation == Operation::Join {
            return Some(Known { group, source: None, is_current: true });
        }
        let (known, source) = agreed.instances.get(&(key, request.instance_key))?;
        let is_source = source.is_some_and(|rank| group.has_at(rank, request));
        let is_current = known == terms && is_source == request.is_source();
        Some(Known { group, source: *source, is_current })
    }

    /// Joins the request's group and agrees on its instance.
    async fn agree(
        &self,
        request: &Request,
        terms: &Terms,
        step_id: i64,
        renewal: Option<u64>,
        deadline: Instant,
    ) -> Result<(Group, Option<usize>), Status> {
        let key = group_key(request);
        let known = self.agreed.lock().groups.get(&key).cloned();
        let group = match known.filter(|group| group.suits(request)) {
            Some(group) => group,
            None => {
                let Met { members, is_shared } = self.join(request, step_id, deadline).await?;
                let is_foreign = self.find_foreign(&members, deadline).await?;
                if is_shared {
                    self.add_routes(&members, step_id);
                }
                let group = Group { members, is_foreign };
                self.agreed.lock().groups.insert(key.clone(), group.clone());
                group
            }
        };
        if request.operation == Operation::Join {
            return Ok((group, None));
        }
        let source = self.agree_on_instance(request, terms, step_id, renewal, deadline).await?;
        self.agreed.lock().instances.insert((key, request.instance_key), (terms.clone(), source));
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

    async fn join(&self, request: &Request, step_id: i64, deadline: Instant) -> Result<Met, Status> {
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

    async fn agree_on_instance(
        &self,
        request: &Request,
        terms: &Terms,
        step_id: i64,
        renewal: Option<u64>,
        deadline: Instant,
    ) -> Result<Option<usize>, Status> {
        let leader = self.leader_task()?;
        let device = request.device.name().to_string();
        let is_source = request.is_source();
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

    /// Runs a collective whose members have agreed; `renewal` is set if they have agreed anew. Otherwise a notice that a
    /// member has other terms lets this member agree anew too.
    fn run(
        &self,
        step: &StepCollectives,
        request: Request,
        group: Group,
        source: Option<usize>,
        run: &Arc<Running>,
        renewal: Option<u64>,
    ) {
        if request.operation == Operation::Join {
            return run.end(Ok(Tensor::from(0i32)));
        }
        let Group { members, is_foreign } = group;
        let members = match request.placed.as_ref().and_then(Placed::subgroup) {
            Some(ranks) => ranks.iter().filter_map(|&rank| members.get(rank as usize).cloned()).collect(),
            None => members,
        };
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
        let mut name = name(&request, is_foreign.is_some());
        let renew = match renewal {
            None if is_foreign.is_none() => Some(self.renewing(step, &request, run)),
            None => None,
            Some(_) => {
                name.push_str(":renewed");
                None
            }
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
            name,
            schedule,
        };
        let finish = run.clone();
        let course = Course::start(
            plan,
            request.input,
            step.rendezvous.clone(),
            self.pool.clone(),
            Box::new(move |output| finish.end(output)),
            renew,
        );
        let mut latest = run.course.lock();
        match renewal {
            None => drop(latest.get_or_insert(course)),
            Some(_) => *latest = Some(course),
        }
    }

    /// Returns the callback by which a member that runs a collective agrees anew.
    fn renewing(&self, step: &StepCollectives, request: &Request, run: &Arc<Running>) -> Renew {
        let (own, run) = (self.this.clone(), Arc::downgrade(run));
        let (step, request) = (step.clone(), request.clone());
        Box::new(move || {
            if let (Some(own), Some(run)) = (own.upgrade(), run.upgrade()) {
                let renewal = Some(renewal(&request));
                own.negotiate(step, request, run, renewal);
            }
        })
    }
}

impl Collectives for SessionCollectives {
    fn start(&self, step: &StepCollectives, request: Request, finish: Finish) {
        let finish = match self.claims.claim(step.id, &request, finish) {
            Ok(finish) => finish,
            Err((finish, error)) => return finish(Err(error)),
        };
        let Some(run) = Running::start(step, &request, self.timeout_of(&request), finish) else { return };
        let terms = Terms::of(&request);
        run.expire_in_time(&self.runtime);
        match self.known(&request, &terms) {
            Some(known) if known.is_current => {
                self.run(step, request, known.group, known.source, &run, None);
            }
            Some(known) if known.group.is_foreign.is_none() => {
                let renewal = Some(renewal(&request));
                self.announce_change(step, &request, &known, &run);
                self.negotiate(step.clone(), request, run, renewal);
            }
            _ => self.negotiate(step.clone(), request, run, None),
        }
    }

    fn assemble(&self, step: &StepCollectives, call: AssemblyCall, finish: Finish) {
        self.call_assembly(step, call, finish);
    }
}

impl SessionCollectives {
    fn timeout_of(&self, request: &Request) -> Duration {
        request.timeout.unwrap_or(self.timeout)
    }

    /// Agrees on the request's instance with its other members, and runs it. `renewal` is set if they agree anew.
    fn negotiate(&self, step: StepCollectives, request: Request, run: Arc<Running>, renewal: Option<u64>) {
        let Some(own) = self.this.upgrade() else { return };
        let deadline = Instant::now() + self.timeout_of(&request);
        let ending = run.clone();
        let negotiation = self.runtime.spawn(async move {
            let terms = Terms::of(&request);
            match own.agree(&request, &terms, step.id, renewal, deadline).await {
                Ok((group, source)) => own.run(&step, request, group, source, &run, renewal),
                Err(status) if status.code == Code::DeadlineExceeded => run.expire(&status.message),
                Err(status) => run.end(Err(to_error(status))),
            }
        });
        ending.abort_at_end(negotiation.abort_handle());
    }

    /// Sends all other members the notice that this member has other terms than those agreed on, in place of its first
    /// transfers. A member that receives the notice agrees anew too. The source of a broadcast receives nothing: if it goes
    /// on under the terms of before, its elements tell.
    fn announce_change(&self, step: &StepCollectives, request: &Request, known: &Known, run: &Arc<Running>) {
        let (name, members) = (name(request, false), &known.group.members);
        let own = members.iter().position(|member| member.name == *request.device.name());
        let Some(own) = own else { return };
        for (_, member) in members.iter().enumerate().filter(|(rank, _)| *rank != own) {
            let key = Arc::new(transfer_key(&name, 0, &members[own], member));
            if let Err(error) = step.rendezvous.send(&key, Sent::dead()) {
                return run.end(Err(error));
            }
        }
        step.rendezvous.flush();
        let source = known.source.filter(|source| *source != own).and_then(|source| members.get(source));
        if let Some(source) = source {
            let (error, run) = (goes_on(request, &source.name), run.clone());
            let receive = move |sent: device::Result<Sent>| {
                if sent.is_ok_and(|sent| !sent.is_dead) {
                    run.end(Err(error));
                }
            };
            let key = Arc::new(transfer_key(&name, 0, source, &members[own]));
            step.rendezvous.recv(&key, Box::new(receive));
        }
    }
}

/// Returns the error of a member with changed terms if the source of a broadcast goes on under the terms of before.
fn goes_on(request: &Request, source: &DeviceName) -> Error {
    let (instance, node) = (request.instance_key, &request.node.name);
    let own = format!("'{node}' on {}", request.device.name());
    if request.is_source() {
        let text =
            format!("Instance {instance} already has source {source}, received second claim from {own}");
        return Error::new(Code::Internal, format!("{text} (group {})", request.group_key));
    }
    Error::invalid(format!(
        "Shape mismatch in the collective instance {instance} of group {}: {own} expects {} {}, but the source \
         {source} sends what was agreed on before",
        request.group_key, request.dtype, request.shape
    ))
}

/// Returns the number of the request's iteration within its step.
fn renewal(request: &Request) -> u64 {
    fingerprint::combine(request.position.enclosing, request.position.iteration)
}

impl Group {
    /// Returns whether the group is that of a member's request: the sizes are equal, and the member of a communicator has
    /// the same rank.
    fn suits(&self, request: &Request) -> bool {
        let rank = request.placed.as_ref().map(|placed| placed.rank as usize);
        let has_rank = rank.is_none_or(|rank| self.has_at(rank, request));
        self.members.len() == request.group_size as usize && has_rank
    }

    /// Returns whether the request's member has a rank.
    fn has_at(&self, rank: usize, request: &Request) -> bool {
        self.members.get(rank).is_some_and(|member| member.name == *request.device.name())
    }
}

fn group_key(request: &Request) -> GroupKey {
    (request.group_key, request.placed.is_some(), request.device.name().clone())
}

/// Returns the name of a request's collective in the keys of its transfers: the keys of group and instance, and the frame
/// and iteration of the loop, as in TensorFlow's keys. Between members of this implementation the frame is named by the
/// iterations around it, because the loops of members in one graph have different names.
fn name(request: &Request, has_foreign: bool) -> String {
    let Request { group_key, instance_key, position, placed, .. } = request;
    let kind = if placed.is_some() { "communicator:" } else { "" };
    let frame = if has_foreign { position.frame } else { position.enclosing };
    format!("{kind}{group_key}:{instance_key}:{frame}:{}", position.iteration)
}

/// A collective of a node, from the start of the node's kernel to its end.
struct Running {
    /// The op, the node and the keys, for messages.
    name: String,
    timeout: Duration,
    finish: Mutex<Option<Finish>>,
    cancellation: Arc<Cancellation>,
    /// The callback by which the step's cancellation ends the collective.
    on_cancel: Mutex<Option<Registration>>,
    timer: Mutex<Option<AbortHandle>>,
    /// The calls to the leader, which end with the collective: a later step may begin the instance anew.
    negotiation: Mutex<Option<AbortHandle>>,
    /// `None` until the members have agreed.
    course: Mutex<Option<Arc<Course>>>,
}

impl Running {
    /// Begins a collective, which ends when the step is cancelled; `None` if the step has been cancelled.
    fn start(
        step: &StepCollectives,
        request: &Request,
        timeout: Duration,
        finish: Finish,
    ) -> Option<Arc<Running>> {
        let Request { node, group_key, group_size, instance_key, .. } = request;
        let op = node.op.name();
        let keys = format!("group {group_key} of {group_size}, instance {instance_key}");
        let run = Arc::new(Running {
            name: format!("{op} '{}' ({keys})", node.name),
            timeout,
            finish: Mutex::new(Some(finish)),
            cancellation: step.cancellation.clone(),
            on_cancel: Mutex::default(),
            timer: Mutex::default(),
            negotiation: Mutex::default(),
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

    /// Ends the collective with `DeadlineExceeded` after its time limit.
    fn expire_in_time(self: &Arc<Self>, runtime: &Handle) {
        let run = self.clone();
        let timer = runtime.spawn(async move {
            tokio::time::sleep(run.timeout).await;
            let course = run.course.lock().clone();
            match course {
                Some(course) => run.expire(&awaited(&course)),
                None => {
                    // The leader answers at the time limit too, and knows which members have come.
                    tokio::time::sleep(LEADER_GRACE).await;
                    run.expire("the leader of its group has not answered");
                }
            }
        });
        *self.timer.lock() = Some(timer.abort_handle());
    }

    /// Ends the collective with `DeadlineExceeded` and the reason of its wait.
    fn expire(&self, awaited: &str) {
        let text = format!("{}: {awaited}; waited {:.1} s", self.name, self.timeout.as_secs_f64());
        self.end(Err(Error::new(Code::DeadlineExceeded, text)));
    }

    /// Ends calls to the leader when the collective ends, at once if it has ended.
    fn abort_at_end(&self, calls: AbortHandle) {
        *self.negotiation.lock() = Some(calls);
        if self.finish.lock().is_none()
            && let Some(calls) = self.negotiation.lock().take()
        {
            calls.abort();
        }
    }

    /// Ends the collective, unless it has ended.
    fn end(&self, output: device::Result<Tensor>) {
        let finish = self.finish.lock().take();
        let Some(finish) = finish else { return };
        if let Some(registration) = self.on_cancel.lock().take() {
            self.cancellation.deregister(registration);
        }
        let calls = [self.timer.lock().take(), self.negotiation.lock().take()];
        calls.into_iter().flatten().for_each(|call| call.abort());
        // A course that has not ended still refers to this object, and may wait for members of TensorFlow.
        let course = self.course.lock().take();
        if let (Some(course), Err(error)) = (course, &output) {
            course.fail(error.clone());
        }
        finish(output);
    }
}

/// Says for which members a course waits.
fn awaited(course: &Course) -> String {
    let members: Vec<String> = course.awaited().iter().map(|member| member.name.to_string()).collect();
    format!("waits for {}", members.join(", "))
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
            functions: match &request.placed {
                Some(placed) => format!("{}, {}", functions(request.operation), subgroups(placed)),
                None => functions(request.operation),
            },
        }
    }
}

/// Returns the number by which TensorFlow's protocol denotes an operation.
fn kind(operation: Operation) -> i32 {
    match operation {
        Operation::Reduce(_) | Operation::Join => 0,
        Operation::Broadcast { .. } => BROADCAST,
        Operation::Gather => 2,
        Operation::AllToAll => 4,
        Operation::ReduceScatter(_) => 5,
        // Operations of process groups; TensorFlow's protocol has no numbers for them.
        Operation::ReduceToRoot { .. } | Operation::GatherToRoot { .. } | Operation::Scatter { .. } => 6,
    }
}

/// Returns the names of a reduction's functions, such as `Add,Div`; empty for other operations.
fn functions(operation: Operation) -> String {
    let (Operation::Reduce(reduction) | Operation::ReduceScatter(reduction)) = operation else {
        return String::new();
    };
    format!("{},{}", reduction.merge.name(), if reduction.is_mean { "Div" } else { "Id" })
}

/// Returns the text of the subgroups in which the members of a communicator carry out an operation.
fn subgroups(placed: &Placed) -> String {
    match &*placed.assignment {
        [] => "all members together".into(),
        rows => format!("subgroups {rows:?}"),
    }
}

impl fmt::Debug for SessionCollectives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionCollectives({}, led by {:?})", self.session, self.leader)
    }
}
