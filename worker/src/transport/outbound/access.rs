//! Pushes of tensors in device memory, by reference to a shared block that the receiving device has reported
//! to be able to access.

use super::loans::BufferBorrow;
use super::{Locality, Outbound, PushReason};
use crate::transport::frame::{Frame, TensorSpec, ValueId};
use crate::transport::peer_access::{DevicePair, PeerAccess};
use device::{Device, DeviceTensor};
use device::{Error, Value};
use graph::{Code, RendezvousKey};
use std::sync::Arc;

impl Outbound {
    /// Pushes a device's tensor, which the receiver must be able to [access](Outbound::check_access).
    pub(super) fn push_device(
        &self,
        value_id: ValueId,
        tensor: &DeviceTensor,
        reason: PushReason,
    ) -> device::Result<bool> {
        let spec = TensorSpec { dtype: tensor.dtype, shape: tensor.shape.clone() };
        let loan = BufferBorrow::Device(tensor.memory.clone());
        let inaccessible = |why: &str| {
            let text = format!("{} cannot access {tensor:?}, which is for {}{why}", self.peer, value_id.key);
            Error::new(Code::Unavailable, text)
        };
        let shared_block = self.share_block(&loan).map_err(|error| {
            // Until the next query, other tensors of this pair of devices are sent through host memory.
            if let Ok(key) = RendezvousKey::parse(&value_id.key) {
                self.peer_access.postpone(DevicePair::of(&key));
            }
            inaccessible(&format!(": {error}"))
        })?;
        let at = shared_block.ok_or_else(|| inaccessible(""))?;
        self.push_shared(value_id, spec, (at, loan), reason)
    }

    /// Returns whether the receiving device can access the memory of `device`, the sender. If this is
    /// unknown, queries the peer with a copy of `tensor`; the result is false until the answer arrives.
    pub(crate) fn check_access(
        &self,
        key: &RendezvousKey,
        device: &Arc<Device>,
        tensor: &DeviceTensor,
    ) -> bool {
        let Locality::SameHost = self.locality else { return false };
        let pair = DevicePair::of(key);
        match self.peer_access.get_or_begin_query(&pair) {
            PeerAccess::Yes => return self.state.lock().shared.budget.has_room(),
            PeerAccess::No => return false,
            PeerAccess::Unknown => {}
        }
        let own = self.own.clone();
        let done = move |shared| {
            if let Some(own) = own.upgrade() {
                own.query_access(pair, shared);
            }
        };
        device.processor().export(tensor.clone(), Box::new(done));
        false
    }

    /// Queries whether the peer's device can access `shared`, a copy of a tensor; postpones the query if the copy
    /// failed or is in no block that other processes can map.
    fn query_access(&self, pair: DevicePair, shared: device::Result<Value>) {
        let share = |tensor: &DeviceTensor| {
            self.share_block(&BufferBorrow::Device(tensor.memory.clone())).ok().flatten()
        };
        let shared = match shared {
            Ok(Value::Device(tensor)) => share(&tensor).map(|at| (at.block, tensor)),
            _ => None,
        };
        let Some((block, tensor)) = shared else { return self.peer_access.postpone(pair) };
        self.peer_access.set_queried_tensor(pair.clone(), tensor);
        // An error means that the link has broken; the next link queries again.
        if self.post(&Frame::QueryAccess { block, pair }, None).is_ok() {
            self.flush();
        }
    }
}
