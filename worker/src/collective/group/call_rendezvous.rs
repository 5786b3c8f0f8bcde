//! The rendezvous of one call.

use super::calls::Awaited;
use super::envelope::{Envelope, Kind};
use super::{Group, tensor_of};
use device::rendezvous::{Receive, Rendezvous, RendezvousKey, Sent};
use device::{Error, Value};
use std::fmt;
use std::sync::Arc;

/// The rendezvous over which the course of one call runs: its transfers are messages of the group.
pub(super) struct CallRendezvous {
    pub(super) group: Arc<Group>,
    pub(super) number: u64,
    pub(super) description: Arc<str>,
}

impl CallRendezvous {
    fn rank_of(&self, device: &Arc<str>) -> device::Result<usize> {
        let rank = self.group.devices.iter().position(|member| member == device);
        rank.ok_or_else(|| Error::internal(format!("{device} is no member of the group")))
    }
}

impl Rendezvous for CallRendezvous {
    fn send(&self, key: &Arc<RendezvousKey>, sent: Sent) -> device::Result<()> {
        let envelope = Envelope {
            text: self.description.to_string(),
            part: key.edge.to_string(),
            ..Envelope::new(Kind::Elements, self.number)
        };
        let (envelope, follower) = envelope.with_tensor(tensor_of(sent)?);
        self.group.post(self.rank_of(&key.dst_device)?, &envelope, follower)
    }

    fn recv(&self, key: &Arc<RendezvousKey>, receive: Receive) {
        let peer = match self.rank_of(&key.src_device) {
            Ok(peer) => peer,
            Err(error) => return receive(Err(error)),
        };
        let awaited = {
            let mut state = self.group.state.lock();
            match state.failure.clone() {
                Some(failure) => Awaited::Ready(receive, Err(failure)),
                None => {
                    let has_left = state.streams[peer].has_left;
                    state.calls.receive(self.number, peer, &key.edge, receive, has_left)
                }
            }
        };
        if let Awaited::Ready(receive, result) = awaited {
            receive(result.map(|tensor| Sent { value: Value::Host(tensor), is_dead: false }));
        }
        self.group.listen(peer);
    }

    fn flush(&self) {
        self.group.rendezvous().flush();
    }

    fn abort(&self, reason: Error) {
        self.group.rendezvous().abort(reason);
    }
}

impl fmt::Debug for CallRendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallRendezvous({} of {:?})", self.number, self.group)
    }
}
