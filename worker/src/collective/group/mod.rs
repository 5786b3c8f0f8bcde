//! Groups of processes: members of a cluster that exchange tensors without a graph. A group is a long-lived step with a
//! rendezvous of its own, over which its members send numbered messages; the courses of its collectives run over these
//! messages.
//!
//! A message carries the sender's description of its call, so members that call different operations detect the
//! conflict without a leader. A member that detects a conflict, or whose call fails, tells all other members, and the
//! group continues with the next call. A member whose connection breaks ends the group.

mod call_rendezvous;
mod calls;
mod collectives;
mod direct;
mod ending;
mod envelope;
mod meeting;
mod messaging;
mod pairwise;
mod request;
mod sends;
mod state;
#[cfg(test)]
mod tests;
mod watch;

pub use request::GroupCall;

use self::calls::Calls;
use self::direct::Direct;
use self::sends::Sends;
use self::state::{State, Stream};
use super::course::names_of;
use crate::rendezvous::Remote;
use crate::steps::StepRun;
use crate::worker::Worker;
use device::rendezvous::Sent;
use device::{Error, Value};
use graph::{DeviceAttributes, Tensor};
use parking_lot::{Condvar, Mutex};
use proto::Status;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of messages of one member that may wait for calls of this member. When it is reached, further messages are
/// received only after one of them is consumed, or while a call awaits a message of that member.
const MAX_UNTAKEN: usize = 256;

/// A callback that receives the result of a call. It is called exactly once.
pub type GroupFinish = Box<dyn FnOnce(Result<Tensor, Status>) + Send>;

type Finish = Box<dyn FnOnce(device::Result<Tensor>) + Send>;

/// The identification of a call that has been started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupCallId {
    Collective(u64),
    /// A receive of a tensor that `peer` sends to this member alone.
    Receive {
        peer: usize,
        number: u64,
    },
    /// A tensor for `peer` that waits until `peer` has received earlier ones.
    Send {
        peer: usize,
        number: u64,
    },
}

/// One member's part of a group of processes.
pub struct Group {
    worker: Arc<Worker>,
    /// The group's name in messages, such as `world`.
    name: String,
    run: StepRun,
    remote: Remote,
    /// The members in the order of their ranks.
    members: Arc<[DeviceAttributes]>,
    /// The names of the members' devices, by rank.
    devices: Arc<[Arc<str>]>,
    rank: usize,
    /// The time within which calls must end, unless the program gives another deadline.
    timeout: Duration,
    state: Mutex<State>,
    /// Notified when a member acknowledges this member's messages, and when the group fails.
    acknowledged: Condvar,
}

impl Group {
    /// Joins a group whose members are processes of the worker's cluster, one device each, in the order of their ranks.
    /// All members use the same id, which no other group has. `name` names the group in messages. A call that has not
    /// ended after `timeout` fails, even if the program does not wait for its result.
    ///
    /// # Errors
    /// `InvalidArgument` if the worker is no member, `Aborted` if the id has been used before.
    pub fn join(
        worker: &Arc<Worker>,
        id: i64,
        name: &str,
        members: Vec<DeviceAttributes>,
        timeout: Duration,
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
        let devices = names_of(&members);
        let members: Arc<[DeviceAttributes]> = members.into();
        let size = members.len();
        let state = State {
            calls: Calls::new(members.clone(), rank),
            direct: (0..size).map(|_| Direct::default()).collect(),
            sends: (0..size).map(|_| Sends::default()).collect(),
            streams: (0..size).map(|_| Stream::default()).collect(),
            failure: None,
            is_leaving: false,
        };
        let group = Arc::new(Group {
            worker: worker.clone(),
            name: name.to_owned(),
            run,
            remote,
            members,
            devices,
            rank,
            timeout,
            state: Mutex::new(state),
            acknowledged: Condvar::new(),
        });
        group.others().for_each(|peer| {
            drop(group.route(peer).and_then(|route| route.link_or_connect(&group.remote.link_table)));
            group.listen(peer);
        });
        group.watch();
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

    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.rank;
        (0..self.members.len()).filter(move |&peer| peer != own)
    }

    pub(super) fn check_peer(&self, peer: usize) -> Result<(), Status> {
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

    pub(super) fn rendezvous(&self) -> &Arc<crate::rendezvous::StepRendezvous> {
        &self.run.step.rendezvous
    }

    pub(super) fn route(&self, peer: usize) -> Option<Arc<crate::transport::Route>> {
        self.remote.peers.route_to(&self.devices[peer])
    }
}

/// Returns a member's rank and task, as error messages name it.
fn member_name(members: &[DeviceAttributes], rank: usize) -> String {
    match members.get(rank) {
        Some(member) => format!("rank {rank} ({})", member.name.task_name()),
        None => format!("rank {rank}"),
    }
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
