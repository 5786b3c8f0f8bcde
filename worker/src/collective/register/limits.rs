//! The limits of a leader's records of groups and instances, whose keys and names come from other tasks.

use super::group::Group;
use super::instance::Instance;
use super::{Agree, Answers, Caller, GroupKey, Join, Register, Waiting};
use graph::{Code, DeviceAttributes};
use proto::Status;

/// Largest number of members of a group. Each member receives the list of all members, so a group of this size takes a
/// gigabyte of answers.
pub(super) const MAX_GROUP_SIZE: usize = 1 << 14;

/// Largest length of the name of a device or node, and of the description of a device, bytes.
pub(super) const MAX_NAME: usize = 4 << 10;

/// Largest length of the text of an instance's functions, bytes: the text contains the ranks of all members of a
/// communicator.
pub(super) const MAX_FUNCTIONS: usize = 1 << 20;

/// Maximum number of bytes of all records; beyond it, the groups that have not been used for the longest time are
/// dropped.
pub(super) const MAX_HELD: usize = 256 << 20;

/// Number of bytes to which the records are reduced when groups are dropped, so that not every call drops groups.
const LEFT: usize = MAX_HELD / 4 * 3;

/// Maximum number of instances of a group; beyond it, the older half of the complete instances is dropped. Members
/// remember half as many, and do not call again for an instance that they remember.
pub(super) const MAX_INSTANCES: usize = 1 << 16;

/// Number of bytes that a group, an instance and a member of either take in addition to their texts.
const RECORD: usize = 256;

/// Number of callers that may wait for a group or an instance, in addition to [`JOINS_OF_MEMBER`] or
/// [`CALLS_OF_MEMBER`] for each member.
const MAX_WAITING: usize = 64;

/// Number of joins of a member that may wait. Each node of a member of TensorFlow joins the group when it first runs,
/// so such a member joins as often as its graph has collectives.
pub(super) const JOINS_OF_MEMBER: usize = 1 << 14;

/// Number of calls of a member that may wait for one instance.
pub(super) const CALLS_OF_MEMBER: usize = 4;

impl Join {
    /// Checks the sizes in the request.
    ///
    /// # Errors
    /// `InvalidArgument` naming the excess.
    pub(super) fn check(&self) -> Result<(), Status> {
        let Join { group_key, group_size, device, .. } = self;
        if *group_size > MAX_GROUP_SIZE {
            return Err(Status::invalid(format!(
                "group {group_key} of {group_size} members is larger than the largest group, {MAX_GROUP_SIZE} members"
            )));
        }
        check_length("name of a device", &device.name.to_string(), MAX_NAME)?;
        check_length("description of a device", &device.physical_description, MAX_NAME)?;
        check_length("name of a session", &self.session, MAX_NAME)
    }

    fn cost(&self) -> usize {
        cost_of(&self.device) + self.session.len() + RECORD
    }
}

impl Agree {
    /// Checks the sizes in the request.
    ///
    /// # Errors
    /// `InvalidArgument` naming the excess.
    pub(super) fn check(&self) -> Result<(), Status> {
        check_length("name of a device", &self.device, MAX_NAME)?;
        check_length("name of a node", &self.node, MAX_NAME)?;
        check_length("functions of a collective", &self.terms.functions, MAX_FUNCTIONS)
    }

    fn cost(&self) -> usize {
        2 * self.device.len() + self.node.len() + self.terms.functions.len() + 2 * RECORD
    }
}

/// Checks the length of a text, which errors name `what`.
fn check_length(what: &str, text: &str, most: usize) -> Result<(), Status> {
    match text.len() {
        length if length > most => {
            Err(Status::invalid(format!("the {what} has {length} bytes, more than {most}")))
        }
        _ => Ok(()),
    }
}

fn cost_of(device: &DeviceAttributes) -> usize {
    device.name.to_string().len() + device.physical_description.len() + RECORD
}

impl<G: Caller, I: Caller> Register<G, I> {
    /// Makes room for the records of a request to join.
    ///
    /// # Errors
    /// `ResourceExhausted` if the groups with waiting callers take up the whole limit.
    pub(super) fn make_room_for_join(&mut self, join: &Join) -> Result<(), Status> {
        self.make_room(join.key(), join.cost())
    }

    /// Makes room for the records of a member's terms.
    ///
    /// # Errors
    /// Those of [`Register::make_room_for_join`].
    pub(super) fn make_room_for_agree(&mut self, agree: &Agree) -> Result<(), Status> {
        self.make_room((agree.group_key, agree.is_communicator), agree.cost())
    }

