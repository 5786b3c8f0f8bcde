//! Buckets of collectives: sets of reductions of one device that are carried out by one exchange.

use super::conditions::{Conditions, SetId};
use super::prune::prune;
use super::reductions::{Group, ancestors, depths, digest, has_order, is_on_gpu, is_reduction, keys};
use crate::bucket_place::BucketPlace;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, NodeId, Output};
use crate::infer::Shapes;
use crate::node::Node;
use crate::topology::Topology;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The largest size in bytes of a group's first bucket; it is small so that the first exchange begins early, while most
/// inputs are still being computed.
const FIRST_BYTES: usize = 1 << 20;
/// The largest size in bytes of further buckets. The elements of a bucket are copied, and copying more bytes takes
/// longer than another exchange.
const MAX_BYTES: usize = 4 << 20;
/// The largest size in bytes of a tensor in a bucket. The exchange of a larger tensor takes longer than the start of an
/// exchange, which is the time that a bucket saves.
const MAX_TENSOR_BYTES: usize = 1 << 20;

/// A reduction that may be in a bucket.
struct Candidate {
    id: NodeId,
    class: Class,
    instance_key: i64,
    /// The number of edges on the longest path to the node, which estimates when its input is ready.
    depth: u32,
    bytes: usize,
}

/// The properties that the nodes of a bucket have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Class {
    device: Arc<str>,
    group: Group,
    dtype: i32,
    functions: [String; 2],
    timeout: u32,
    conditions: SetId,
}

/// Assigns reductions to buckets, by a [`BucketPlace`] in their attributes.
///
/// Nodes are in one bucket only if they run in the same cases and after the same nodes that may wait, collectives
/// included. So no node of a bucket depends on another node of it, not even through other buckets, and a bucket whose
/// last input is computed late delays no node that another task waits for. The nodes of a bucket have one device,
/// group, element type and function, their instance keys are constants, and they are outside loops. The key and the
/// size of the group may be fed. Nodes on GPUs are in no bucket; [`place_reductions`](super::place_reductions) orders
/// them.
///
/// The nodes are ordered by their depth in the graph, which estimates when their inputs become ready, then by their
/// instance keys, so that all members of a group find the same buckets whatever the names and the order of their nodes.
/// `declared` is the graph before fed tensors were replaced, in which placeholders have shapes.
///
/// # Errors
/// `InvalidArgument` naming a node of a cycle that is not a loop, or a node of `declared` with a contradiction of
/// shapes; the graph is unchanged.
pub fn assign_buckets(graph: &mut Graph, declared: &Graph) -> Result<()> {
    let nodes: Vec<NodeId> =
        graph.nodes().filter(|(_, node)| is_reduction(node) && !is_on_gpu(node)).map(|(id, _)| id).collect();
    if nodes.len() < 2 {
        return Ok(());
    }
    for bucket in buckets(graph, declared, &nodes)? {
        let digest = digest(0, bucket.iter().map(|candidate| candidate.instance_key));
        for (index, candidate) in bucket.iter().enumerate() {
            BucketPlace { digest, index, count: bucket.len() }.note(graph.node_mut(candidate.id));
        }
    }
    Ok(())
}

/// Returns the buckets, each with at least two nodes.
fn buckets(graph: &Graph, declared: &Graph, nodes: &[NodeId]) -> Result<Vec<Vec<Candidate>>> {
    let topology = Topology::new(graph);
    let order = ancestors(graph, &topology, nodes)?;
    let Some(mut conditions) = Conditions::of(graph, &topology, &order) else { return Ok(Vec::new()) };
    let (depth, bytes) = (depths(graph, &topology, &order), declared_bytes(graph, declared, nodes)?);
    let mut classes: BTreeMap<Class, Vec<Candidate>> = BTreeMap::new();
    for (&id, bytes) in nodes.iter().zip(bytes) {
        let set = conditions.before(graph, &topology, id);
        let small = bytes.filter(|&bytes| bytes <= MAX_TENSOR_BYTES && !conditions.is_in_loop(set));
        let Some((bytes, (group, instance_key))) = small.zip(keys(graph, id)) else { continue };
        let Some(class) = class(graph.node(id), group, set) else { continue };
        let depth = depth[id.index()];
        let candidate = Candidate { id, class, instance_key, depth, bytes };
        classes.entry(candidate.class.clone()).or_default().push(candidate);
    }
    let all = classes.into_values().flat_map(|candidates| divided(unique(candidates)));
    Ok(all.filter(|bucket| bucket.len() > 1).collect())
}

