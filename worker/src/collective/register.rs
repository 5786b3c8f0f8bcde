//! The register of a group leader: the devices that have joined each group, and the members that have agreed on each
//! instance. It is a value without sockets and clocks: a call returns all answers that it makes possible, and a caller
//! whose answer is not yet possible is stored until a later call makes it possible.

mod group;
mod instance;
mod limits;
mod requests;
#[cfg(test)]
mod tests;

pub(crate) use requests::{Agree, Agreement, BROADCAST, GroupKey, Join, Members, Met, Terms};

use graph::{Code, DeviceAttributes, DeviceName};
use group::{Group, Joined, ranked};
use instance::Instance;
use limits::{CALLS_OF_MEMBER, JOINS_OF_MEMBER, enqueue};
use proto::Status;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Answers that have become possible, each with the caller that waits for it.
pub(crate) type Answers<W, T> = Vec<(W, Result<T, Status>)>;

/// The groups and instances of a leader. `G` and `I` are the callers that wait for a group or an instance.
#[derive(Debug)]
pub(crate) struct Register<G, I> {
    groups: FxHashMap<GroupKey, Group<G, I>>,
    /// The last steps that have failed in a session, with the failures: later calls for these steps are refused.
    failed: VecDeque<(i64, Status)>,
    /// The most bytes that the records of all groups may take.
    held: usize,
    /// Number of requests so far, by which the groups' last uses are ordered.
    calls: u64,
}

/// A caller that waits for an answer.
pub(crate) trait Caller {
    /// Returns whether the caller has given up, and needs no answer.
    fn has_gone(&self) -> bool;
}

/// Number of failed steps that are remembered.
const MAX_FAILED: usize = 256;

/// The members of a group that have joined it, by the names of their devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attendance {
    /// Number of members of the group.
    pub(crate) size: usize,
    /// The members that have joined the group.
    pub(crate) come: Vec<String>,
    /// The members of a complete group that have not yet called for the instance.
    pub(crate) missing: Vec<String>,
}

impl Attendance {
    pub(crate) fn is_complete(&self) -> bool {
        self.come.len() >= self.size
    }

    pub(crate) fn who_has_joined(&self) -> String {
        format!("{} of {} members have come: {}", self.come.len(), self.size, self.come.join(", "))
    }

    pub(crate) fn who_is_missing(&self) -> String {
        format!("waits for {}", self.missing.join(", "))
    }
}

/// A caller that waits, and the id of its step.
#[derive(Debug)]
struct Waiting<W> {
    caller: W,
    step_id: i64,
}

impl<G, I> Default for Register<G, I> {
    fn default() -> Register<G, I> {
        Register { groups: FxHashMap::default(), failed: VecDeque::new(), held: 0, calls: 0 }
    }
}

impl<G: Caller, I: Caller> Register<G, I> {
    /// Joins a device to a group. A member that joins from another session than before replaces the group with a new
    /// one, because its earlier program has ended. If a device is refused while the group is incomplete, the join fails
    /// for all members that wait and for those that join later; a later step of a session that has received this error
    /// replaces the group.
    pub(crate) fn join(&mut self, join: Join, caller: G) -> Answers<G, Met> {
        if let Some(failure) = self.failure_of(join.step_id) {
            return vec![(caller, Err(failure))];
        }
        if let Err(status) = join.check().and_then(|()| self.make_room_for_join(&join)) {
            return vec![(caller, Err(status))];
        }
        let (key, group_key, name) = (join.key(), join.group_key, join.device.name.to_string());
        let mut answers = Vec::new();
        if self.groups.get(&key).is_some_and(|group| group.is_superseded_by(&join))
            && let Some(ended) = self.groups.remove(&key)
        {
            let text = format!("group {group_key} was begun anew by {name}, from another session");
            let ended = ended.waiting.into_iter();
            answers.extend(ended.map(|w| (w.caller, Err(Status::new(Code::Aborted, text.clone())))));
        }
        let group = self.groups.entry(key).or_insert_with(|| Group::new(join.group_size));
        group.used = self.calls;
        let waiting = Waiting { caller, step_id: join.step_id };
        if let Err(refused) = enqueue(&mut group.waiting, group.size, JOINS_OF_MEMBER, waiting) {
            answers.extend(refused);
            return answers;
        }
        if let Err(status) = group.check(&join) {
            answers.extend(group.refuse(&join, status));
            return answers;
        }
        if !group.joined.iter().any(|joined| joined.device.name == join.device.name) {
            group.joined.push(Joined { session: join.session, device: join.device, rank: join.rank });
        }
        if group.joined.len() == group.size {
            let members = group.members.get_or_insert_with(|| ranked(&group.joined)).clone();
            let met = Met { members, is_shared: group.is_shared() };
            answers.extend(group.waiting.drain(..).map(|w| (w.caller, Ok(met.clone()))));
        }
        answers
    }

