//! Graphs. What a GraphDef says is kept, also what means nothing here: fields without a counterpart travel
//! along, serialised, in the `opaque` of the node or of the graph.

use super::attr::{attr_from_proto, attr_to_proto};
use super::budget::Budget;
use super::function::{library_from_proto, library_to_proto};
use crate::pb;
use graph::{
    AttrValue, Attrs, Code, Error, Graph, Importer, Node, NodeId, Op, Result, Topology, Versions, ops,
};
use prost::Message;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The newest version of graphs that can be read: that of the TensorFlow release which is followed.
pub const GRAPH_DEF_VERSION: i32 = 2474;

/// What becomes of attributes that are set to their op's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DefaultAttrs {
    /// They are written as they are set.
    #[default]
    Keep,
    /// They are left out: the reader has the same defaults, or an older op without the attribute.
    Strip,
}

/// Reads a whole graph.
///
/// # Errors
/// As [`extend_graph`].
pub fn graph_from_proto(def: pb::GraphDef, budget: &mut Budget) -> Result<Graph> {
    extend_graph(Graph::with_capacity(def.node.len(), 2 * def.node.len()), def, budget)
}

/// Adds the nodes of `def`, which may name nodes of `graph`, and its functions.
///
/// # Errors
/// `NotFound` naming op and node for an op that is not there; `InvalidArgument` for names that are taken,
/// inputs that do not exist or do not fit, attributes that are malformed, cycles, and versions that this
/// process cannot read or that differ from those of a non-empty `graph`; `ResourceExhausted` for values that
/// go beyond the budget.
pub fn extend_graph(graph: Graph, def: pb::GraphDef, budget: &mut Budget) -> Result<Graph> {
    let versions = read_versions(def.versions.unwrap_or_default())?;
    let versions = if graph.is_empty() { versions } else { merge_versions(&graph.versions, versions)? };
    let mut graph = graph;
    if let Some(library) = def.library {
        library_from_proto(Arc::make_mut(&mut graph.library), library, budget)?;
    }
    #[allow(deprecated)]
    let rest = pb::GraphDef { version: def.version, debug_info: def.debug_info, ..Default::default() };

    let mut importer = Importer::new(graph);
    let mut sharing = Sharing::default();
    for node in def.node {
        add_node(&mut importer, node, budget, &mut sharing)?;
    }
    let mut graph = importer.finish()?;
    graph.versions = versions;
    // Serialised messages, one after the other, are merged.
    let rest = rest.encode_to_vec();
    if !rest.is_empty() {
        graph.opaque = [&graph.opaque[..], &rest].concat().into();
    }
    Ok(graph)
}

/// Writes the graph, nodes in their order.
///
/// # Errors
/// `Internal` if the serialised parts that the graph carries are not those of a GraphDef.
pub fn graph_to_proto(graph: &Graph, defaults: DefaultAttrs) -> Result<pb::GraphDef> {
    let topology = Topology::new(graph);
    let node = graph.ids().map(|id| node_to_proto(graph, &topology, id, defaults)).collect::<Result<_>>()?;
    let mut def = pb::GraphDef::decode(graph.opaque.clone()).map_err(|e| unreadable("graph", e))?;
    def.node = node;
    if !graph.library.is_empty() {
        def.library = Some(library_to_proto(&graph.library)?);
    }
    if graph.versions != Versions::default() {
        let Versions { producer, min_consumer, bad_consumers } = graph.versions.clone();
        def.versions = Some(pb::VersionDef { producer, min_consumer, bad_consumers });
    }
    Ok(def)
}

/// Writes one node of the graph whose edges `topology` holds.
///
/// # Errors
/// `Internal` if the serialised part that the node carries is not that of a NodeDef.
pub fn node_to_proto(
    graph: &Graph,
    topology: &Topology,
    id: NodeId,
    defaults: DefaultAttrs,
) -> Result<pb::NodeDef> {
    let node = graph.node(id);
    let mut def = match &node.opaque {
        Some(opaque) => pb::NodeDef::decode(&opaque[..]).map_err(|e| unreadable(&node.name, e))?,
        None => pb::NodeDef::default(),
    };
    def.name = node.name.to_string();
    def.op = node.op.name().to_owned();
    def.device = node.device.to_string();
    let name_input = |p: &graph::Producer| {
        let source = &graph.node(p.node).name;
        match p.output {
            graph::CONTROL => format!("^{source}"),
            0 => source.to_string(),
            port => format!("{source}:{port}"),
        }
    };
    def.input = topology.producers(id).iter().map(name_input).collect();
    for (name, value) in node.attrs.iter() {
        if defaults == DefaultAttrs::Keep || !is_default(node, name, value) {
            def.attr.insert(name.to_string(), attr_to_proto(value));
        }
    }
    Ok(def)
}

fn is_default(node: &Node, name: &str, value: &AttrValue) -> bool {
    node.op.attr_spec(name).and_then(|spec| spec.default.as_ref()) == Some(value)
}

