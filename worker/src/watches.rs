//! Watches of tensors (`RunOptions.debug_options`): nodes that the worker adds to the graph of a device, and that write
//! each watched tensor to the debug URLs before other nodes read it.

use bytes::Bytes;
use device::Device;
use graph::ops::lookup;
use graph::{AttrValue, CONTROL, Code, Edge, Graph, Node, NodeId, Output, Role};
use kernels::objects::debug::publish_graph;
use proto::convert::{DefaultAttrs, graph_to_bytes};
use proto::{Status, pb};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::collections::hash_map::Entry;

/// The debug ops and URLs of a tensor.
#[derive(Clone, Debug, Default)]
struct Watch {
    ops: Vec<String>,
    urls: Vec<String>,
    /// True if a debug op that cannot be created is left out.
    is_tolerant: bool,
}

/// The watches of single outputs, by node name and output index, and the watch of all other outputs.
#[derive(Debug, Default)]
struct Watches {
    named: FxHashMap<(String, i32), Watch>,
    others: Watch,
}

impl Watches {
    /// Reads the watches of a step's debug options.
    ///
    /// # Errors
    /// `FailedPrecondition` for a slot that does not fit the node's name.
    fn new(options: &pb::DebugOptions) -> Result<Watches, Status> {
        let mut watches = Watches::default();
        for watch in &options.debug_tensor_watch_opts {
            let (node, slot) = (&watch.node_name, watch.output_slot);
            let is_empty = watch.debug_ops.is_empty() || watch.debug_urls.is_empty();
            let made = Watch {
                ops: watch.debug_ops.clone(),
                urls: watch.debug_urls.clone(),
                is_tolerant: watch.tolerate_debug_op_creation_failures,
            };
            match (node == "*", slot) {
                _ if is_empty => {}
                (true, -1) => {
                    watches.others.ops.extend(made.ops);
                    watches.others.urls.extend(made.urls);
                    watches.others.is_tolerant |= made.is_tolerant;
                }
                (true, _) => {
                    return Err(refused(format!(
                        "output_slot is expected to be -1 for wildcard node name (\"*\"), but got {slot}"
                    )));
                }
                (false, ..0) => {
                    return Err(refused(format!(
                        "A negative output_slot in DebugTensorWatch is valid only for the wildcard node name (\"*\"), but got node name {node}"
                    )));
                }
                (false, _) => _ = watches.named.insert((node.clone(), slot), made),
            }
        }
        watches.others.ops.dedup();
        watches.others.urls.dedup();
        Ok(watches)
    }

    fn of(&self, node: &str, slot: u32) -> Option<&Watch> {
        let named = i32::try_from(slot).ok().and_then(|slot| self.named.get(&(node.to_owned(), slot)));
        named.or((!self.others.ops.is_empty()).then_some(&self.others))
    }
}

fn refused(text: String) -> Status {
    Status::new(Code::FailedPrecondition, text)
}

/// The nodes that watch an output: the copy of the output, and the debug nodes.
struct Watchers {
    copy: NodeId,
    debug: Vec<NodeId>,
}

/// Returns a device's graph with nodes that write the watched tensors, and writes the graph itself to the debug URLs. Only
/// tensors that other nodes read are watched, like in TensorFlow. Iterations of loops run one after the other.
///
/// # Errors
/// `FailedPrecondition` that names the tensor if a debug op cannot be created; an error that names the path if the graph
/// cannot be written.
pub(crate) fn watch(graph: Graph, device: &Device, options: &pb::DebugOptions) -> Result<Graph, Status> {
    let watches = Watches::new(options)?;
    let mut nodes: Vec<Node> = graph.nodes().map(|(_, node)| node.clone()).collect();
    for node in nodes.iter_mut().filter(|node| node.op.role() == Role::Enter) {
        node.attrs.set("parallel_iterations", 1i64);
    }
    let mut watchers: FxHashMap<Output, Watchers> = FxHashMap::default();
    let mut edges = Vec::with_capacity(graph.num_edges());
    let mut edges_of_watchers = Vec::new();
    for id in graph.ids() {
        let mut control: Vec<NodeId> = graph.control_inputs(id).to_vec();
        let types = graph.node(id).input_types()?;
        for (slot, input) in graph.inputs(id).into_iter().enumerate() {
            let to = u32::try_from(slot).unwrap_or(CONTROL);
            let source = graph.node(input.node);
            let Some(watch) = watches.of(&source.name, input.index) else {
                edges.push(Edge::data(input, id, to));
                continue;
            };
            let watchers = match watchers.entry(input) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(free) => {
                    let edges = &mut edges_of_watchers;
                    free.insert(add_watchers(&graph, &mut nodes, edges, input, watch, device)?)
                }
            };
            let takes_reference = types.get(slot).is_some_and(|port| port.is_ref);
            let read = if takes_reference { input } else { Output { node: watchers.copy, index: 0 } };
            edges.push(Edge::data(read, id, to));
            // A Merge runs with the first of its inputs, so it waits for nothing else.
            if graph.node(id).op.role() != Role::Merge {
                control.extend(&watchers.debug);
            }
        }
        control.sort_unstable();
        control.dedup();
        edges.extend(control.into_iter().map(|from| Edge::control(from, id)));
    }
    edges.extend(edges_of_watchers);
    let watched = Graph::assemble(nodes, edges.into_iter())?;
    let watched = watched.with_settings_of(&graph);
    let urls: BTreeSet<&str> = options
        .debug_tensor_watch_opts
        .iter()
        .flat_map(|watch| watch.debug_urls.iter().map(String::as_str))
        .collect();
    let bytes = graph_to_bytes(&watched, DefaultAttrs::Keep)?;
    let name = device.name().to_string();
    publish_graph(device, &bytes, urls).map_err(|error| {
        let status = crate::failure(&error);
        Status::new(status.code, format!("{name}: {}", status.message))
    })?;
    Ok(watched)
}

