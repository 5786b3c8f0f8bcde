//! The collective instances that nodes of this task are running. Two nodes of one device cannot run the same instance
//! at the same time.

use device::Error;
use device::collective::{Finish, Operation, Request};
use device::kernel::LoopPosition;
use graph::DeviceName;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// An instance of a collective on a device, in one iteration of a step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Claim {
    step_id: i64,
    device: DeviceName,
    group_key: i32,
    is_communicator: bool,
    instance_key: i32,
    position: LoopPosition,
}

/// The claims of a session, each with the name of the node that runs the instance.
#[derive(Debug, Default)]
pub(super) struct Claims {
    nodes: Mutex<FxHashMap<Claim, Arc<str>>>,
}

impl Claims {
    /// Claims the request's instance for its node. Returns the callback that gives up the claim and calls `finish`. A
    /// request that only joins a group has no instance.
    ///
    /// # Errors
    /// If another node runs the instance: `finish`, with an `InvalidArgument` that names both nodes.
    pub(super) fn claim(
        self: &Arc<Self>,
        step_id: i64,
        request: &Request,
        finish: Finish,
    ) -> Result<Finish, (Finish, Error)> {
        if request.operation == Operation::Join {
            return Ok(finish);
        }
        let claim = Claim {
            step_id,
            device: request.device.name().clone(),
            group_key: request.group_key,
            is_communicator: request.placed.is_some(),
            instance_key: request.instance_key,
            position: request.position,
        };
        let mut nodes = self.nodes.lock();
        if let Some(other) = nodes.get(&claim) {
            let text = format!(
                "'{other}' and '{}' run instance {} of group {} on {} at once; give each its own instance key",
                request.node.name, request.instance_key, request.group_key, claim.device
            );
            return Err((finish, Error::invalid(text)));
        }
        nodes.insert(claim.clone(), request.node.name.clone());
        let claims = self.clone();
        Ok(Box::new(move |output| {
            claims.nodes.lock().remove(&claim);
            finish(output);
        }))
    }
}
