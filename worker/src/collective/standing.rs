//! Queries of a task's progress in a step, sent by a member of a collective that has waited for long, and their
//! answers. They travel in the headers of GetStatus, which servers of TensorFlow ignore.

use super::register::Attendance;
use crate::steps::{StepState, Steps};
use crate::worker::Worker;
use prost::Message;
use std::sync::Arc;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};

/// The header field of GetStatus with a [`Question`], and of its response with an [`Answer`].
const STANDING_KEY: &str = "anabranch-standing-bin";

/// Largest length of the text of an answer, bytes. The header of a response must not be much longer.
const MAX_TEXT: usize = 1 << 10;

/// Largest number of members that an answer names, in each of the two lists, of members that have joined the group and
/// of members that have not called for the instance.
const MAX_MEMBERS: usize = 16;

/// Number of nodes, and of awaited tensors, that an answer names.
const MAX_NAMED: usize = 3;

/// Number of other steps that an answer names.
const MAX_OTHER_STEPS: usize = 2;

/// The beginning of the names of collective ops.
const COLLECTIVE_OP: &str = "Collective";

/// A query of a task's progress in a step and, if the task is the leader, of the members that have joined a group and
/// that have called for an instance.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Question {
    #[prost(int64, tag = "1")]
    pub(super) step_id: i64,
    #[prost(int32, tag = "2")]
    pub(super) group_key: i32,
    #[prost(bool, tag = "3")]
    pub(super) is_communicator: bool,
    /// The instance's key; `None` for an operation that only joins the group.
    #[prost(int32, optional, tag = "4")]
    pub(super) instance_key: Option<i32>,
}

/// A task's answer to a [`Question`].
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Answer {
    /// The task's progress in the step, such as `its step 812 waits for 'dequeue'`.
    #[prost(string, tag = "1")]
    pub(super) text: String,
    /// Number of members of the group; 0 if the task does not lead it.
    #[prost(uint64, tag = "2")]
    size: u64,
    /// The members that have joined the group, at most [`MAX_MEMBERS`].
    #[prost(string, repeated, tag = "3")]
    come: Vec<String>,
    /// The members that have not called for the instance, at most [`MAX_MEMBERS`].
    #[prost(string, repeated, tag = "4")]
    missing: Vec<String>,
}

impl Question {
    /// Adds the question to a call of GetStatus.
    pub(super) fn add_to(&self, header: &mut MetadataMap) {
        header.insert_bin(STANDING_KEY, BinaryMetadataValue::from_bytes(&self.encode_to_vec()));
    }
}

impl Answer {
    /// Returns the answer in a response to GetStatus; `None` for a server of TensorFlow.
    pub(super) fn of(header: &MetadataMap) -> Option<Answer> {
        let bytes = header.get_bin(STANDING_KEY)?.to_bytes().ok()?;
        Answer::decode(bytes).ok()
    }

    /// Returns the leader's knowledge of the group; `None` if the task does not lead it.
    pub(super) fn attendance(self) -> Option<Attendance> {
        let Answer { size, come, missing, .. } = self;
        let size = usize::try_from(size).ok().filter(|&size| size > 0)?;
        Some(Attendance { size, come, missing })
    }
}

/// Answers the question in a call of GetStatus, if there is one.
pub(crate) fn answer_standing(worker: &Worker, call: &MetadataMap, response: &mut MetadataMap) {
    let question = call.get_bin(STANDING_KEY).and_then(|value| value.to_bytes().ok());
    let Some(question) = question.and_then(|bytes| Question::decode(bytes).ok()) else { return };
    let group = (question.group_key, question.is_communicator);
    let mut seen = worker.leader.attendance(group, question.instance_key).unwrap_or_default();
    seen.come.truncate(MAX_MEMBERS);
    seen.missing.truncate(MAX_MEMBERS);
    let Attendance { size, come, missing } = seen;
    let text = standing(&worker.steps, question.step_id);
    let answer = Answer { text, size: size as u64, come, missing };
    response.insert_bin(STANDING_KEY, BinaryMetadataValue::from_bytes(&answer.encode_to_vec()));
}

/// Returns a description of this task's progress in a step: the step has not begun here, waits, computes, or has ended.
pub(super) fn standing(steps: &Steps, step_id: i64) -> String {
    let text = match steps.get(step_id) {
        Some(step) if step.is_running() => format!("its step {step_id} {}", doing(&step)),
        Some(step) if step.has_started() => format!("it has ended step {step_id}{}", others(steps, step_id)),
        None if steps.is_cleaned_up(step_id) => {
            format!("it has ended step {step_id}{}", others(steps, step_id))
        }
        _ => format!("it has not begun step {step_id}{}", others(steps, step_id)),
    };
    match text.char_indices().find(|(at, c)| at + c.len_utf8() > MAX_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Returns a description of the nodes and tensors for which a step waits. Nodes that are no collectives come first,
/// because they may be the reason for the step's delay.
fn doing(step: &StepState) -> String {
    let (collectives, others): (Vec<_>, Vec<_>) =
        step.activity.waiting().into_iter().partition(|node| node.op.name().starts_with(COLLECTIVE_OP));
    let nodes = others.iter().chain(&collectives).map(|node| format!("'{}'", node.name));
    let awaited = [some(nodes.collect()), some(step.rendezvous.awaited_names())];
    let awaited: Vec<String> = awaited.into_iter().flatten().collect();
    match awaited.is_empty() {
        true => "computes".into(),
        false => format!("waits for {}", awaited.join(", and for ")),
    }
}

/// Joins the first [`MAX_NAMED`] names into one text; `None` if there are no names.
fn some(names: Vec<String>) -> Option<String> {
    let first = names.get(..MAX_NAMED).unwrap_or(&names).join(", ");
    match names.len() {
        0 => None,
        n if n > MAX_NAMED => Some(format!("{first} and {} more", n - MAX_NAMED)),
        _ => Some(first),
    }
}

/// Returns a description of the other steps that run on this task.
fn others(steps: &Steps, step_id: i64) -> String {
    let mut running: Vec<Arc<StepState>> = Vec::new();
    steps.for_each(|step| {
        if step.id != step_id && step.is_running() && !step.is_of_group() {
            running.push(step.clone());
        }
    });
    running.sort_by_key(|step| step.id);
    let text = |step: &Arc<StepState>| format!("its step {} {}", step.id, doing(step));
    let texts: Vec<String> = running.iter().take(MAX_OTHER_STEPS).map(text).collect();
    match texts.is_empty() {
        true => ", and runs no step".into(),
        false => format!("; {}", texts.join("; ")),
    }
}
