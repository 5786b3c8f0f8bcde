//! Reductions of tensors in device memory: by the device's library if all members of the group can use it, else through
//! host memory.

use super::running::Running;
use super::{Group, GroupKey, SessionCollectives, bucket, group_key};
use crate::collective::communicators::{Action, Entered, Turns};
use crate::collective::course::transfer_key;
use crate::collective::register::{Members, Terms};
use crate::rendezvous::to_error;
use device::cancel::Registration;
use device::collective::{DeviceHint, DeviceInput, Finish, Operation, Request, StepCollectives};
use device::device_collectives::{CommunicatorPlace, DeviceCommunicator};
use device::kernel::LoopPosition;
use device::rendezvous::Sent;
use device::{Device, Error, Result, Value};
use graph::{Code, Shape, Tensor};
use parking_lot::Mutex;
use proto::Status;
use rustc_hash::FxHashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Number of groups of a session that may have communicators on this task.
const MAX_GROUPS: usize = 1 << 10;

/// The shortest and the longest pause between two queries of the library for whether a communicator is connected or has
/// failed.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];

/// The members of this task in groups that have had a communicator, and the log messages that have been written.
#[derive(Default)]
pub(super) struct DeviceGroups {
    groups: Mutex<FxHashMap<GroupKey, Arc<DeviceGroup>>>,
    has_logged: OnceLock<()>,
}

/// A member of this task in a group with a communicator.
struct DeviceGroup {
    key: GroupKey,
    members: Members,
    rank: usize,
    device: Arc<Device>,
    state: Mutex<State>,
}

struct State {
    turns: Turns<Arc<DeviceRun>>,
    communicator: Option<Arc<dyn DeviceCommunicator>>,
    /// The steps with reductions, with the callback for the step's failure.
    steps: FxHashMap<i64, (StepCollectives, Registration)>,
}

/// A reduction of a tensor in device memory on whose instance the members have agreed.
#[derive(Clone)]
pub(super) struct DeviceRun {
    pub(super) step: StepCollectives,
    pub(super) request: Request,
    pub(super) input: DeviceInput,
    pub(super) group: Group,
    pub(super) run: Arc<Running>,
    /// Set if the members have repeated their agreement.
    pub(super) renewal: Option<u64>,
}

impl SessionCollectives {
    /// Takes part in a reduction whose input is in device memory.
    pub(super) fn start_on_device(
        &self,
        step: &StepCollectives,
        request: Request,
        input: DeviceInput,
        finish: Finish,
    ) {
        let is_possible = self.can_use_library(&request, &input);
        if let (Err(reason), DeviceHint::Library) = (&is_possible, input.hint) {
            return finish(Err(unwilling(&request, &reason.to_string())));
        }
        if let Err(reason) = is_possible {
            self.log_host(&request, &reason.to_string());
            return self.start_through_host(step, request, input, finish);
        }
        let timeout = self.timeout_of(&request);
        let Some(run) = Running::of_request(step, &request, timeout, finish) else { return };
        self.watch(step, &request, &run);
        match self.known(&request, &Terms::of(&request)) {
            Some(known) if known.is_current => {
                let (step, group) = (step.clone(), known.group);
                self.reduce_on_device(DeviceRun { step, request, input, group, run, renewal: None });
            }
            known => self.agree_and_run(step, request, known, run, None),
        }
    }

