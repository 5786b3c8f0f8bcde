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
    /// The id of the member's step; 0 if the member does not tell.
    pub(crate) step_id: i64,
}

/// The members of a complete group in the order of their ranks, which is the order of their full names.
pub(crate) type Members = Arc<[DeviceAttributes]>;

/// The properties of an instance in which all members must agree.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Terms {
    /// The number by which TensorFlow's protocol denotes the operation.
    pub(crate) kind: i32,
    /// The number by which TensorFlow's protocol denotes the dtype.
    pub(crate) dtype: i32,
    /// The shape of the members' outputs for a gather, of their inputs otherwise.
    pub(crate) shape: Option<Shape>,
    /// The functions of a reduction, such as `Add,Div`; empty if the member does not tell.
    pub(crate) functions: String,
}

/// A member's request to agree on an instance.
#[derive(Clone, Debug)]
pub(crate) struct Agree {
    pub(crate) group_key: i32,
    pub(crate) instance_key: i32,
    pub(crate) device: String,
    /// The name of the member's node, for messages.
    pub(crate) node: String,
    pub(crate) terms: Terms,
    pub(crate) is_source: bool,
    /// The id of the member's step; 0 if the member does not tell.
    pub(crate) step_id: i64,
}

/// The kind of a broadcast in TensorFlow's protocol.
pub(crate) const BROADCAST: i32 = 1;

/// Answers that have become possible: each with its caller.
pub(crate) type Answers<W, T> = Vec<(W, Result<T, Status>)>;

/// The groups and instances of a leader. `G` and `I` are the callers that wait for a group or an instance.
#[derive(Debug)]
pub(crate) struct Register<G, I> {
    groups: FxHashMap<i32, Group<G, I>>,
    /// The last steps that have failed in a session, with the failures: members that come for them later are refused.
    failed: VecDeque<(i64, Status)>,
}

/// Number of failed steps that are remembered.
const MAX_FAILED: usize = 256;

#[derive(Debug)]
struct Group<G, I> {
    size: usize,
    joined: Vec<Joined>,
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

#[derive(Debug)]
struct Joined {
    session: Arc<str>,
    device: DeviceAttributes,
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
    /// its earlier program has ended. A device that cannot be a member fails all that wait for the group.
    pub(crate) fn join(&mut self, join: Join, caller: G) -> Answers<G, Members> {
        if let Some(failure) = self.failure_of(join.step_id) {
            return vec![(caller, Err(failure))];
        }
        let (group_key, name) = (join.group_key, join.device.name.to_string());
        let mut answers = Vec::new();
        if self.groups.get(&group_key).is_some_and(|group| group.is_superseded_by(&join))
            && let Some(ended) = self.groups.remove(&group_key)
        {
            let text = format!("group {group_key} was begun anew by {name}, from another session");
            let ended = ended.waiting.into_iter();
            answers.extend(ended.map(|w| (w.caller, Err(Status::new(Code::Aborted, text.clone())))));
        }
        let group = self.groups.entry(group_key).or_insert_with(|| Group::new(join.group_size));
        if let Err(status) = group.check(&join) {
            answers.push((caller, Err(status.clone())));
            if group.members.is_none()
                && let Some(refused) = self.groups.remove(&group_key)
            {
                answers.extend(refused.waiting.into_iter().map(|w| (w.caller, Err(status.clone()))));
            }
            return answers;
        }
        group.waiting.push(Waiting { caller, step_id: join.step_id });
        if !group.joined.iter().any(|joined| joined.device.name == join.device.name) {
            group.joined.push(Joined { session: join.session, device: join.device });
        }
        if group.joined.len() == group.size {
            let members = group.members.get_or_insert_with(|| ranked(&group.joined)).clone();
            answers.extend(group.waiting.drain(..).map(|w| (w.caller, Ok(members.clone()))));
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
        let group = self.groups.get_mut(&group_key);
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
        if group.instances.get(&instance_key).is_some_and(|instance| instance.is_over(&agree)) {
            group.instances.remove(&instance_key);
        }
        let instance = group.instances.entry(instance_key).or_insert_with(|| Instance::new(&agree));
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
            (None, false) => return Vec::new(),
        };
        instance.waiting.drain(..).map(|w| (w.caller, answer.clone())).collect()
    }

