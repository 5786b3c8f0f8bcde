//! Tests of the rewrites that a worker applies to a registered graph, as far as the session's options allow
//! them.

use crate::cluster::*;
use graph::{Graph, Tensor};
use proto::link::RegisterGraph;
use proto::pb::rewriter_config::Toggle;
use proto::pb::{ConfigProto, GraphOptions, RewriterConfig};

/// Registers a chain of two elementwise nodes and runs it. Returns whether the worker has fused the chain.
async fn is_fused_with(change: impl Fn(&mut RegisterGraph)) -> Test<bool> {
    let tasks = cluster(1, |_| {})?;
    let session = Session::remote(&tasks).await?;
    let graph = Graph::from_text(
        "p = Placeholder[dtype=float, shape=<*>] @\"/job:w/replica:0/task:0/device:CPU:0\"\n\
         a = Neg[T=float](p) @\"/job:w/replica:0/task:0/device:CPU:0\"\n\
         b = Square[T=float](a) @\"/job:w/replica:0/task:0/device:CPU:0\"\n",
    )?;
    let registered = session.register_as(&graph, &["p"], &["b"], &[], change).await?;
    let task = tasks[0].worker.task();
    let feeds = [("p:0", Tensor::vector(&[1.0f32, -3.0])?)];
    let mut run = session.part(&registered, task, 1, &feeds, &["b:0"]);
    run.options.record_partition_graphs = true;
    let outcome = session.links[task].run_graph(run).await?;
    assert_eq!(outcome.recv[0].1, Tensor::vector(&[1.0f32, 9.0])?);
    let nodes = || outcome.partition_graphs.iter().flat_map(|graph| &graph.node);
    let has = |op: &str| nodes().any(|node| node.op == op);
    assert_ne!(has("_FusedElementwise"), has("Square"), "either is there");
    Ok(has("_FusedElementwise"))
}

fn options(change: impl Fn(&mut RewriterConfig)) -> GraphOptions {
    let mut rewrite_options = RewriterConfig::default();
    change(&mut rewrite_options);
    GraphOptions { rewrite_options: Some(rewrite_options), ..GraphOptions::default() }
}

fn config(change: impl Fn(&mut RewriterConfig)) -> Option<ConfigProto> {
    Some(ConfigProto { graph_options: Some(options(change)), ..ConfigProto::default() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chains_are_fused_unless_the_options_disable_it() -> Test {
    let off = |rewriter: &mut RewriterConfig| rewriter.remapping = Toggle::Off as i32;
    assert!(is_fused_with(|_| {}).await?);
    assert!(!is_fused_with(|part| part.config = config(off)).await?);
    // TensorFlow's masters send the field `graph_options` and not `config`.
    assert!(!is_fused_with(|part| part.graph_options = Some(options(off))).await?);
    // A request's `config` takes precedence over its `graph_options`.
    assert!(
        is_fused_with(|part| (part.config, part.graph_options) = (config(|_| {}), Some(options(off))))
            .await?
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn graphs_below_min_graph_nodes_are_not_fused() -> Test {
    // The graph has four nodes: the placeholder's Recv node, `Neg`, `Square` and the Send node of the fetch.
    for (least, is_fused) in [(3, true), (100, false), (-1, true)] {
        let found =
            is_fused_with(|part| part.config = config(|rewriter| rewriter.min_graph_nodes = least)).await?;
        assert_eq!(found, is_fused, "at least {least}");
    }
    Ok(())
}
