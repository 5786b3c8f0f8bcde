//! The state of a group on one member, without sockets.

use super::calls::Calls;
use super::direct::Direct;
use super::envelope::Envelope;
use super::sends::{Sends, Taken};
use super::{Finish, MAX_UNTAKEN, member_name};
use device::Error;
use device::rendezvous::Receive;
use graph::DeviceAttributes;

/// The calls and messages of a group on one member.
pub(super) struct State {
    pub(super) calls: Calls<Receive>,
    /// The tensors received outside collectives, by the sender's rank.
    pub(super) direct: Vec<Direct<Finish>>,
    /// The tensors sent outside collectives, by the receiver's rank.
    pub(super) sends: Vec<Sends<Finish>>,
    /// The numbered messages exchanged with each member, by rank.
    pub(super) streams: Vec<Stream>,
    /// The reason why no more messages are exchanged.
    pub(super) failure: Option<Error>,
    /// Set when this member begins to leave the group.
    pub(super) is_leaving: bool,
}

/// The numbers of the messages that this member has exchanged with another one.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) sent: u64,
    /// The bytes that this member's program has received from the other one outside collectives.
    pub(super) taken: Taken,
    pub(super) received: u64,
    pub(super) is_listening: bool,
    /// A message that has arrived and whose tensor has not.
    pub(super) followed: Option<Envelope>,
    pub(super) has_left: bool,
    pub(super) has_acknowledged: bool,
    /// The latest call that a message of the member has mentioned.
    pub(super) last_call: Option<u64>,
}

impl State {
    /// Returns the streams of the members other than this one.
    pub(super) fn streams_of(&self, own: usize) -> impl Iterator<Item = &Stream> {
        self.streams.iter().enumerate().filter(move |(peer, _)| *peer != own).map(|(_, stream)| stream)
    }

    /// Returns the number of the next message to receive from a member, and whether its following tensor is the part to
    /// receive; records that the receive is in progress. `None` if nothing is to be received now.
    pub(super) fn begin_listening(&mut self, peer: usize) -> Option<(u64, bool)> {
        let untaken = self.calls.untaken(peer) + self.direct[peer].untaken();
        // A waiting send needs the receiver's report of received bytes, which may come after other messages.
        let is_awaited =
            self.calls.awaits(peer) || self.direct[peer].is_awaited() || self.sends[peer].are_waiting();
        let is_wanted = untaken < MAX_UNTAKEN || is_awaited || self.streams[peer].followed.is_some();
        let stream = &mut self.streams[peer];
        if stream.is_listening || stream.has_left || self.failure.is_some() || !is_wanted {
            return None;
        }
        stream.is_listening = true;
        Some((stream.received, stream.followed.is_some()))
    }

    /// Returns a sentence that names the members for which a call waits.
    pub(super) fn describe_wait(&self, number: u64, members: &[DeviceAttributes]) -> String {
        let name = |rank: usize| match self.streams[rank].last_call {
            Some(call) => format!("{} (last heard of in call {call})", member_name(members, rank)),
            None => format!("{} (not heard of yet)", member_name(members, rank)),
        };
        let awaited: Vec<String> = self.calls.awaited(number).into_iter().map(name).collect();
        let description = self.calls.description(number).unwrap_or_default();
        match awaited.is_empty() {
            true => format!("call {number}, {description}, has not ended"),
            false => format!("call {number}, {description}: waits for {}", awaited.join(", ")),
        }
    }
}

impl Stream {
    pub(super) fn hear_of(&mut self, call: u64) {
        self.last_call = self.last_call.max(Some(call));
    }
}