/// Returns the size of each node's input as far as the graph declares it.
fn declared_bytes(graph: &Graph, declared: &Graph, nodes: &[NodeId]) -> Result<Vec<Option<usize>>> {
    let names = nodes.iter().map(|id| &*graph.node(*id).name);
    let wanted: Vec<NodeId> = names.clone().filter_map(|name| declared.find(name)).collect();
    let pruned = prune(declared, &wanted)?;
    let shapes = Shapes::infer(&pruned)?;
    let bytes = |name: &str| {
        let output = Output::new(pruned.find(name)?, 0);
        let width = pruned.output_type(output).ok()?.dtype.size()?;
        shapes.get(output).num_elements()?.checked_mul(width)
    };
    Ok(names.map(bytes).collect())
}

/// Returns the class of a node; `None` if the program itself orders the node among collectives.
fn class(node: &Node, group: Group, conditions: SetId) -> Option<Class> {
    if has_order(node) {
        return None;
    }
    Some(Class {
        device: node.device.clone(),
        group,
        dtype: node.attr::<DType>("T").ok()?.number(),
        functions: [node.attr("merge_op").ok()?, node.attr("final_op").ok()?],
        timeout: node.attr::<f32>("timeout_seconds").ok()?.to_bits(),
        conditions,
    })
}

/// Returns the candidates with instance keys that no other candidate has, ordered by depth, then by instance key.
fn unique(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    let mut seen = FxHashMap::<i64, usize>::default();
    candidates.iter().for_each(|candidate| *seen.entry(candidate.instance_key).or_default() += 1);
    candidates.retain(|candidate| seen.get(&candidate.instance_key) == Some(&1));
    candidates.sort_by_key(|candidate| (candidate.depth, candidate.instance_key));
    candidates
}

