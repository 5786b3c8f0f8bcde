//! Tensors that one member of a group sends to another outside collectives.

use super::envelope::{Envelope, Kind};
use super::{Finish, Group, GroupCallId, GroupFinish, calls};
use device::rendezvous::Rendezvous;
use graph::Tensor;
use proto::Status;
use std::sync::Arc;

impl Group {
    /// Sends a tensor to another member. `finish` is called when the tensor is on its way. The tensor is sent at once,
    /// unless 64 MiB are in flight to the receiver whose program has not received them; then the tensor waits.
    ///
    /// # Errors
    /// `InvalidArgument` for the member's own rank or one that the group does not have. `finish` gets `Unavailable` if
    /// the member has left or is lost, `DeadlineExceeded` if the tensor has waited for too long.
    pub fn send(
        self: &Arc<Self>,
        to: usize,
        tensor: Tensor,
        finish: GroupFinish,
    ) -> Result<GroupCallId, Status> {
        self.check_peer(to)?;
        let finish: Finish = Box::new(move |result| finish(result.map_err(|e| crate::failure(&e))));
        let number = self.state.lock().sends[to].push(tensor, finish, self.deadline());
        self.send_waiting(to);
        if self.state.lock().sends[to].are_waiting() {
            // The receiver's report of received bytes may come after messages that no call awaits.
            self.listen(to);
        }
        Ok(GroupCallId::Send { peer: to, number })
    }

    /// Sends the waiting tensors for a member that the limit of bytes in flight permits.
    pub(super) fn send_waiting(&self, to: usize) {
        loop {
            let next = self.state.lock().sends[to].pop();
            let Some((number, tensor, finish)) = next else { break };
            let (envelope, follower) = Envelope::new(Kind::Direct, number).with_tensor(tensor);
            let sent = self.post(to, &envelope, follower);
            finish(sent.map(|()| Tensor::from(0i32)));
        }
        self.rendezvous().flush();
    }

    /// Receives the next tensor that another member sends to this one.
    ///
    /// # Errors
    /// `InvalidArgument` for the member's own rank or one that the group does not have.
    pub fn receive(self: &Arc<Self>, from: usize, finish: GroupFinish) -> Result<GroupCallId, Status> {
        self.check_peer(from)?;
        let finish: Finish = Box::new(move |result| finish(result.map_err(|e| crate::failure(&e))));
        let (number, pairs, lost) = {
            let mut state = self.state.lock();
            let failure = state.failure.clone();
            let failure =
                failure.or_else(|| state.streams[from].has_left.then(|| calls::left(&self.members, from)));
            let (number, pairs) = state.direct[from].receive(finish);
            state.direct[from].set_deadline(number, self.deadline());
            let lost = failure.and_then(|error| Some((state.direct[from].give_up(number)?, error)));
            (number, pairs, lost)
        };
        self.pass(from, pairs);
        if let Some((finish, error)) = lost {
            finish(Err(error));
        }
        self.listen(from);
        Ok(GroupCallId::Receive { peer: from, number })
    }

    /// Passes tensors of a member to the program, and reports the received bytes to the member.
    pub(super) fn pass(&self, from: usize, pairs: Vec<(Finish, Tensor)>) {
        let mut report = None;
        for (finish, tensor) in pairs {
            report = self.state.lock().streams[from].taken.count(&tensor).or(report);
            finish(Ok(tensor));
        }
        if let Some(bytes) = report {
            // A member that is lost or has left does not need the report.
            let _ = self.post(from, &Envelope::new(Kind::Taken, bytes), None);
            self.rendezvous().flush();
        }
    }
}
