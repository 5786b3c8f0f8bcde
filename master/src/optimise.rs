//! Rewrites of a step's graph before it is split, as far as the session's options allow them.

use graph::ops::Evaluate;
use graph::passes::{FoldOptions, fold, merge, prune};
use graph::{Graph, NodeId, Role};
use proto::pb::optimizer_options::Level;
use proto::pb::rewriter_config::Toggle;
use proto::{Status, pb};

/// Graphs with fewer nodes are left alone, unless the options say otherwise.
const MIN_NODES: usize = 4;

/// Folds constants and merges equal nodes. What the client sees stays: feeds, fetches, targets. A rewrite that
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
    let options = config.graph_options.clone().unwrap_or_default();
    let rewriter = options.rewrite_options.unwrap_or_default();
    let optimizer = options.optimizer_options.unwrap_or_default();
    let least = match rewriter.min_graph_nodes {
        0 => MIN_NODES,
        set => usize::try_from(set).unwrap_or(0),
    };
    let is_off = rewriter.disable_meta_optimizer || optimizer.opt_level == Level::L0 as i32;
    if is_off || graph.len() < least {
        return Ok(graph);
    }
    let mut graph = graph;
    if allows(&rewriter, &["constfold", "constant_folding"], rewriter.constant_folding) {
        let keep = kept(&graph, targets);
        let growth = match usize::try_from(optimizer.max_folded_constant_in_bytes) {
            Ok(bytes) if bytes > 0 => bytes,
            _ => FoldOptions::DEFAULT.growth,
        };
        let folded = fold(&graph, evaluator, &FoldOptions { keep: &keep, growth, ..FoldOptions::DEFAULT });
        graph = or_as_it_was(folded, graph, "constant folding", &rewriter)?;
    }
    let merges = &["common_subgraph_elimination"];
    if allows(&rewriter, merges, rewriter.common_subgraph_elimination) {
        let merged = merge(&graph, &kept(&graph, targets));
        graph = or_as_it_was(merged, graph, "common subexpressions", &rewriter)?;
    }
    if !rewriter.disable_model_pruning && allows(&rewriter, &["pruning"], Toggle::Default as i32) {
        let pruned = prune(&graph, &kept(&graph, targets));
        graph = or_as_it_was(pruned, graph, "pruning", &rewriter)?;
    }
    Ok(graph)
}

/// Whether a rewrite of one of these names is made: only what is listed, if anything is, or else what is not off.
fn allows(rewriter: &pb::RewriterConfig, names: &[&str], toggle: i32) -> bool {
    let listed = &rewriter.optimizers;
    match listed.is_empty() {
        true => toggle != Toggle::Off as i32,
        false => listed.iter().any(|listed| names.contains(&listed.as_str())),
    }
}

fn or_as_it_was(
    rewritten: graph::Result<Graph>,
    graph: Graph,
    pass: &str,
    rewriter: &pb::RewriterConfig,
) -> Result<Graph, Status> {
    match rewritten {
        Ok(rewritten) => Ok(rewritten),
        Err(error) if rewriter.fail_on_optimizer_errors => Err(error.into()),
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
