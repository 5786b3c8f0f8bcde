//! The epochs of the communicators of a leader's groups. In an epoch all members create their sides of one communicator
//! from one key; after a failure they enter the next epoch.

use crate::collective::register::{Caller, GroupKey};
use device::device_collectives::MAX_KEY_BYTES;
use graph::{Code, DeviceName, TaskName};
use proto::Status;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Number of groups whose epochs are remembered; beyond it, epochs in which no caller waits are dropped.
const MAX_GROUPS: usize = 1 << 12;

/// Largest length of the name of a physical device, bytes.
const MAX_IDENTITY: usize = 256;

/// A member's request to enter the next epoch of its group's communicator.
#[derive(Clone, Debug)]
pub(crate) struct Enter {
    /// The handle of the member's own session.
    pub(crate) session: Arc<str>,
    pub(crate) group: GroupKey,
    /// Number of members of the group.
    pub(crate) size: usize,
    pub(crate) device: DeviceName,
    /// The name of the physical device behind the member's device.
    pub(crate) identity: String,
    /// The last epoch that the member has been in, or 0.
    pub(crate) after: u64,
    /// The epoch for which the member has created the key, and the key; the leader had asked for it with
    /// [`Entered::Create`].
    pub(crate) offer: Option<(u64, Vec<u8>)>,
    /// The id of the member's step; 0 if it is unknown.
    pub(crate) step_id: i64,
}

/// The answer to a member that enters an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// All members have entered the epoch, and create their sides of the communicator from this key.
    Key { epoch: u64, key: Vec<u8> },
    /// All members have entered the epoch; this one creates the key and enters again with it.
    Create { epoch: u64 },
    /// The group cannot have a communicator.
    Refused(String),
}

/// Answers that have become possible, each with the caller that waits for it.
type Answers<W> = Vec<(W, Result<Entered, Status>)>;

/// The epochs of a leader's groups; `W` is the type of the callers that wait.
#[derive(Debug)]
pub(crate) struct Epochs<W> {
    groups: FxHashMap<GroupKey, Epoch<W>>,
}

/// The newest epoch of a group.
#[derive(Debug)]
struct Epoch<W> {
    number: u64,
    size: usize,
    come: Vec<Member<W>>,
    /// The member that has been told to create the key.
    creator: Option<DeviceName>,
    is_over: bool,
}

/// A member that has entered an epoch.
#[derive(Debug)]
struct Member<W> {
    session: Arc<str>,
    device: DeviceName,
    identity: String,
    step_id: i64,
    /// The caller that waits for the answer; `None` once the member is answered.
    caller: Option<W>,
}

impl<W> Default for Epochs<W> {
    fn default() -> Epochs<W> {
        Epochs { groups: FxHashMap::default() }
    }
}

impl<W: Caller> Epochs<W> {
    /// Enters a member. It is answered when all members have entered and one of them has created the key: the member on
    /// the `leader`'s own task, else the first by name. An entry begins the next epoch if the member has entered this
    /// one already or if this one is complete; callers that still wait for the earlier epoch are answered `Aborted`.
    pub(crate) fn enter(&mut self, enter: Enter, caller: W, leader: &TaskName) -> Answers<W> {
        if let Err(status) = enter.check() {
            return vec![(caller, Err(status))];
        }
        if let Some((number, key)) = enter.offer {
            return self.take_key(enter.group, &enter.device, number, key, caller);
        }
        self.make_room(enter.group);
        let mut answers = Vec::new();
        let next = |after: u64| Epoch::new(after.max(enter.after) + 1, enter.size);
        let epoch = self.groups.entry(enter.group).or_insert_with(|| next(0));
        epoch.come.retain(|member| member.caller.as_ref().is_none_or(|caller| !caller.has_gone()));
        if epoch.is_superseded_by(&enter) {
            let text = format!("{} has begun the communicator of group {} anew", enter.device, enter.group.0);
            let old = std::mem::replace(epoch, next(epoch.number));
            answers.extend(old.end(&Status::new(Code::Aborted, text)));
        }
        let Enter { session, device, identity, step_id, .. } = enter;
        epoch.come.push(Member { session, device, identity, step_id, caller: Some(caller) });
        if epoch.come.len() == epoch.size {
            answers.extend(epoch.complete(leader));
        }
        answers
    }

