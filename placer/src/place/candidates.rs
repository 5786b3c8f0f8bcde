//! The candidate devices of each colocation group, in order of preference.

use super::groups::Groups;
use super::kernels::{Kernels, Types, TypesId};
use super::message;
use crate::device_set::DeviceSet;
use crate::error::{Error, Result};
use crate::spec::SpecId;
use graph::{DeviceSpec, Node, NodeId};
use rustc_hash::FxHashMap;

/// The index of a device list in [`Candidates`].
pub(super) type CandidatesId = u32;

/// The table of candidate device lists: one list for each distinct constraint of a colocation group.
pub(super) struct Candidates<'a> {
    devices: &'a DeviceSet,
    kernels: &'a dyn Kernels,
    soft: bool,
    lists: Vec<Vec<u32>>,
    cached: FxHashMap<(SpecId, SpecId, TypesId), CandidatesId>,
    /// Rank of each device in the tie-breaking order: the default device, the local process, then the name.
    order: Vec<u32>,
    pub(super) warnings: Vec<String>,
}

impl<'a> Candidates<'a> {
    pub(super) fn new(devices: &'a DeviceSet, kernels: &'a dyn Kernels, soft: bool) -> Candidates<'a> {
        let mut sorted: Vec<u32> = (0..devices.len() as u32).collect();
        sorted.sort_by_key(|&d| {
            (devices.default_device() != Some(d), !devices.is_local(d), &devices.get(d).text)
        });
        let mut order = vec![0; devices.len()];
        for (place, device) in sorted.into_iter().enumerate() {
            order[device as usize] = place as u32;
        }
        Candidates {
            devices,
            kernels,
            soft,
            lists: Vec::new(),
            cached: FxHashMap::default(),
            order,
            warnings: Vec::new(),
        }
    }

    /// Returns the first, and so the preferred, device of a list.
    pub(super) fn first(&self, id: CandidatesId) -> u32 {
        self.lists[id as usize][0]
    }

    /// Returns whether a list contains `device`.
    pub(super) fn has(&self, id: CandidatesId, device: u32) -> bool {
        self.lists[id as usize].contains(&device)
    }

    /// Returns the candidate devices of the group with root `root`, which is never an empty list. `id` is the
    /// member that an error message names.
    pub(super) fn for_group(
        &mut self,
        groups: &mut Groups<'_>,
        id: NodeId,
        root: usize,
    ) -> Result<CandidatesId> {
        let constraint = groups.constraints[root];
        let key = (constraint.requested, constraint.resource, constraint.types);
        if let Some(&cached) = self.cached.get(&key) {
            return Ok(cached);
        }
        let types = groups.signatures.types(constraint.types).clone();
        let requested = groups.specs.get(constraint.requested).clone();
        let mut list = self.matching(&requested, &types);
        if list.is_empty() && self.soft && !requested.is_empty() {
            let anywhere = DeviceSpec { device_type: None, id: None, ..requested.clone() };
            let state = groups.specs.get(constraint.resource).clone();
            list = self.matching(&state.or(&anywhere), &types);
            if list.is_empty() && !state.is_empty() {
                list = self.matching(&anywhere, &types);
                if !list.is_empty() {
                    self.warn_of_moved_state(groups, root, &list);
                }
            }
        }
        if list.is_empty() {
            return Err(self.unplaceable(groups, id, root));
        }
        let found = self.lists.len() as CandidatesId;
        self.lists.push(list);
        self.cached.insert(key, found);
        Ok(found)
    }

    /// Returns the devices that match `spec` and have a kernel: the default device first, then by kernel
    /// priority, device type and the tie-breaking order.
    fn matching(&self, spec: &DeviceSpec, types: &Types) -> Vec<u32> {
        let mut found: Vec<(bool, i32, usize, u32, u32)> = Vec::new();
        for (index, device) in self.devices.iter().enumerate() {
            if !spec.matches(&device.name) {
                continue;
            }
            let Some(place) = types.iter().position(|t| t.0 == device.type_index) else { continue };
            let is_other = self.devices.default_device() != Some(index as u32);
            found.push((is_other, -types[place].1, place, self.order[index], index as u32));
        }
        found.sort_unstable();
        found.into_iter().map(|f| f.4).collect()
    }

    fn warn_of_moved_state(&mut self, groups: &mut Groups<'_>, root: usize, list: &[u32]) {
        let names: Vec<&str> = list.iter().map(|&d| &*self.devices.get(d).text).collect();
        self.warnings.push(format!(
            "Failed to place the graph without changing the devices of some resources. Some of the operations \
             (that had to be colocated with resource generating operations) are not supported on the resources' \
             devices. Current candidate devices are [\n  {}].\nSee below for details of this colocation group:{}",
            names.join("\n  "),
            message::debug_info(groups, root)
        ));
    }

    pub(super) fn no_kernel(&self, node: &Node) -> Error {
        Error::NoKernel {
            node: node.name.to_string(),
            op: node.op.name().to_owned(),
            attrs: message::attrs(&node.attrs).into(),
            device_types: self.devices.type_names().into(),
            kernels: self.kernels.registered(node.op.name()).into(),
        }
    }

    /// Builds the error that explains why no device satisfies the group's constraint.
    fn unplaceable(&self, groups: &mut Groups<'_>, id: NodeId, root: usize) -> Error {
        let node = groups.graph.node(id);
        let constraint = groups.constraints[root];
        let own = groups.own[id.index()];
        let requested = groups.specs.get(constraint.requested).clone();
        let reason = if requested.is_empty() {
            let types = node.input_types().unwrap_or_default();
            let types: Vec<String> = types.iter().map(|t| message::port_name(*t)).collect();
            format!(
                "Node had no OpKernel registered to support this operation: Operation was {} and inputs were [{}].\n{}",
                node.op.name(),
                types.join(", "),
                message::debug_info(groups, root)
            )
        } else if own != constraint.requested {
            format!(
                "Could not satisfy explicit device specification '{}' because the node \
                 {{{{colocation_node {}}}}} was colocated with a group of nodes that required incompatible device \
                 '{requested}'. All available devices [{}]. {}",
                node.device,
                node.name,
                self.devices.names(),
                message::debug_info(groups, root)
            )
        } else if !self.devices.iter().any(|d| requested.matches(&d.name)) {
            let is_gpu = requested.device_type.as_ref().is_some_and(|t| t.eq_ignore_ascii_case("gpu"));
            let hint = if is_gpu && !self.devices.types().iter().any(|t| &**t == "GPU") {
                " The requested device appears to be a GPU, but CUDA is not enabled."
            } else {
                ""
            };
            format!(
                "{{{{node {}}}}} was explicitly assigned to {} but available devices are [ {} ]. Make sure the \
                 device specification refers to a valid device.{hint}",
                node.name,
                node.device,
                self.devices.names()
            )
        } else if let Some(kind) = &requested.device_type {
            format!(
                "Could not satisfy explicit device specification '{}' because no supported kernel for {kind} \
                 devices is available.{}\nOp: {}\nNode attrs: {}\nRegistered kernels:\n{}",
                node.device,
                message::debug_info(groups, root),
                node.op.name(),
                message::attrs(&node.attrs),
                self.kernels.registered(node.op.name())
            )
        } else {
            let info = message::debug_info(groups, root);
            format!("Could not satisfy explicit device specification '{}'{info}", node.device)
        };
        Error::Unplaceable { node: node.name.to_string(), reason }
    }
}
