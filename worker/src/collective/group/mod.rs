//! Groups of processes: members of a cluster that exchange tensors without a graph. A group is a step that lasts, with
//! a rendezvous of its own, over which its members send numbered messages; the courses of its collectives run over
//! these messages.
//!
//! A message carries the sender's description of its call, so members that call different operations find out without
//! a leader. A member that finds a conflict, or whose call fails, tells all others, and the group goes on with the
//! next call. A member whose connection breaks ends the group.

mod call_rendezvous;
mod calls;
mod direct;
mod envelope;
mod meeting;
mod request;
mod state;
#[cfg(test)]
mod tests;

pub use request::GroupCall;

use self::call_rendezvous::CallRendezvous;
use self::calls::{Accepted, Calls};
use self::direct::Direct;
use self::envelope::{Envelope, Kind};
use self::state::{State, Stream};
use super::course::{Course, Plan};
use super::schedule::{Member, Schedule};
use crate::rendezvous::Remote;
use crate::steps::StepRun;
use crate::worker::Worker;
use device::rendezvous::{Rendezvous, RendezvousKey, Sent};
use device::{Error, Value};
use graph::{Code, DeviceAttributes, Tensor};
use parking_lot::{Condvar, Mutex};
use prost::Message;
use proto::Status;
use proto::convert::tensor_from_proto;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Number of messages from a member that wait for calls of this member, beyond which no more are accepted until one of
/// them is received or a call awaits a message of the member.
const MAX_UNTAKEN: usize = 256;

/// Time for which a member that leaves waits until its last messages have arrived.
const LEAVE_GRACE: Duration = Duration::from_secs(1);

/// A callback that receives the result of a call. Called exactly once.
pub type GroupFinish = Box<dyn FnOnce(Result<Tensor, Status>) + Send>;

type Finish = Box<dyn FnOnce(device::Result<Tensor>) + Send>;

/// A call that has been started, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupCallId {
    Collective(u64),
    /// A receive of a tensor that `peer` sends to this member alone.
    Receive {
        peer: usize,
        number: u64,
    },
}

/// One member's view of a group of processes.
pub struct Group {
    worker: Arc<Worker>,
    /// The group's name in messages, such as `world`.
    name: String,
    run: StepRun,
    remote: Remote,
    /// The members in the order of their ranks.
    members: Arc<[DeviceAttributes]>,
    /// The names of the members' devices, by rank.
    devices: Vec<Arc<str>>,
    rank: usize,
    state: Mutex<State>,
    /// Notified when a member acknowledges that it has this member's messages, and when the group fails.
    acknowledged: Condvar,
}

impl Group {
    /// Joins a group whose members are processes of the worker's cluster, one device each, in the order of their ranks.
    /// All members use the same id, which no other group has. `name` names the group in messages.
    ///
    /// # Errors
    /// `InvalidArgument` if the worker is no member, `Aborted` if the id has been used before.
    pub fn join(
        worker: &Arc<Worker>,
        id: i64,
        name: &str,
        members: Vec<DeviceAttributes>,
    ) -> Result<Arc<Group>, Status> {
        let own_devices = worker.devices();
        let rank = members.iter().position(|member| own_devices.iter().any(|own| own.name == member.name));
        let rank = rank.ok_or_else(|| {
            Status::invalid(format!("{} is no member of the group '{name}'", worker.task()))
        })?;
        let session = worker.sessions.get("")?;
        let run = worker.steps.begin(id, Instant::now())?.without_slow_reports();
        let remote = worker.remote(&session);
        run.step.rendezvous.bind(remote.clone(), &Arc::from([]));
        let devices: Vec<Arc<str>> = members.iter().map(|member| member.name.to_string().into()).collect();
        let members: Arc<[DeviceAttributes]> = members.into();
        let size = members.len();
        let state = State {
            calls: Calls::new(members.clone(), rank),
            direct: (0..size).map(|_| Direct::default()).collect(),
            streams: (0..size).map(|_| Stream::default()).collect(),
            failure: None,
        };
        let group = Arc::new(Group {
            worker: worker.clone(),
            name: name.to_owned(),
            run,
            remote,
            members,
            devices,
            rank,
            state: Mutex::new(state),
            acknowledged: Condvar::new(),
        });
        group.others().for_each(|peer| {
            drop(group.route(peer).and_then(|route| route.link_or_connect(&group.remote.link_table)));
            group.listen(peer);
        });
        Ok(group)
    }

