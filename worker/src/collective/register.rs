//! The register of a group leader: which devices have joined which groups, and which members have agreed on which
//! instances. It is a value without sockets and clocks: a call either returns the answers that it makes possible, or
//! keeps the caller until later calls do.

use graph::{Code, DeviceAttributes, Shape};
use proto::Status;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Arc;

/// A device's request to join a group.
#[derive(Clone, Debug)]
pub(crate) struct Join {
    /// The handle of the member's own session.
    pub(crate) session: Arc<str>,
    pub(crate) group_key: i32,
    pub(crate) group_size: usize,
    pub(crate) device: DeviceAttributes,
    /// The member's rank in the group of a communicator; `None` in a group whose members are ranked by their names.
    pub(crate) rank: Option<usize>,
    /// The id of the member's step; 0 if the member does not tell.
    pub(crate) step_id: i64,
}

/// The key of a group, and whether it is the group of a communicator: each kind has keys of its own.
pub(crate) type GroupKey = (i32, bool);

/// The members of a complete group in the order of their ranks: in the group of a communicator the members give them,
/// else they follow the order of the full names.
pub(crate) type Members = Arc<[DeviceAttributes]>;

/// A complete group.
#[derive(Clone, Debug)]
pub(crate) struct Met {
    pub(crate) members: Members,
    /// True if the members belong to several sessions.
    pub(crate) is_shared: bool,
}

/// The properties of an instance in which all members must agree.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Terms {
    /// The number by which TensorFlow's protocol denotes the operation.
    pub(crate) kind: i32,
    /// The number by which TensorFlow's protocol denotes the dtype.
    pub(crate) dtype: i32,
    /// The shape of the members' outputs for a gather, of their inputs otherwise.
    pub(crate) shape: Option<Shape>,
    /// The functions of a reduction, such as `Add,Div`, and the assignment of a communicator's members to subgroups; empty
    /// if the member does not tell.
    pub(crate) functions: String,
}

/// A member's request to agree on an instance.
#[derive(Clone, Debug)]
pub(crate) struct Agree {
    pub(crate) group_key: i32,
    pub(crate) is_communicator: bool,
    pub(crate) instance_key: i32,
    pub(crate) device: String,
    /// The name of the member's node, for messages.
    pub(crate) node: String,
    pub(crate) terms: Terms,
    pub(crate) is_source: bool,
    /// The id of the member's step; 0 if the member does not tell.
    pub(crate) step_id: i64,
    /// Set if the members agree anew on an instance: a number of the iteration within the step, the same for all.
    pub(crate) renewal: Option<u64>,
}

/// The kind of a broadcast in TensorFlow's protocol.
pub(crate) const BROADCAST: i32 = 1;

/// Number of ended steps that an instance remembers.
const MAX_ENDED: usize = 8;

/// Answers that have become possible: each with its caller.
pub(crate) type Answers<W, T> = Vec<(W, Result<T, Status>)>;

/// The groups and instances of a leader. `G` and `I` are the callers that wait for a group or an instance.
#[derive(Debug)]
pub(crate) struct Register<G, I> {
    groups: FxHashMap<GroupKey, Group<G, I>>,
    /// The last steps that have failed in a session, with the failures: members that come for them later are refused.
    failed: VecDeque<(i64, Status)>,
}

/// Number of failed steps that are remembered.
const MAX_FAILED: usize = 256;

#[derive(Debug)]
struct Group<G, I> {
    size: usize,
    joined: Vec<Joined>,
    /// Set if a device was refused before the group was complete.
    failure: Option<GroupFailure>,
    /// Set when all members have joined.
    members: Option<Members>,
    waiting: Vec<Waiting<G>>,
    instances: FxHashMap<i32, Instance<I>>,
}

/// A caller that waits, and the id of its step.
#[derive(Debug)]
struct Waiting<W> {
    caller: W,
    step_id: i64,
}

/// The refusal of a device, which each session learns once: its next step begins the group anew.
#[derive(Debug)]
struct GroupFailure {
    status: Status,
    step_id: i64,
    /// The sessions of the members that have been told.
    told: Vec<Arc<str>>,
}

