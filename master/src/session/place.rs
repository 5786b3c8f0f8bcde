//! Where the nodes of a session's graph go.

use super::{Engine, from_placer};
use crate::cluster::SessionCluster;
use graph::passes::{lower, lower_placed};
use graph::{DeviceName, Graph};
use placer::PlaceRequest;
use proto::{Status, pb};

/// Lowers what calls functions, or, if the session says no, only what asks for devices there, and gives every node the
/// full name of its device.
/// Stateful nodes that `before` has stay where they are there.
pub(super) fn place(
    requested: &Graph,
    before: Option<&Graph>,
    config: &pb::ConfigProto,
    cluster: &SessionCluster,
    engine: &Engine,
) -> Result<Graph, Status> {
    let keeps_calls = config.experimental.as_ref().is_some_and(|e| e.disable_functional_ops_lowering);
    let mut graph = if keeps_calls { lower_placed(requested)? } else { lower(requested)? };
    let mut assigned = Vec::new();
    // By name: what is lowered comes after what the client sent, so numbers change as the graph grows.
    for (_, node) in before.iter().flat_map(|g| g.nodes()).filter(|(_, n)| n.op.is_stateful()) {
        if let Some(id) = graph.find(&node.name) {
            assigned.push((id, DeviceName::parse(&node.device)?));
        }
    }
    let request = PlaceRequest {
        devices: &cluster.devices,
        kernels: &*engine.kernels,
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
