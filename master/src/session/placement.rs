//! Placement of a session's graph.

use super::{MasterContext, from_placer};
use crate::cluster::SessionCluster;
use graph::passes::{lower, lower_placed};
use graph::{DeviceName, Graph};
use placer::PlaceRequest;
use proto::{Status, pb};

/// Lowers function calls and assigns a device to every node. If the session's options disable lowering, only
/// calls of functions whose bodies request devices are lowered. Stateful nodes of `before` stay on their
/// devices.
pub(super) fn place(
    requested: &Graph,
    before: Option<&Graph>,
    config: &pb::ConfigProto,
    cluster: &SessionCluster,
    context: &MasterContext,
) -> Result<Graph, Status> {
    let known = before.map(|before| &before.unavailable);
    if known.is_none_or(|known| *known != requested.unavailable) && !requested.unavailable.is_empty() {
        let ops: Vec<String> =
            requested.unavailable.ops().map(|(op, user)| format!("{op} (node {user})")).collect();
        tracing::warn!("steps that need these missing ops will fail: {}", ops.join(", "));
    }
    let keeps_calls = config.experimental.as_ref().is_some_and(|e| e.disable_functional_ops_lowering);
    let mut graph = if keeps_calls { lower_placed(requested)? } else { lower(requested)? };
    let mut assigned = Vec::new();
    // Nodes are matched by name, because node ids change when the graph grows: nodes that lowering adds are
    // numbered after the client's nodes.
    for (_, node) in before.iter().flat_map(|g| g.nodes()).filter(|(_, n)| n.op.is_stateful()) {
        if let Some(id) = graph.find(&node.name) {
            assigned.push((id, DeviceName::parse(&node.device)?));
        }
    }
    let request = PlaceRequest {
        devices: &cluster.devices,
        kernels: &*context.kernels,
        allow_soft_placement: config.allow_soft_placement,
        assigned: &assigned,
    };
    let placement = placer::place(&graph, &request).map_err(from_placer)?;
    for warning in &placement.warnings {
        tracing::warn!("{warning}");
    }
    if config.log_device_placement {
        for line in placement.log(&graph) {
            tracing::info!("{line}");
        }
    }
    placement.apply(&mut graph);
    Ok(graph)
}
