//! The order in which a GPU starts its reductions. It is the same on all members of a group, because a library such as
//! NCCL matches the calls of a communicator by their order.

use super::conditions::{Conditions, SetId};
use super::reductions::{Group, ancestors, depths, digest, has_order, is_on_gpu, is_reduction, keys};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::reduction_place::ReductionPlace;
use crate::topology::Topology;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The kind of the digests of reduction orders; the digests of buckets have another kind.
const KIND: u64 = 1;

/// A reduction on a GPU that may get a place in the order of its device.
struct Candidate {
    id: NodeId,
    group: Group,
    instance_key: i64,
    /// The number of edges on the longest path to the node.
    depth: u32,
    conditions: SetId,
}

/// Gives the reductions on each GPU a place in an order, by a [`ReductionPlace`] in their attributes. `graph` is the
/// graph of all tasks, so that depths count paths that lead through several tasks.
///
/// The order is by the depth in the graph, then by the instance key: both are the same on all members, whatever the
/// names and the order of their nodes. A node is deeper than all nodes that it depends on, so the order closes no
/// cycle. A node gets a place only if it runs in every case, outside loops, and if each node that may wait before the
/// previous node of the order also comes before this node. So a place makes a node wait only for other reductions.
/// Nodes without a place are reduced through host memory.
///
/// # Errors
/// `InvalidArgument` naming a node of a cycle that is not a loop; the graph is unchanged.
pub fn place_reductions(graph: &mut Graph) -> Result<()> {
    let is_candidate = |id: &NodeId| {
        let node = graph.node(*id);
        is_reduction(node) && is_on_gpu(node) && !has_order(node)
    };
    let nodes: Vec<NodeId> = graph.ids().filter(is_candidate).collect();
    if nodes.is_empty() {
        return Ok(());
    }
    for candidates in by_device(graph, &nodes)?.into_values() {
        note_places(graph, &candidates);
    }
    Ok(())
}

/// Returns the graph of one device with a control edge from each placed reduction to the next in the order; `None` if
/// fewer than two reductions have places. Control edges that the graph already has are not added again.
pub fn connect_reductions(graph: &Graph) -> Option<Graph> {
    let placed = graph.nodes().filter_map(|(id, node)| Some((ReductionPlace::of(node)?.position, id)));
    let mut placed: Vec<(usize, NodeId)> = placed.collect();
    if placed.len() < 2 {
        return None;
    }
    placed.sort_unstable();
    let mut graph = graph.clone();
    for pair in placed.windows(2) {
        let &[(before, from), (after, to)] = pair else { continue };
        if before < after && !graph.control_inputs(to).contains(&from) {
            graph.connect_control(from, to);
        }
    }
    Some(graph)
}

/// Returns the reductions that get places, by device and in order.
fn by_device(graph: &Graph, nodes: &[NodeId]) -> Result<BTreeMap<Arc<str>, Vec<Candidate>>> {
    let topology = Topology::new(graph);
    let order = ancestors(graph, &topology, nodes)?;
    let Some(mut conditions) = Conditions::of(graph, &topology, &order) else { return Ok(BTreeMap::new()) };
    let depth = depths(graph, &topology, &order);
    let mut devices: BTreeMap<Arc<str>, Vec<Candidate>> = BTreeMap::new();
    for &id in nodes {
        let set = conditions.before(graph, &topology, id);
        let Some((group, instance_key)) = keys(graph, id).filter(|_| conditions.is_unconditional(set)) else {
            continue;
        };
        let candidate = Candidate { id, group, instance_key, depth: depth[id.index()], conditions: set };
        devices.entry(graph.node(id).device.clone()).or_default().push(candidate);
    }
    for candidates in devices.values_mut() {
        candidates.sort_by_key(|candidate| (candidate.depth, candidate.instance_key, candidate.group));
        let mut last = None;
        candidates.retain(|candidate| {
            let keeps = last.is_none_or(|last| conditions.is_within(last, candidate.conditions));
            if keeps {
                last = Some(candidate.conditions);
            }
            keeps
        });
    }
    Ok(devices)
}