pub(super) fn unreadable(of: &str, error: prost::DecodeError) -> Error {
    Error::Invalid {
        code: Code::Internal,
        message: format!("what '{of}' carries for the wire cannot be read: {error}"),
    }
}

fn add_node(
    importer: &mut Importer,
    def: pb::NodeDef,
    budget: &mut Budget,
    sharing: &mut Sharing,
) -> Result<()> {
    let pb::NodeDef { name, op, input, device, attr, experimental_debug_info, experimental_type } = def;
    check_name(&name)?;
    // An op without a row may be a function, or else is refused below.
    let row = ops::lookup(&op);
    let (attrs, left) =
        attrs_from_proto(attr, budget, sharing, |key| row.is_some_and(|r| r.attr_spec(key).is_some()))
            .map_err(|e| e.at_node(&name))?;
    let attrs = match row {
        Some(row) => sharing.share(row, attrs),
        None => attrs,
    };
    let id = importer.add(&name, &op, &device, attrs, input)?;
    if experimental_debug_info.is_some() || experimental_type.is_some() || !left.is_empty() {
        let rest =
            pb::NodeDef { attr: left, experimental_debug_info, experimental_type, ..Default::default() };
        importer.node_mut(id).opaque = Some(rest.encode_to_vec().into());
    }
    Ok(())
}

/// The attributes, and what cannot be read among those that are not `known` to the op, which nobody looks at.
pub(super) fn attrs_from_proto(
    attr: BTreeMap<String, pb::AttrValue>,
    budget: &mut Budget,
    sharing: &mut Sharing,
    known: impl Fn(&str) -> bool,
) -> Result<(Attrs, BTreeMap<String, pb::AttrValue>)> {
    let mut left = BTreeMap::new();
    let mut attrs = Vec::with_capacity(attr.len());
    for (key, value) in attr {
        if !known(&key) && !is_readable(&value) {
            left.insert(key, value);
            continue;
        }
        let value = attr_from_proto(value, budget)
            .map_err(|e| Error::Invalid { code: e.code(), message: format!("{e}\n\t for attr '{key}'") })?;
        attrs.push((sharing.intern(key), value));
    }
    Ok((attrs.into_iter().collect(), left))
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

/// Whether the value is of a kind that has a counterpart: set, and no type that only the wire knows.
fn is_readable(value: &pb::AttrValue) -> bool {
    use pb::attr_value::Value;
    let known = |number: &i32| graph::DType::from_number(*number).is_some();
    match &value.value {
        None => false,
        Some(Value::Type(number)) => known(number),
        Some(Value::Tensor(tensor)) => known(&tensor.dtype) && tensor.dtype() != pb::DataType::DtVariant,
        Some(Value::List(list)) => {
            list.r#type.iter().all(known)
                && list.tensor.iter().all(|t| known(&t.dtype) && t.dtype() != pb::DataType::DtVariant)
        }
        Some(_) => true,
    }
}

/// Names and attributes that many nodes have in common.
#[derive(Default)]
pub(super) struct Sharing {
    names: FxHashSet<Arc<str>>,
    /// The attributes last seen with an op: neighbours often have the same.
    last: FxHashMap<usize, Attrs>,
}

impl Sharing {
    pub(super) fn intern(&mut self, name: String) -> Arc<str> {
        match self.names.get(&name[..]) {
            Some(shared) => shared.clone(),
            None => {
                let shared: Arc<str> = name.into();
                self.names.insert(shared.clone());
                shared
            }
        }
    }

    fn share(&mut self, op: &'static Op, attrs: Attrs) -> Attrs {
        match self.last.get(&op.index) {
            Some(last) if *last == attrs => last.clone(),
            _ => {
                self.last.insert(op.index, attrs.clone());
                attrs
            }
        }
    }
}

fn read_versions(def: pb::VersionDef) -> Result<Versions> {
    let pb::VersionDef { producer, min_consumer, bad_consumers } = def;
    if producer < 0 {
        return Err(Error::invalid(format!(
            "GraphDef producer version {producer} below min producer 0 supported. Please regenerate your graph."
        )));
    }
    if min_consumer > GRAPH_DEF_VERSION {
        return Err(Error::invalid(format!(
            "GraphDef min consumer version {min_consumer} above current version {GRAPH_DEF_VERSION}"
        )));
    }
    if bad_consumers.contains(&GRAPH_DEF_VERSION) {
        return Err(Error::invalid(format!("GraphDef disallows consumer version {GRAPH_DEF_VERSION}")));
    }
    Ok(Versions { producer, min_consumer, bad_consumers })
}

fn merge_versions(old: &Versions, new: Versions) -> Result<Versions> {
    if old.producer != new.producer {
        return Err(Error::invalid(format!(
            "Can't extend GraphDef at version {} with graph at version {}.",
            old.producer, new.producer
        )));
    }
    let bad_consumers: BTreeSet<i32> = old.bad_consumers.iter().copied().chain(new.bad_consumers).collect();
    Ok(Versions {
        producer: old.producer,
        min_consumer: old.min_consumer.max(new.min_consumer),
        bad_consumers: bad_consumers.into_iter().collect(),
    })
}
