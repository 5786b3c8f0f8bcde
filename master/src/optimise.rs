//! Rewrites of a step's graph before it is split, as far as the session's options allow them.

use graph::ops::Evaluate;
use graph::passes::{FoldOptions, fold, merge, prune, unread};
use graph::{Graph, NodeId, Role};
use proto::{Rewrite, Rewrites, Status, pb};

/// Graphs with fewer nodes are left alone, unless the options say otherwise.
const MIN_NODES: usize = 4;

/// Folds constants, merges equal nodes, and leaves out what nobody reads. What the client sees stays: feeds, fetches, targets. A rewrite that
/// fails is left out: the graph runs as it was.
///
/// # Errors
/// Of a rewrite that fails where the options ask for that (`fail_on_optimizer_errors`).
pub(crate) fn optimise(
    graph: Graph,
    targets: &[String],
    config: &pb::ConfigProto,
    evaluator: &(dyn Evaluate + Send + Sync),
) -> Result<Graph, Status> {
    let rewrites = Rewrites::of(config);
    if graph.len() < rewrites.least_nodes().unwrap_or(MIN_NODES) {
        return Ok(graph);
    }
    let mut graph = graph;
    if rewrites.allow(Rewrite::ConstantFolding) {
        let keep = kept(&graph, targets);
        let growth = folded_bytes(config).unwrap_or(FoldOptions::DEFAULT.growth);
        let folded = fold(&graph, evaluator, &FoldOptions { keep: &keep, growth, ..FoldOptions::DEFAULT });
        graph = or_as_it_was(folded, graph, "constant folding", &rewrites)?;
    }
    if rewrites.allow(Rewrite::CommonSubexpressions) {
        let merged = merge(&graph, &kept(&graph, targets));
        graph = or_as_it_was(merged, graph, "common subexpressions", &rewrites)?;
    }
    if rewrites.allow(Rewrite::Dependencies) {
        let read = unread(&graph, &kept(&graph, targets));
        graph = or_as_it_was(read, graph, "leaving out what nobody reads", &rewrites)?;
    }
    if rewrites.allow(Rewrite::Pruning) {
        let pruned = prune(&graph, &kept(&graph, targets));
        graph = or_as_it_was(pruned, graph, "pruning", &rewrites)?;
    }
    Ok(graph)
}

/// By how many bytes the options let a folded constant exceed what it is made from, if they say so.
fn folded_bytes(config: &pb::ConfigProto) -> Option<usize> {
    let optimizer = config.graph_options.as_ref()?.optimizer_options.as_ref()?;
    usize::try_from(optimizer.max_folded_constant_in_bytes).ok().filter(|bytes| *bytes > 0)
}

fn or_as_it_was(
    rewritten: graph::Result<Graph>,
    graph: Graph,
    pass: &str,
    rewrites: &Rewrites,
) -> Result<Graph, Status> {
    match rewritten {
        Ok(rewritten) => Ok(rewritten),
        Err(error) if rewrites.fail_on_errors() => Err(error.into()),
        Err(error) => {
            tracing::warn!("{pass} failed, the step runs without it: {error}");
            Ok(graph)
        }
    }
}

/// What the step is for: its targets, and what goes to the client.
fn kept(graph: &Graph, targets: &[String]) -> Vec<NodeId> {
    let sends = graph.nodes().filter(|(_, n)| n.op.role() == Role::Send).map(|(id, _)| id);
    targets.iter().filter_map(|name| graph.find(name)).chain(sends).collect()
}