/// Writes the places of a device's reductions into their attributes.
fn note_places(graph: &mut Graph, candidates: &[Candidate]) {
    let mut groups: BTreeMap<Group, Vec<(usize, &Candidate)>> = BTreeMap::new();
    for (position, candidate) in candidates.iter().enumerate() {
        groups.entry(candidate.group).or_default().push((position, candidate));
    }
    for members in groups.into_values() {
        let mut keys: Vec<i64> = members.iter().map(|(_, candidate)| candidate.instance_key).collect();
        let (digest, count) = (digest(KIND, keys.iter().copied()), keys.len());
        keys.sort_unstable();
        keys.dedup();
        if keys.len() < count {
            // Two reductions of a group on one device must not run at once with the same instance key, so the group
            // gets no places.
            continue;
        }
        for (index, (position, candidate)) in members.into_iter().enumerate() {
            ReductionPlace { digest, index, count, position }.note(graph.node_mut(candidate.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{CollectiveReduction, Scope};
    use crate::dtype::DType;
    use crate::error::Error;
    use crate::graph::Output;
    use crate::passes::lower;
    use crate::shape::PartialShape;

    const GPU: &str = "/job:w/replica:0/task:0/device:GPU:0";

    /// Adds a sum of `x` on a device under an instance key of group 1.
    fn sum_on(scope: &Scope, device: &str, x: Output, key: i32) -> Output {
        let with = scope.collective_group(2, 1).instance(scope.constant(key));
        scope.device(device).all_reduce(x, with, CollectiveReduction::Sum)
    }

    fn sum(scope: &Scope, x: Output, key: i32) -> Output {
        sum_on(scope, GPU, x, key)
    }

    fn placed(scope: &Scope) -> Result<Graph> {
        let mut graph = lower(&scope.finish()?)?;
        place_reductions(&mut graph)?;
        Ok(graph)
    }

    /// Returns the instance keys of the nodes with places on a device, in their order.
    fn ordered(graph: &Graph, device: &str) -> Vec<i64> {
        let nodes = graph.nodes().filter(|(_, node)| &*node.device == device);
        let mut found: Vec<(usize, i64)> = nodes
            .filter_map(|(id, node)| Some((ReductionPlace::of(node)?.position, keys(graph, id)?.1)))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, key)| key).collect()
    }

    fn floats(scope: &Scope) -> Output {
        scope.zeros(DType::Float, &[4])
    }

    #[test]
    fn reductions_of_a_gpu_are_ordered_by_depth_then_key() -> Result<()> {
        let scope = Scope::new();
        let x = floats(&scope);
        sum(&scope, scope.neg(scope.neg(x)), 1);
        for key in [9, 7, 8] {
            sum(&scope, x, key);
        }
        sum_on(&scope, "/job:w/replica:0/task:0/device:CPU:0", x, 2);
        let graph = placed(&scope)?;
        assert_eq!(ordered(&graph, GPU), [7, 8, 9, 1]);
        let places = graph.nodes().filter_map(|(_, node)| ReductionPlace::of(node));
        let places: Vec<ReductionPlace> = places.collect();
        assert!(places.iter().all(|place| place.count == 4 && place.index == place.position));
        assert_eq!(places.len(), 4);
        Ok(())
    }

    #[test]
    fn members_have_one_order_and_digest_whatever_the_names_and_order_of_their_nodes() -> Result<()> {
        let build = |order: &[i32]| {
            let scope = Scope::new();
            let x = floats(&scope);
            let deep = [x, scope.neg(x), scope.neg(scope.neg(x))];
            for &key in order {
                sum(&scope, deep[key as usize % 3], key);
            }
            let graph = placed(&scope)?;
            let digest = graph.nodes().find_map(|(_, node)| ReductionPlace::of(node)).map(|p| p.digest);
            Ok::<_, crate::Error>((ordered(&graph, GPU), digest))
        };
        let one = build(&[0, 1, 2, 3, 4, 5, 6])?;
        assert_eq!(one.0, [0, 3, 6, 1, 4, 2, 5]);
        assert_eq!(build(&[6, 2, 4, 0, 5, 1, 3])?, one);
        assert_ne!(build(&[0, 1, 2, 3, 4, 5])?.1, one.1);
        Ok(())
    }

    #[test]
    fn control_edges_connect_each_reduction_to_the_next() -> Result<()> {
        let scope = Scope::new();
        let x = floats(&scope);
        let [last, first, second] = [3, 1, 2].map(|key| sum(&scope, x, key).node);
        let once = connect_reductions(&placed(&scope)?);
        let graph = once.and_then(|graph| connect_reductions(&graph)).ok_or(Error::invalid("no edges"))?;
        let order = [first, second, last].map(|id| {
            let name = &graph.node(id).name;
            graph.find(name).map(|id| graph.control_inputs(id).len())
        });
        assert_eq!(order, [Some(0), Some(1), Some(1)]);
        Topology::new(&graph).order(&graph).map(drop)
    }

    #[test]
    fn a_graph_without_places_gets_no_edges() -> Result<()> {
        let scope = Scope::new();
        let x = floats(&scope);
        sum(&scope, x, 1);
        sum(&scope, x, 2);
        let mut graph = placed(&scope)?;
        for id in graph.ids().collect::<Vec<_>>() {
            ReductionPlace::remove(graph.node_mut(id));
        }
        assert!(connect_reductions(&graph).is_none());
        Ok(())
    }

    #[test]
    fn reductions_in_branches_have_no_place() -> Result<()> {
        let scope = Scope::new();
        let predicate = scope.placeholder("p", DType::Bool, PartialShape::scalar());
        let x = floats(&scope);
        let joined = scope.cond(predicate, |s| vec![sum(s, x, 1)], |s| vec![sum(s, x, 2)]);
        sum(&scope, joined[0], 3);
        sum(&scope, x, 4);
        assert_eq!(ordered(&placed(&scope)?, GPU), [4, 3]);
        Ok(())
    }

    #[test]
    fn a_reduction_that_would_wait_for_an_unrelated_queue_has_no_place() -> Result<()> {
        let scope = Scope::new();
        let types = [DType::Float];
        let queue = scope.op("FIFOQueueV2").attr("component_types", types.to_vec()).output();
        let taken = scope.op("QueueDequeueV2").input(queue).attr("component_types", types.to_vec()).output();
        let x = floats(&scope);
        let after_queue = scope.add(scope.ensure_shape(taken, PartialShape::scalar()), x);
        sum(&scope, after_queue, 1);
        let deep = (0..8).fold(x, |x, _| scope.neg(x));
        // The reduction 2 would come after the reduction 1 in the order, and so wait for the queue.
        sum(&scope, deep, 2);
        sum(&scope, scope.neg(after_queue), 3);
        assert_eq!(ordered(&placed(&scope)?, GPU), [1, 3]);
        Ok(())
    }
}
