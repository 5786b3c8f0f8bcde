//! Rewrites of a step's graph before it is partitioned, as far as the session's options allow them.

use graph::ops::Evaluate;
use graph::passes::{
    FoldOptions, Simplification, SimplifyOptions, assign_buckets, fold, merge, place_reductions, prune,
    remove_redundant_control_edges, remove_unread_nodes, simplify,
};
use graph::{Graph, NodeId, Role};
use proto::{Rewrite, Rewrites, Status, pb};

/// The number of nodes below which a graph is not rewritten, unless the option `min_graph_nodes` is set.
const MIN_NODES: usize = 4;

/// Simplifies the graph, folds constants, and eliminates common subexpressions, unread nodes and unneeded
/// control edges. Feeds, fetches and targets are kept. Then collectives are assigned to buckets; `declared` is the graph
/// in which placeholders have their shapes. Reductions on GPUs get a place in an order instead. A rewrite that fails is
/// skipped.
///
/// # Errors
/// The failure of a rewrite, if the options say that it is an error (`fail_on_optimizer_errors`).
pub(crate) fn optimise(
    graph: Graph,
    declared: &Graph,
    targets: &[String],
    config: &pb::ConfigProto,
    evaluator: &(dyn Evaluate + Send + Sync),
) -> Result<Graph, Status> {
    let rewrites = Rewrites::of(config);
    if graph.len() < rewrites.least_nodes().unwrap_or(MIN_NODES) {
        return Ok(graph);
    }
    let growth = folded_bytes(config).unwrap_or(FoldOptions::DEFAULT.growth);
    let kinds = simplifications(&rewrites);
    let mut graph = graph;
    for pass in
        PASSES.iter().filter(|pass| pass.required_option.is_none_or(|rewrite| rewrites.allow(rewrite)))
    {
        let keep = nodes_to_keep(&graph, targets);
        let rewritten = match pass.kind {
            PassKind::Simplify if kinds.is_empty() => continue,
            PassKind::Simplify => simplify(&graph, &SimplifyOptions { keep: &keep, kinds: &kinds }),
            PassKind::Fold => {
                fold(&graph, evaluator, &FoldOptions { keep: &keep, growth, ..FoldOptions::DEFAULT })
            }
            PassKind::Other(rewrite) => rewrite(&graph, &keep),
        };
        graph = match rewritten {
            Ok(rewritten) => rewritten,
            Err(error) => {
                skip(&rewrites, pass.name, error)?;
                graph
            }
        };
    }
    if rewrites.allow(Rewrite::Buckets) {
        assign_buckets(&mut graph, declared).or_else(|error| skip(&rewrites, "bucketing", error))?;
    }
    place_reductions(&mut graph).or_else(|error| skip(&rewrites, "ordering of reductions", error))?;
    Ok(graph)
}

/// Logs the failure of a rewrite, or returns it if the options say that it is an error.
fn skip(rewrites: &Rewrites, name: &str, error: graph::Error) -> Result<(), Status> {
    if rewrites.fail_on_errors() {
        return Err(error.into());
    }
    tracing::warn!("{name} failed, the step runs without it: {error}");
    Ok(())
}

/// One rewrite in the sequence [`PASSES`].
struct Pass {
    name: &'static str,
    /// The rewrite that the session's options must allow for the pass to run; `None` if the pass always runs.
    required_option: Option<Rewrite>,
    kind: PassKind,
}

/// The kind of a pass; `Other` holds a function of the graph and of the nodes that must be kept.
enum PassKind {
    Simplify,
    Fold,
    Other(fn(&Graph, &[NodeId]) -> graph::Result<Graph>),
}

/// The rewrites in the order in which they run. Constant folding enables more simplifications, and pruning
/// removes dead nodes whose edges would block later rewrites.
const PASSES: &[Pass] = &[
    Pass { name: "simplification", required_option: None, kind: PassKind::Simplify },
    Pass { name: "constant folding", required_option: Some(Rewrite::ConstantFolding), kind: PassKind::Fold },
    Pass { name: "pruning", required_option: Some(Rewrite::Pruning), kind: PassKind::Other(prune) },
    Pass { name: "simplification", required_option: None, kind: PassKind::Simplify },
    Pass {
        name: "common subexpressions",
        required_option: Some(Rewrite::CommonSubexpressions),
        kind: PassKind::Other(merge),
    },
    Pass {
        name: "removal of unread nodes",
        required_option: Some(Rewrite::Dependencies),
        kind: PassKind::Other(remove_unread_nodes),
    },
    Pass {
        name: "dependencies",
        required_option: Some(Rewrite::Dependencies),
        kind: PassKind::Other(remove_redundant_control_edges),
    },
    Pass { name: "pruning", required_option: Some(Rewrite::Pruning), kind: PassKind::Other(prune) },
];

/// Returns the simplifications that the options allow. Each simplification is enabled by the option of the
/// TensorFlow optimizer that makes the same rewrites.
fn simplifications(rewrites: &Rewrites) -> Vec<Simplification> {
    let options = [
        (Rewrite::Pruning, Simplification::Forwarding),
        (Rewrite::ConstantFolding, Simplification::Constants),
        (Rewrite::Arithmetic, Simplification::Arithmetic),
        (Rewrite::Shapes, Simplification::Shapes),
    ];
    options.into_iter().filter(|(rewrite, _)| rewrites.allow(*rewrite)).map(|(_, kind)| kind).collect()
}

/// Returns the number of bytes by which a folded constant may exceed its inputs, or `None` if the options do
/// not limit it.
fn folded_bytes(config: &pb::ConfigProto) -> Option<usize> {
    let optimizer = config.graph_options.as_ref()?.optimizer_options.as_ref()?;
    usize::try_from(optimizer.max_folded_constant_in_bytes).ok().filter(|bytes| *bytes > 0)
}

/// Returns the nodes that rewrites must keep: the step's targets, and the `_Send` nodes of fetched tensors.
fn nodes_to_keep(graph: &Graph, targets: &[String]) -> Vec<NodeId> {
    let sends = graph.nodes().filter(|(_, n)| n.op.role() == Role::Send).map(|(id, _)| id);
    targets.iter().filter_map(|name| graph.find(name)).chain(sends).collect()
}
