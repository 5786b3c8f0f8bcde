//! Ends calls at their deadlines, a member's part in its group when it leaves, and the group when a member is lost.

use super::direct::Direct;
use super::envelope::{Envelope, Kind};
use super::sends::Sends;
use super::{Group, GroupCallId, calls, member_name};
use device::Error;
use device::rendezvous::Rendezvous;
use graph::Code;
use proto::Status;
use std::time::{Duration, Instant};

/// Time for which a leaving member waits for the acknowledgement of its last messages.
const LEAVE_GRACE: Duration = Duration::from_secs(1);

impl Group {
    /// Ends a call that has waited for too long. Returns its error, which names the members that it waits for.
    pub fn expire(&self, call: GroupCallId, waited: Duration) -> Status {
        let seconds = waited.as_secs_f64();
        let error = |text: String| {
            Error::new(
                Code::DeadlineExceeded,
                format!("group '{}': {text}; waited {seconds:.1} s", self.name),
            )
        };
        let error = match call {
            GroupCallId::Receive { peer, number } => {
                let error = error(format!("receive: {} has sent nothing", member_name(&self.members, peer)));
                let receiver = self.state.lock().direct[peer].give_up(number);
                if let Some(finish) = receiver {
                    finish(Err(error.clone()));
                }
                error
            }
            GroupCallId::Send { peer, number } => {
                let (sender, bytes) = {
                    let sends = &mut self.state.lock().sends[peer];
                    (sends.give_up(number), sends.in_flight())
                };
                let who = member_name(&self.members, peer);
                let error = error(format!("send: {who} has not received {bytes} bytes that are in flight"));
                if let Some(finish) = sender {
                    finish(Err(error.clone()));
                }
                // Later tensors in the queue may be small enough to be sent now.
                self.send_waiting(peer);
                error
            }
            GroupCallId::Collective(number) => {
                let mut state = self.state.lock();
                let error = error(state.describe_wait(number, &self.members));
                let receivers = state.calls.fail(number, error.clone(), false);
                drop(state);
                receivers.into_iter().for_each(|receive| receive(Err(error.clone())));
                error
            }
        };
        crate::failure(&error)
    }

    /// Leaves the group: calls in progress fail, and the other members are told. Waits for at most a second until
    /// they have received this member's messages.
    pub fn leave(&self) {
        let reason = Error::new(Code::Cancelled, format!("this member leaves the group '{}'", self.name));
        // From here on, the end of a connection concerns only the member at its other end.
        self.others().for_each(|peer| self.release_route(peer));
        let is_alive = {
            let mut state = self.state.lock();
            state.is_leaving = true;
            state.failure.is_none()
        };
        if is_alive {
            for peer in self.others() {
                // A member that is lost or has left does not need the message.
                let _ = self.post(peer, &Envelope::new(Kind::Leaving, 0), None);
            }
            self.rendezvous().flush();
        }
        self.fail_calls(&reason);
        let deadline = Instant::now() + LEAVE_GRACE;
        let mut state = self.state.lock();
        while state.failure.is_none()
            && state.streams_of(self.rank).any(|s| !s.has_left && !s.has_acknowledged)
        {
            if self.acknowledged.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.failure.get_or_insert(reason);
        drop(state);
        self.worker.steps.cleanup(self.run.step.id);
    }

    /// Handles the message of a member that leaves: acknowledges it, and fails the calls that wait for the member.
    pub(super) fn handle_leaving(&self, peer: usize) {
        let error = calls::left(&self.members, peer);
        let (receivers, direct) = {
            let mut state = self.state.lock();
            state.streams[peer].has_left = true;
            let mut direct = state.direct[peer].take_receivers();
            direct.extend(state.sends[peer].take_senders());
            (state.calls.leave(peer), direct)
        };
        // The member closes its connections as soon as it has the acknowledgement.
        self.release_route(peer);
        // A member whose connection has broken meanwhile needs no acknowledgement.
        let _ = self.post(peer, &Envelope::new(Kind::Acknowledged, 0), None);
        self.rendezvous().flush();
        if let Some(link) = self.route(peer).and_then(|route| route.link()) {
            self.rendezvous().forget_link(&link);
        }
        self.acknowledged.notify_all();
        receivers.into_iter().for_each(|receive| receive(Err(error.clone())));
        direct.into_iter().for_each(|finish| finish(Err(error.clone())));
    }

    /// Makes the end of the links to a member harmless to the group.
    fn release_route(&self, peer: usize) {
        if let Some(route) = self.route(peer) {
            self.rendezvous().release_route(&route);
        }
    }

    /// Ends the group because a member is lost, unless that member had left before. Returns the reason. A member that
    /// leaves goes on waiting for the others: it does not need the lost one.
    pub(super) fn lose(&self, peer: usize, error: &Error) -> Error {
        {
            let state = &mut *self.state.lock();
            let stream = &mut state.streams[peer];
            stream.has_left |= state.is_leaving;
            if stream.has_left {
                self.acknowledged.notify_all();
                return calls::left(&self.members, peer);
            }
        }
        // A derived error is the consequence of another member's loss, so the cause is the reason for which the step
        // was cancelled.
        let cause = self.run.step.cancellation.reason().filter(|_| error.is_derived());
        let cause = cause.as_ref().unwrap_or(error).to_string();
        let names = |rank: &usize| cause.contains(&self.members[*rank].name.task_name().to_string());
        let lost = self.others().find(names).unwrap_or(peer);
        let text = format!("group '{}': {} is lost: {cause}", self.name, member_name(&self.members, lost));
        let first = Error::new(Code::Unavailable, text);
        let first = self.state.lock().failure.get_or_insert(first).clone();
        self.acknowledged.notify_all();
        self.fail_calls(&first);
        first
    }

    /// Fails all calls in progress.
    pub(super) fn fail_calls(&self, error: &Error) {
        let (receivers, direct) = {
            let mut state = self.state.lock();
            let receivers = state.calls.fail_all(error);
            let mut direct: Vec<_> = state.direct.iter_mut().flat_map(Direct::take_receivers).collect();
            direct.extend(state.sends.iter_mut().flat_map(Sends::take_senders));
            (receivers, direct)
        };
        receivers.into_iter().for_each(|receive| receive(Err(error.clone())));
        direct.into_iter().for_each(|finish| finish(Err(error.clone())));
    }
}
