//! Callables: steps that are planned once and run many times. A tensor connection of a callable makes the
//! consumers of one tensor read another tensor.

use crate::plan::Plan;
use crate::signature::without_zero_port;
use graph::{Code, Edge, Graph, Output, Topology, parse_output_name};
use parking_lot::Mutex;
use proto::{Status, pb};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A callable: the plan of a step, and the step's options.
#[derive(Debug)]
pub(crate) struct Callable {
    pub(crate) plan: Arc<Plan>,
    pub(crate) options: pb::CallableOptions,
}

/// The callables of a session, by handle.
#[derive(Debug, Default)]
pub(crate) struct Callables(Mutex<CallableTable>);

/// The callables by handle, and the next free handle.
#[derive(Debug, Default)]
struct CallableTable {
    next: i64,
    by_handle: FxHashMap<i64, Arc<Callable>>,
}

impl Callables {
    /// Adds a callable and returns its handle.
    pub(crate) fn add(&self, callable: Callable) -> i64 {
        let mut table = self.0.lock();
        let handle = table.next;
        table.next += 1;
        table.by_handle.insert(handle, Arc::new(callable));
        handle
    }

    /// Returns a callable by its handle.
    ///
    /// # Errors
    /// `InvalidArgument` if the handle never existed or has been released.
    pub(crate) fn get(&self, handle: i64) -> Result<Arc<Callable>, Status> {
        let table = self.0.lock();
        table.by_handle.get(&handle).cloned().ok_or_else(|| match (0..table.next).contains(&handle) {
            true => Status::invalid(format!("Attempted to run callable after handle was released: {handle}")),
            false => Status::invalid(format!("No such callable handle: {handle}")),
        })
    }

    /// Removes a callable from the table; its steps in flight continue.
    pub(crate) fn release(&self, handle: i64) -> Result<(), Status> {
        let mut table = self.0.lock();
        let released = table.by_handle.remove(&handle);
        released.map(drop).ok_or_else(|| Status::invalid(format!("No such callable handle: {handle}")))
    }

    /// Releases all callables.
    pub(crate) fn clear(&self) {
        self.0.lock().by_handle.clear();
    }
}

/// Checks the options of a callable.
///
/// # Errors
/// `Unimplemented` for feeds and fetches in device memory.
pub(crate) fn check(options: &pb::CallableOptions) -> Result<(), Status> {
    if options.feed_devices.is_empty() && options.fetch_devices.is_empty() {
        return Ok(());
    }
    Err(Status::new(
        Code::Unimplemented,
        "CallableOptions::feed_devices and CallableOptions::fetch_devices to configure feeding/fetching tensors \
         to/from device memory is not yet supported when using a remote session.",
    ))
}

/// Returns a graph in which, for each tensor connection of the options, the consumers of `to_tensor` read
/// `from_tensor`.
///
/// # Errors
/// The errors of feeding `to_tensor`; `InvalidArgument` if `from_tensor` does not exist or has another type
/// than `to_tensor`, or if the graph would have a cycle.
pub(crate) fn connect(graph: &Graph, options: &pb::CallableOptions) -> Result<Graph, Status> {
    let mut replaced: FxHashMap<Output, Output> = FxHashMap::default();
    for connection in &options.tensor_connection {
        let (from, to) = (&connection.from_tensor, &connection.to_tensor);
        let source = find(graph, from).ok_or_else(|| {
            Status::invalid(format!("Requested tensor connection from unknown node: \"{from}\"."))
        })?;
        let target = find(graph, to).ok_or_else(|| {
            Status::new(Code::NotFound, format!("FeedInputs: unable to find feed output {to}"))
        })?;
        let same = |name: &&String| without_zero_port(name) == without_zero_port(to);
        if options.feed.iter().any(|f| same(&f)) || replaced.insert(target, source).is_some() {
            return Err(Status::invalid(format!("Endpoint \"{to}\" fed more than once.")));
        }
        if options.fetch.iter().any(|f| same(&f)) {
            return Err(Status::invalid(format!("{to} is both fed and fetched.")));
        }
        let (source_type, target_type) = (graph.output_type(source)?.dtype, graph.output_type(target)?.dtype);
        if source_type != target_type {
            return Err(Status::invalid(format!(
                "{from} of type {source_type} cannot replace {to} of type {target_type}"
            )));
        }
    }
    let topology = Topology::new(graph);
    let mut edges = Vec::with_capacity(topology.num_edges());
    for to in graph.ids() {
        for producer in topology.producers(to) {
            let source = producer.source();
            let edge = Edge { from: producer.node, output: producer.output, to, input: producer.input };
            edges.push(match replaced.get(&source).filter(|_| !producer.is_control()) {
                Some(other) => Edge { from: other.node, output: other.index, ..edge },
                None => edge,
            });
        }
    }
    let nodes = graph.nodes().map(|(_, node)| node.clone()).collect();
    let connected = Graph::assemble(nodes, edges.into_iter())?.with_settings_of(graph);
    if let Some(connection) = options.tensor_connection.first()
        && Topology::new(&connected).order(&connected).is_err()
    {
        let bare = |name: &str| parse_output_name(name).map_or(name, |(node, _)| node).to_owned();
        return Err(Status::invalid(format!(
            "Requested Tensor connection between nodes \"{}\" and \"{}\" would create a cycle.",
            bare(&connection.to_tensor),
            bare(&connection.from_tensor)
        )));
    }
    Ok(connected)
}

/// Returns the output named `name`, or `None` if the graph has no such output.
fn find(graph: &Graph, name: &str) -> Option<Output> {
    let (node, index) = parse_output_name(name)?;
    let node = graph.find(node)?;
    let types = graph.node(node).output_types().ok()?;
    ((index as usize) < types.len()).then_some(Output { node, index })
}
