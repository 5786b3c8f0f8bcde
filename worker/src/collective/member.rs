//! The members in one session: they join groups and agree on instances at first use, and run collectives.

mod assembling;
mod bucket;
mod leader_calls;
mod on_device;
mod running;
mod span;
mod stall;
mod terms;

use super::buffer::BufferCalls;
use super::claims::Claims;
use super::course::{Course, ForeignMembers, Plan, Renew, names_of, transfer_key};
use super::leader::Leader;
use super::register::{Agreement, Members, Met, Terms};
use super::schedule::{Member, Schedule};
use crate::peers::Peers;
use crate::rendezvous::to_error;
use crate::steps::{StepState, Steps};
use crate::transport::{LinkTable, Route};
use crate::worker::Worker;
use bucket::{Bucket, Buckets};
use device::cancel::Registration;
use device::collective::{AssemblyCall, Collectives, Finish, Operation, Placed, Request, StepCollectives};
use device::rendezvous::Sent;
use device::{Error, Pool, Value};
use graph::{Code, DeviceName, TaskName, Tensor, fingerprint};
use on_device::{DeviceGroups, DeviceRun};
use parking_lot::Mutex;
use proto::Status;
use running::Running;
use rustc_hash::{FxHashMap, FxHashSet};
use span::span;
use stall::Stalls;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// The header field in which a member sends a leader of this implementation the handle of its session.
pub(crate) const SESSION_KEY: &str = "anabranch-session";

/// The header field in which a member sends a leader of this implementation the id of its step. The field of
/// CompleteInstance's message is not used for it, because a leader of TensorFlow treats that field as a part of the
/// instance's key.
pub(crate) const STEP_KEY: &str = "anabranch-step";

/// The header field for the number of milliseconds within which a member needs the answer of a leader of this
/// implementation.
pub(crate) const TIMEOUT_KEY: &str = "anabranch-timeout";

/// The header field by which a leader of this implementation tells a member that its group has members in several
/// sessions.
pub(crate) const SHARED_KEY: &str = "anabranch-shared";

/// The header field in which the member of a communicator sends a leader of this implementation its rank.
pub(crate) const RANK_KEY: &str = "anabranch-rank";

/// The header field of CompleteInstance by which a member tells a leader of this implementation that the members repeat
/// their agreement on an instance; its value is the number of the iteration.
pub(crate) const RENEWAL_KEY: &str = "anabranch-renewal";

/// The header field of CompleteInstance for the digest of the bucket that contains the instance on a member. A leader
/// of this implementation answers with the field if the digest is the same on all members.
pub(crate) const BUCKET_KEY: &str = "anabranch-bucket";

/// The header field of GetStatus by which a member queries whether a task's members are of this implementation; the
/// response of such a task has the field too.
pub(crate) const COLLECTIVES_KEY: &str = "anabranch-collectives";

/// Number of groups that a session's members remember.
const MAX_GROUPS: usize = 1 << 12;

/// Number of instances that a session's members remember; leaders remember more of each group.
const MAX_INSTANCES: usize = 1 << 15;

/// The members of collectives that a session has on this task.
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
    stalls: Stalls,
    buckets: Buckets,
    device_groups: DeviceGroups,
    has_logged_bucket: Once,
}

/// The groups and instances on which members of this task have agreed with their leader.
#[derive(Debug, Default)]
struct Agreed {
    groups: FxHashMap<GroupKey, Group>,
    /// The locks of the groups that nodes are joining.
    joining: FxHashMap<GroupKey, Arc<JoinLock>>,
    instances: FxHashMap<(GroupKey, i32), Instance>,
    /// The digests of buckets that some member does not have; the instances of such a bucket run one by one.
    divided: FxHashSet<(GroupKey, i64)>,
    /// The routes to the tasks of the members of groups that several sessions share.
    routes: Vec<Arc<Route>>,
}

