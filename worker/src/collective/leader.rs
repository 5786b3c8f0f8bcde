//! The leader of groups: it answers members when a group is complete and when an instance is agreed on, and assigns
//! step ids.

use super::assembly::Assemblies;
use super::communicators::{Enter, Entered, Epochs};
use super::register::{Agree, Agreement, Attendance, Caller, GroupKey, Join, Met, Register};
use crate::rendezvous::to_error;
use crate::worker::Worker;
use graph::{Code, DeviceAttributes, DeviceName, TaskName};
use parking_lot::Mutex;
use proto::Status;
use proto::step_ids::{SequenceEnd, next_step_id, random_step_id};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::{Arc, Once};
use std::time::Instant;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

/// The number of graph keys whose step ids are remembered.
const MAX_SEQUENCES: usize = 10_000;

/// Step ids that differ by less than this number belong to one sequence.
const MAX_DISTANCE: i64 = 1 << 32;

type Answering<T> = oneshot::Sender<Result<T, Status>>;

impl<T> Caller for Answering<T> {
    fn has_gone(&self) -> bool {
        self.is_closed()
    }
}

/// The leader's state, for members in this process and for calls from other tasks.
#[derive(Debug)]
pub(crate) struct Leader {
    /// The assemblies of jobs whose workers may join and leave during training.
    pub(crate) assemblies: Arc<Assemblies>,
    register: Mutex<Register<Answering<Met>, Answering<Agreement>>>,
    epochs: Mutex<Epochs<Answering<Entered>>>,
    /// The sequences of step ids, by graph key.
    sequences: Mutex<FxHashMap<i64, Sequence>>,
    has_logged_default: Once,
}

impl Default for Leader {
    fn default() -> Leader {
        Leader {
            assemblies: Arc::default(),
            register: Mutex::default(),
            epochs: Mutex::default(),
            sequences: Mutex::default(),
            has_logged_default: Once::new(),
        }
    }
}

/// The step id that masters use next.
#[derive(Debug)]
struct Sequence {
    id: i64,
    /// True if a master of TensorFlow has asked for an id: such a master increments the id itself, across sessions, and
    /// does not ask again.
    has_foreign: bool,
}

impl Sequence {
    fn new() -> Sequence {
        Sequence { id: random_step_id(), has_foreign: false }
    }

    /// Returns whether a step belongs to the sequence: its id is close to the next one. A step that one master runs
    /// alone has a random id.
    fn contains(&self, step_id: i64) -> bool {
        (-MAX_DISTANCE..MAX_DISTANCE).contains(&step_id.wrapping_sub(self.id))
    }
}

impl Leader {
    /// Joins a device to a group, and waits until the group is complete, at most until `deadline`.
    ///
    /// # Errors
    /// `Internal` for a device that cannot be a member; `Aborted` if the group is replaced meanwhile;
    /// `DeadlineExceeded` with the members that have joined.
    pub(crate) async fn join(&self, join: Join, deadline: Option<Instant>) -> Result<Met, Status> {
        let (caller, answer) = oneshot::channel();
        let group = join.key();
        let answers = self.register.lock().join(join, caller);
        deliver(answers);
        wait(answer, deadline, || self.register.lock().who_has_joined(group)).await
    }

    /// Records a member's terms of an instance, and waits until the instance can begin, at most until `deadline`.
    ///
    /// # Errors
    /// `Internal` and `InvalidArgument` if members disagree; `FailedPrecondition` for a group that does not exist;
    /// `DeadlineExceeded` with the members that have not called for the instance.
    pub(crate) async fn agree(&self, agree: Agree, deadline: Option<Instant>) -> Result<Agreement, Status> {
        let (caller, answer) = oneshot::channel();
        let (group, instance_key) = ((agree.group_key, agree.is_communicator), agree.instance_key);
        let answers = self.register.lock().agree(agree, caller);
        deliver(answers);
        wait(answer, deadline, || self.register.lock().who_is_missing(group, instance_key)).await
    }