    /// Answers all members of an epoch with the key that its creator offers.
    fn take_key(
        &mut self,
        group: GroupKey,
        device: &DeviceName,
        number: u64,
        key: Vec<u8>,
        caller: W,
    ) -> Answers<W> {
        let epoch = self.groups.get_mut(&group);
        let is_creator = |epoch: &&mut Epoch<W>| {
            epoch.number == number && !epoch.is_over && epoch.creator.as_ref() == Some(device)
        };
        let Some(epoch) = epoch.filter(is_creator) else {
            let text = format!("epoch {number} of the communicator of group {} has ended", group.0);
            return vec![(caller, Err(Status::new(Code::Aborted, text)))];
        };
        epoch.is_over = true;
        let answer = Entered::Key { epoch: number, key };
        let waiting = epoch.come.iter_mut().filter_map(|member| member.caller.take());
        waiting.chain([caller]).map(|caller| (caller, Ok(answer.clone()))).collect()
    }

    /// Ends the epochs with a member that waits in a failed step. Returns the callers that wait for these epochs.
    pub(crate) fn fail_step(&mut self, step_id: i64) -> Vec<W> {
        self.end_epochs(|member| member.step_id == step_id)
    }

    /// Ends the epochs that members of a session have entered. Returns the callers that wait for these epochs.
    pub(crate) fn close_session(&mut self, session: &str) -> Vec<W> {
        self.end_epochs(|member| &*member.session == session)
    }

    /// Ends the epochs with a member for which `is_lost` returns true, unless all members have their answers.
    fn end_epochs(&mut self, is_lost: impl Fn(&Member<W>) -> bool) -> Vec<W> {
        let open = self.groups.values_mut().filter(|epoch| !epoch.is_over);
        let ended = open.filter(|epoch| epoch.come.iter().any(&is_lost));
        ended
            .flat_map(|epoch| std::mem::replace(epoch, Epoch::new(epoch.number + 1, epoch.size)).callers())
            .collect()
    }

    /// Returns a sentence that names the members that have entered the newest epoch of a group.
    pub(crate) fn who_has_entered(&self, group: GroupKey) -> String {
        let Some(epoch) = self.groups.get(&group) else { return "no member wants a communicator".into() };
        let names: Vec<String> = epoch.come.iter().map(|member| member.device.to_string()).collect();
        let (count, size) = (names.len(), epoch.size);
        format!(
            "epoch {} of its communicator: {count} of {size} members have come: {}",
            epoch.number,
            names.join(", ")
        )
    }

    /// Drops the epochs in which no caller waits, if there are too many. Members of a dropped epoch later enter epochs
    /// with greater numbers than those that they remember.
    fn make_room(&mut self, group: GroupKey) {
        if self.groups.len() >= MAX_GROUPS && !self.groups.contains_key(&group) {
            self.groups.retain(|_, epoch| epoch.come.iter().any(|member| member.caller.is_some()));
        }
    }
}

impl<W> Epoch<W> {
    fn new(number: u64, size: usize) -> Epoch<W> {
        Epoch { number, size, come: Vec::new(), creator: None, is_over: false }
    }

    fn is_superseded_by(&self, enter: &Enter) -> bool {
        let has_come = self.come.iter().any(|member| member.device == enter.device);
        has_come
            || self.is_over
            || self.creator.is_some()
            || enter.after >= self.number
            || self.size != enter.size
    }

