//! The graph of a run with given feeds, fetches and targets, made from a placed graph: feeds become Recvs,
//! fetches get Sends, and nodes that the run does not need are removed.

use crate::device_set::DeviceSet;
use crate::error::{Error, Result};
use crate::transfer::{Key, Transfers};
use graph::passes::replaces_lowered_node;
use graph::{Edge, Graph, Node, NodeId, Output, PortType, Producer, Topology, parse_output_name};
use rustc_hash::{FxHashMap, FxHashSet};

/// Returns the canonical form of an endpoint: `p` and `p:0` both become `p:0`, as rendezvous keys write them.
/// Text that is not an endpoint is returned unchanged.
pub fn normalise_endpoint(text: &str) -> String {
    match parse_output_name(text) {
        Some((name, index)) => format!("{name}:{index}"),
        None => text.to_owned(),
    }
}

/// Returns the graph of a run. Each fed endpoint is replaced by a Recv `_recv_<node>_<port>`, and each fetched endpoint
/// is connected to a Send `_send_<node>_<port>`. These Recvs and Sends are on the client device and terminated by the
/// client, with the endpoint as `tensor_name`. Nodes that no fetch or target needs are removed.
///
/// `client_device` is an index into `devices`.
///
/// # Errors
/// `NotFound` or `InvalidArgument` if the run names a missing node or output, feeds an endpoint twice, or
/// fetches a fed endpoint.
pub fn rewrite_for_run(
    graph: &Graph,
    feeds: &[impl AsRef<str>],
    fetches: &[impl AsRef<str>],
    targets: &[impl AsRef<str>],
    devices: &DeviceSet,
    client_device: u32,
) -> Result<Graph> {
    if fetches.is_empty() && targets.is_empty() {
        return Err(Error::NothingToRun);
    }
    if client_device as usize >= devices.len() {
        return Err(Error::NoDevices);
    }
    let feeds = Endpoint::read(feeds);
    let fetches = Endpoint::read(fetches);
    let mut fed: FxHashSet<&str> = FxHashSet::default();
    for feed in &feeds {
        if !fed.insert(&feed.text) {
            return Err(Error::FedTwice { endpoint: feed.text.clone() });
        }
    }
    if let Some(both) = fetches.iter().find(|f| fed.contains(&*f.text)) {
        return Err(Error::FedAndFetched { endpoint: both.text.clone() });
    }
    let mut rewriting = Rewriting::new(graph, devices, client_device)?;
    for feed in &feeds {
        rewriting.feed(feed)?;
    }
    let mut sent: FxHashSet<&str> = FxHashSet::default();
    for fetch in fetches.iter().filter(|f| sent.insert(&f.text)) {
        rewriting.fetch(fetch)?;
    }
    rewriting.targets(targets)?;
    rewriting.finish()
}

/// An output named by a feed or a fetch.
struct Endpoint {
    /// The endpoint in the form `name:index`.
    text: String,
    name: String,
    index: u32,
}

impl Endpoint {
    fn read(texts: &[impl AsRef<str>]) -> Vec<Endpoint> {
        let read = |text: &str| {
            // A text that is not an endpoint names no node either, so looking it up reports the error.
            let (name, index) = parse_output_name(text).unwrap_or((text, 0));
            Endpoint { text: normalise_endpoint(text), name: name.to_owned(), index }
        };
        texts.iter().map(|t| read(t.as_ref())).collect()
    }
}

/// A fed endpoint and the Recv that replaces it.
struct Feed {
    /// Set if the fed output is a reference; the Recv's output is not.
    is_ref: bool,
    recv: Node,
    /// The id of the Recv in the new graph; `None` until a node needs the Recv.
    id: Option<NodeId>,
}

/// The state while a graph is rewritten for one run.
struct Rewriting<'a> {
    graph: &'a Graph,
    topology: Topology,
    transfers: Transfers,
    client: u32,
    feeds: Vec<Feed>,
    /// For each fed output, the index of its feed in `feeds`.
    fed: FxHashMap<Output, usize>,
    /// For each fed placeholder, the index of the feed that replaces its control output, because a fed
    /// placeholder never runs.
    fed_placeholders: FxHashMap<NodeId, usize>,
    fetches: Vec<(Output, Node)>,
    targets: Vec<NodeId>,
}

