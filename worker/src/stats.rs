//! Conversion of executor traces to the step statistics that masters collect.

use crate::graphs::{GraphPartition, RegisteredGraph};
use executor::{NodeTrace, OutputTrace, Trace};
use graph::{NodeId, Role};
use proto::convert::shape_to_proto;
use proto::pb;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Converts the executors' traces to one record per device, whose nodes are in the order in which they ended.
pub(crate) fn step_stats(graph: &RegisteredGraph, traces: Vec<Trace>) -> pb::StepStats {
    pb::StepStats { dev_stats: graph.partitions.iter().zip(traces).map(device_stats).collect() }
}

fn device_stats((part, trace): (&GraphPartition, Trace)) -> pb::DeviceStepStats {
    let threads: BTreeMap<u32, String> =
        trace.nodes.iter().map(|n| (n.thread as u32, format!("compute-{}", n.thread))).collect();
    pb::DeviceStepStats {
        device: part.device.to_string(),
        node_stats: trace.nodes.into_iter().map(node_stats).collect(),
        thread_names: threads,
    }
}

/// Converts a node's trace. The `rel` fields are relative to the time at which the node was ready; all other times are
/// absolute.
fn node_stats(node: NodeTrace) -> pb::NodeExecStats {
    let from = |at: u64| i64::try_from(at.saturating_sub(node.scheduled)).unwrap_or(i64::MAX);
    let (start, end, ready) = (from(node.start), from(node.end), node.scheduled as i64);
    pb::NodeExecStats {
        node_name: node.node.to_string(),
        all_start_micros: ready / 1000,
        op_start_rel_micros: start / 1000,
        op_end_rel_micros: end / 1000,
        all_end_rel_micros: end / 1000,
        memory: memory(&node).into_iter().collect(),
        output: node.outputs.iter().map(output).collect(),
        timeline_label: node.label,
        scheduled_micros: ready / 1000,
        thread_id: node.thread as u32,
        all_start_nanos: ready,
        op_start_rel_nanos: start,
        op_end_rel_nanos: end,
        all_end_rel_nanos: end,
        scheduled_nanos: ready,
        ..Default::default()
    }
}

/// Returns the record of a node's memory, which counts its outputs but no temporary buffers of its kernel.
fn memory(node: &NodeTrace) -> Option<pb::AllocatorMemoryUsed> {
    let bytes: u64 = node.outputs.iter().map(|o| o.bytes).sum();
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    (bytes > 0).then(|| pb::AllocatorMemoryUsed {
        allocator_name: "cpu".into(),
        total_bytes: bytes,
        peak_bytes: bytes,
        live_bytes: bytes,
        ..Default::default()
    })
}

fn output(output: &OutputTrace) -> pb::NodeOutput {
    let bytes = i64::try_from(output.bytes).unwrap_or(i64::MAX);
    pb::NodeOutput {
        slot: output.slot as i32,
        tensor_description: Some(pb::TensorDescription {
            dtype: output.dtype.number(),
            shape: Some(shape_to_proto(&output.shape)),
            allocation_description: Some(pb::AllocationDescription {
                requested_bytes: bytes,
                allocated_bytes: bytes,
                allocator_name: "cpu".into(),
                ..Default::default()
            }),
        }),
    }
}
/// Returns the nodes of all devices with their edges, and the measured times and sizes of those that ran.
pub(crate) fn cost_graph(graph: &RegisteredGraph, stats: &pb::StepStats) -> pb::CostGraphDef {
    let mut cost_graph = pb::CostGraphDef::default();
    for (part, stats) in graph.partitions.iter().zip(&stats.dev_stats) {
        let first = cost_graph.node.len();
        let id_of = |id: NodeId| i32::try_from(first + id.index()).unwrap_or(i32::MAX);
        let mut measured: FxHashMap<&str, (i64, &pb::NodeExecStats)> = FxHashMap::default();
        for node in &stats.node_stats {
            let entry = measured.entry(&node.node_name).or_insert((0, node));
            entry.0 += node.op_end_rel_micros - node.op_start_rel_micros;
        }
        for (id, node) in part.graph.nodes() {
            let ran = measured.get(&*node.name);
            let outputs = ran.into_iter().flat_map(|(_, stats)| &stats.output).filter_map(|output| {
                let tensor = output.tensor_description.as_ref()?;
                let size = tensor.allocation_description.as_ref().map_or(0, |made| made.allocated_bytes);
                let (shape, dtype) = (tensor.shape.clone(), tensor.dtype);
                Some(pb::cost_graph_def::node::OutputInfo { size, alias_input_port: -1, shape, dtype })
            });
            let inputs = part.graph.inputs(id);
            cost_graph.node.push(pb::cost_graph_def::Node {
                name: node.name.to_string(),
                device: part.device.to_string(),
                id: id_of(id),
                input_info: inputs
                    .iter()
                    .map(|input| pb::cost_graph_def::node::InputInfo {
                        preceding_node: id_of(input.node),
                        preceding_port: i32::try_from(input.index).unwrap_or(i32::MAX),
                    })
                    .collect(),
                output_info: outputs.collect(),
                control_input: part.graph.control_inputs(id).iter().map(|&from| id_of(from)).collect(),
                compute_cost: ran.map_or(0, |(time, _)| *time),
                compute_time: ran.map_or(0, |(time, _)| *time),
                is_final: node.op.role() == Role::Send,
                inaccurate: ran.is_none(),
                ..Default::default()
            });
        }
    }
    cost_graph
}