    /// Returns the answers that are possible when all members have entered.
    fn complete(&mut self, leader: &TaskName) -> Answers<W> {
        self.come.sort_by(|a, b| a.device.cmp(&b.device));
        let twins = |(i, one): (usize, &Member<W>)| {
            let other = self.come[i + 1..].iter().find(|other| other.identity == one.identity)?;
            Some(format!("{} and {} are one physical device, {}", one.device, other.device, one.identity))
        };
        if let Some(reason) = self.come.iter().enumerate().find_map(twins) {
            self.is_over = true;
            let callers = self.come.iter_mut().filter_map(|member| member.caller.take());
            return callers.map(|caller| (caller, Ok(Entered::Refused(reason.clone())))).collect();
        }
        let of_leader = self.come.iter().position(|member| member.device.task_name() == *leader);
        let Some(creator) = self.come.get_mut(of_leader.unwrap_or(0)) else { return Vec::new() };
        self.creator = Some(creator.device.clone());
        let answer = Ok(Entered::Create { epoch: self.number });
        creator.caller.take().map(|caller| (caller, answer)).into_iter().collect()
    }

    fn end(self, status: &Status) -> Answers<W> {
        self.callers().map(|caller| (caller, Err(status.clone()))).collect()
    }

    fn callers(self) -> impl Iterator<Item = W> {
        self.come.into_iter().filter_map(|member| member.caller)
    }
}

