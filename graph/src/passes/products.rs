//! Fusion of matrix products: a bias and an activation become part of the product's node, whose kernel applies both
//! while it writes the elements.

use super::fusion::{FusedNode, Fusion, Fusions, apply_fusions, control_inputs_of};
use super::reference_reads::ReferenceReads;
use crate::attr::{AttrList, AttrValue};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId};
use crate::node::Node;
use crate::ops::bias::data_format;
use crate::ops::window::DataFormat;
use crate::ops::{self, Op};
use crate::topology::Topology;

/// The activation ops that may follow a bias.
const ACTIVATIONS: &[&str] = &["Relu", "Relu6", "Elu", "Selu", "Tanh", "Sigmoid", "LeakyRelu"];

/// Replaces a `MatMul`, the `BiasAdd` that is its only reader, and the activation that is the only reader of the
/// `BiasAdd` (if there is one) by one `_FusedMatMul`.
///
/// All nodes of a group are on one device and have one element type, and `takes` must accept the fused node; if `takes`
/// accepts only the node without the activation, the activation stays separate. The fused node has the name of the
/// group's last node, whose value is the only one visible outside, and all control inputs of the group. A node that may
/// read a reference is fused only if fusion does not delay the read.
///
/// # Errors
/// `InvalidArgument` naming a node of a cycle that is not a loop; `Unimplemented` if the op table has no
/// `_FusedMatMul`.
pub fn fuse_products(graph: Graph, takes: &dyn Fn(&Node) -> bool) -> Result<Graph> {
    let Some(fused) = ops::lookup("_FusedMatMul") else {
        return Err(Error::unimplemented("fusion of products needs the op _FusedMatMul"));
    };
    if !graph.nodes().any(|(_, node)| is_product(node)) {
        return Ok(graph);
    }
    let topology = Topology::new(&graph);
    let reads = ReferenceReads::new(&graph, &topology, &topology.order(&graph)?)?;
    let mut fusions = Fusions::default();
    for (product, _) in graph.nodes().filter(|(_, node)| is_product(node)) {
        let members = group_of(&graph, &topology, product)?;
        // The group with the activation is tried before the group without the activation.
        for len in (2..=members.len()).rev() {
            let members = &members[..len];
            let node = fused_node(&graph, members, fused)?;
            let would_read_later = |id: &NodeId| reads.would_read_later(*id, members);
            let (last, inner) = members.split_last().unwrap_or((&product, &[]));
            if has_type(fused, &node) && takes(&node) && !inner.iter().any(would_read_later) {
                let inputs = inputs(&topology, members);
                let control = control_inputs_of(&topology, members);
                fusions.extend(inner.iter().map(|id| (*id, Fusion::PartOf(*last))));
                fusions.insert(*last, Fusion::Node(FusedNode { node, inputs, control }));
                break;
            }
        }
    }
    match fusions.is_empty() {
        true => Ok(graph),
        false => apply_fusions(&graph, &topology, &fusions),
    }
}

fn is_product(node: &Node) -> bool {
    node.op.name() == "MatMul"
}

/// Returns the nodes of a group: the product, followed by the bias and the activation if they are present.
fn group_of(graph: &Graph, topology: &Topology, product: NodeId) -> Result<Vec<NodeId>> {
    let mut members = vec![product];
    if let Some(bias) = follower(graph, topology, product, &["BiasAdd"])?
        && data_format(graph.node(bias))? == DataFormat::Nhwc
    {
        members.push(bias);
        members.extend(follower(graph, topology, bias, ACTIVATIONS)?);
    }
    Ok(members)
}

/// Returns the only consumer of the node, if it reads the node as its first input, has one of the ops `ops`, and has
/// the node's device and element type.
fn follower(graph: &Graph, topology: &Topology, id: NodeId, ops: &[&str]) -> Result<Option<NodeId>> {
    let [only] = topology.consumers(id) else { return Ok(None) };
    let (node, reader) = (graph.node(id), graph.node(only.node));
    let is_one = !only.is_control() && only.input == 0 && ops.contains(&reader.op.name());
    let fits = is_one && reader.device == node.device;
    Ok((fits && reader.attr::<DType>("T")? == node.attr::<DType>("T")?).then_some(only.node))
}

/// Returns the outputs that the fused node reads: the product's two factors and the bias.
fn inputs(topology: &Topology, members: &[NodeId]) -> Vec<crate::graph::Output> {
    let read = members.iter().flat_map(|id| topology.producers(*id)).filter(|p| !p.is_control());
    read.filter(|p| !members.contains(&p.node)).map(|p| p.source()).collect()
}

/// Returns whether the fused op accepts the element type of `node`.
fn has_type(fused: &Op, node: &Node) -> bool {
    let spec = fused.attrs.iter().find(|spec| spec.name == "T");
    spec.zip(node.attrs.get("T")).is_some_and(|(spec, dtype)| spec.check(dtype).is_ok())
}

/// Returns the fused node that replaces the members, without its edges.
fn fused_node(graph: &Graph, members: &[NodeId], fused: &'static Op) -> Result<Node> {
    let product = graph.node(members[0]);
    let last = graph.node(members[members.len() - 1]);
    let names = members[1..].iter().map(|id| graph.node(*id).op.name());
    let names = names.map(|name| bytes::Bytes::from_static(name.as_bytes())).collect();
    let mut node = Node::new(last.name.clone(), fused)
        .with_attr("T", product.attr::<DType>("T")?)
        .with_attr("transpose_a", product.attr::<bool>("transpose_a")?)
        .with_attr("transpose_b", product.attr::<bool>("transpose_b")?)
        .with_attr("num_args", 1i64)
        .with_attr("fused_ops", AttrValue::List(AttrList::Str(names)));
    if last.op.name() == "LeakyRelu" {
        node = node.with_attr("leakyrelu_alpha", last.attr::<f32>("alpha")?);
    }
    Ok(Node { device: last.device.clone(), ..node })
}
