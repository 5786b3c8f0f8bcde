//! Graphs from the bytes of GraphDefs.

use super::{Sharing, merge_versions, read_versions};
use crate::convert::Budget;
use crate::convert::function::library_from_proto;
use crate::convert::message::{Field, Fields, Malformed};
use crate::pb;
use bytes::Bytes;
use graph::{Attrs, Error, Graph, Importer, Result, ops};
use prost::Message;
use smallvec::SmallVec;
use std::sync::Arc;

/// Reads a whole graph from the bytes of its GraphDef.
///
/// # Errors
/// As [`extend_graph`].
pub fn graph_from_bytes(def: Bytes, budget: &mut Budget) -> Result<Graph> {
    extend_graph(Graph::new(), def, budget)
}

/// Reads a whole graph.
///
/// # Errors
/// As [`extend_graph`].
pub fn graph_from_proto(def: pb::GraphDef, budget: &mut Budget) -> Result<Graph> {
    graph_from_bytes(def.encode_to_vec().into(), budget)
}

/// Adds the nodes of a GraphDef, which may name nodes of `graph`, and its functions.
///
/// # Errors
/// `NotFound` naming op and node for an op that is not there; `InvalidArgument` for bytes that are no GraphDef, names
/// that are taken, inputs that do not exist or do not fit, attributes that are malformed, cycles, and versions that
/// this process cannot read or that differ from those of a non-empty `graph`; `ResourceExhausted` for values that go
/// beyond the budget.
pub fn extend_graph(graph: Graph, def: Bytes, budget: &mut Budget) -> Result<Graph> {
    let parts = Parts::read(&def).map_err(|e| Error::invalid(format!("the GraphDef cannot be read: {e}")))?;
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
        Reading { def: &def, importer: Importer::new(graph), budget, sharing: Sharing::default() };
    for node in parts.nodes {
        reading.add(node)?;
    }
    let mut graph = reading.importer.finish()?;
    graph.versions = versions;
    // Serialised messages, one after the other, are merged.
    let rest = parts.rest.encode_to_vec();
    if !rest.is_empty() {
        graph.opaque = [&graph.opaque[..], &rest].concat().into();
    }
    Ok(graph)
}

/// A GraphDef, its nodes unread.
#[derive(Default)]
struct Parts<'a> {
    nodes: Vec<&'a [u8]>,
    library: Option<pb::FunctionDefLibrary>,
    versions: pb::VersionDef,
    /// What means nothing here.
    rest: pb::GraphDef,
}

impl Parts<'_> {
    fn read(def: &Bytes) -> Result<Parts<'_>, Malformed> {
        let mut parts = Parts::default();
        for field in Fields::of(def) {
            let field = field?;
            match field.number {
                1 => parts.nodes.push(field.as_bytes()?),
                // Shared with the whole: constants in functions may be large.
                2 => parts.library.get_or_insert_default().merge(def.slice_ref(field.as_bytes()?))?,
                4 => parts.versions.merge(field.as_bytes()?)?,
                3 | 5 => parts.rest.merge(field.bytes)?,
                _ => {}
            }
        }
        Ok(parts)
    }
}

/// A NodeDef, its attributes unread.
#[derive(Default)]
struct NodeDef<'a> {
    name: &'a str,
    op: &'a str,
    device: &'a str,
    inputs: SmallVec<[&'a str; 4]>,
    attrs: SmallVec<[Field<'a>; 8]>,
    /// Fields that mean nothing here, serialised.
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

/// One attribute: its name and its value, unread.
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

struct Reading<'a> {
    def: &'a Bytes,
    importer: Importer,
    budget: &'a mut Budget,
    sharing: Sharing,
}

impl Reading<'_> {
    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        let NodeDef { name, op, device, inputs, attrs, mut rest } =
            NodeDef::read(bytes).map_err(|e| unreadable("", e))?;
        check_name(name)?;
        // An op without a row may be a function, or else is refused below.
        let row = ops::lookup(op);
        let attrs = match row.and_then(|row| self.sharing.seen(row, &attrs)) {
            Some(seen) => seen,
            None => {
                let left = rest.len();
                let read = self.attrs(name, row, &attrs, &mut rest).map_err(|e| e.at_node(name))?;
                match row {
                    Some(row) => self.sharing.see(row, &attrs, rest.len() == left, read),
                    None => read,
                }
            }
        };
        let id = self.importer.add(name, op, device, attrs, inputs)?;
        if !rest.is_empty() {
            let rest = pb::NodeDef::decode(&rest[..]).map_err(|e| unreadable(name, e.into()))?;
            self.importer.node_mut(id).opaque = Some(rest.encode_to_vec().into());
        }
        Ok(())
    }

    /// The attributes; those that cannot be read and are not known to the op, so that nobody looks at them, are added
    /// to `left`.
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
            match self.sharing.attr(key, value, is_known, self.budget)? {
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

/// The characters that the peer allows in names, those of nodes that it adds itself included.
fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_');
    let is_valid = |c: u8| is_plain(c) || matches!(c, b'-' | b'/' | b'>');
    // Importing says more of an empty one.
    if name.bytes().next().is_none_or(is_plain) && name.bytes().all(is_valid) {
        return Ok(());
    }
    Err(Error::invalid(format!("Node '{name}': Node name contains invalid characters")))
}