#[derive(Debug)]
struct Joined {
    session: Arc<str>,
    device: DeviceAttributes,
    rank: Option<usize>,
}

#[derive(Debug)]
struct Instance<I> {
    terms: Terms,
    /// The node and device of the first member, for messages.
    first: String,
    /// The devices of the members that have come.
    come: Vec<String>,
    failure: Option<Status>,
    /// The step of the first member.
    step_id: i64,
    /// The renewal by which the instance was begun.
    renewal: Option<u64>,
    /// Earlier steps that did not complete the instance, each with the error for members that come late.
    ended: Vec<(i64, Status)>,
    source: Option<usize>,
    waiting: Vec<Waiting<I>>,
}

impl<G, I> Default for Register<G, I> {
    fn default() -> Register<G, I> {
        Register { groups: FxHashMap::default(), failed: VecDeque::new() }
    }
}

impl<G, I> Register<G, I> {
    /// Joins a device to a group. A member that joins from another session than before begins the group anew, because
    /// its earlier program has ended. A device that is refused fails the group if it is not complete, for the members that
    /// wait and for those that come later; a step of a session that has been told begins the group anew.
    pub(crate) fn join(&mut self, join: Join, caller: G) -> Answers<G, Met> {
        if let Some(failure) = self.failure_of(join.step_id) {
            return vec![(caller, Err(failure))];
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
        group.waiting.push(Waiting { caller, step_id: join.step_id });
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

    /// Records a member's terms of an instance. The members are answered when all have come, those of a broadcast with the
    /// rank of its source. Terms that differ fail all members, also those that come later. A member that comes again
    /// after a failure begins the instance anew.
    pub(crate) fn agree(&mut self, agree: Agree, caller: I) -> Answers<I, Option<usize>> {
        if let Some(failure) = self.failure_of(agree.step_id) {
            return vec![(caller, Err(failure))];
        }
        let (group_key, instance_key) = (agree.group_key, agree.instance_key);
        let group = self.groups.get_mut(&(group_key, agree.is_communicator));
        let Some((group, members)) =
            group.and_then(|group| group.members.clone().map(|members| (group, members)))
        else {
            let text = format!(
                "group {group_key} is unknown to the group leader: the leader has restarted, or its session has ended"
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
        let new = || Instance { ended, ..Instance::new(&agree) };
        let instance = group.instances.entry(instance_key).or_insert_with(new);
        if instance.failure.is_none() {
            instance.failure = instance.check(&agree, rank).err();
        }
        instance.waiting.push(Waiting { caller, step_id: agree.step_id });
        if !instance.come.contains(&agree.device) {
            instance.come.push(agree.device);
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
            (None, true) => Ok(instance.source),
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

    /// Ends a step that has failed in one session. Returns the callers that wait in this step.
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

    /// Says which members of a group have come.
    pub(crate) fn who_has_joined(&self, group: GroupKey) -> String {
        let Some(group) = self.groups.get(&group) else { return "no member has come".into() };
        let names: Vec<String> = group.joined.iter().map(|joined| joined.device.name.to_string()).collect();
        format!("{} of {} members have come: {}", names.len(), group.size, names.join(", "))
    }

    /// Says which members of an instance have not come.
    pub(crate) fn who_is_missing(&self, group: GroupKey, instance_key: i32) -> String {
        let Some(group) = self.groups.get(&group) else { return "the group has ended".into() };
        let come = group.instances.get(&instance_key).map_or(&[][..], |instance| &instance.come);
        let members = group.members.iter().flat_map(|members| members.iter());
        let names = members.map(|member| member.name.to_string()).filter(|name| !come.contains(name));
        format!("waits for {}", names.collect::<Vec<_>>().join(", "))
    }
}

impl<G, I> Group<G, I> {
    fn new(size: usize) -> Group<G, I> {
        Group {
            size,
            joined: Vec::new(),
            failure: None,
            members: None,
            waiting: Vec::new(),
            instances: FxHashMap::default(),
        }
    }

    fn has_session(&self, session: &str) -> bool {
        self.joined.iter().any(|joined| &*joined.session == session)
    }

    /// Returns whether the members belong to several sessions.
    fn is_shared(&self) -> bool {
        self.joined.windows(2).any(|pair| pair[0].session != pair[1].session)
    }

    fn is_superseded_by(&self, join: &Join) -> bool {
        if let Some(GroupFailure { step_id, told, .. }) = &self.failure {
            return *step_id != join.step_id && told.contains(&join.session);
        }
        let member = self.joined.iter().find(|joined| joined.device.name == join.device.name);
        member.is_some_and(|joined| {
            joined.session != join.session || joined.device.incarnation != join.device.incarnation
        })
    }

    /// Returns the refusal for the caller that has come last and, if the group is not complete, for all that wait.
    fn refuse(&mut self, join: &Join, status: Status) -> Answers<G, Met> {
        let mut first = self.waiting.len() - 1;
        if self.members.is_none() {
            let told = self.joined.iter().map(|joined| joined.session.clone()).collect();
            let failure = GroupFailure { status: status.clone(), step_id: join.step_id, told };
            self.failure.get_or_insert(failure).told.push(join.session.clone());
            first = 0;
        }
        self.waiting.drain(first..).map(|w| (w.caller, Err(status.clone()))).collect()
    }

    /// Checks that a device may join.
    fn check(&self, join: &Join) -> Result<(), Status> {
        if let Some(failure) = &self.failure {
            return Err(failure.status.clone());
        }
        let Join { group_key, group_size, device, .. } = join;
        let refused = |reason: String| {
            let mut text =
                format!("Device {} is joining a group {reason} (group_key={group_key})", device.name);
            for (i, joined) in self.joined.iter().enumerate() {
                // Writing to a string does not fail.
                let _ = write!(text, "{}{}", if i == 0 { "; members: " } else { ", " }, joined.device.name);
            }
            Err(Status::new(Code::Internal, text))
        };
        if *group_size != self.size {
            return refused(format!("with size{group_size}, but that group has size {}", self.size));
        }
        if let Some(first) = self.joined.first()
            && first.device.name.device_type != device.name.device_type
        {
            return refused(format!(
                "with type {:?}, but that group has type {:?}",
                device.name.device_type, first.device.name.device_type
            ));
        }
        let member = self.joined.iter().find(|joined| joined.device.name == device.name);
        if let Some(rank) = join.rank {
            if let Some(before) = member.and_then(|member| member.rank).filter(|before| *before != rank) {
                return refused(format!("with rank {rank}, but it has rank {before} in that group"));
            }
            let other = self.joined.iter().find(|other| other.rank == Some(rank));
            if let Some(other) = other.filter(|other| other.device.name != device.name) {
                return refused(format!("with rank {rank}, which {} has in that group", other.device.name));
            }
        }
        let is_member = member.is_some();
        if self.joined.len() == self.size && !is_member {
            return refused("that is already full".into());
        }
        Ok(())
    }
}

impl Join {
    pub(crate) fn key(&self) -> GroupKey {
        (self.group_key, self.rank.is_some())
    }
}

impl<I> Instance<I> {
    fn new(agree: &Agree) -> Instance<I> {
        Instance {
            terms: agree.terms.clone(),
            first: format!("'{}' on {}", agree.node, agree.device),
            come: Vec::new(),
            failure: None,
            step_id: agree.step_id,
            renewal: agree.renewal,
            ended: Vec::new(),
            source: None,
            waiting: Vec::new(),
        }
    }

    /// Returns the error of a step that ended before all its members came; `None` for other steps.
    fn end_of(&self, step_id: i64) -> Option<Status> {
        self.ended.iter().find(|(ended, _)| *ended == step_id).map(|(_, status)| status.clone())
    }

    /// Returns the steps that did not complete the instance, this one among them if a member of another step has begun it
    /// anew.
    fn into_ended(mut self, agree: &Agree, members: usize, status: Status) -> Vec<(i64, Status)> {
        let is_incomplete = self.failure.is_some() || self.come.len() < members;
        if is_incomplete && self.step_id != agree.step_id && self.step_id != 0 {
            self.ended.truncate(MAX_ENDED - 1);
            self.ended.insert(0, (self.step_id, status));
        }
        self.ended
    }

    /// Returns whether the member begins the instance anew. The instance has failed or not been completed in another step,
    /// or the member agrees anew and is the first to do so, or it has come before and has other terms now, or learned of the
    /// failure.
    fn is_over(&self, agree: &Agree, members: usize) -> bool {
        let has_failed = self.failure.is_some();
        let is_other_step = self.step_id != agree.step_id;
        let is_left = is_other_step && self.step_id != 0 && agree.step_id != 0 && self.come.len() < members;
        let is_renewal = agree.renewal.is_some() && (is_other_step || self.renewal != agree.renewal);
        let has_other_terms = self.terms != agree.terms;
        let has_come = self.come.contains(&agree.device);
        (has_failed && is_other_step)
            || is_left
            || is_renewal
            || (has_come && (has_failed || has_other_terms))
    }

    /// Compares a member's terms with those of the first member, and records the source.
    fn check(&mut self, agree: &Agree, rank: usize) -> Result<(), Status> {
        let Agree { group_key, instance_key, device, node, terms, .. } = agree;
        let (own, first) = (format!("'{node}' on {device}"), &self.first);
        if (terms.kind, terms.dtype) != (self.terms.kind, self.terms.dtype) {
            let text = format!(
                "Collective instance {instance_key} of group {group_key} expected type {} and data_type {} but got type {} \
                 and data_type {}: {first} came first, then {own}",
                self.terms.kind, self.terms.dtype, terms.kind, terms.dtype
            );
            return Err(Status::new(Code::Internal, text));
        }
        if let (Some(expected), Some(shape)) = (&self.terms.shape, &terms.shape)
            && expected != shape
        {
            let text = format!(
                "Shape mismatch in the collective instance {instance_key} of group {group_key}. Op at device {device} \
                 expected shape {shape} but another member in the group expected shape {expected}. {first} came first, \
                 then {own}"
            );
            return Err(Status::invalid(text));
        }
        let (functions, expected) = (&terms.functions, &self.terms.functions);
        if !functions.is_empty() && !expected.is_empty() && functions != expected {
            let text = format!(
                "Collective instance {instance_key} of group {group_key}: {first} computes {expected}, {own} {functions}"
            );
            return Err(Status::invalid(text));
        }
        if agree.is_source {
            match self.source {
                Some(source) if source != rank => {
                    let text = format!(
                        "Instance {instance_key} of group {group_key} already has source {source}, received second \
                         claim from {rank}: {first} came first, then {own}"
                    );
                    return Err(Status::new(Code::Internal, text));
                }
                _ => self.source = Some(rank),
            }
        }
        Ok(())
    }
}

/// Removes the callers of a step, and returns them.
fn of_step<W>(waiting: &mut Vec<Waiting<W>>, step_id: i64) -> Vec<W> {
    waiting.extract_if(.., |w| w.step_id == step_id).map(|w| w.caller).collect()
}

/// Returns the members in the order of their ranks.
fn ranked(joined: &[Joined]) -> Members {
    let mut ranked: Vec<&Joined> = joined.iter().collect();
    ranked.sort_by_cached_key(|member| (member.rank, member.device.name.clone()));
    ranked.into_iter().map(|member| member.device.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::{DeviceName, TaskName};

    type Groups = Register<u32, u32>;

    fn join(task: u32, session: &str, group_size: usize) -> Join {
        let device = DeviceAttributes {
            name: DeviceName::new(&TaskName::new("worker", task), "CPU", 0),
            memory_limit: 1,
            incarnation: 1,
            physical_description: String::new(),
        };
        Join { session: session.into(), group_key: 1, group_size, device, rank: None, step_id: 1 }
    }

    fn agree(task: u32, terms: Terms, is_source: bool) -> Agree {
        Agree {
            group_key: 1,
            is_communicator: false,
            instance_key: 9,
            device: format!("/job:worker/replica:0/task:{task}/device:CPU:0"),
            node: format!("node_{task}"),
            terms,
            is_source,
            step_id: 1,
            renewal: None,
        }
    }

    fn terms(kind: i32, elements: usize) -> Terms {
        Terms { kind, dtype: 1, shape: Shape::new(&[elements]).ok(), functions: String::new() }
    }

    /// Returns the callers that are answered, with the tasks of the members or the text of the error.
    fn seen(answers: Answers<u32, Met>) -> Vec<(u32, Result<Vec<u32>, String>)> {
        let tasks = |met: Met| met.members.iter().map(|member| member.name.task).collect();
        answers.into_iter().map(|(caller, r)| (caller, r.map(tasks).map_err(|s| s.message))).collect()
    }

    fn complete(register: &mut Groups, members: u32) {
        for task in 0..members {
            register.join(join(task, "s", members as usize), task);
        }
    }

    #[test]
    fn members_learn_each_other_in_the_order_of_their_names_when_the_last_has_joined() {
        let mut register = Groups::default();
        assert_eq!(seen(register.join(join(10, "s", 3), 1)), []);
        assert_eq!(seen(register.join(join(2, "s", 3), 2)), []);
        // A member may ask twice.
        assert_eq!(seen(register.join(join(2, "s", 3), 3)), []);
        let all = Ok(vec![0, 2, 10]);
        let answered = seen(register.join(join(0, "s", 3), 4));
        assert_eq!(answered, [(1, all.clone()), (2, all.clone()), (3, all.clone()), (4, all.clone())]);
        assert_eq!(seen(register.join(join(10, "s", 3), 5)), [(5, all)]);
    }

    #[test]
    fn a_group_refuses_another_size_and_a_member_too_many() {
        let mut register = Groups::default();
        complete(&mut register, 2);
        let refusals = [seen(register.join(join(0, "s", 3), 7)), seen(register.join(join(5, "s", 2), 8))];
        let texts = ["is joining a group with size3, but that group has size 2", "already full"];
        for (refusal, text) in refusals.iter().zip(texts) {
            let [(_, Err(message))] = &refusal[..] else { panic!("{refusal:?}") };
            assert!(message.contains(text) && message.contains("task:1"), "{message}");
        }
    }

    #[test]
    fn members_of_a_communicator_have_the_ranks_that_they_give() {
        let mut register = Groups::default();
        let ranked =
            |task: u32, rank: usize, step_id: i64| Join { rank: Some(rank), step_id, ..join(task, "s", 3) };
        // A group of another kind has the same key.
        register.join(join(0, "s", 3), 9);
        assert_eq!(seen(register.join(ranked(0, 2, 1), 1)), []);
        // Two members with one rank fail, and so does a member that comes later in the step.
        let refused = seen(register.join(ranked(1, 2, 1), 2));
        let [(1, Err(first)), (2, Err(second))] = &refused[..] else { panic!("{refused:?}") };
        assert!(
            first == second && first.contains("with rank 2, which /job:worker/replica:0/task:0"),
            "{first}"
        );
        assert!(matches!(&seen(register.join(ranked(2, 1, 1), 3))[..], [(3, Err(third))] if third == first));
        // So does a member of another session that missed the step; the next step begins the group anew.
        let late = Join { session: "late".into(), ..ranked(2, 1, 7) };
        assert!(matches!(&seen(register.join(late, 8))[..], [(8, Err(text))] if text == first));
        assert_eq!(seen(register.join(ranked(0, 2, 2), 4)), []);
        assert_eq!(seen(register.join(ranked(1, 0, 2), 5)), []);
        let all = Ok(vec![1, 2, 0]);
        let answered = seen(register.join(ranked(2, 1, 2), 6));
        assert_eq!(answered, [(4, all.clone()), (5, all.clone()), (6, all)]);
        // A member keeps its rank.
        let refused = seen(register.join(ranked(0, 1, 3), 7));
        assert!(matches!(&refused[..], [(7, Err(text))] if text.contains("it has rank 2")), "{refused:?}");
    }

    #[test]
    fn a_member_from_a_later_session_begins_its_group_anew() {
        let mut register = Groups::default();
        complete(&mut register, 2);
        assert_eq!(seen(register.join(join(0, "later", 3), 5)), []);
        assert_eq!(seen(register.join(join(1, "later", 3), 6)), []);
        assert_eq!(seen(register.join(join(2, "later", 3), 7)).len(), 3);
        // Callers that wait for the groups of a session are returned at its end.
        register.join(join(0, "last", 2), 8);
        assert_eq!(register.close_session("last").0, [8]);
    }

    #[test]
    fn members_of_a_reduction_must_agree_on_their_terms() {
        let mut register = Groups::default();
        complete(&mut register, 3);
        assert_eq!(register.agree(agree(0, terms(0, 6), false), 1), []);
        let refused = register.agree(agree(1, terms(0, 5), false), 2);
        let [(1, Err(status)), (2, Err(_))] = &refused[..] else { panic!("{refused:?}") };
        assert_eq!(status.code, Code::InvalidArgument);
        for text in ["Shape mismatch in the collective instance 9", "[6]", "[5]", "node_0", "task:1"] {
            assert!(status.message.contains(text), "{text}: {}", status.message);
        }
        // A member that comes after the failure is refused too.
        assert_eq!(register.agree(agree(2, terms(0, 6), false), 3), [(3, Err(status.clone()))]);
        // A member that comes again begins the instance anew.
        for task in 0..2 {
            assert_eq!(register.agree(agree(task, terms(0, 5), false), task), []);
        }
        let all = [(0, Ok(None)), (1, Ok(None)), (2, Ok(None))];
        assert_eq!(register.agree(agree(2, terms(0, 5), false), 2), all);
        let functions = |functions: &str| Terms { functions: functions.into(), ..terms(0, 5) };
        assert_eq!(register.agree(agree(1, functions("Add,Id"), false), 4), []);
        let refused = register.agree(agree(0, functions("Max,Id"), false), 6);
        assert!(
            matches!(&refused[..], [(4, Err(s)), (6, Err(_))] if s.message.contains("Max,Id")),
            "{refused:?}"
        );
    }

    #[test]
    fn members_agree_anew_when_the_terms_of_one_have_changed() {
        let mut register = Groups::default();
        complete(&mut register, 2);
        let agreed = |answers: &Answers<u32, Option<usize>>| answers.iter().all(|(_, r)| r.is_ok());
        register.agree(agree(0, terms(0, 6), false), 0);
        assert_eq!(register.agree(agree(1, terms(0, 6), false), 1).len(), 2);
        // Member 1 has learnt that the terms of member 0 have changed, and comes first, with the terms of before.
        let renewed = |task, elements, renewal| Agree {
            step_id: 2,
            renewal: Some(renewal),
            ..agree(task, terms(0, elements), false)
        };
        assert_eq!(register.agree(renewed(1, 6, 0), 2), []);
        let refused = register.agree(renewed(0, 5, 0), 3);
        assert!(matches!(&refused[..], [(2, Err(_)), (3, Err(s))] if s.message.contains("Shape mismatch")));
        // In the next iteration both have changed.
        assert_eq!(register.agree(renewed(1, 7, 1), 4), []);
        let answers = register.agree(renewed(0, 7, 1), 5);
        assert!(answers.len() == 2 && agreed(&answers), "{answers:?}");
    }

    #[test]
    fn a_late_member_of_a_failed_step_does_not_disturb_the_next() {
        let mut register = Groups::default();
        complete(&mut register, 3);
        let in_step = |task, elements, step_id| Agree { step_id, ..agree(task, terms(0, elements), false) };
        assert_eq!(register.agree(in_step(0, 6, 1), 0), []);
        assert_eq!(register.agree(in_step(1, 5, 1), 1).len(), 2);
        assert_eq!(register.agree(in_step(0, 4, 2), 2), []);
        let late = register.agree(in_step(2, 6, 1), 3);
        assert!(matches!(&late[..], [(3, Err(s))] if s.message.contains("Shape mismatch")), "{late:?}");
        assert_eq!(register.agree(in_step(1, 4, 2), 4), []);
        assert_eq!(register.agree(in_step(2, 4, 2), 5), [(2, Ok(None)), (4, Ok(None)), (5, Ok(None))]);
        // A member that waits for the others of a step learns that one of them runs the next.
        let other = |task, step_id| Agree { instance_key: 8, ..in_step(task, 4, step_id) };
        assert_eq!(register.agree(other(0, 3), 6), []);
        let begun = register.agree(other(1, 4), 7);
        assert!(matches!(&begun[..], [(6, Err(s))] if s.code == Code::Aborted), "{begun:?}");
    }

    #[test]
    fn members_of_a_broadcast_learn_its_only_source() {
        let mut register = Groups::default();
        complete(&mut register, 3);
        assert_eq!(register.agree(agree(0, terms(BROADCAST, 4), false), 0), []);
        assert_eq!(register.agree(agree(2, terms(BROADCAST, 4), true), 1), []);
        let all = [(0, Ok(Some(2))), (1, Ok(Some(2))), (2, Ok(Some(2)))];
        assert_eq!(register.agree(agree(1, terms(BROADCAST, 4), false), 2), all);
        let second = register.agree(agree(1, terms(BROADCAST, 4), true), 3);
        let text = "already has source 2, received second claim from 1";
        assert!(matches!(&second[..], [(3, Err(status))] if status.message.contains(text)), "{second:?}");
        for task in 0..2 {
            let instance = Agree { instance_key: 10, ..agree(task, terms(BROADCAST, 4), false) };
            assert_eq!(register.agree(instance, task), []);
        }
        let none = register.agree(Agree { instance_key: 10, ..agree(2, terms(BROADCAST, 4), false) }, 2);
        assert_eq!(none.len(), 3);
        let has_no_source = |s: &Status| s.message.contains("found no source for broadcast");
        assert!(none.iter().all(|(_, r)| r.as_ref().is_err_and(has_no_source)));
    }

    #[test]
    fn an_instance_of_an_unknown_group_is_refused() {
        let mut register = Groups::default();
        register.join(join(0, "s", 2), 1);
        let refused = register.agree(agree(0, terms(0, 6), false), 2);
        assert!(
            matches!(&refused[..], [(2, Err(status))] if status.code == Code::FailedPrecondition),
            "{refused:?}"
        );
    }

    #[test]
    fn a_step_that_fails_in_one_session_ends_the_waits_in_the_others() {
        let mut register = Groups::default();
        register.join(join(0, "s", 2), 1);
        let failure = Status::new(Code::NotFound, "no file");
        assert_eq!(register.fail_step(2, &failure), (vec![], vec![]));
        assert_eq!(register.fail_step(1, &failure), (vec![1], vec![]));
        // A member that comes late for the step is refused; in the next step the members meet.
        assert_eq!(seen(register.join(join(1, "t", 2), 2)), [(2, Err("no file".into()))]);
        let next = |task| Join { step_id: 3, ..join(task, if task == 0 { "s" } else { "t" }, 2) };
        assert_eq!(seen(register.join(next(0), 3)), []);
        assert_eq!(seen(register.join(next(1), 4)).len(), 2);
        let of_step_3 = |task, elements| Agree { step_id: 3, ..agree(task, terms(0, elements), false) };
        assert_eq!(register.agree(of_step_3(0, 6), 5), []);
        assert_eq!(register.fail_step(3, &failure), (vec![], vec![5]));
        // The instance has begun anew, so other terms are accepted.
        let of_step_4 = |task| Agree { step_id: 4, ..agree(task, terms(0, 7), false) };
        assert_eq!(register.agree(of_step_4(1), 6), []);
        assert_eq!(register.agree(of_step_4(0), 7).len(), 2);
        let tasks: Vec<u32> = register.members_with("t").iter().map(|member| member.name.task).collect();
        assert_eq!(tasks, [0, 1]);
    }

    #[test]
    fn a_late_member_is_named() {
        let mut register = Groups::default();
        register.join(join(1, "s", 2), 1);
        let joined = register.who_has_joined((1, false));
        assert!(joined.starts_with("1 of 2 members have come: /job:worker/replica:0/task:1"), "{joined}");
        register.join(join(0, "s", 2), 2);
        register.agree(agree(1, terms(0, 6), false), 3);
        assert_eq!(
            register.who_is_missing((1, false), 9),
            "waits for /job:worker/replica:0/task:0/device:CPU:0"
        );
    }
}