    /// Removes the groups that members of a session have joined. Returns the callers that wait for them.
    pub(crate) fn close_session(&mut self, session: &str) -> (Vec<G>, Vec<I>) {
        let is_over = |_: &i32, group: &mut Group<G, I>| group.has_session(session);
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
    pub(crate) fn who_has_joined(&self, group_key: i32) -> String {
        let Some(group) = self.groups.get(&group_key) else { return "no member has come".into() };
        let names: Vec<String> = group.joined.iter().map(|joined| joined.device.name.to_string()).collect();
        format!("{} of {} members have come: {}", names.len(), group.size, names.join(", "))
    }

    /// Says which members of an instance have not come.
    pub(crate) fn who_is_missing(&self, group_key: i32, instance_key: i32) -> String {
        let Some(group) = self.groups.get(&group_key) else { return "the group has ended".into() };
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
            members: None,
            waiting: Vec::new(),
            instances: FxHashMap::default(),
        }
    }

    fn has_session(&self, session: &str) -> bool {
        self.joined.iter().any(|joined| &*joined.session == session)
    }

    fn is_superseded_by(&self, join: &Join) -> bool {
        let member = self.joined.iter().find(|joined| joined.device.name == join.device.name);
        member.is_some_and(|joined| {
            joined.session != join.session || joined.device.incarnation != join.device.incarnation
        })
    }

    /// Checks that a device may join.
    fn check(&self, join: &Join) -> Result<(), Status> {
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
        let is_member = self.joined.iter().any(|joined| joined.device.name == device.name);
        if self.joined.len() == self.size && !is_member {
            return refused("that is already full".into());
        }
        Ok(())
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
            source: None,
            waiting: Vec::new(),
        }
    }

    /// Returns whether the member begins the instance anew: the instance has failed in another step, or the member has
    /// come before and has other terms now, or learned of the failure.
    fn is_over(&self, agree: &Agree) -> bool {
        let has_failed = self.failure.is_some();
        let has_come = self.come.contains(&agree.device);
        (has_failed && self.step_id != agree.step_id)
            || (has_come && (has_failed || self.terms != agree.terms))
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
    let mut members: Vec<DeviceAttributes> = joined.iter().map(|j| j.device.clone()).collect();
    members.sort_by_cached_key(|member| member.name.clone());
    members.into()
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
        Join { session: session.into(), group_key: 1, group_size, device, step_id: 1 }
    }

    fn agree(task: u32, terms: Terms, is_source: bool) -> Agree {
        Agree {
            group_key: 1,
            instance_key: 9,
            device: format!("/job:worker/replica:0/task:{task}/device:CPU:0"),
            node: format!("node_{task}"),
            terms,
            is_source,
            step_id: 1,
        }
    }

    fn terms(kind: i32, elements: usize) -> Terms {
        Terms { kind, dtype: 1, shape: Shape::new(&[elements]).ok(), functions: String::new() }
    }

    /// Returns the callers that are answered, with the tasks of the members or the text of the error.
    fn seen(answers: Answers<u32, Members>) -> Vec<(u32, Result<Vec<u32>, String>)> {
        let tasks = |members: Members| members.iter().map(|member| member.name.task).collect();
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
        let joined = register.who_has_joined(1);
        assert!(joined.starts_with("1 of 2 members have come: /job:worker/replica:0/task:1"), "{joined}");
        register.join(join(0, "s", 2), 2);
        register.agree(agree(1, terms(0, 6), false), 3);
        assert_eq!(register.who_is_missing(1, 9), "waits for /job:worker/replica:0/task:0/device:CPU:0");
    }
}