/// Adds the nodes that watch an output.
fn add_watchers(
    graph: &Graph,
    nodes: &mut Vec<Node>,
    edges: &mut Vec<Edge>,
    output: Output,
    watch: &Watch,
    device: &Device,
) -> Result<Watchers, Status> {
    let source = graph.node(output.node);
    let tensor = format!("{}:{}", source.name, output.index);
    let port = graph.output_type(output)?;
    let mut add =
        |name: String, op: &str, attrs: &[(String, AttrValue)], from: Output| -> Result<NodeId, Status> {
            let op = lookup(op).ok_or_else(|| refused(format!("there is no debug op {op}")))?;
            let mut node = Node::new(name, op).with_attr("T", port.dtype);
            node.device = source.device.clone();
            attrs.iter().for_each(|(name, value)| node.attrs.set(name, value.clone()));
            op.check_attrs(&node.attrs).map_err(|error| refused(error.to_string()))?;
            if device.find_kernel(&node).is_none() {
                return Err(refused(format!(
                    "{} has no kernel for {} of {}",
                    device.name(),
                    op.name(),
                    port.dtype
                )));
            }
            let id = NodeId::new(nodes.len());
            nodes.push(node);
            edges.push(Edge::data(from, id, 0));
            Ok(id)
        };
    let failed = |what: &str, status: Status| {
        refused(format!("Failed to create {what} for tensor {tensor}, due to: {}", status.message))
    };
    let named = [("tensor_name".to_owned(), AttrValue::from(tensor.as_str()))];
    let copy = add(format!("__copy_{}_{}", source.name, output.index), "Copy", &named, output)
        .map_err(|status| failed("Copy node", status))?;
    let mut debug = Vec::with_capacity(watch.ops.len());
    for (number, text) in watch.ops.iter().enumerate() {
        let made = parse(text).and_then(|(op, mut attrs)| {
            attrs.extend(named.clone());
            attrs.push(("device_name".to_owned(), device.name().to_string().as_str().into()));
            let urls: Vec<Bytes> =
                watch.urls.iter().map(|url| Bytes::copy_from_slice(url.as_bytes())).collect();
            attrs.push(("debug_urls".to_owned(), urls.into()));
            let name = format!("__dbg_{tensor}_{number}_{op}");
            add(name, op, &attrs, Output { node: copy, index: 0 })
        });
        match made {
            Ok(id) => debug.push(id),
            Err(status) if watch.is_tolerant => {
                tracing::info!("{tensor} is not watched by {text}: {}", status.message);
            }
            Err(status) => return Err(failed(&format!("debug node {text}"), status)),
        }
    }
    Ok(Watchers { copy, debug })
}

/// A debug op, and the attributes that its watch sets.
type DebugOp<'a> = (&'a str, Vec<(String, AttrValue)>);

/// Splits a debug op of the form `Op(attribute=value;attribute=value)`.
fn parse(text: &str) -> Result<DebugOp<'_>, Status> {
    let Some((name, rest)) = text.split_once('(') else { return Ok((text, Vec::new())) };
    let malformed = || refused(format!("Malformed attributes in debug op name \"{text}\""));
    let inner = rest.strip_suffix(')').ok_or_else(malformed)?;
    let op = lookup(name).ok_or_else(|| refused(format!("there is no debug op {name}")))?;
    let mut attrs = Vec::new();
    for pair in inner.split(';').filter(|pair| !pair.is_empty()) {
        let (attr, value) = pair.split_once('=').ok_or_else(malformed)?;
        let spec = op
            .attrs
            .iter()
            .find(|spec| spec.name == attr)
            .ok_or_else(|| refused(format!("the debug op {name} has no attribute '{attr}'")))?;
        let value = match spec.kind.name() {
            "string" => Some(AttrValue::from(value)),
            "int" => value.parse::<i64>().ok().map(AttrValue::from),
            "float" => value.parse::<f32>().ok().map(AttrValue::from),
            "bool" => match value.to_ascii_lowercase().as_str() {
                "true" | "t" | "yes" | "y" | "1" => Some(true.into()),
                "false" | "f" | "no" | "n" | "0" => Some(false.into()),
                _ => None,
            },
            _ => None,
        };
        let value = value.ok_or_else(|| refused(format!("\"{pair}\" is no value of the debug op {name}")))?;
        attrs.push((attr.to_owned(), value));
    }
    Ok((name, attrs))
}