    /// Records a member's terms of an instance. The members are answered when all of them have called; for a broadcast,
    /// the answer has the rank of its source. Terms that differ are an error for all members, also for those that call
    /// later. A member that calls again after a failure replaces the instance with a new one.
    pub(crate) fn agree(&mut self, agree: Agree, caller: I) -> Answers<I, Agreement> {
        if let Some(failure) = self.failure_of(agree.step_id) {
            return vec![(caller, Err(failure))];
        }
        if let Err(status) = agree.check().and_then(|()| self.make_room_for_agree(&agree)) {
            return vec![(caller, Err(status))];
        }
        let (group_key, instance_key) = (agree.group_key, agree.instance_key);
        let group = self.groups.get_mut(&(group_key, agree.is_communicator));
        let Some((group, members)) =
            group.and_then(|group| group.members.clone().map(|members| (group, members)))
        else {
            let text = format!(
                "group {group_key} is unknown to the group leader: the leader has restarted, a member's session has \
                 ended, or the leader held too many groups; the next step meets anew"
            );
            return vec![(caller, Err(Status::new(Code::FailedPrecondition, text)))];
        };
        let Some(rank) = members.iter().position(|member| member.name.to_string() == agree.device) else {
            let text = format!("{} is no member of group {group_key}", agree.device);
            return vec![(caller, Err(Status::new(Code::Internal, text)))];
        };
        if let Some(status) = group.instances.get(&instance_key).and_then(|i| i.end_of(agree.step_id)) {
            return vec![(caller, Err(status))];
        }
        group.used = self.calls;
        if let Err(status) = group.make_room_for_instance(instance_key) {
            return vec![(caller, Err(status))];
        }
        let is_over = |instance: &Instance<I>| instance.is_over(&agree, members.len());
        let (mut answers, mut ended) = (Vec::new(), Vec::new());
        if group.instances.get(&instance_key).is_some_and(is_over)
            && let Some(mut over) = group.instances.remove(&instance_key)
        {
            let text =
                format!("instance {instance_key} of group {group_key} was begun anew by {}", agree.device);
            let status = over.failure.clone().unwrap_or_else(|| Status::new(Code::Aborted, text));
            let waiting = std::mem::take(&mut over.waiting).into_iter();
            answers.extend(waiting.map(|w| (w.caller, Err(status.clone()))));
            ended = over.into_ended(&agree, members.len(), status);
        }
        let new = || Instance::new(&agree, self.calls, ended);
        let instance = group.instances.entry(instance_key).or_insert_with(new);
        if instance.failure.is_none() {
            instance.failure = instance.check(&agree, rank).err();
        }
        let waiting = Waiting { caller, step_id: agree.step_id };
        if let Err(refused) = enqueue(&mut instance.waiting, members.len(), CALLS_OF_MEMBER, waiting) {
            answers.extend(refused);
            return answers;
        }
        if !instance.has_come(&agree.device) {
            instance.come.push((agree.device, agree.bucket));
        }
        let is_complete = instance.come.len() == members.len();
        if instance.failure.is_none()
            && is_complete
            && agree.terms.kind == BROADCAST
            && instance.source.is_none()
        {
            let text = format!("instance {instance_key} of group {group_key} found no source for broadcast");
            instance.failure = Some(Status::new(Code::Internal, text));
        }
        let answer = match (&instance.failure, is_complete) {
            (Some(status), _) => Err(status.clone()),
            (None, true) => Ok(instance.agreement()),
            (None, false) => return answers,
        };
        answers.extend(instance.waiting.drain(..).map(|w| (w.caller, answer.clone())));
        answers
    }