    /// Enters a member into the next epoch of its group's communicator, and waits for the other members, at most until
    /// `deadline`. `own` is the leader's task.
    ///
    /// # Errors
    /// `FailedPrecondition` for a device that is no member of the group; `Aborted` if the epoch has ended;
    /// `DeadlineExceeded` with the members that have entered.
    pub(crate) async fn enter(
        &self,
        enter: Enter,
        own: &TaskName,
        deadline: Option<Instant>,
    ) -> Result<Entered, Status> {
        let group = enter.group;
        if !self.register.lock().has_member(group, &enter.device) {
            let text = format!("{} is no member of a group {} of the group leader", enter.device, group.0);
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        let (caller, answer) = oneshot::channel();
        let answers = self.epochs.lock().enter(enter, caller, own);
        deliver(answers);
        wait(answer, deadline, || self.epochs.lock().who_has_entered(group)).await
    }

    /// Returns the step id that every master uses next for a graph key. `is_foreign` is true for a master of TensorFlow.
    pub(crate) fn next_step_id(&self, graph_key: i64, is_foreign: bool) -> i64 {
        let mut sequences = self.sequences.lock();
        if sequences.len() >= MAX_SEQUENCES && !sequences.contains_key(&graph_key) {
            sequences.clear();
        }
        let sequence = sequences.entry(graph_key).or_insert_with(Sequence::new);
        sequence.has_foreign |= is_foreign;
        sequence.id
    }

    /// Ends the sequence to which a step belongs, because the step has failed or its session ends; members that wait in
    /// a failed step are answered. A sequence with masters of TensorFlow outlives sessions. Returns the members of the
    /// session's groups, which must be told of the end.
    pub(crate) fn end_sequence(&self, end: &SequenceEnd) -> Vec<DeviceAttributes> {
        let mut sequences = self.sequences.lock();
        let sequence = sequences.get(&end.graph_key);
        let is_over = sequence.is_some_and(|s| end.failure.is_some() || !s.has_foreign);
        if is_over && sequence.is_some_and(|s| s.contains(end.step_id)) {
            sequences.remove(&end.graph_key);
        }
        drop(sequences);
        let mut register = self.register.lock();
        let members = if is_over { register.members_with(&end.session) } else { Vec::new() };
        if let Some(failure) = end.failure.clone().map(Status::derived) {
            let (joining, agreeing) = register.fail_step(end.step_id, &failure);
            drop(register);
            fail_all(self.epochs.lock().fail_step(end.step_id), &failure);
            fail_all(joining, &failure);
            fail_all(agreeing, &failure);
        }
        members
    }

    /// Records the success of a step under a graph key, in which all masters of the key took part: a master that asks
    /// later gets the id after it.
    pub(crate) fn observe(&self, graph_key: i64, step_id: i64) {
        let mut sequences = self.sequences.lock();
        if let Some(sequence) = sequences.get_mut(&graph_key).filter(|sequence| sequence.contains(step_id)) {
            sequence.id = sequence.id.max(next_step_id(step_id));
        }
    }

    /// Logs, once, which task leads the groups of collectives if no configuration names a leader.
    pub(crate) fn log_default(&self, leader: &TaskName) {
        self.has_logged_default.call_once(|| {
            tracing::info!("{leader} leads the groups of collectives (set --collective-leader to choose)");
        });
    }

    /// Returns the members that have joined a group, and those that have not called for an instance; `None` if the
    /// group does not exist.
    pub(super) fn attendance(&self, group: GroupKey, instance_key: Option<i32>) -> Option<Attendance> {
        self.register.lock().attendance(group, instance_key)
    }

    /// Removes the groups of a session that has ended; calls that wait for them fail.
    pub(crate) fn close_session(&self, session: &str) {
        let ended = self.register.lock().close_session(session);
        drop(ended);
        let ended = self.epochs.lock().close_session(session);
        drop(ended);
    }
}

/// Ends a sequence of step ids on its leader's worker, and tells the tasks of the session's groups, whose sessions may be
/// those of other masters.
pub(crate) fn end_sequence(worker: &Arc<Worker>, end: &SequenceEnd) {
    let members = worker.leader.end_sequence(end);
    let reason = end.failure.clone().unwrap_or_else(session_ended);
    let reason = to_error(reason).derived();
    let tasks: BTreeMap<TaskName, DeviceName> =
        members.into_iter().map(|member| (member.name.task_name(), member.name)).collect();
    for (task, device) in tasks {
        match task == *worker.task() {
            true => worker.fail_step_of_members(end.step_id, &reason),
            false => {
                let link = worker.peers().route_to(&device.to_string().into()).and_then(|route| route.link());
                link.iter().for_each(|link| link.send_failure_to_member(end.step_id, &reason));
            }
        }
    }
}

/// Waits for an answer of the register. The text of the deadline's error is the result of `late`.
async fn wait<T>(
    answer: oneshot::Receiver<Result<T, Status>>,
    deadline: Option<Instant>,
    late: impl FnOnce() -> String,
) -> Result<T, Status> {
    let answer = match deadline {
        None => answer.await,
        Some(deadline) => match timeout_at(deadline.into(), answer).await {
            Ok(answer) => answer,
            Err(_) => return Err(Status::new(Code::DeadlineExceeded, late())),
        },
    };
    answer.unwrap_or_else(|_| Err(session_ended()))
}

fn fail_all<T>(callers: Vec<Answering<T>>, failure: &Status) {
    deliver(callers.into_iter().map(|caller| (caller, Err(failure.clone()))).collect());
}

fn deliver<T>(answers: Vec<(Answering<T>, Result<T, Status>)>) {
    for (caller, answer) in answers {
        // A caller that has given up needs no answer.
        let _ = caller.send(answer);
    }
}

fn session_ended() -> Status {
    Status::new(Code::Aborted, "the session of a member of the group has ended")
}