    /// Checks that this member can reduce the tensor by its device's library.
    ///
    /// # Errors
    /// `FailedPrecondition` or the library's own error, with the reason why it cannot.
    fn can_use_library(&self, request: &Request, input: &DeviceInput) -> Result<()> {
        let cannot = |reason: &str| Err(Error::new(Code::FailedPrecondition, reason));
        let Some(place) = input.place else {
            return cannot(
                "the node is in a branch, a loop or a function, or waits for other nodes than those before it",
            );
        };
        let Operation::Reduce(reduction) = request.operation else {
            return cannot("the operation is no reduction");
        };
        let Some(library) = request.device.processor().collectives() else {
            return cannot("the device has no library for reductions");
        };
        if input.hint == DeviceHint::Host {
            return cannot("its communication_hint is 'ring'");
        }
        let is_empty = request.shape.num_elements() == 0 || request.group_size < 2;
        if is_empty || request.placed.is_some() || request.position != LoopPosition::default() {
            return cannot("there is nothing to exchange, or the node is in a loop");
        }
        if !library.can_reduce(request.dtype, reduction) {
            let text = format!("the library has no {reduction:?} of {}", request.dtype);
            return cannot(&text);
        }
        if self.agreed.lock().divided.contains(&(group_key(request), place.digest)) {
            return cannot("another member reduces in another order, or cannot use its library");
        }
        library.identity().map(|_| ())
    }

    /// Logs, once, that tensors in device memory are reduced through host memory.
    fn log_host(&self, request: &Request, reason: &str) {
        self.device_groups.has_logged.get_or_init(|| {
            tracing::info!(
                "'{}' on {} is reduced through host memory, and so may be others: {reason}",
                request.node.name,
                request.device.name()
            );
        });
    }

    /// Copies the tensor to host memory and takes part in the reduction there.
    fn start_through_host(
        &self,
        step: &StepCollectives,
        request: Request,
        input: DeviceInput,
        finish: Finish,
    ) {
        let (own, step, device) = (self.this.clone(), step.clone(), request.device.clone());
        let start = move |copied: Result<Tensor>| match (copied, own.upgrade()) {
            (Ok(tensor), Some(own)) => {
                let request = Request { input: Some(tensor), on_device: None, ..request };
                own.start_alone(&step, request, finish);
            }
            (Err(error), _) => finish(Err(error)),
            (Ok(_), None) => finish(Err(Error::new(Code::Aborted, "the session has ended"))),
        };
        device.processor().download(input.tensor, Box::new(start));
    }

    /// Runs an instance whose tensor is in device memory. `is_agreed` is true if all members run it by their devices'
    /// libraries, in the same order.
    pub(super) fn run_on_device(&self, reduction: DeviceRun, is_agreed: bool) {
        if is_agreed {
            return self.reduce_on_device(reduction);
        }
        if let Some(digest) = reduction.request.digest() {
            self.agreed.lock().divided.insert((group_key(&reduction.request), digest));
        }
        let reason = "another member reduces in another order, or cannot use its library";
        self.run_through_host(reduction, reason);
    }

    /// Copies the tensor of an instance on which the members have agreed to host memory, and exchanges it there.
    fn run_through_host(&self, reduction: DeviceRun, reason: &str) {
        let DeviceRun { step, request, input, group, run, renewal } = reduction;
        if input.hint == DeviceHint::Library {
            return run.end(Err(unwilling(&request, reason)));
        }
        self.log_host(&request, reason);
        let (own, device) = (self.this.clone(), request.device.clone());
        let exchange = move |copied: Result<Tensor>| match (copied, own.upgrade()) {
            (Ok(tensor), Some(own)) => {
                let request = Request { input: Some(tensor), on_device: None, ..request };
                own.run(&step, request, group, None, &run, renewal);
            }
            (Err(error), _) => run.end(Err(error)),
            (Ok(_), None) => run.end(Err(Error::new(Code::Aborted, "the session has ended"))),
        };
        device.processor().download(input.tensor, Box::new(exchange));
    }