impl Enter {
    /// Checks the sizes in the request.
    ///
    /// # Errors
    /// `InvalidArgument` naming the excess.
    fn check(&self) -> Result<(), Status> {
        let key = self.offer.as_ref().map_or(0, |(_, key)| key.len());
        for (what, length, most) in
            [("name of a physical device", self.identity.len(), MAX_IDENTITY), ("key", key, MAX_KEY_BYTES)]
        {
            if length > most {
                let text = format!("the {what} of a communicator has {length} bytes, more than {most}");
                return Err(Status::invalid(text));
            }
        }
        match self.after.checked_add(1) {
            Some(_) => Ok(()),
            None => Err(Status::invalid("the epoch of a communicator is too large")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: GroupKey = (7, false);

    fn device(task: u32) -> DeviceName {
        DeviceName::new(&TaskName::new("worker", task), "GPU", 0)
    }

    fn entering(task: u32, after: u64) -> Enter {
        Enter {
            session: format!("s{task}").into(),
            group: GROUP,
            size: 2,
            device: device(task),
            identity: format!("machine/gpu {task}"),
            after,
            offer: None,
            step_id: 1,
        }
    }

    fn leader() -> TaskName {
        TaskName::new("worker", 1)
    }

    /// Returns the callers that are answered, each with its answer as text.
    fn seen(answers: Answers<u32>) -> Vec<(u32, String)> {
        let text = |answer: Result<Entered, Status>| match answer {
            Ok(Entered::Key { epoch, key }) => format!("key {key:?} of {epoch}"),
            Ok(Entered::Create { epoch }) => format!("create {epoch}"),
            Ok(Entered::Refused(reason)) => reason,
            Err(status) => format!("{:?}: {}", status.code, status.message),
        };
        answers.into_iter().map(|(caller, answer)| (caller, text(answer))).collect()
    }

    /// Enters both members and takes the key of the creator, member 1.
    fn begun(epochs: &mut Epochs<u32>, after: u64) -> Vec<(u32, String)> {
        assert_eq!(seen(epochs.enter(entering(0, after), 10, &leader())), []);
        let epoch = after + 1;
        assert_eq!(seen(epochs.enter(entering(1, after), 11, &leader())), [(11, format!("create {epoch}"))]);
        let offer = Enter { offer: Some((epoch, vec![5])), ..entering(1, after) };
        seen(epochs.enter(offer, 12, &leader()))
    }

    #[test]
    fn members_get_the_key_that_the_member_on_the_leaders_task_creates() {
        let mut epochs = Epochs::default();
        let key = "key [5] of 1".to_owned();
        assert_eq!(begun(&mut epochs, 0), [(10, key.clone()), (12, key)]);
    }

    #[test]
    fn the_first_member_creates_the_key_if_the_leader_is_no_member() {
        let mut epochs = Epochs::default();
        let leader = TaskName::new("chief", 0);
        epochs.enter(entering(1, 0), 11, &leader);
        assert_eq!(seen(epochs.enter(entering(0, 0), 10, &leader)), [(10, "create 1".to_owned())]);
    }

    #[test]
    fn members_meet_in_the_next_epoch_after_a_failure() {
        let mut epochs = Epochs::default();
        begun(&mut epochs, 0);
        let key = "key [5] of 2".to_owned();
        assert_eq!(begun(&mut epochs, 1), [(10, key.clone()), (12, key)]);
    }

    #[test]
    fn a_leader_that_has_restarted_begins_above_the_members_epochs() {
        let mut epochs = Epochs::default();
        let key = "key [5] of 8".to_owned();
        assert_eq!(begun(&mut epochs, 7), [(10, key.clone()), (12, key)]);
    }

    #[test]
    fn one_physical_device_twice_is_refused_by_name() {
        let mut epochs = Epochs::default();
        let twin = |task| Enter { identity: "machine/gpu 0".into(), ..entering(task, 0) };
        epochs.enter(twin(1), 11, &leader());
        let reason = "/job:worker/replica:0/task:0/device:GPU:0 and /job:worker/replica:0/task:1/device:GPU:0 are one \
                      physical device, machine/gpu 0";
        let answers = seen(epochs.enter(twin(0), 10, &leader()));
        assert_eq!(answers, [(10, reason.to_owned()), (11, reason.to_owned())]);
    }

    #[test]
    fn a_member_that_enters_twice_begins_the_next_epoch() {
        let mut epochs = Epochs::default();
        epochs.enter(entering(0, 0), 10, &leader());
        epochs.enter(entering(1, 0), 11, &leader());
        let begun_anew =
            "Aborted: /job:worker/replica:0/task:1/device:GPU:0 has begun the communicator of group 7 anew";
        assert_eq!(seen(epochs.enter(entering(1, 0), 13, &leader())), [(10, begun_anew.to_owned())]);
        let late = Enter { offer: Some((1, vec![5])), ..entering(1, 0) };
        let ended = "Aborted: epoch 1 of the communicator of group 7 has ended".to_owned();
        assert_eq!(seen(epochs.enter(late, 12, &leader())), [(12, ended)]);
        assert_eq!(seen(epochs.enter(entering(0, 0), 14, &leader())), [(13, "create 2".to_owned())]);
    }

    #[test]
    fn a_member_that_has_given_up_is_not_counted() {
        let mut epochs = Epochs::default();
        // Callers with numbers from 1000 on have given up.
        epochs.enter(entering(0, 0), 1000, &leader());
        assert_eq!(seen(epochs.enter(entering(1, 0), 11, &leader())), []);
        assert!(
            epochs.who_has_entered(GROUP).contains("1 of 2 members have come: /job:worker/replica:0/task:1")
        );
    }

    #[test]
    fn a_failed_step_and_a_closed_session_end_the_wait() {
        let mut epochs = Epochs::default();
        epochs.enter(entering(0, 0), 10, &leader());
        assert_eq!(epochs.fail_step(2), [0; 0]);
        assert_eq!(epochs.fail_step(1), [10]);
        epochs.enter(entering(0, 0), 11, &leader());
        assert_eq!(epochs.close_session("s1"), [0; 0]);
        assert_eq!(epochs.close_session("s0"), [11]);
    }

    #[test]
    fn keys_and_names_above_the_limits_are_refused() {
        let mut epochs = Epochs::default();
        for enter in [
            Enter { offer: Some((1, vec![0; 257])), ..entering(0, 0) },
            Enter { identity: "x".repeat(257), ..entering(0, 0) },
            Enter { after: u64::MAX, ..entering(0, 0) },
        ] {
            let answers = epochs.enter(enter, 1, &leader());
            assert!(matches!(&answers[..], [(1, Err(status))] if status.code == Code::InvalidArgument));
        }
    }
}