    /// Makes room for `bytes` more bytes of a group's records. Groups without waiting callers are dropped, the longest
    /// unused ones first; their members get an error at their next call.
    fn make_room(&mut self, key: GroupKey, bytes: usize) -> Result<(), Status> {
        self.calls += 1;
        if self.held + bytes > MAX_HELD {
            self.held = self.groups.values().map(Group::held).sum();
        }
        if self.held + bytes > MAX_HELD {
            self.drop_unused(key);
        }
        if self.held + bytes > MAX_HELD {
            let text = format!(
                "the group leader holds {} bytes of records of groups and instances for which members wait, and takes \
                 no more than {MAX_HELD}; use fewer group keys at once",
                self.held
            );
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        self.held += bytes;
        Ok(())
    }

    /// Drops groups other than `key` until the records have at most [`LEFT`] bytes.
    fn drop_unused(&mut self, key: GroupKey) {
        let mut unused = Vec::new();
        for (other, group) in &mut self.groups {
            if *other != key && !group.is_awaited() {
                unused.push((group.used, *other));
            }
        }
        unused.sort_unstable();
        for (_, key) in unused {
            if self.held <= LEFT {
                return;
            }
            let dropped = self.groups.remove(&key);
            self.held -= dropped.map_or(0, |group| group.held());
        }
    }
}

impl<G: Caller, I: Caller> Group<G, I> {
    /// Returns whether callers wait for the group or one of its instances. Callers that have given up are removed.
    fn is_awaited(&mut self) -> bool {
        forget_gone(&mut self.waiting);
        self.instances.values_mut().for_each(|instance| forget_gone(&mut instance.waiting));
        !self.waiting.is_empty() || self.instances.values().any(|instance| !instance.waiting.is_empty())
    }

    /// Drops the older half of the complete instances if there are [`MAX_INSTANCES`] and `key` is a new one.
    ///
    /// # Errors
    /// `ResourceExhausted` if callers wait for all instances.
    pub(super) fn make_room_for_instance(&mut self, key: i32) -> Result<(), Status> {
        if self.instances.len() < MAX_INSTANCES || self.instances.contains_key(&key) {
            return Ok(());
        }
        let is_over = |instance: &Instance<I>| instance.waiting.is_empty();
        let over = self.instances.iter().filter(|(_, instance)| is_over(instance));
        let mut over: Vec<(u64, i32)> = over.map(|(key, instance)| (instance.number, *key)).collect();
        over.sort_unstable();
        over.truncate(over.len().div_ceil(2));
        if over.is_empty() {
            let text = format!(
                "members wait for {MAX_INSTANCES} instances of one group; the group leader takes no more"
            );
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        for (_, key) in over {
            self.instances.remove(&key);
        }
        Ok(())
    }
}

impl<G, I> Group<G, I> {
    /// Returns the number of bytes of the group's records.
    fn held(&self) -> usize {
        let members: usize =
            self.joined.iter().map(|joined| cost_of(&joined.device) + joined.session.len()).sum();
        RECORD + members + self.instances.values().map(Instance::held).sum::<usize>()
    }
}

impl<I> Instance<I> {
    fn held(&self) -> usize {
        let come: usize = self.come.iter().map(|(device, _)| device.len() + RECORD).sum();
        self.first.len() + self.terms.functions.len() + RECORD + come
    }
}

fn forget_gone<W: Caller>(waiting: &mut Vec<Waiting<W>>) {
    waiting.retain(|waiting| !waiting.caller.has_gone());
}

/// Adds a caller to those that wait for a group of `size` members or one of its instances; `calls` callers may wait for
/// each member.
///
/// # Errors
/// The answer `ResourceExhausted` for the caller, if too many wait.
pub(super) fn enqueue<W: Caller, T>(
    waiting: &mut Vec<Waiting<W>>,
    size: usize,
    calls: usize,
    new: Waiting<W>,
) -> Result<(), Answers<W, T>> {
    let most = MAX_WAITING + calls * size;
    if waiting.len() >= most {
        forget_gone(waiting);
    }
    if waiting.len() >= most {
        let text = format!("{most} calls wait for a group of {size} members; the group leader takes no more");
        return Err(vec![(new.caller, Err(Status::new(Code::ResourceExhausted, text)))]);
    }
    waiting.push(new);
    Ok(())
}
