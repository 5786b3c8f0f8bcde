//! Decoding of graphs from the bytes of GraphDefs.

use super::{AttrCache, merge_versions, read_versions};
use crate::convert::Budget;
use crate::convert::function::library_from_proto;
use crate::convert::message::{Field, Fields, Malformed};
use crate::pb;
use bytes::Bytes;
use graph::{Attrs, Error, Graph, Importer, Result, ops};
use prost::Message;
use smallvec::SmallVec;
use std::sync::Arc;

/// Decodes a graph from the bytes of its GraphDef.
///
/// # Errors
/// The errors of [`extend_graph`].
pub fn graph_from_bytes(def: Bytes, budget: &mut Budget) -> Result<Graph> {
    read(Graph::new(), def, budget)?.finish()
}

/// Converts a GraphDef.
///
/// # Errors
/// The errors of [`extend_graph`].
pub fn graph_from_proto(def: pb::GraphDef, budget: &mut Budget) -> Result<Graph> {
    graph_from_bytes(def.encode_to_vec().into(), budget)
}

/// Adds the nodes of a GraphDef, which may name nodes of `graph` as inputs, and its functions. Nodes that cannot run
/// because an op is missing are left out, and named by [`Graph::unavailable`].
///
/// # Errors
/// `InvalidArgument` for bytes that are not a GraphDef,
/// duplicate names, inputs that do not exist or do not match, malformed attributes, cycles, and versions that
/// this process cannot read or that differ from those of a non-empty `graph`; `ResourceExhausted` for values
/// that exceed the budget.
pub fn extend_graph(graph: Graph, def: Bytes, budget: &mut Budget) -> Result<Graph> {
    read(graph, def, budget)?.finish_available()
}

/// A graph that was read from a GraphDef, whose nodes are not connected yet.
struct ReadGraph {
    importer: Importer,
    versions: graph::Versions,
    /// Fields of the GraphDef that this project does not interpret.
    rest: Vec<u8>,
}

impl ReadGraph {
    fn finish(self) -> Result<Graph> {
        let graph = self.importer.finish()?;
        Ok(with_rest(graph, self.versions, &self.rest))
    }

    fn finish_available(self) -> Result<Graph> {
        let graph = self.importer.finish_available()?;
        Ok(with_rest(graph, self.versions, &self.rest))
    }
}

fn read(graph: Graph, def: Bytes, budget: &mut Budget) -> Result<ReadGraph> {
    let parts =
        GraphDefParts::read(&def).map_err(|e| Error::invalid(format!("the GraphDef cannot be read: {e}")))?;
    let versions = read_versions(parts.versions)?;
    let mut graph = graph;
    let versions = match graph.is_empty() {
        true => versions,
        false => merge_versions(&graph.versions, versions)?,
    };
    if graph.is_empty() {
        let mut sized = Graph::with_capacity(parts.nodes.len(), 2 * parts.nodes.len());
        (sized.library, sized.opaque) = (graph.library, graph.opaque);
        graph = sized;
    }
    if let Some(library) = parts.library {
        library_from_proto(Arc::make_mut(&mut graph.library), library, budget)?;
    }
    let mut reading =
        GraphReader { def: &def, importer: Importer::new(graph), budget, cache: AttrCache::default() };
    for node in parts.nodes {
        reading.add(node)?;
    }
    Ok(ReadGraph { importer: reading.importer, versions, rest: parts.rest.encode_to_vec() })
}

/// Sets the versions of a graph, and adds fields that this project does not interpret to those of earlier GraphDefs:
/// decoding merges concatenated messages.
fn with_rest(mut graph: Graph, versions: graph::Versions, rest: &[u8]) -> Graph {
    graph.versions = versions;
    if !rest.is_empty() {
        graph.opaque = [&graph.opaque[..], rest].concat().into();
    }
    graph
}

/// A GraphDef whose nodes are not decoded yet.
#[derive(Default)]
struct GraphDefParts<'a> {
    nodes: Vec<&'a [u8]>,
    library: Option<pb::FunctionDefLibrary>,
    versions: pb::VersionDef,
    /// Fields that this project does not interpret.
    rest: pb::GraphDef,
}

impl GraphDefParts<'_> {
    fn read(def: &Bytes) -> Result<GraphDefParts<'_>, Malformed> {
        let mut parts = GraphDefParts::default();
        for field in Fields::of(def) {
            let field = field?;
            match field.number {
                1 => parts.nodes.push(field.as_bytes()?),
                // Bytes of constants in functions share the GraphDef's buffer, because they may be large.
                2 => parts.library.get_or_insert_default().merge(def.slice_ref(field.as_bytes()?))?,
                4 => parts.versions.merge(field.as_bytes()?)?,
                3 | 5 => parts.rest.merge(field.bytes)?,
                _ => {}
            }
        }
        Ok(parts)
    }
}