impl<'a> Rewriting<'a> {
    fn new(graph: &'a Graph, devices: &DeviceSet, client: u32) -> Result<Rewriting<'a>> {
        Ok(Rewriting {
            graph,
            topology: Topology::new(graph),
            transfers: Transfers::new(devices)?,
            client,
            feeds: Vec::new(),
            fed: FxHashMap::default(),
            fed_placeholders: FxHashMap::default(),
            fetches: Vec::new(),
            targets: Vec::new(),
        })
    }

    /// Returns `<prefix><node>_<port>`, with underscores appended until the graph has no node of that name.
    fn new_name(&self, prefix: &str, endpoint: &Endpoint) -> String {
        let mut name = format!("{prefix}{}_{}", endpoint.name, endpoint.index);
        while self.graph.find(&name).is_some() {
            name.push('_');
        }
        name
    }

    fn key(&self, endpoint: &Endpoint) -> Key {
        Key { tensor_name: (&*endpoint.text).into(), from: self.client, to: self.client }
    }

    fn feed(&mut self, endpoint: &Endpoint) -> Result<()> {
        let not_found = || Error::FeedNotFound { endpoint: endpoint.text.clone() };
        let id = self.graph.find(&endpoint.name).ok_or_else(not_found)?;
        let port = self.port(id, endpoint).map_err(|outputs| match outputs {
            EndpointError::Index(outputs) => Error::FeedIndex { endpoint: endpoint.text.clone(), outputs },
            EndpointError::Other(error) => error.into(),
        })?;
        let source = Output { node: id, index: endpoint.index };
        let recv =
            self.transfers.recv(self.new_name("_recv_", endpoint), &self.key(endpoint), port.dtype, true);
        self.fed.insert(source, self.feeds.len());
        if matches!(self.graph.node(id).op.name(), "Placeholder" | "PlaceholderV2") {
            self.fed_placeholders.insert(id, self.feeds.len());
        }
        self.feeds.push(Feed { is_ref: port.is_ref, recv, id: None });
        Ok(())
    }

    fn fetch(&mut self, endpoint: &Endpoint) -> Result<()> {
        let not_found = || Error::FetchNotFound { endpoint: endpoint.text.clone() };
        let id = self.graph.find(&endpoint.name).ok_or_else(not_found)?;
        let port = self.port(id, endpoint).map_err(|outputs| match outputs {
            EndpointError::Index(outputs) => Error::FetchIndex { endpoint: endpoint.text.clone(), outputs },
            EndpointError::Other(error) => error.into(),
        })?;
        let send =
            self.transfers.send(self.new_name("_send_", endpoint), &self.key(endpoint), port.dtype, true);
        self.fetches.push((Output { node: id, index: endpoint.index }, send));
        Ok(())
    }

    fn targets(&mut self, names: &[impl AsRef<str>]) -> Result<()> {
        let mut missing = String::new();
        for name in names {
            // A target may be a tensor name, which selects the tensor's node.
            let name = name.as_ref();
            let node = parse_output_name(name).map_or(name, |(node, _)| node);
            match self.graph.find(node) {
                Some(id) => self.targets.push(id),
                None => {
                    missing.push_str(name);
                    missing.push(' ');
                }
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(Error::TargetsNotFound { names: missing }) }
    }

    /// Returns the type of the endpoint's output on node `id`.
    fn port(&self, id: NodeId, endpoint: &Endpoint) -> Result<PortType, EndpointError> {
        let types = self.graph.node(id).output_types().map_err(EndpointError::Other)?;
        types.get(endpoint.index as usize).copied().ok_or(EndpointError::Index(types.len()))
    }

    /// Returns the index of the feed that replaces the source of an edge, if any.
    fn feed_of(&self, producer: &Producer) -> Option<usize> {
        if producer.is_control() {
            self.fed_placeholders.get(&producer.node).copied()
        } else {
            self.fed.get(&producer.source()).copied()
        }
    }

    /// Returns the edge as it is in the run's graph: if its source replaces a lowered node and is not fed,
    /// the edge starts at the node that computes the value.
    fn edge(&self, producer: &Producer) -> Producer {
        let mut edge = *producer;
        while !edge.is_control()
            && self.feed_of(&edge).is_none()
            && replaces_lowered_node(self.graph.node(edge.node))
            && let Some(inner) = self.topology.producers(edge.node).get(edge.output as usize)
        {
            edge = Producer { input: producer.input, ..*inner };
        }
        edge
    }

    /// Returns for each node of the graph, and for each feed, whether a fetch or target needs it.
    fn mark_needed(&self) -> Result<(Vec<bool>, Vec<bool>)> {
        let mut needed = vec![false; self.graph.len()];
        let mut feed_needed = vec![false; self.feeds.len()];
        let mut open: Vec<NodeId> = self.targets.clone();
        open.extend(self.fetches.iter().map(|f| f.0.node));
        while let Some(id) = open.pop() {
            if std::mem::replace(&mut needed[id.index()], true) {
                continue;
            }
            for producer in self.topology.producers(id) {
                let producer = &self.edge(producer);
                match self.feed_of(producer) {
                    Some(feed) => {
                        feed_needed[feed] = true;
                        if self.feeds[feed].is_ref {
                            self.check_reference_not_required(id, producer, feed)?;
                        }
                    }
                    None if !needed[producer.node.index()] => open.push(producer.node),
                    None => {}
                }
            }
        }
        Ok((needed, feed_needed))
    }

    /// Fails if the input, whose source a feed replaces, requires a reference.
    fn check_reference_not_required(&self, id: NodeId, producer: &Producer, feed: usize) -> Result<()> {
        let node = self.graph.node(id);
        let types = node.input_types()?;
        match types.get(producer.input as usize).filter(|t| t.is_ref) {
            None => Ok(()),
            Some(want) => Err(graph::Error::invalid(format!(
                "Input {} of node {} was passed {} from {}:0 incompatible with expected {want}.",
                producer.input, node.name, want.dtype, self.feeds[feed].recv.name
            ))
            .at_node(&node.name)
            .into()),
        }
    }

    /// Assembles the new graph: needed feeds, needed nodes, then the Sends of the fetches.
    fn finish(mut self) -> Result<Graph> {
        let (needed, feed_needed) = self.mark_needed()?;
        let kept = needed.iter().filter(|n| **n).count();
        let mut nodes = Vec::with_capacity(kept + self.feeds.len() + self.fetches.len());
        for (feed, _) in self.feeds.iter_mut().zip(feed_needed).filter(|f| f.1) {
            feed.id = Some(NodeId::new(nodes.len()));
            nodes.push(feed.recv.clone());
        }
        let mut new_id = vec![NodeId::new(0); self.graph.len()];
        for (id, node) in self.graph.nodes().filter(|(id, _)| needed[id.index()]) {
            new_id[id.index()] = NodeId::new(nodes.len());
            nodes.push(node.clone());
        }
        let mut edges = Vec::with_capacity(kept * 2);
        for id in self.graph.ids().filter(|id| needed[id.index()]) {
            for producer in self.topology.producers(id) {
                let producer = &self.edge(producer);
                let (from, output) = match self.feed_of(producer).and_then(|f| self.feeds[f].id) {
                    Some(feed) if producer.is_control() => (feed, producer.output),
                    Some(feed) => (feed, 0),
                    None => (new_id[producer.node.index()], producer.output),
                };
                edges.push(Edge { from, output, to: new_id[id.index()], input: producer.input });
            }
        }
        for (source, send) in std::mem::take(&mut self.fetches) {
            let from = Output { node: new_id[source.node.index()], index: source.index };
            edges.push(Edge::data(from, NodeId::new(nodes.len()), 0));
            nodes.push(send);
        }
        Ok(Graph::assemble(nodes, edges.into_iter())?.with_settings_of(self.graph))
    }
}

/// The reason why an endpoint has no type.
enum EndpointError {
    /// The output index is too large; the node has this number of outputs.
    Index(usize),
    Other(graph::Error),
}