    /// Reduces a tensor by the device's library, in the turn of its step.
    fn reduce_on_device(&self, reduction: DeviceRun) {
        let run = reduction.run.clone();
        let Some(place) = reduction.input.place else {
            return run.end(Err(Error::internal("a reduction on a device without a place")));
        };
        let prepared = self.device_group(&reduction.request, &reduction.group).and_then(|group| {
            let is_first = self.begin_step_of(&group, &reduction.step)?;
            Ok((group, is_first))
        });
        let (device_group, is_first) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return run.end(Err(error)),
        };
        let (described, step_id) = (Arc::downgrade(&device_group), reduction.step.id);
        run.describe_wait(move || {
            let group = described.upgrade();
            group.map_or_else(String::new, |group| group.state.lock().turns.describe(step_id))
        });
        let (step, name) = (reduction.step.clone(), bucket::name(reduction.request.group_key, place.digest));
        let actions = {
            let mut state = device_group.state.lock();
            state.turns.add(step_id, place.index, place.count, Arc::new(reduction))
        };
        self.perform(&device_group, actions);
        if is_first {
            self.listen(&device_group, &step, &name);
        }
        if let Err(reason) = step.cancellation.check() {
            // The step may have been cancelled before it had a reduction.
            self.fail_group(&device_group, |turns| turns.fail_step(step_id, &reason.derived()));
        }
    }

    /// Returns this task's member of a group. If the group's members have changed, it starts without a communicator.
    fn device_group(&self, request: &Request, group: &Group) -> Result<Arc<DeviceGroup>> {
        let (key, own) = (group_key(request), request.device.name());
        let mut groups = self.device_groups.groups.lock();
        let known = groups.get(&key).cloned();
        if let Some(known) = known.iter().find(|known| known.is_of(&group.members)) {
            return Ok(known.clone());
        }
        if known.is_none() && groups.len() >= MAX_GROUPS {
            let text = format!(
                "group {} is one too many: a library reduces tensors of {MAX_GROUPS} groups of this session; use \
                 fewer group keys, or the communication_hint 'ring'",
                request.group_key
            );
            return Err(Error::new(Code::ResourceExhausted, text));
        }
        let rank = group.members.iter().position(|member| member.name == *own);
        let rank = rank.ok_or_else(|| Error::internal(format!("{own} is no member of its group")))?;
        let last = known.as_ref().map_or(0, |known| known.state.lock().turns.last());
        let state = State { turns: Turns::new(rank, last), communicator: None, steps: FxHashMap::default() };
        let (members, device) = (group.members.clone(), request.device.clone());
        let new = Arc::new(DeviceGroup { key: key.clone(), members, rank, device, state: Mutex::new(state) });
        groups.insert(key, new.clone());
        drop(groups);
        if let Some(old) = known {
            let changed = Error::new(Code::Aborted, "the members of the group have changed");
            self.fail_group(&old, |turns| turns.fail_any(&changed));
        }
        Ok(new)
    }

    /// Registers a step at its first reduction, so that a failure of the step ends the communicator. Returns whether
    /// the reduction is the first.
    fn begin_step_of(&self, group: &Arc<DeviceGroup>, step: &StepCollectives) -> Result<bool> {
        if group.state.lock().steps.contains_key(&step.id) {
            return Ok(false);
        }
        let (own, of_group, step_id) = (self.this.clone(), Arc::downgrade(group), step.id);
        let registration = step.cancellation.register(move |reason| {
            if let (Some(own), Some(group)) = (own.upgrade(), of_group.upgrade()) {
                let reason = reason.clone().derived();
                own.fail_group(&group, |turns| turns.fail_step(step_id, &reason));
            }
        })?;
        let is_first = {
            let mut state = group.state.lock();
            let is_first = !state.steps.contains_key(&step.id);
            if is_first {
                state.steps.insert(step.id, (step.clone(), registration));
            }
            is_first
        };
        if !is_first {
            step.cancellation.deregister(registration);
        }
        Ok(is_first)
    }

    /// Receives the messages of the other members about a step that has a reduction: rank 0 sends the step's turn, and
    /// a member that runs the reductions differently in this step sends the notice, a dead tensor. `name` is the name
    /// of the exchange for the order.
    fn listen(&self, group: &Arc<DeviceGroup>, step: &StepCollectives, name: &str) {
        let step_id = step.id;
        for (peer, member) in group.members.iter().enumerate().filter(|(peer, _)| *peer != group.rank) {
            let key = Arc::new(transfer_key(name, 0, member, &group.members[group.rank]));
            let (own, of_group) = (self.this.clone(), Arc::downgrade(group));
            let receive = move |received: Result<Sent>| {
                if let (Some(own), Some(group), Ok(sent)) = (own.upgrade(), of_group.upgrade(), received) {
                    own.hear(&group, step_id, peer, &sent);
                }
            };
            step.rendezvous.recv(&key, Box::new(receive));
        }
    }

    /// Handles another member's message about a step.
    fn hear(&self, group: &Arc<DeviceGroup>, step_id: i64, peer: usize, sent: &Sent) {
        let turn = match &sent.value {
            Value::Host(turn) if !sent.is_dead && peer == 0 => turn.values::<i64>().ok(),
            _ => None,
        };
        match turn {
            Some(&[epoch, number]) => {
                let (epoch, number) = (epoch as u64, number as u64);
                let actions = group.state.lock().turns.take_turn(step_id, epoch, number);
                self.perform(group, actions);
            }
            _ => {
                let member = &group.members[peer].name;
                let text = format!(
                    "{member} runs other reductions of group {} in this step than in earlier ones; the next step agrees anew",
                    group.key.0
                );
                let error = Error::new(Code::Aborted, text);
                self.fail_group(group, |turns| turns.fail_step(step_id, &error));
            }
        }
    }

    /// Fails reductions of a group. The session drops its agreements on the group's instances, so that its next step
    /// repeats the agreement with the other members, whose steps have failed too.
    fn fail_group(
        &self,
        group: &Arc<DeviceGroup>,
        fail: impl FnOnce(&mut Turns<Arc<DeviceRun>>) -> Vec<Action<Arc<DeviceRun>>>,
    ) {
        let actions = fail(&mut group.state.lock().turns);
        if !actions.is_empty() {
            self.agreed.lock().instances.retain(|(of, _), _| *of != group.key);
        }
        self.perform(group, actions);
    }

    fn perform(&self, group: &Arc<DeviceGroup>, actions: Vec<Action<Arc<DeviceRun>>>) {
        for action in actions {
            match action {
                Action::Enter { attempt, last } => self.enter(group, attempt, last),
                Action::Give { step_id, epoch, number } => self.give(group, step_id, epoch, number),
                Action::Start { attempt, reduction } => self.start_reduction(group, attempt, &reduction),
                Action::UseHost { reduction, reason } => {
                    self.run_through_host(DeviceRun::clone(&reduction), &reason);
                }
                Action::Fail { reduction, error } => reduction.run.end(Err(error)),
                Action::Abort => {
                    let communicator = group.state.lock().communicator.take();
                    if let Some(communicator) = communicator {
                        // Aborting a communicator may wait until the device has stopped.
                        self.runtime.spawn_blocking(move || communicator.abort());
                    }
                }
                Action::EndStep { step_id } => {
                    let ended = group.state.lock().steps.remove(&step_id);
                    if let Some((step, registration)) = ended {
                        step.cancellation.deregister(registration);
                    }
                }
            }
        }
    }

    /// Sends the other members the turn of a step.
    fn give(&self, group: &Arc<DeviceGroup>, step_id: i64, epoch: u64, number: u64) {
        let given = {
            let state = group.state.lock();
            let step = state.steps.get(&step_id).map(|(step, _)| step.clone());
            step.zip(state.turns.any_of(step_id).cloned())
        };
        let Some((step, reduction)) = given else { return };
        let turn =
            Shape::new(&[2]).and_then(|shape| Tensor::from_slice(&[epoch as i64, number as i64], shape));
        let name = bucket::name(reduction.request.group_key, reduction.request.digest().unwrap_or_default());
        let sent = turn.map_err(Error::from).and_then(|turn| {
            for (_, member) in group.members.iter().enumerate().filter(|(peer, _)| *peer != group.rank) {
                let key = Arc::new(transfer_key(&name, 0, &group.members[group.rank], member));
                let value = Value::Host(turn.clone());
                step.rendezvous.send(&key, Sent { value, is_dead: false })?;
            }
            step.rendezvous.flush();
            Ok(())
        });
        if let Err(error) = sent {
            self.fail_group(group, |turns| turns.fail_step(step_id, &error));
        }
    }

    /// Starts a reduction by the library.
    fn start_reduction(&self, group: &Arc<DeviceGroup>, attempt: u64, reduction: &Arc<DeviceRun>) {
        let communicator = group.state.lock().communicator.clone();
        let (own, of_group) = (self.this.clone(), group.clone());
        let step_id = reduction.step.id;
        let (Some(place), Operation::Reduce(by)) = (reduction.input.place, reduction.request.operation)
        else {
            return reduction.run.end(Err(Error::internal("a reduction on a device without a place")));
        };
        let finish = move |reduced: Result<device::DeviceTensor>| {
            let Some(own) = own.upgrade() else { return };
            match reduced {
                Ok(tensor) => {
                    let (ended, actions) = of_group.state.lock().turns.end(attempt, step_id, place.index);
                    if let Some(reduction) = ended {
                        reduction.run.end(Ok(tensor.into()));
                    }
                    own.perform(&of_group, actions);
                }
                Err(error) => own.fail_attempt(&of_group, attempt, &error),
            }
        };
        match communicator {
            Some(communicator) => {
                let tensor = reduction.input.tensor.clone();
                communicator.all_reduce(by, tensor, Box::new(finish));
            }
            None => finish(Err(Error::new(Code::Aborted, "the communicator of the group has ended"))),
        }
    }

    fn fail_attempt(&self, group: &Arc<DeviceGroup>, attempt: u64, error: &Error) {
        let own = &group.members[group.rank].name;
        let text = format!(
            "the communicator of group {} failed on {own}: {error}; the next step creates a new one",
            group.key.0
        );
        let error = Error::new(error.code(), text);
        self.fail_group(group, |turns| turns.fail(attempt, &error));
    }

    /// Enters the next epoch of the group's communicator, and connects with the other members.
    fn enter(&self, group: &Arc<DeviceGroup>, attempt: u64, last: u64) {
        let (Some(own), group) = (self.this.upgrade(), group.clone()) else { return };
        let first = group.state.lock().turns.first().cloned();
        let Some(first) = first else { return };
        let ending = first.run.clone();
        let entering = self.runtime.spawn(async move {
            let deadline = Instant::now() + own.timeout_of(&first.request);
            match own.enter_epoch(&first.request, first.step.id, last, deadline).await {
                Ok(Entered::Key { epoch, key }) => own.connect(&group, attempt, epoch, key).await,
                Ok(Entered::Refused(reason)) => {
                    let actions = group.state.lock().turns.refuse(attempt, reason);
                    own.perform(&group, actions);
                }
                Ok(Entered::Create { epoch }) => {
                    let text = format!("the leader asked twice for the key of epoch {epoch}");
                    own.fail_attempt(&group, attempt, &Error::internal(text));
                }
                Err(status) => own.fail_attempt(&group, attempt, &to_error(status)),
            }
        });
        ending.abort_at_end(entering.abort_handle());
    }

    /// Creates this member's side of a communicator, and watches it until it ends.
    async fn connect(self: Arc<Self>, group: &Arc<DeviceGroup>, attempt: u64, epoch: u64, key: Vec<u8>) {
        if !group.state.lock().turns.entered(attempt, epoch) {
            return;
        }
        tracing::debug!("{} connects in epoch {epoch} of group {}", group.device.name(), group.key.0);
        let place = CommunicatorPlace { key, rank: group.rank, size: group.members.len() };
        let device = group.device.clone();
        let connecting = tokio::task::spawn_blocking(move || match device.processor().collectives() {
            Some(library) => library.connect(&place),
            None => Err(Error::internal("the device has no library for reductions")),
        });
        let connected =
            connecting.await.unwrap_or_else(|e| Err(Error::internal(format!("connecting failed: {e}"))));
        let communicator = match connected {
            Ok(communicator) => communicator,
            Err(error) => return self.fail_attempt(group, attempt, &error),
        };
        let is_current = {
            let mut state = group.state.lock();
            let is_current = state.turns.is_current(attempt);
            if is_current {
                state.communicator = Some(communicator.clone());
            }
            is_current
        };
        if !is_current {
            drop(tokio::task::spawn_blocking(move || communicator.abort()));
            return;
        }
        let (own, of_group) = (self.this.clone(), Arc::downgrade(group));
        // The watching task runs on the runtime, because it outlives the request that has started it.
        self.runtime.spawn(watch(own, of_group, Arc::downgrade(&communicator), attempt));
    }
}

