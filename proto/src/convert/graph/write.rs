//! Encoding of graphs as the bytes of GraphDefs.

use super::{DefaultAttrs, unreadable};
use crate::convert::attr::attr_to_proto;
use crate::convert::function::library_to_proto;
use crate::convert::message::{put_bytes, put_length, put_number};
use crate::pb;
use bytes::Bytes;
use graph::{AttrValue, Attrs, Graph, Node, NodeId, Result, Topology, Versions};
use prost::Message;
use prost::encoding::encoded_len_varint;
use rustc_hash::FxHashMap;

/// Encodes the graph as a GraphDef, with nodes in their order.
///
/// # Errors
/// `Internal` if the opaque bytes of the graph or of its functions are not the expected messages.
pub fn graph_to_bytes(graph: &Graph, defaults: DefaultAttrs) -> Result<Bytes> {
    let mut rest = pb::GraphDef::decode(graph.opaque.clone()).map_err(|e| unreadable("graph", e))?;
    if !graph.library.is_empty() {
        rest.library = Some(library_to_proto(&graph.library)?);
    }
    if graph.versions != Versions::default() {
        rest.versions = Some(versions_to_proto(&graph.versions));
    }
    Ok(GraphWriter::new(graph, defaults).nodes_from(0, &rest))
}

/// Converts the graph to a GraphDef, with nodes in their order.
///
/// # Errors
/// The errors of [`graph_to_bytes`].
pub fn graph_to_proto(graph: &Graph, defaults: DefaultAttrs) -> Result<pb::GraphDef> {
    pb::GraphDef::decode(graph_to_bytes(graph, defaults)?).map_err(|e| unreadable("graph", e))
}

/// Encodes the nodes from `first` on as a GraphDef that extends a graph with the nodes before `first`.
pub fn new_nodes_to_bytes(graph: &Graph, first: usize) -> Bytes {
    let rest = pb::GraphDef { versions: Some(versions_to_proto(&graph.versions)), ..Default::default() };
    GraphWriter::new(graph, DefaultAttrs::Keep).nodes_from(first, &rest)
}

fn versions_to_proto(versions: &Versions) -> pb::VersionDef {
    let Versions { producer, min_consumer, bad_consumers } = versions.clone();
    pb::VersionDef { producer, min_consumer, bad_consumers }
}

/// The state of encoding one graph.
struct GraphWriter<'a> {
    graph: &'a Graph,
    topology: Topology,
    defaults: DefaultAttrs,
    /// For each op, the attributes encoded last and their bytes, because neighbouring nodes often share their
    /// attributes.
    last: FxHashMap<usize, (Attrs, Vec<u8>)>,
}

impl<'a> GraphWriter<'a> {
    fn new(graph: &'a Graph, defaults: DefaultAttrs) -> GraphWriter<'a> {
        GraphWriter { graph, topology: Topology::new(graph), defaults, last: FxHashMap::default() }
    }

    /// Encodes the nodes from `first` on, followed by the fields of `rest`.
    fn nodes_from(mut self, first: usize, rest: &pb::GraphDef) -> Bytes {
        // A node with two inputs takes about 128 bytes.
        let mut out = Vec::with_capacity((self.graph.len() - first.min(self.graph.len())) * 128);
        let mut node = Vec::new();
        for id in (first..self.graph.len()).map(NodeId::new) {
            node.clear();
            self.node(id, &mut node);
            put_bytes(1, &node, &mut out);
        }
        out.extend_from_slice(&rest.encode_to_vec());
        out.into()
    }

    fn node(&mut self, id: NodeId, out: &mut Vec<u8>) {
        let node = self.graph.node(id);
        put_bytes(1, node.name.as_bytes(), out);
        put_bytes(2, node.op.name().as_bytes(), out);
        for producer in self.topology.producers(id) {
            let source = self.graph.node(producer.node).name.as_bytes();
            match producer.output {
                0 => put_bytes(3, source, out),
                graph::CONTROL => {
                    put_length(3, 1 + source.len(), out);
                    out.push(b'^');
                    out.extend_from_slice(source);
                }
                port => put_bytes(3, &[source, b":", port.to_string().as_bytes()].concat(), out),
            }
        }
        if !node.device.is_empty() {
            put_bytes(4, node.device.as_bytes(), out);
        }
        // Opaque fields come first, so that a decoded attribute overrides an opaque attribute of the same
        // name.
        if let Some(opaque) = &node.opaque {
            out.extend_from_slice(opaque);
        }
        if let Some((attrs, bytes)) = self.last.get(&node.op.index)
            && attrs.is_same(&node.attrs)
        {
            return out.extend_from_slice(bytes);
        }
        let start = out.len();
        for (name, value) in node.attrs.iter() {
            if self.defaults == DefaultAttrs::Keep || !is_default(node, name, value) {
                put_attr(name, value, out);
            }
        }
        let (attrs, bytes) = self.last.entry(node.op.index).or_default();
        *attrs = node.attrs.clone();
        bytes.clear();
        bytes.extend_from_slice(&out[start..]);
    }
}

fn is_default(node: &Node, name: &str, value: &AttrValue) -> bool {
    node.op.attr_spec(name).and_then(|spec| spec.default.as_ref()) == Some(value)
}

/// Appends an entry of the attribute map.
fn put_attr(name: &str, value: &AttrValue, out: &mut Vec<u8>) {
    let field = |len: usize| 1 + encoded_len_varint(len as u64) + len;
    let mut entry = |len: usize| {
        put_length(5, field(name.len()) + field(len), out);
        put_bytes(1, name.as_bytes(), out);
        put_length(2, len, out);
    };
    // The most common kinds of values are encoded directly, and all other values through their message.
    match value {
        AttrValue::Str(text) => {
            entry(field(text.len()));
            put_bytes(2, text, out);
        }
        AttrValue::Int(number) => {
            entry(1 + encoded_len_varint(*number as u64));
            put_number(3, *number as u64, out);
        }
        AttrValue::Bool(flag) => {
            entry(2);
            put_number(5, u64::from(*flag), out);
        }
        AttrValue::Type(dtype) => {
            let number = dtype.number() as u64;
            entry(1 + encoded_len_varint(number));
            put_number(6, number, out);
        }
        other => {
            let message = attr_to_proto(other).encode_to_vec();
            entry(message.len());
            out.extend_from_slice(&message);
        }
    }
}
