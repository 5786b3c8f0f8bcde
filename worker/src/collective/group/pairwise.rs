//! Tensors that one member of a group sends to another outside collectives.

use super::envelope::{Envelope, Kind};
use super::{Finish, Group, GroupCallId, GroupFinish, calls};
use device::rendezvous::Rendezvous;
use graph::Tensor;
use proto::Status;
use std::sync::Arc;

impl Group {
    /// Sends a tensor to another member, and returns when the tensor is on its way.
    ///
    /// # Errors
    /// `InvalidArgument` for the member's own rank or one that the group does not have; `Unavailable` if the member
    /// has left or is lost.
    pub fn send(self: &Arc<Self>, to: usize, tensor: Tensor) -> Result<(), Status> {
        self.check_peer(to)?;
        let number = {
            let stream = &mut self.state.lock().streams[to];
            stream.sent_direct += 1;
            stream.sent_direct - 1
        };
        let (envelope, follower) = Envelope::new(Kind::Direct, number).with_tensor(tensor);
        let sent = self.post(to, &envelope, follower);
        self.rendezvous().flush();
        sent.map_err(|e| crate::failure(&e))
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
            let lost = failure.and_then(|error| Some((state.direct[from].give_up(number)?, error)));
            (number, pairs, lost)
        };
        pairs.into_iter().for_each(|(finish, tensor)| finish(Ok(tensor)));
        if let Some((finish, error)) = lost {
            finish(Err(error));
        }
        self.listen(from);
        Ok(GroupCallId::Receive { peer: from, number })
    }
}