impl Agreed {
    /// Returns the lock that a node holds while it joins a group.
    fn join_lock(&mut self, key: &GroupKey) -> Arc<JoinLock> {
        if self.joining.len() >= MAX_GROUPS {
            self.joining.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        self.joining.entry(key.clone()).or_default().clone()
    }

    /// Removes all instances, or the groups too, if there are too many: a member can ask the leader again, which
    /// answers at once.
    fn make_room(&mut self) {
        if self.instances.len() >= MAX_INSTANCES {
            self.instances.clear();
        }
        if self.groups.len() >= MAX_GROUPS {
            self.instances.clear();
            self.groups.clear();
        }
    }
}

/// An instance on which the members have agreed.
#[derive(Debug)]
struct Instance {
    terms: Terms,
    /// The rank of a broadcast's source.
    source: Option<usize>,
    /// The digest of the bucket, or of the order on the members' devices, in which the members run the instance; `None` if
    /// they run it alone.
    bucket: Option<i64>,
    /// The last step in which this member gave notice that it does not run the bucket's instances as agreed.
    noticed_in: Option<i64>,
}

/// The agreement of earlier steps on an instance.
struct Known {
    group: Group,
    source: Option<usize>,
    /// The digest of the bucket in which the members run the instance.
    bucket: Option<i64>,
    /// False if the member now has other terms, has the instance in another bucket, or has become, or is no longer, the
    /// source of the broadcast.
    is_current: bool,
}

/// The name of an exchange in the keys of its transfers, and the callback for the notice that another member's terms
/// differ.
struct Exchange {
    name: String,
    renew: Option<Renew>,
}

/// A member of this task in a group: the group's key, whether the group is that of a communicator, and the device.
type GroupKey = (i32, bool, DeviceName);

/// A lock that nodes hold while they join a group.
type JoinLock = tokio::sync::Mutex<()>;

/// A complete group of which a device of this task is a member.
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
            stalls: Stalls::new(worker.config.stall_warn),
            buckets: Buckets::default(),
            device_groups: DeviceGroups::default(),
            has_logged_bucket: Once::new(),
        })
    }

    /// Prepares for a step of a graph with collectives. If other sessions take part in them, the members' tasks are
    /// told if the step fails, and a failure invalidates all agreements. Returns the registration of the callback, to
    /// be removed when the step succeeds.
    pub(crate) fn begin_step(self: &Arc<Self>, step: &StepState) -> Option<Registration> {
        step.rendezvous.add_members(self.agreed.lock().routes.clone());
        let own = self.clone();
        let registered = step.cancellation.register(move |_| own.forget());
        registered.inspect_err(|_| self.forget()).ok()
    }

    /// Removes all groups and instances if other sessions have members in them, because those members may have
    /// restarted or left.
    fn forget(&self) {
        let mut agreed = self.agreed.lock();
        if !agreed.routes.is_empty() {
            *agreed = Agreed::default();
        }
    }

    /// Records the tasks of a group's members, which are told of failures of this step and of later steps.
    fn add_routes(&self, members: &Members, step_id: i64) {
        let tasks: BTreeMap<TaskName, &DeviceName> =
            members.iter().map(|member| (member.name.task_name(), &member.name)).collect();
        let others = tasks.into_iter().filter(|(task, _)| *task != self.task);
        let routes: Vec<Arc<Route>> =
            others.filter_map(|(_, device)| self.peers.route_to(&device.to_string().into())).collect();
        // The handshakes of the links begin before the first transfer.
        routes.iter().for_each(|route| drop(route.link_or_connect(&self.link_table)));
        let known = &mut self.agreed.lock().routes;
        for route in &routes {
            if !known.iter().any(|known| Arc::ptr_eq(known, route)) {
                known.push(route.clone());
            }
        }
        if let Some(step) = self.steps.get(step_id) {
            step.rendezvous.add_members(routes);
        }
    }

    /// Records that this member gives notice, in a step, that it does not run a bucket's instances as agreed. Returns
    /// true if this is the first such notice in the step.
    fn take_notice(&self, step_id: i64, request: &Request, digest: i64) -> bool {
        let (mut agreed, key) = (self.agreed.lock(), group_key(request));
        let of_bucket = agreed
            .instances
            .iter_mut()
            .filter(|((group, _), instance)| *group == key && instance.bucket == Some(digest));
        let mut is_first = true;
        for (_, instance) in of_bucket {
            is_first &= instance.noticed_in.replace(step_id) != Some(step_id);
        }
        is_first
    }

    /// Returns the agreement of this member's earlier steps on the request's instance, if there is one.
    fn known(&self, request: &Request, terms: &Terms) -> Option<Known> {
        let agreed = self.agreed.lock();
        let key = group_key(request);
        let group = agreed.groups.get(&key).filter(|group| group.suits(request))?.clone();
        if request.operation == Operation::Join {
            return Some(Known { group, source: None, bucket: None, is_current: true });
        }
        let &Instance { terms: ref known, source, bucket, .. } =
            agreed.instances.get(&(key, request.instance_key))?;
        let is_source = source.is_some_and(|rank| group.has_at(rank, request));
        let has_same_bucket = bucket == request.digest();
        let is_current = known == terms && is_source == request.is_source() && has_same_bucket;
        Some(Known { group, source, bucket, is_current })
    }

    /// Returns the request's group. The first node of a member joins it, and the member's other nodes await the answer.
    async fn meet(
        &self,
        key: &GroupKey,
        request: &Request,
        step_id: i64,
        deadline: Instant,
    ) -> Result<Group, Status> {
        let known = || self.agreed.lock().groups.get(key).filter(|group| group.suits(request)).cloned();
        if let Some(group) = known() {
            return Ok(group);
        }
        // The collective's deadline ends this wait: it aborts the calls to the leader.
        let lock = self.agreed.lock().join_lock(key);
        let _held = lock.lock().await;
        if let Some(group) = known() {
            return Ok(group);
        }
        let Met { members, is_shared } = self.join(request, step_id, deadline).await?;
        let is_foreign = self.find_foreign(&members, deadline).await?;
        if is_shared {
            self.add_routes(&members, step_id);
        }
        let group = Group { members, is_foreign };
        let mut agreed = self.agreed.lock();
        agreed.make_room();
        agreed.groups.insert(key.clone(), group.clone());
        agreed.joining.remove(key);
        Ok(group)
    }

    /// Joins the request's group and agrees on its instance.
    async fn agree(
        &self,
        request: &Request,
        terms: &Terms,
        step_id: i64,
        renewal: Option<u64>,
        deadline: Instant,
    ) -> Result<(Group, Agreement), Status> {
        let key = group_key(request);
        let group = self.meet(&key, request, step_id, deadline).await?;
        if request.operation == Operation::Join {
            return Ok((group, Agreement::default()));
        }
        let agreement = self.agree_on_instance(request, terms, step_id, renewal, deadline).await;
        let mut agreed = self.agreed.lock();
        if agreement.as_ref().is_err_and(|status| status.code == Code::FailedPrecondition) {
            // The leader does not know the group, so the next step joins it again.
            agreed.groups.remove(&key);
        }
        let agreement = agreement?;
        agreed.make_room();
        let bucket = request.digest().filter(|_| agreement.is_bucketed);
        let instance = Instance { terms: terms.clone(), source: agreement.source, bucket, noticed_in: None };
        agreed.instances.insert((key, request.instance_key), instance);
        drop(agreed);
        Ok((group, agreement))
    }

    /// Runs a collective whose members have agreed; `renewal` is set if they have repeated their agreement. Otherwise
    /// this member repeats it if another member gives notice of other terms.
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
            return run.end(Ok(Tensor::from(0i32).into()));
        }
        let mut name = name(&request, group.is_foreign.is_some());
        let renew = match renewal {
            None if group.is_foreign.is_none() => Some(self.renewing(step, &request, run)),
            None => None,
            Some(_) => {
                name.push_str(":renewed");
                None
            }
        };
        self.exchange(step, request, group, source, run, Exchange { name, renew });
    }

    /// Exchanges elements with the other members of a group.
    fn exchange(
        &self,
        step: &StepCollectives,
        request: Request,
        group: Group,
        source: Option<usize>,
        run: &Arc<Running>,
        Exchange { name, renew }: Exchange,
    ) {
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
        step.activity.note(&request.node, || span(&schedule, &member, is_foreign.is_some()));
        let foreign = is_foreign.map(|is_foreign| {
            let buffers = BufferCalls::new(step.id, self.peers.clone(), self.runtime.clone());
            ForeignMembers { is_foreign, buffers }
        });
        let plan = Plan {
            foreign,
            devices: names_of(&members),
            members,
            rank,
            operation: request.operation,
            dtype: request.dtype,
            width,
            output: request.shape,
            name,
            schedule,
        };
        tracing::debug!("collective {} of {} members: {count} elements", plan.name, plan.members.len());
        let (finish, is_first) = (run.clone(), renew.is_some());
        let course = Course::start(
            plan,
            request.input,
            step.rendezvous.clone(),
            self.pool.clone(),
            Box::new(move |output| finish.end(output.map(Value::from))),
            renew,
        );
        run.follow(course, is_first);
    }

    /// Returns the callback by which a member repeats the agreement on a collective that it is already running.
    fn renewing(&self, step: &StepCollectives, request: &Request, run: &Arc<Running>) -> Renew {
        let (own, run) = (self.this.clone(), Arc::downgrade(run));
        let (step, request) = (step.clone(), request.clone());
        Box::new(move || {
            if let (Some(own), Some(run)) = (own.upgrade(), run.upgrade()) {
                let renewal = Some(renewal(&request));
                own.negotiate(step, request, run, renewal, None);
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
        if let Some(input) = request.on_device.clone() {
            return self.start_on_device(step, request, input, finish);
        }
        match request.bucket.filter(|_| request.group_size > 1) {
            None => self.start_alone(step, request, finish),
            Some(place) => self.start_in_bucket(step, request, place, finish),
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

    /// Takes part in a collective that is in no bucket, or in a bucket that some members do not have.
    fn start_alone(&self, step: &StepCollectives, request: Request, finish: Finish) {
        let request = Request { bucket: None, ..request };
        let timeout = self.timeout_of(&request);
        let Some(run) = Running::of_request(step, &request, timeout, finish) else { return };
        self.watch(step, &request, &run);
        match self.known(&request, &Terms::of(&request)) {
            Some(known) if known.is_current => {
                self.run(step, request, known.group, known.source, &run, None);
            }
            known => self.agree_and_run(step, request, known, run, None),
        }
    }

    /// Agrees on an instance that is new or whose terms differ from those of earlier steps (`known`), and runs it. It
    /// runs in the bucket `place` if that is set and all members have the same bucket.
    fn agree_and_run(
        &self,
        step: &StepCollectives,
        request: Request,
        known: Option<Known>,
        run: Arc<Running>,
        place: Option<(Arc<Bucket>, usize)>,
    ) {
        let mut renewed = None;
        if let Some(known) = known.filter(|known| known.group.is_foreign.is_none()) {
            renewed = Some(renewal(&request));
            self.announce_change(step, &request, &known, &run);
        }
        self.negotiate(step.clone(), request, run, renewed, place);
    }

    /// Agrees on the request's instance with the other members, and runs it. `renewal` is set if they repeat an earlier
    /// agreement. `place` is a bucket, in which the instance runs if all members have it, and the index of the instance
    /// in it.
    fn negotiate(
        &self,
        step: StepCollectives,
        request: Request,
        run: Arc<Running>,
        renewal: Option<u64>,
        place: Option<(Arc<Bucket>, usize)>,
    ) {
        let Some(own) = self.this.upgrade() else { return };
        let deadline = Instant::now() + self.timeout_of(&request);
        let ending = run.clone();
        let negotiation = self.runtime.spawn(async move {
            let terms = Terms::of(&request);
            match own.agree(&request, &terms, step.id, renewal, deadline).await {
                Ok((group, agreement)) => match place {
                    Some((bucket, index)) if agreement.is_bucketed => {
                        own.gather(&step, &bucket, index, group);
                    }
                    place => {
                        if let Some((bucket, _)) = place {
                            own.divide(&bucket, &request);
                        }
                        if let Some(input) = request.on_device.clone() {
                            let reduction = DeviceRun { step, request, input, group, run, renewal };
                            return own.run_on_device(reduction, agreement.is_bucketed);
                        }
                        let request = Request { bucket: None, ..request };
                        own.run(&step, request, group, agreement.source, &run, renewal);
                    }
                },
                Err(status) if status.code == Code::DeadlineExceeded => run.expire(&status.message),
                Err(status) => run.end(Err(to_error(status))),
            }
        });
        ending.abort_at_end(negotiation.abort_handle());
    }

    /// Gives all other members notice that this member's terms differ from those agreed on; the notice takes the place
    /// of its first transfers, and its receivers repeat the agreement too. The source of a broadcast receives no
    /// transfers and so no notice: if it still sends its elements under the old terms, this member fails when they
    /// arrive.
    fn announce_change(&self, step: &StepCollectives, request: &Request, known: &Known, run: &Arc<Running>) {
        let name = match known.bucket {
            Some(digest) if !self.take_notice(step.id, request, digest) => return,
            Some(digest) => bucket::name(request.group_key, digest),
            None => name(request, false),
        };
        let members = &known.group.members;
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

/// Returns the error of a member with changed terms when a broadcast's source still sends under the old terms.
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

/// Returns a number that identifies the request's loop iteration within its step.
fn renewal(request: &Request) -> u64 {
    fingerprint::combine(request.position.enclosing, request.position.iteration)
}

impl Group {
    /// Returns whether the group fits a member's request: the sizes are equal, and the member of a communicator has the
    /// rank that it requests.
    fn suits(&self, request: &Request) -> bool {
        let rank = request.placed.as_ref().map(|placed| placed.rank as usize);
        let has_rank = rank.is_none_or(|rank| self.has_at(rank, request));
        self.members.len() == request.group_size as usize && has_rank
    }

    /// Returns whether the request's device is the member of this rank.
    fn has_at(&self, rank: usize, request: &Request) -> bool {
        self.members.get(rank).is_some_and(|member| member.name == *request.device.name())
    }
}

fn group_key(request: &Request) -> GroupKey {
    (request.group_key, request.placed.is_some(), request.device.name().clone())
}

/// Returns the name of a request's collective in the keys of its transfers: the keys of group and instance, and the
/// frame and iteration of the loop, as in TensorFlow's keys. Between members of this implementation, the numbers of the
/// enclosing iterations replace the frame's name, because the loops of members in one graph have different names.
fn name(request: &Request, has_foreign: bool) -> String {
    let Request { group_key, instance_key, position, placed, .. } = request;
    let kind = if placed.is_some() { "communicator:" } else { "" };
    let frame = if has_foreign { position.frame } else { position.enclosing };
    format!("{kind}{group_key}:{instance_key}:{frame}:{}", position.iteration)
}

impl fmt::Debug for SessionCollectives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionCollectives({}, led by {:?})", self.session, self.leader)
    }
}