    /// Returns the rank of this member.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the members in the order of their ranks.
    pub fn members(&self) -> &[DeviceAttributes] {
        &self.members
    }

    /// Takes part in a collective. `finish` is called with the member's output, or the error that ended the call, on
    /// this thread or one that handles messages. All members must start the same calls in the same order.
    pub fn start(self: &Arc<Self>, call: GroupCall, finish: GroupFinish) -> GroupCallId {
        let description: Arc<str> = call.description().into();
        let (number, failure) = {
            let mut state = self.state.lock();
            let (number, failure) = state.calls.begin(&description);
            (number, state.failure.clone().or(failure))
        };
        let own = self.clone();
        let finish: Finish = Box::new(move |output| own.finish(number, output, finish));
        match failure.map_or_else(|| self.plan(number, &call), Err) {
            Ok(plan) => {
                let rendezvous = Arc::new(CallRendezvous { group: self.clone(), number, description });
                Course::start(plan, call.input, rendezvous, self.worker.pool.clone(), finish, None);
            }
            Err(error) => finish(Err(error)),
        }
        GroupCallId::Collective(number)
    }

    /// Sends a tensor to another member, and returns when the tensor is on its way.
    ///
    /// # Errors
    /// `InvalidArgument` for the member's own rank or one that the group does not have; `Unavailable` if the member
    /// has left or is lost.
    pub fn send(self: &Arc<Self>, to: usize, tensor: Tensor) -> Result<(), Status> {
        self.check_peer(to)?;
        let number = {
            let stream = &mut self.state.lock().streams[to];
            stream.sent_direct += 1;
            stream.sent_direct - 1
        };
        let (envelope, follower) = Envelope::new(Kind::Direct, number).with_tensor(tensor);
        let sent = self.post(to, &envelope, follower);
        self.rendezvous().flush();
        sent.map_err(|e| crate::failure(&e))
    }

    /// Receives the next tensor that another member sends to this one.
    ///
    /// # Errors
    /// `InvalidArgument` for the member's own rank or one that the group does not have.
    pub fn receive(self: &Arc<Self>, from: usize, finish: GroupFinish) -> Result<GroupCallId, Status> {
        self.check_peer(from)?;
        let finish: Finish = Box::new(move |result| finish(result.map_err(|e| crate::failure(&e))));
        let (number, pairs, lost) = {
            let mut state = self.state.lock();
            let failure = state.failure.clone();
            let failure =
                failure.or_else(|| state.streams[from].has_left.then(|| calls::left(&self.members, from)));
            let (number, pairs) = state.direct[from].receive(finish);
            let lost = failure.and_then(|error| Some((state.direct[from].give_up(number)?, error)));
            (number, pairs, lost)
        };
        pairs.into_iter().for_each(|(finish, tensor)| finish(Ok(tensor)));
        if let Some((finish, error)) = lost {
            finish(Err(error));
        }
        self.listen(from);
        Ok(GroupCallId::Receive { peer: from, number })
    }

    /// Tells the members for which a call waits in which call this member is, so that a member in another call finds
    /// the conflict.
    pub fn probe(&self, call: GroupCallId) {
        let GroupCallId::Collective(number) = call else { return };
        let (awaited, description) = {
            let state = self.state.lock();
            (state.calls.awaited(number), state.calls.description(number))
        };
        let Some(description) = description else { return };
        let envelope = Envelope { text: description.to_string(), ..Envelope::new(Kind::Probe, number) };
        for peer in awaited {
            // A member that cannot be reached ends the call by other means.
            let _ = self.post(peer, &envelope, None);
        }
        self.rendezvous().flush();
    }

    /// Ends a call that has waited for too long. Returns its error, which names the members that have not come.
    pub fn expire(&self, call: GroupCallId, waited: Duration) -> Status {
        let seconds = waited.as_secs_f64();
        let error = |text: String| {
            Error::new(
                Code::DeadlineExceeded,
                format!("group '{}': {text}; waited {seconds:.1} s", self.name),
            )
        };
        let error = match call {
            GroupCallId::Receive { peer, number } => {
                let error = error(format!("receive: {} has sent nothing", member_name(&self.members, peer)));
                let receiver = self.state.lock().direct[peer].give_up(number);
                if let Some(finish) = receiver {
                    finish(Err(error.clone()));
                }
                error
            }
            GroupCallId::Collective(number) => {
                let mut state = self.state.lock();
                let error = error(state.describe_wait(number, &self.members));
                let receivers = state.calls.fail(number, error.clone(), false);
                drop(state);
                receivers.into_iter().for_each(|receive| receive(Err(error.clone())));
                error
            }
        };
        crate::failure(&error)
    }

