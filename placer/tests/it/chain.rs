//! Tests that every pass handles a chain of a million nodes, so none recurses over a graph's depth.

use crate::support::{Result, TestKernels, devices};
use anabranch_placer::{Names, PartitionOptions, PlaceRequest, Split, partition, place, rewrite_for_run};
use graph::{DType, Edge, Graph, Node, NodeId, ops};
use std::sync::Arc;

#[test]
fn a_chain_of_a_million_nodes() -> Result<()> {
    const LENGTH: usize = 1_000_000;
    const STRETCH: usize = 1000;
    let (source, link) = (ops::lookup("Placeholder").ok_or("op")?, ops::lookup("Identity").ok_or("op")?);
    let first = Node::new("n0", source).with_attr("dtype", DType::Float);
    let attrs = Node::new("", link).with_attr("T", DType::Float).attrs;
    let texts: [Arc<str>; 2] = ["/task:0".into(), "/task:1".into()];
    let mut nodes = vec![first];
    for i in 1..LENGTH {
        let mut node = Node::new(format!("n{i}"), link);
        node.attrs = attrs.clone();
        node.device = texts[i / STRETCH % 2].clone();
        nodes.push(node);
    }
    let edges = (1..LENGTH).map(|i| Edge::data(NodeId::new(i - 1).into(), NodeId::new(i), 0));
    let mut graph = Graph::assemble(nodes, edges)?;
    let set = devices(&["w:0/CPU:0", "w:1/CPU:0"])?.with_local(graph::TaskName::new("w", 0));
    let kernels = TestKernels::default();
    let request =
        PlaceRequest { devices: &set, kernels: &kernels, allow_soft_placement: false, assigned: &[] };
    let placement = place(&graph, &request)?;
    placement.apply(&mut graph);
    let last = format!("n{}", LENGTH - 1);
    let run = rewrite_for_run(&graph, &["n0"], &[&*last], &["n5"], &set, 0)?;
    assert_eq!(run.len(), LENGTH + 1);
    let names = Names::master();
    let options = PartitionOptions { devices: &set, split: Split::Task, names: &names };
    let parts = partition(&run, &anabranch_placer::placed_devices(&run, &set)?, &options)?;
    let sizes: Vec<usize> = parts.iter().map(|p| p.graph.len()).collect();
    // The task changes every `STRETCH` nodes, which adds a Send and a Recv; the fetch is sent back to the
    // first task.
    assert_eq!(sizes.iter().sum::<usize>(), LENGTH + 1 + 2 * (LENGTH / STRETCH - 1) + 2);
    Ok(())
}