/// A NodeDef whose attributes are not decoded yet.
#[derive(Default)]
struct NodeDef<'a> {
    name: &'a str,
    op: &'a str,
    device: &'a str,
    inputs: SmallVec<[&'a str; 4]>,
    attrs: SmallVec<[Field<'a>; 8]>,
    /// Serialised fields that this project does not interpret.
    rest: Vec<u8>,
}

impl NodeDef<'_> {
    fn read(bytes: &[u8]) -> Result<NodeDef<'_>, Malformed> {
        let mut node = NodeDef::default();
        for field in Fields::of(bytes) {
            let field = field?;
            match field.number {
                1 => node.name = field.as_text()?,
                2 => node.op = field.as_text()?,
                3 => node.inputs.push(field.as_text()?),
                4 => node.device = field.as_text()?,
                5 => node.attrs.push(field),
                6 | 7 => node.rest.extend_from_slice(field.bytes),
                _ => {}
            }
        }
        Ok(node)
    }
}

/// Splits an entry of the attribute map into the name and the encoded value.
fn attr<'a>(entry: &Field<'a>) -> Result<(&'a str, &'a [u8]), Malformed> {
    let (mut name, mut value) = ("", &[][..]);
    for field in Fields::of(entry.as_bytes()?) {
        let field = field?;
        match field.number {
            1 => name = field.as_text()?,
            2 => value = field.as_bytes()?,
            _ => {}
        }
    }
    Ok((name, value))
}

/// The state of decoding one GraphDef.
struct GraphReader<'a> {
    def: &'a Bytes,
    importer: Importer,
    budget: &'a mut Budget,
    cache: AttrCache,
}

impl GraphReader<'_> {
    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        let NodeDef { name, op, device, inputs, attrs, mut rest } =
            NodeDef::read(bytes).map_err(|e| unreadable("", e))?;
        check_name(name)?;
        // An op that is not in the op table may be a function of the graph; if it is none, the node is unavailable.
        let row = ops::lookup(op);
        let attrs = match row.and_then(|row| self.cache.cached(row, &attrs)) {
            Some(cached) => cached,
            None => {
                let left = rest.len();
                let read = self.attrs(name, row, &attrs, &mut rest).map_err(|e| e.at_node(name))?;
                match row {
                    Some(row) => self.cache.put(row, &attrs, rest.len() == left, read),
                    None => read,
                }
            }
        };
        let added = self.importer.add_if_known(name, op, device, attrs, inputs)?;
        if let Some(id) = added.filter(|_| !rest.is_empty()) {
            let rest = pb::NodeDef::decode(&rest[..]).map_err(|e| unreadable(name, e.into()))?;
            self.importer.node_mut(id).opaque = Some(rest.encode_to_vec().into());
        }
        Ok(())
    }

    /// Decodes the attributes of a node. Attributes that cannot be decoded and that the op does not have are
    /// appended to `left`.
    fn attrs(
        &mut self,
        node: &str,
        row: Option<&'static graph::Op>,
        entries: &[Field<'_>],
        left: &mut Vec<u8>,
    ) -> Result<Attrs> {
        let mut attrs = Vec::with_capacity(entries.len());
        for entry in entries {
            let (key, value) = attr(entry).map_err(|e| unreadable(node, e))?;
            let value = pb::AttrValue::decode(self.def.slice_ref(value));
            let value = value.map_err(|e| unreadable(node, e.into()))?;
            let is_known = row.is_some_and(|row| row.attr_spec(key).is_some());
            match self.cache.attr(key, value, is_known, self.budget)? {
                Ok(attr) => attrs.push(attr),
                Err(_) => left.extend_from_slice(entry.bytes),
            }
        }
        Ok(attrs.into_iter().collect())
    }
}

fn unreadable(name: &str, error: Malformed) -> Error {
    Error::invalid(format!("the NodeDef '{name}' cannot be read: {error}"))
}

/// Fails if a node name has characters that TensorFlow allows neither in its users' node names nor in the
/// names of nodes that it adds itself.
fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_');
    let is_valid = |c: u8| is_plain(c) || matches!(c, b'-' | b'/' | b'>');
    // An empty name passes this check, because the importer reports it with more detail.
    if name.bytes().next().is_none_or(is_plain) && name.bytes().all(is_valid) {
        return Ok(());
    }
    Err(Error::invalid(format!("Node '{name}': Node name contains invalid characters")))
}