    /// Leaves the group: calls in progress fail, and the other members are told. Waits for a short time until they
    /// have this member's messages.
    pub fn leave(&self) {
        let reason = Error::new(Code::Cancelled, format!("this member leaves the group '{}'", self.name));
        let is_alive = self.state.lock().failure.is_none();
        if is_alive {
            for peer in self.others() {
                // A member that is lost or has left needs no farewell.
                let _ = self.post(peer, &Envelope::new(Kind::Leaving, 0), None);
            }
            self.rendezvous().flush();
        }
        self.fail_calls(&reason);
        let deadline = Instant::now() + LEAVE_GRACE;
        let mut state = self.state.lock();
        while state.failure.is_none()
            && state.streams_of(self.rank).any(|s| !s.has_left && !s.has_acknowledged)
        {
            if self.acknowledged.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.failure.get_or_insert(reason);
        drop(state);
        self.worker.steps.cleanup(self.run.step.id);
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.rank;
        (0..self.members.len()).filter(move |&peer| peer != own)
    }

    fn check_peer(&self, peer: usize) -> Result<(), Status> {
        if peer >= self.members.len() || peer == self.rank {
            return Err(Status::invalid(format!(
                "rank {peer} is no other member of the group '{}': it has {} members, and this is rank {}",
                self.name,
                self.members.len(),
                self.rank
            )));
        }
        Ok(())
    }

    fn rendezvous(&self) -> &Arc<crate::rendezvous::StepRendezvous> {
        &self.run.step.rendezvous
    }

    fn route(&self, peer: usize) -> Option<Arc<crate::transport::Route>> {
        self.remote.peers.route_to(&self.devices[peer])
    }

    /// Returns the plan of a call's course.
    ///
    /// # Errors
    /// `InvalidArgument` and `Unimplemented` for a call that does not suit the group.
    fn plan(&self, number: u64, call: &GroupCall) -> device::Result<Plan> {
        call.check(self.members.len())?;
        let width = call.width()?;
        let count = match &call.input {
            Some(input) if !call.counts_output() => input.num_elements(),
            _ => call.output.num_elements(),
        };
        let member = Member { rank: self.rank, size: self.members.len(), source: call.root, count, width };
        Ok(Plan {
            members: self.members.clone(),
            rank: self.rank,
            operation: call.operation,
            dtype: call.dtype,
            width,
            output: call.output.clone(),
            name: number.to_string(),
            foreign: None,
            schedule: Schedule::new(call.operation, member),
        })
    }

    /// Ends a call, and tells the other members if it has failed and they do not know yet.
    fn finish(&self, number: u64, output: device::Result<Tensor>, finish: GroupFinish) {
        let (output, must_tell) = {
            let mut state = self.state.lock();
            let must_tell_any = state.failure.is_none();
            let (output, must_tell) = state.calls.end(number, output);
            (output, must_tell && must_tell_any)
        };
        if let Err(error) = &output
            && must_tell
        {
            self.tell(number, error);
        }
        finish(output.map_err(|error| Status::new(error.code(), error.to_string())));
    }

    /// Tells all other members that a call has failed.
    fn tell(&self, number: u64, error: &Error) {
        let who = member_name(&self.members, self.rank);
        let text = match error.to_string() {
            text if text.contains(&who) => text,
            text => format!("{who}: {text}"),
        };
        let envelope = Envelope { text, code: error.code().number(), ..Envelope::new(Kind::Failure, number) };
        for peer in self.others() {
            // A member that is lost or has left needs no news.
            let _ = self.post(peer, &envelope, None);
        }
        self.rendezvous().flush();
    }

    /// Sends a message, and the tensor that follows it. The caller flushes the rendezvous.
    fn post(&self, to: usize, envelope: &Envelope, follower: Option<Tensor>) -> device::Result<()> {
        let number = {
            let mut state = self.state.lock();
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            let stream = &mut state.streams[to];
            if stream.has_left && envelope.kind() != Kind::Acknowledged {
                return Err(calls::left(&self.members, to));
            }
            stream.sent += 1;
            stream.sent - 1
        };
        let message = Tensor::vector(&envelope.encode_to_vec())?;
        let send = |tensor: Tensor, is_follower: bool| {
            let sent = Sent { value: Value::Host(tensor), is_dead: false };
            self.rendezvous().send(&self.key(self.rank, to, number, is_follower), sent)
        };
        let posted = send(message, false).and_then(|()| follower.map_or(Ok(()), |tensor| send(tensor, true)));
        posted.map_err(|error| self.lose(to, &error))
    }

    /// Returns the key of a message, or of the tensor that follows it.
    fn key(&self, from: usize, to: usize, number: u64, is_follower: bool) -> Arc<RendezvousKey> {
        let (source, destination) = (&self.devices[from], &self.devices[to]);
        let incarnation = self.members[from].incarnation;
        let edge = if is_follower { format!("group:{number}:tensor") } else { format!("group:{number}") };
        Arc::new(RendezvousKey {
            text: format!("{source};{incarnation:016x};{destination};{edge};0:0").into(),
            src_device: source.clone(),
            src_incarnation: incarnation,
            dst_device: destination.clone(),
            edge: edge.into(),
        })
    }

    /// Receives the next messages of a member, unless it is being done already or too many messages wait for calls.
    fn listen(self: &Arc<Self>, peer: usize) {
        loop {
            let next = self.state.lock().begin_listening(peer);
            let Some((number, is_follower)) = next else { return };
            // The callback runs at once if the message has come, and then this loop goes on; otherwise the callback does.
            let is_second = Arc::new(AtomicBool::new(false));
            let (own, is_second_there) = (Arc::downgrade(self), is_second.clone());
            let receive = move |received: device::Result<Sent>| {
                let Some(own) = own.upgrade() else { return };
                own.accept(peer, received);
                if is_second_there.swap(true, Ordering::AcqRel) {
                    own.listen(peer);
                }
            };
            self.rendezvous().recv(&self.key(peer, self.rank, number, is_follower), Box::new(receive));
            if !is_second.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }

    /// Handles a message, or the tensor that follows a message.
    fn accept(&self, peer: usize, received: device::Result<Sent>) {
        let message = self.state.lock().streams[peer].followed.take();
        let complete = received.and_then(tensor_of).and_then(|tensor| match message {
            Some(message) => Ok((message, Some(tensor))),
            None => decode(&tensor),
        });
        match complete {
            Ok((message, None)) if message.is_followed => {
                self.state.lock().streams[peer].followed = Some(message);
            }
            Ok((message, tensor)) => {
                self.handle(peer, message, tensor);
                self.state.lock().streams[peer].received += 1;
            }
            Err(error) => drop(self.lose(peer, &error)),
        }
        self.state.lock().streams[peer].is_listening = false;
    }

    /// Handles a message that is complete.
    fn handle(&self, peer: usize, envelope: Envelope, tensor: Option<Tensor>) {
        let number = envelope.number;
        match (envelope.kind(), tensor) {
            (Kind::Elements, Some(tensor)) => {
                self.handle_call(peer, number, &envelope.text, Some((envelope.part.into(), tensor)));
            }
            (Kind::Probe, _) => self.handle_call(peer, number, &envelope.text, None),
            (Kind::Direct, Some(tensor)) => {
                let pairs = self.state.lock().direct[peer].arrive(number, tensor);
                pairs.into_iter().for_each(|(finish, tensor)| finish(Ok(tensor)));
            }
            (Kind::Failure, _) => {
                let error = Error::new(Code::from_number(envelope.code), envelope.text);
                let receivers = {
                    let mut state = self.state.lock();
                    state.streams[peer].hear_of(number);
                    state.calls.fail(number, error.clone(), true)
                };
                receivers.into_iter().for_each(|receive| receive(Err(error.clone())));
            }
            (Kind::Leaving, _) => self.handle_leaving(peer),
            (Kind::Acknowledged, _) => {
                self.state.lock().streams[peer].has_acknowledged = true;
                self.acknowledged.notify_all();
            }
            (Kind::Unknown | Kind::Elements | Kind::Direct, _) => {
                drop(self.lose(peer, &Error::internal("a message of the group is malformed")));
            }
        }
    }

    /// Handles a member's description of a call, and the elements that it has sent with it.
    fn handle_call(&self, peer: usize, number: u64, text: &str, elements: Option<(Arc<str>, Tensor)>) {
        let accepted = {
            let mut state = self.state.lock();
            state.streams[peer].hear_of(number);
            state.calls.accept(number, peer, &text.into(), elements)
        };
        match accepted {
            Accepted::Kept => {}
            Accepted::Delivered(receive, tensor) => {
                receive(Ok(Sent { value: Value::Host(tensor), is_dead: false }));
            }
            Accepted::Failed(receivers, error) => {
                receivers.into_iter().for_each(|receive| receive(Err(error.clone())));
            }
            Accepted::FailedLate(error) => self.tell(number, &error),
        }
    }

    /// Handles a member's farewell: acknowledges it, and fails the calls that wait for the member.
    fn handle_leaving(&self, peer: usize) {
        let error = calls::left(&self.members, peer);
        let (receivers, direct) = {
            let mut state = self.state.lock();
            state.streams[peer].has_left = true;
            (state.calls.leave(peer), state.direct[peer].take_receivers())
        };
        // A member whose connection has broken meanwhile needs no acknowledgement.
        let _ = self.post(peer, &Envelope::new(Kind::Acknowledged, 0), None);
        self.rendezvous().flush();
        if let Some(link) = self.route(peer).and_then(|route| route.link()) {
            self.rendezvous().release_link(&link);
        }
        self.acknowledged.notify_all();
        receivers.into_iter().for_each(|receive| receive(Err(error.clone())));
        direct.into_iter().for_each(|finish| finish(Err(error.clone())));
    }

    /// Ends the group because a member is lost, unless that member had left. Returns the reason.
    fn lose(&self, peer: usize, error: &Error) -> Error {
        if self.state.lock().streams[peer].has_left {
            return calls::left(&self.members, peer);
        }
        // A derived error follows from the loss of a member, which need not be the sender of the awaited message.
        let cause = self.run.step.cancellation.reason().filter(|_| error.is_derived());
        let cause = cause.as_ref().unwrap_or(error).to_string();
        let names = |rank: &usize| cause.contains(&self.members[*rank].name.task_name().to_string());
        let lost = self.others().find(names).unwrap_or(peer);
        let text = format!("group '{}': {} is lost: {cause}", self.name, member_name(&self.members, lost));
        let first = Error::new(Code::Unavailable, text);
        let first = self.state.lock().failure.get_or_insert(first).clone();
        self.acknowledged.notify_all();
        self.fail_calls(&first);
        first
    }

    /// Fails all calls in progress.
    fn fail_calls(&self, error: &Error) {
        let (receivers, direct) = {
            let mut state = self.state.lock();
            let receivers = state.calls.fail_all(error);
            (receivers, state.direct.iter_mut().flat_map(Direct::take_receivers).collect::<Vec<_>>())
        };
        receivers.into_iter().for_each(|receive| receive(Err(error.clone())));
        direct.into_iter().for_each(|finish| finish(Err(error.clone())));
    }
}

/// Returns a member's rank and task, for messages.
fn member_name(members: &[DeviceAttributes], rank: usize) -> String {
    match members.get(rank) {
        Some(member) => format!("rank {rank} ({})", member.name.task_name()),
        None => format!("rank {rank}"),
    }
}

/// Returns a message, and the tensor within it.
fn decode(message: &Tensor) -> device::Result<(Envelope, Option<Tensor>)> {
    let decoded = Envelope::decode(message.bytes()?);
    let mut envelope =
        decoded.map_err(|e| Error::internal(format!("a message of the group is malformed: {e}")))?;
    let tensor = envelope.tensor.take().map(tensor_from_proto).transpose()?;
    Ok((envelope, tensor))
}

fn tensor_of(sent: Sent) -> device::Result<Tensor> {
    match sent.value {
        Value::Host(tensor) if !sent.is_dead => Ok(tensor),
        other => Err(Error::internal(format!("a message of the group is no tensor but {other:?}"))),
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group('{}', rank {} of {})", self.name, self.rank, self.members.len())
    }
}