/// Queries a communicator repeatedly, first for whether it is connected and then for whether it has failed, until it
/// ends.
async fn watch(
    own: Weak<SessionCollectives>,
    group: Weak<DeviceGroup>,
    communicator: Weak<dyn DeviceCommunicator>,
    attempt: u64,
) {
    let [mut pause, longest] = PAUSES;
    let mut is_connected = false;
    loop {
        {
            let (Some(own), Some(group), Some(communicator)) =
                (own.upgrade(), group.upgrade(), communicator.upgrade())
            else {
                return;
            };
            if !group.state.lock().turns.is_current(attempt) {
                return;
            }
            match communicator.is_connected() {
                Ok(true) if !is_connected => {
                    is_connected = true;
                    let actions = group.state.lock().turns.connect(attempt);
                    own.perform(&group, actions);
                }
                Ok(_) => {}
                Err(error) => return own.fail_attempt(&group, attempt, &error),
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

impl DeviceGroup {
    /// Returns whether the group has these members, in the same processes.
    fn is_of(&self, members: &Members) -> bool {
        let pairs = || self.members.iter().zip(members.iter());
        self.members.len() == members.len()
            && pairs().all(|(own, other)| own.name == other.name && own.incarnation == other.incarnation)
    }
}

/// Returns the error of a reduction whose node demands the library although the library cannot be used.
fn unwilling(request: &Request, reason: &str) -> Error {
    let text = format!(
        "'{}' on {} asks for NCCL by its communication_hint, but {reason}; 'auto' reduces through host memory then",
        request.node.name,
        request.device.name()
    );
    Error::new(Code::FailedPrecondition, text)
}

/// Returns the error for a key of a communicator that the library could not create.
fn no_key(error: &Error) -> Status {
    Status::new(error.code(), format!("no key of a communicator: {error}"))
}

impl SessionCollectives {
    /// Asks the leader for the epoch after `last`, and creates the key if the leader asks for it.
    async fn enter_epoch(
        &self,
        request: &Request,
        step_id: i64,
        last: u64,
        deadline: Instant,
    ) -> Result<Entered, Status> {
        let device = request.device.clone();
        let identity = match device.processor().collectives().map(|library| library.identity()) {
            Some(identity) => identity.map_err(|error| no_key(&error))?,
            None => return Err(Status::new(Code::Internal, "the device has no library for reductions")),
        };
        let entered = self.ask_epoch(request, step_id, last, &identity, None, deadline).await?;
        let Entered::Create { epoch } = entered else { return Ok(entered) };
        let creating = tokio::task::spawn_blocking(move || {
            let library = device.processor().collectives();
            library.map_or_else(|| Err(Error::internal("the device has no library")), |l| l.create_key())
        });
        let key = creating.await.unwrap_or_else(|e| Err(Error::internal(e.to_string())));
        let key = key.map_err(|error| no_key(&error))?;
        self.ask_epoch(request, step_id, last, &identity, Some((epoch, key)), deadline).await
    }
}
