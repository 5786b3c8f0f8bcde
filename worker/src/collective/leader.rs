//! The leader of groups: it answers when a group is complete and when an instance is agreed on, and gives out step ids.

use super::register::{Agree, Join, Members, Register};
use graph::Code;
use parking_lot::Mutex;
use proto::Status;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

/// The number of graph keys whose step ids are remembered.
const MAX_SEQUENCES: usize = 10_000;

/// Step ids have 57 bits.
const ID_MASK: i64 = (1 << 57) - 1;
/// Step ids that differ by less than this number belong to one sequence.
const MAX_DISTANCE: i64 = 1 << 32;

type Caller<T> = oneshot::Sender<Result<T, Status>>;

/// The leader's state, for members in this process and for calls from other tasks.
#[derive(Debug, Default)]
pub(crate) struct Leader {
    register: Mutex<Register<Caller<Members>, Caller<Option<usize>>>>,
    /// By graph key.
    sequences: Mutex<FxHashMap<i64, Sequence>>,
}

/// The step id that masters use next.
#[derive(Debug)]
struct Sequence {
    id: i64,
    /// True if a master of TensorFlow has asked for an id: it counts on from session to session without asking again.
    has_foreign: bool,
}

impl Sequence {
    fn new() -> Sequence {
        Sequence { id: (rand::random::<u64>() >> 7) as i64, has_foreign: false }
    }

    /// Returns whether a step belongs to the sequence: its id is close to the next one. A step that is run by one master
    /// alone has a random id.
    fn contains(&self, step_id: i64) -> bool {
        (-MAX_DISTANCE..MAX_DISTANCE).contains(&step_id.wrapping_sub(self.id))
    }
}

impl Leader {
    /// Joins a device to a group, and waits until the group is complete.
    ///
    /// # Errors
    /// `Internal` for a device that cannot be a member; `Aborted` if the group is begun anew meanwhile.
    pub(crate) async fn join(&self, join: Join) -> Result<Members, Status> {
        let (caller, answer) = oneshot::channel();
        let answers = self.register.lock().join(join, caller);
        deliver(answers);
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Records a member's terms of an instance, and waits until the instance can begin. Returns the rank of a
    /// broadcast's source.
    ///
    /// # Errors
    /// `Internal` and `InvalidArgument` if members disagree; `FailedPrecondition` for a group that does not exist.
    pub(crate) async fn agree(&self, agree: Agree) -> Result<Option<usize>, Status> {
        let (caller, answer) = oneshot::channel();
        let answers = self.register.lock().agree(agree, caller);
        deliver(answers);
        answer.await.unwrap_or_else(|_| Err(ended()))
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

    /// Ends the sequence to which a step belongs, because the step has failed or its session ends. A sequence with masters
    /// of TensorFlow outlives sessions.
    pub(crate) fn end_step_ids(&self, graph_key: i64, step_id: i64, has_failed: bool) {
        let mut sequences = self.sequences.lock();
        let sequence = sequences.get(&graph_key);
        if sequence.is_some_and(|s| s.contains(step_id) && (has_failed || !s.has_foreign)) {
            sequences.remove(&graph_key);
        }
    }

    /// Records that a step under a graph key has succeeded, in which all its masters took part: a master that asks later
    /// gets the id after it.
    pub(crate) fn observe(&self, graph_key: i64, step_id: i64) {
        let mut sequences = self.sequences.lock();
        if let Some(sequence) = sequences.get_mut(&graph_key).filter(|sequence| sequence.contains(step_id)) {
            sequence.id = sequence.id.max((step_id + 1) & ID_MASK);
        }
    }

    /// Removes the groups of a session that has ended; calls that wait for them fail.
    pub(crate) fn close_session(&self, session: &str) {
        let ended = self.register.lock().close_session(session);
        drop(ended);
    }
}

fn deliver<T>(answers: Vec<(Caller<T>, Result<T, Status>)>) {
    for (caller, answer) in answers {
        // A caller that has given up needs no answer.
        let _ = caller.send(answer);
    }
}

fn ended() -> Status {
    Status::new(Code::Aborted, "the session of the group has ended")
}