/// Divides candidates into buckets of limited size in bytes, without changing their order.
fn divided(candidates: Vec<Candidate>) -> Vec<Vec<Candidate>> {
    let mut buckets: Vec<Vec<Candidate>> = vec![Vec::new()];
    let (mut filled, mut most) = (0, FIRST_BYTES);
    for candidate in candidates {
        if filled + candidate.bytes > most && filled > 0 {
            buckets.push(Vec::new());
            (filled, most) = (0, MAX_BYTES);
        }
        filled += candidate.bytes;
        if let Some(bucket) = buckets.last_mut() {
            bucket.push(candidate);
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{Collective, CollectiveGroup, CollectiveReduction, Scope, WhileOptions};
    use crate::passes::lower;
    use crate::shape::PartialShape;

    /// Adds the sum of `x` over the members of a group of two devices, with the instance key `key`.
    fn sum(scope: &Scope, x: Output, key: i32) -> Output {
        let group = scope.collective_group(2, 1);
        let with = Collective { timeout_seconds: 0.0, ..group.instance(scope.constant(key)) };
        scope.all_reduce(x, with, CollectiveReduction::Sum)
    }

    fn floats(scope: &Scope, count: usize) -> Output {
        scope.zeros(DType::Float, &[count])
    }

    /// Returns the instance keys of each bucket, in the order of their first keys.
    fn keys(scope: &Scope) -> Result<Vec<Vec<i64>>> {
        keys_of(lower(&scope.finish()?)?)
    }

    fn keys_of(mut graph: Graph) -> Result<Vec<Vec<i64>>> {
        let declared = graph.clone();
        assign_buckets(&mut graph, &declared)?;
        let mut found: BTreeMap<i64, Vec<(usize, i64)>> = BTreeMap::new();
        for (id, node) in graph.nodes() {
            let Some((place, (_, key))) = BucketPlace::of(node).zip(super::keys(&graph, id)) else {
                continue;
            };
            found.entry(place.digest).or_default().push((place.index, key));
        }
        let in_order = |mut nodes: Vec<(usize, i64)>| {
            nodes.sort_unstable();
            assert!(nodes.iter().map(|(index, _)| *index).eq(0..nodes.len()));
            nodes.into_iter().map(|(_, key)| key).collect()
        };
        let mut buckets: Vec<Vec<i64>> = found.into_values().map(in_order).collect();
        buckets.sort_unstable();
        Ok(buckets)
    }

    #[test]
    fn independent_sums_are_in_buckets_by_depth_then_key() -> Result<()> {
        let scope = Scope::new();
        let deeper = scope.neg(scope.neg(floats(&scope, 4)));
        sum(&scope, deeper, 3);
        for key in [10, 9, 11] {
            sum(&scope, floats(&scope, 4), key);
        }
        assert_eq!(keys(&scope)?, [[9, 10, 11, 3]]);
        Ok(())
    }

    #[test]
    fn a_bucket_has_neither_nodes_on_a_path_nor_closes_a_cycle_with_another() -> Result<()> {
        let scope = Scope::new();
        let first = sum(&scope, floats(&scope, 4), 1);
        sum(&scope, scope.neg(first), 2);
        // Buckets {1, 4} and {2, 3} would wait for each other.
        let third = sum(&scope, floats(&scope, 4), 3);
        sum(&scope, scope.neg(third), 4);
        assert_eq!(keys(&scope)?, [[1, 3]]);
        Ok(())
    }

    #[test]
    fn sums_before_which_other_nodes_may_wait_are_apart() -> Result<()> {
        let scope = Scope::new();
        let types = [DType::Float];
        let queue = scope.op("FIFOQueueV2").attr("component_types", types.to_vec()).output();
        let dequeue =
            || scope.op("QueueDequeueV2").input(queue).attr("component_types", types.to_vec()).output();
        let (one, other) = (dequeue(), dequeue());
        let vector = |x: Output| scope.add(scope.ensure_shape(x, PartialShape::scalar()), floats(&scope, 4));
        sum(&scope, vector(one), 1);
        sum(&scope, vector(other), 2);
        sum(&scope, floats(&scope, 4), 3);
        sum(&scope, scope.neg(vector(one)), 4);
        sum(&scope, scope.neg(floats(&scope, 4)), 5);
        assert_eq!(keys(&scope)?, [[1, 4], [3, 5]]);
        Ok(())
    }

    #[test]
    fn sums_that_do_not_run_in_the_same_cases_are_apart() -> Result<()> {
        let scope = Scope::new();
        let predicate = scope.placeholder("p", DType::Bool, PartialShape::scalar());
        let x = floats(&scope, 4);
        let branch = |first: i32| move |s: &Scope| vec![sum(s, s.neg(x), first), sum(s, s.neg(x), first + 1)];
        let joined = scope.cond(predicate, branch(1), branch(3));
        sum(&scope, x, 5);
        // The reductions in the branches come before the reductions 6 and 7, which run in both cases.
        sum(&scope, joined[0], 6);
        sum(&scope, scope.neg(joined[1]), 7);
        let plain = scope.cond(predicate, |s| vec![s.neg(x)], |s| vec![s.square(x)]);
        sum(&scope, plain[0], 8);
        assert_eq!(keys(&scope)?, [vec![1, 2], vec![3, 4], vec![5, 8]]);
        Ok(())
    }

    #[test]
    fn sums_in_loops_are_in_no_bucket() -> Result<()> {
        let scope = Scope::new();
        let start = floats(&scope, 4);
        let is_small = |s: &Scope, v: &[Output]| s.less(s.sum(v[0], &[0], false), s.constant(1f32));
        let twice = |s: &Scope, v: &[Output]| vec![s.add(sum(s, v[0], 1), sum(s, v[0], 2))];
        let result = scope.while_loop(&[start], is_small, twice, &WhileOptions::default());
        let after = scope.ensure_shape(result[0], [4usize]);
        sum(&scope, after, 3);
        sum(&scope, scope.neg(after), 4);
        assert_eq!(keys(&scope)?, [[3, 4]]);
        Ok(())
    }

    #[test]
    fn buckets_are_divided_by_size_and_large_tensors_are_alone() -> Result<()> {
        let scope = Scope::new();
        let kib = |kib: usize| floats(&scope, 256 * kib);
        for key in 0..4 {
            sum(&scope, kib(512), key);
        }
        sum(&scope, kib(1025), 4);
        for key in 5..15 {
            sum(&scope, kib(1024), key);
        }
        let expected = [vec![0, 1], vec![2, 3, 5, 6, 7], vec![8, 9, 10, 11], vec![12, 13, 14]];
        assert_eq!(keys(&scope)?, expected);
        Ok(())
    }

    #[test]
    fn keys_types_functions_and_devices_separate_buckets() -> Result<()> {
        let scope = Scope::new();
        let x = floats(&scope, 4);
        sum(&scope, x, 1);
        sum(&scope.device("/task:1"), x, 2);
        sum(&scope, scope.cast(x, DType::Double), 3);
        let other_group = scope.collective_group(2, 5).instance(scope.constant(4i32));
        scope.all_reduce(x, other_group, CollectiveReduction::Sum);
        let mean = scope.collective_group(2, 1).instance(scope.constant(5i32));
        scope.all_reduce(x, mean, CollectiveReduction::Mean);
        let alone = scope.collective_group(1, 1).instance(scope.constant(6i32));
        scope.all_reduce(x, alone, CollectiveReduction::Sum);
        let computed = scope.collective_group(2, 1).instance(scope.size_of(x));
        scope.all_reduce(x, computed, CollectiveReduction::Sum);
        let twice = scope.collective_group(2, 1).instance(scope.constant(7i32));
        scope.all_reduce(x, twice, CollectiveReduction::Sum);
        scope.all_reduce(x, twice, CollectiveReduction::Sum);
        let fed = |name: &str| scope.placeholder(name, DType::Int32, PartialShape::scalar());
        let [one, other] = ["one", "other"].map(|key| CollectiveGroup { size: fed("size"), key: fed(key) });
        let reduce = |group: CollectiveGroup, key: i32| {
            scope.all_reduce(x, group.instance(scope.constant(key)), CollectiveReduction::Sum);
        };
        reduce(one, 9);
        reduce(other, 10);
        assert_eq!(keys(&scope)?, Vec::<Vec<i64>>::new());
        sum(&scope, x, 8);
        reduce(one, 11);
        assert_eq!(keys(&scope)?, [[1, 8], [9, 11]]);
        Ok(())
    }

    #[test]
    fn members_find_the_same_buckets_whatever_the_order_and_names_of_their_nodes() -> Result<()> {
        let build = |order: &[i32]| {
            let scope = Scope::new();
            let mut x = floats(&scope, 100 << 10);
            let depths: Vec<Output> = (0..4)
                .map(|_| {
                    x = scope.neg(x);
                    x
                })
                .collect();
            for &key in order {
                sum(&scope, depths[key as usize % 4], key);
            }
            keys(&scope)
        };
        let ascending: Vec<i32> = (0..24).collect();
        let mut shuffled: Vec<i32> = (0..24).map(|i| (i * 7 + 5) % 24).collect();
        let found = build(&ascending)?;
        assert!(found.len() > 1 && found.iter().map(Vec::len).sum::<usize>() == 24, "{found:?}");
        assert_eq!(build(&shuffled)?, found);
        shuffled.reverse();
        assert_eq!(build(&shuffled)?, found);
        Ok(())
    }
}
