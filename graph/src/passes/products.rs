//! Products and what follows them: a bias and an activation become part of the product's node, whose kernel has the
//! elements at hand when it writes them.

use super::join::{Becomes, Joined, Joins, control_of, join};
use super::waits::Waits;
use crate::attr::{AttrList, AttrValue};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId};
use crate::node::Node;
use crate::ops::bias::data_format;
use crate::ops::window::DataFormat;
use crate::ops::{self, Op};
use crate::topology::Topology;

/// What may follow a bias.
const ACTIVATIONS: &[&str] = &["Relu", "Relu6", "Elu", "Selu", "Tanh", "Sigmoid", "LeakyRelu"];

/// Puts one node of `_FusedMatMul` in the place of a `MatMul`, of the `BiasAdd` that alone reads it, and of the
/// activation that alone reads that, if there is one: all on one device, of one element type, where `takes` says of that
/// node that it is welcome; without the activation where it is not so otherwise. It has the name of the last, whose
/// value is the only one that anybody else could see, and runs after whatever any of them ran after. What may read a
/// reference joins only where it does not come to read it later than before.
///
/// # Errors
/// `InvalidArgument` naming a node of a cycle that is no loop.
pub fn fuse_products(graph: Graph, takes: &dyn Fn(&Node) -> bool) -> Result<Graph> {
    let Some(fused) = ops::lookup("_FusedMatMul") else {
        return Err(Error::unimplemented("fusion of products needs the op _FusedMatMul"));
    };
    if !graph.nodes().any(|(_, node)| is_product(node)) {
        return Ok(graph);
    }
    let topology = Topology::new(&graph);
    let waits = Waits::new(&graph, &topology, &topology.order(&graph)?)?;
    let mut joins = Joins::default();
    for (product, _) in graph.nodes().filter(|(_, node)| is_product(node)) {
        let members = followed(&graph, &topology, product)?;
        // As many as are welcome.
        for len in (2..=members.len()).rev() {
            let members = &members[..len];
            let node = node(&graph, members, fused)?;
            let would_read_later = |id: &NodeId| waits.would_read_later(*id, members);
            let (last, inner) = members.split_last().unwrap_or((&product, &[]));
            if has_type(fused, &node) && takes(&node) && !inner.iter().any(would_read_later) {
                let inputs = inputs(&topology, members);
                let control = control_of(&topology, members);
                joins.extend(inner.iter().map(|id| (*id, Becomes::PartOf(*last))));
                joins.insert(*last, Becomes::One(Joined { node, inputs, control }));
                break;
            }
        }
    }
    match joins.is_empty() {
        true => Ok(graph),
        false => join(&graph, &topology, &joins),
    }
}

fn is_product(node: &Node) -> bool {
    node.op.name() == "MatMul"
}

/// The product, the bias and the activation, as far as they are there.
fn followed(graph: &Graph, topology: &Topology, product: NodeId) -> Result<Vec<NodeId>> {
    let mut members = vec![product];
    if let Some(bias) = follower(graph, topology, product, &["BiasAdd"])?
        && data_format(graph.node(bias))? == DataFormat::Nhwc
    {
        members.push(bias);
        members.extend(follower(graph, topology, bias, ACTIVATIONS)?);
    }
    Ok(members)
}

/// Who alone needs the node, and as his first input, if he is one of these ops on the same device.
fn follower(graph: &Graph, topology: &Topology, id: NodeId, ops: &[&str]) -> Result<Option<NodeId>> {
    let [only] = topology.consumers(id) else { return Ok(None) };
    let (node, reader) = (graph.node(id), graph.node(only.node));
    let is_one = !only.is_control() && only.input == 0 && ops.contains(&reader.op.name());
    let fits = is_one && reader.device == node.device;
    Ok((fits && reader.attr::<DType>("T")? == node.attr::<DType>("T")?).then_some(only.node))
}

/// Factors and bias.
fn inputs(topology: &Topology, members: &[NodeId]) -> Vec<crate::graph::Output> {
    let read = members.iter().flat_map(|id| topology.producers(*id)).filter(|p| !p.is_control());
    read.filter(|p| !members.contains(&p.node)).map(|p| p.source()).collect()
}

/// Whether the op is for elements of the node's type.
fn has_type(fused: &Op, node: &Node) -> bool {
    let spec = fused.attrs.iter().find(|spec| spec.name == "T");
    spec.zip(node.attrs.get("T")).is_some_and(|(spec, dtype)| spec.check(dtype).is_ok())
}

fn node(graph: &Graph, members: &[NodeId], fused: &'static Op) -> Result<Node> {
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
