//! Rewrites of a step's graph before it is split, as far as the session's options allow them.

use graph::ops::Evaluate;
use graph::passes::{
    FoldOptions, Simplification, SimplifyOptions, fold, merge, prune, simplify, unread, untie,
};
use graph::{Graph, NodeId, Role};
use proto::{Rewrite, Rewrites, Status, pb};

/// Graphs with fewer nodes are left alone, unless the options say otherwise.
const MIN_NODES: usize = 4;

/// Simplifies, folds constants, merges equal nodes, leaves out what nobody reads and loosens what is ordered for nothing.
/// What the client sees stays: feeds, fetches, targets. A rewrite that fails is left out: the graph runs as it was.
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
    let growth = folded_bytes(config).unwrap_or(FoldOptions::DEFAULT.growth);
    let kinds = simplifications(&rewrites);
    let mut graph = graph;
    for pass in PASSES.iter().filter(|pass| pass.needs.is_none_or(|rewrite| rewrites.allow(rewrite))) {
        let keep = kept(&graph, targets);
        let rewritten = match pass.make {
            Make::Simplify if kinds.is_empty() => continue,
            Make::Simplify => simplify(&graph, &SimplifyOptions { keep: &keep, kinds: &kinds }),
            Make::Fold => {
                fold(&graph, evaluator, &FoldOptions { keep: &keep, growth, ..FoldOptions::DEFAULT })
            }
            Make::Other(make) => make(&graph, &keep),
        };
        graph = match rewritten {
            Ok(rewritten) => rewritten,
            Err(error) if rewrites.fail_on_errors() => return Err(error.into()),
            Err(error) => {
                tracing::warn!("{} failed, the step runs without it: {error}", pass.name);
                graph
            }
        };
    }
    Ok(graph)
}

struct Pass {
    name: &'static str,
    /// What must be allowed for it.
    needs: Option<Rewrite>,
    make: Make,
}

enum Make {
    Simplify,
    Fold,
    Other(fn(&Graph, &[NodeId]) -> graph::Result<Graph>),
}

/// In their order. What is folded shows what else is simple, and what nobody reads any more holds nothing up.
const PASSES: &[Pass] = &[
    Pass { name: "simplification", needs: None, make: Make::Simplify },
    Pass { name: "constant folding", needs: Some(Rewrite::ConstantFolding), make: Make::Fold },
    Pass { name: "pruning", needs: Some(Rewrite::Pruning), make: Make::Other(prune) },
    Pass { name: "simplification", needs: None, make: Make::Simplify },
    Pass {
        name: "common subexpressions",
        needs: Some(Rewrite::CommonSubexpressions),
        make: Make::Other(merge),
    },
    Pass { name: "leaving out", needs: Some(Rewrite::Dependencies), make: Make::Other(unread) },
    Pass { name: "dependencies", needs: Some(Rewrite::Dependencies), make: Make::Other(untie) },
    Pass { name: "pruning", needs: Some(Rewrite::Pruning), make: Make::Other(prune) },
];

/// The rules that the options allow: those that TensorFlow has in other optimizers are switched with these.
fn simplifications(rewrites: &Rewrites) -> Vec<Simplification> {
    let by = [
        (Rewrite::Pruning, Simplification::PassingOn),
        (Rewrite::ConstantFolding, Simplification::Constants),
        (Rewrite::Arithmetic, Simplification::Arithmetic),
        (Rewrite::Shapes, Simplification::Shapes),
    ];
    by.into_iter().filter(|(rewrite, _)| rewrites.allow(*rewrite)).map(|(_, kind)| kind).collect()
}

/// By how many bytes the options let a folded constant exceed what it is made from, if they say so.
fn folded_bytes(config: &pb::ConfigProto) -> Option<usize> {
    let optimizer = config.graph_options.as_ref()?.optimizer_options.as_ref()?;
    usize::try_from(optimizer.max_folded_constant_in_bytes).ok().filter(|bytes| *bytes > 0)
}

/// What the step is for: its targets, and what goes to the client.
fn kept(graph: &Graph, targets: &[String]) -> Vec<NodeId> {
    let sends = graph.nodes().filter(|(_, n)| n.op.role() == Role::Send).map(|(id, _)| id);
    targets.iter().filter_map(|name| graph.find(name)).chain(sends).collect()
}
