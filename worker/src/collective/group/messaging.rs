//! The numbered messages between the members of a group: sending, receiving and dispatching them.

use super::envelope::{Envelope, Kind};
use super::{Group, calls, tensor_of};
use device::rendezvous::{Rendezvous, RendezvousKey, Sent};
use device::{Error, Value};
use graph::{Code, Tensor};
use prost::Message;
use proto::convert::tensor_from_proto;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

impl Group {
    /// Sends a message, and the tensor that follows it. The caller must flush the rendezvous.
    pub(super) fn post(
        &self,
        to: usize,
        envelope: &Envelope,
        follower: Option<Tensor>,
    ) -> device::Result<()> {
        let number = {
            let mut state = self.state.lock();
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            let stream = &mut state.streams[to];
            if stream.has_left && envelope.kind() != Kind::Acknowledged {
                return Err(calls::left(&self.members, to));
            }
            stream.sent += 1;
            stream.sent - 1
        };
        let message = Tensor::vector(&envelope.encode_to_vec())?;
        let send = |tensor: Tensor, is_follower: bool| {
            let sent = Sent { value: Value::Host(tensor), is_dead: false };
            self.rendezvous().send(&self.key(self.rank, to, number, is_follower), sent)
        };
        let posted = send(message, false).and_then(|()| follower.map_or(Ok(()), |tensor| send(tensor, true)));
        posted.map_err(|error| self.lose(to, &error))
    }

    /// Returns the rendezvous key of a message, or of the tensor that follows it.
    pub(super) fn key(&self, from: usize, to: usize, number: u64, is_follower: bool) -> Arc<RendezvousKey> {
        let (source, destination) = (self.devices[from].clone(), self.devices[to].clone());
        let edge = if is_follower { format!("group:{number}:tensor") } else { format!("group:{number}") };
        Arc::new(RendezvousKey::new(source, self.members[from].incarnation, destination, edge))
    }

    /// Receives the next messages of a member, unless a receive from it is in progress or too many of its messages wait
    /// for calls.
    pub(super) fn listen(self: &Arc<Self>, peer: usize) {
        loop {
            let next = self.state.lock().begin_listening(peer);
            let Some((number, is_follower)) = next else { return };
            // If the message has already arrived, the callback runs inside `recv` and this loop continues; otherwise
            // the callback calls `listen` later.
            let is_second = Arc::new(AtomicBool::new(false));
            let (own, is_second_there) = (Arc::downgrade(self), is_second.clone());
            let receive = move |received: device::Result<Sent>| {
                let Some(own) = own.upgrade() else { return };
                own.accept(peer, received);
                if is_second_there.swap(true, Ordering::AcqRel) {
                    own.listen(peer);
                }
            };
            self.rendezvous().recv(&self.key(peer, self.rank, number, is_follower), Box::new(receive));
            if !is_second.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }

    /// Handles a message, or the tensor that follows a message.
    fn accept(&self, peer: usize, received: device::Result<Sent>) {
        let message = self.state.lock().streams[peer].followed.take();
        let complete = received.and_then(tensor_of).and_then(|tensor| match message {
            Some(message) => Ok((message, Some(tensor))),
            None => decode(&tensor),
        });
        match complete {
            Ok((message, None)) if message.is_followed => {
                self.state.lock().streams[peer].followed = Some(message);
            }
            Ok((message, tensor)) => {
                self.handle(peer, message, tensor);
                self.state.lock().streams[peer].received += 1;
            }
            Err(error) => drop(self.lose(peer, &error)),
        }
        self.state.lock().streams[peer].is_listening = false;
    }

    /// Handles a complete message: one whose tensor, if it has one, has arrived.
    fn handle(&self, peer: usize, envelope: Envelope, tensor: Option<Tensor>) {
        let number = envelope.number;
        match (envelope.kind(), tensor) {
            (Kind::Elements, Some(tensor)) => {
                self.handle_call(peer, number, &envelope.text, Some((envelope.part.into(), tensor)));
            }
            (Kind::Probe, _) => self.handle_call(peer, number, &envelope.text, None),
            (Kind::Direct, Some(tensor)) => {
                let pairs = self.state.lock().direct[peer].arrive(number, tensor);
                self.pass(peer, pairs);
            }
            (Kind::Failure, _) => {
                let error = Error::new(Code::from_number(envelope.code), envelope.text);
                let receivers = {
                    let mut state = self.state.lock();
                    state.streams[peer].hear_of(number);
                    state.calls.fail(number, error.clone(), true)
                };
                receivers.into_iter().for_each(|receive| receive(Err(error.clone())));
            }
            (Kind::Leaving, _) => self.handle_leaving(peer),
            (Kind::Acknowledged, _) => {
                self.state.lock().streams[peer].has_acknowledged = true;
                self.acknowledged.notify_all();
            }
            (Kind::Taken, _) => {
                self.state.lock().sends[peer].set_taken(number);
                self.send_waiting(peer);
            }
            (Kind::Unknown | Kind::Elements | Kind::Direct, _) => {
                drop(self.lose(peer, &Error::internal("a message of the group is malformed")));
            }
        }
    }
}

/// Decodes a message and the tensor that is part of it, if there is one.
fn decode(message: &Tensor) -> device::Result<(Envelope, Option<Tensor>)> {
    let decoded = Envelope::decode(message.bytes()?);
    let mut envelope =
        decoded.map_err(|e| Error::internal(format!("a message of the group is malformed: {e}")))?;
    let tensor = envelope.tensor.take().map(tensor_from_proto).transpose()?;
    Ok((envelope, tensor))
}