    /// Removes the groups that members of a session have joined. Returns the callers that wait for them.
    pub(crate) fn close_session(&mut self, session: &str) -> (Vec<G>, Vec<I>) {
        let is_over = |_: &GroupKey, group: &mut Group<G, I>| group.has_session(session);
        let ended: Vec<Group<G, I>> = self.groups.extract_if(is_over).map(|(_, group)| group).collect();
        let (mut joining, mut agreeing) = (Vec::new(), Vec::new());
        for group in ended {
            joining.extend(group.waiting.into_iter().map(|w| w.caller));
            let instances = group.instances.into_values().flat_map(|instance| instance.waiting);
            agreeing.extend(instances.map(|w| w.caller));
        }
        (joining, agreeing)
    }

    /// Records that a step has failed in one session. Returns the callers that wait in this step.
    pub(crate) fn fail_step(&mut self, step_id: i64, failure: &Status) -> (Vec<G>, Vec<I>) {
        if self.failed.len() == MAX_FAILED {
            self.failed.pop_front();
        }
        self.failed.push_back((step_id, failure.clone()));
        let (mut joining, mut agreeing) = (Vec::new(), Vec::new());
        for group in self.groups.values_mut() {
            joining.extend(of_step(&mut group.waiting, step_id));
            for instance in group.instances.values_mut() {
                agreeing.extend(of_step(&mut instance.waiting, step_id));
            }
            let size = group.size;
            group.instances.retain(|_, i| i.step_id != step_id || i.come.len() == size);
        }
        (joining, agreeing)
    }

    /// Returns whether a device is a member of a complete group.
    pub(crate) fn has_member(&self, group: GroupKey, device: &DeviceName) -> bool {
        let members = self.groups.get(&group).and_then(|group| group.members.as_ref());
        members.is_some_and(|members| members.iter().any(|member| member.name == *device))
    }

    /// Returns the failure of a step in another session.
    fn failure_of(&self, step_id: i64) -> Option<Status> {
        let failed = self.failed.iter().find(|(id, _)| *id == step_id && step_id != 0);
        failed.map(|(_, failure)| failure.clone())
    }

    /// Returns the members of all complete groups that a session's devices have joined.
    pub(crate) fn members_with(&self, session: &str) -> Vec<DeviceAttributes> {
        let groups = self.groups.values().filter(|group| group.has_session(session));
        groups.flat_map(|group| group.members.iter().flat_map(|members| members.iter().cloned())).collect()
    }

    /// Returns the members that have joined a group, and those that have not called for an instance of a complete
    /// group. `None` if the group does not exist.
    pub(crate) fn attendance(&self, group: GroupKey, instance_key: Option<i32>) -> Option<Attendance> {
        let group = self.groups.get(&group)?;
        let come = group.joined.iter().map(|joined| joined.device.name.to_string()).collect();
        let instance = instance_key.and_then(|key| group.instances.get(&key));
        let has_come = |name: &String| instance.is_some_and(|instance| instance.has_come(name));
        let members = group.members.iter().flat_map(|members| members.iter());
        let missing = members.map(|member| member.name.to_string());
        let missing = missing.filter(|name| !has_come(name)).collect();
        Some(Attendance { size: group.size, come, missing })
    }

    /// Returns a sentence that names the members that have joined a group.
    pub(crate) fn who_has_joined(&self, group: GroupKey) -> String {
        self.attendance(group, None).map_or("no member has come".into(), |seen| seen.who_has_joined())
    }

    /// Returns a sentence that names the members that have not called for an instance.
    pub(crate) fn who_is_missing(&self, group: GroupKey, instance_key: i32) -> String {
        let seen = self.attendance(group, Some(instance_key));
        seen.map_or("the group has ended".into(), |seen| seen.who_is_missing())
    }
}

/// Removes the callers of a step, and returns them.
fn of_step<W>(waiting: &mut Vec<Waiting<W>>, step_id: i64) -> Vec<W> {
    waiting.extract_if(.., |w| w.step_id == step_id).map(|w| w.caller).collect()
}
