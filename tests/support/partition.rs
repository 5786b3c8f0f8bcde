//! A partition on one device, on which tests run steps. The partition receives fed tensors by `_Recv` and sends fetched
//! tensors by `_Send`.

use super::Fallible;
use device::Device;
use device::cancel::Cancellation;
use device::kernel::{KernelDef, Step};
use device::rendezvous::{RendezvousKey, Sent};
use device::{LocalRendezvous, Pool, Value};
use executor::{Executor, KernelCache, Trace};
use graph::{Graph, Node, Output, Tensor};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The device of the client that sends and receives tensors: a CPU, even if the partition is on a GPU.
const CLIENT_DEVICE: &str = "/job:localhost/replica:0/task:0/device:CPU:0";

/// Longest time that a step or a fetch may take.
const DEADLINE: Duration = Duration::from_secs(120);

/// An executor of one partition.
pub struct Partition(Arc<Executor>);

/// A step that has been started and may still run.
pub struct Begun {
    step: Arc<Step>,
    end: Receiver<device::Result<Trace>>,
}

fn key(name: &str) -> Arc<RendezvousKey> {
    Arc::new(RendezvousKey::new(CLIENT_DEVICE, 0, CLIENT_DEVICE, name))
}

/// Returns the rendezvous attributes of a `_Send` or `_Recv` of tensor `name`, in the text format of graphs.
fn key_attrs(name: &str) -> String {
    format!(
        "tensor_name=\"{name}\", send_device=\"{CLIENT_DEVICE}\", recv_device=\"{CLIENT_DEVICE}\", send_device_incarnation=0"
    )
}

/// Parses a graph from text whose lines may be indented. The line `name <- type` means a `_Recv`, and `node -> type` a
/// `_Send`.
pub fn graph_from_text(text: &str) -> Fallible<Graph> {
    let mut lines = String::new();
    for line in text.trim().lines().map(str::trim) {
        lines += &if let Some((name, dtype)) = line.split_once(" <- ") {
            format!("{name} = _Recv[tensor_type={dtype}, {}]\n", key_attrs(name))
        } else if let Some((output, dtype)) = line.split_once(" -> ") {
            let name = output.replace(':', "_");
            format!("send_{name} = _Send[T={dtype}, {}]({output})\n", key_attrs(&name))
        } else {
            format!("{line}\n")
        };
    }
    Ok(Graph::from_text(&lines)?)
}

impl Partition {
    /// Creates an executor with two threads for a graph on `device`.
    pub fn new(graph: &Graph, device: &Arc<Device>) -> Fallible<Partition> {
        let executor = Executor::new(graph, device.clone(), Pool::new(2)?, &KernelCache::new())?;
        Ok(Partition(Arc::new(executor)))
    }

    /// Creates an executor for a graph in the text format of [`graph_from_text`].
    pub fn of_text(text: &str, device: &Arc<Device>) -> Fallible<Partition> {
        Partition::new(&graph_from_text(text)?, device)
    }

    /// Begins a step, which waits for its feeds.
    pub fn begin(&self, trace: bool) -> Begun {
        let step = Step::new(1, Arc::new(LocalRendezvous::new()), Arc::new(Cancellation::new()));
        let step = Arc::new(step);
        let (sender, end) = channel();
        self.0.run(step.clone(), trace, Box::new(move |result| drop(sender.send(result))));
        Begun { step, end }
    }

    /// Runs a step with these feeds to its end and returns the fetched tensors.
    pub fn step(&self, feeds: &[(&str, Tensor)], fetches: &[&str]) -> Fallible<Vec<Tensor>> {
        let begun = self.begin(false);
        for (name, tensor) in feeds {
            begun.feed(name, Some(tensor.clone()))?;
        }
        begun.end()?;
        let fetched =
            fetches.iter().map(|name| begun.fetch(name)?.ok_or_else(|| format!("{name} is dead").into()));
        fetched.collect()
    }
}

impl Begun {
    /// Sends a tensor to the step, to the `_Recv` of tensor `name`; `None` is a dead tensor.
    pub fn feed(&self, name: &str, tensor: Option<Tensor>) -> Fallible {
        let sent = tensor.map_or_else(Sent::dead, |tensor| Sent { value: tensor.into(), is_dead: false });
        Ok(self.step.rendezvous.send(&key(name), sent)?)
    }

    /// Waits for the tensor that the step's `_Send` of tensor `name` sends; `None` is a dead tensor.
    pub fn fetch(&self, name: &str) -> Fallible<Option<Tensor>> {
        let (sender, receiver) = channel();
        self.step.rendezvous.recv(&key(name), Box::new(move |sent| drop(sender.send(sent))));
        match receiver.recv_timeout(DEADLINE)?? {
            Sent { is_dead: true, .. } => Ok(None),
            Sent { value: Value::Host(tensor), .. } => Ok(Some(tensor)),
            other => Err(format!("{other:?} was sent").into()),
        }
    }

    /// Waits until the step has ended and returns its trace.
    pub fn end(&self) -> Fallible<Trace> {
        Ok(self.end.recv_timeout(DEADLINE)??)
    }
}

/// Returns a `_Send` or `_Recv` node of tensor `name` without its type attribute.
fn transfer(op: &str, name: &str) -> Fallible<Node> {
    let op = graph::ops::lookup(op).ok_or_else(|| format!("no {op}"))?;
    let prefix = if op.name() == "_Send" { "send_" } else { "" };
    Ok(Node::new(format!("{prefix}{name}"), op)
        .with_attr("tensor_name", name)
        .with_attr("send_device", CLIENT_DEVICE)
        .with_attr("recv_device", CLIENT_DEVICE)
        .with_attr("send_device_incarnation", 0i64))
}

/// A graph, the tensors to feed by name, and the names of the tensors that it sends.
pub type FedGraph = (Graph, Vec<(String, Tensor)>, Vec<String>);

/// Builds a graph with four copies of a node on the same inputs. Inputs that the kernel takes in host memory are
/// constants; all other inputs are fed.
pub fn four_copies_of(def: &KernelDef, node: &Node, inputs: Vec<Tensor>) -> Fallible<FedGraph> {
    let mut graph = Graph::new();
    let (mut sources, mut feeds, mut names) = (Vec::new(), Vec::new(), Vec::new());
    let mut remaining = inputs.into_iter();
    for arg in node.op.inputs.iter() {
        for tensor in remaining.by_ref().take(node.op.arg_count(arg, &node.attrs)?) {
            let name = format!("in{}", sources.len());
            let dtype = tensor.dtype();
            let source = if def.is_on_host(arg.name) {
                let op = graph::ops::lookup("Const").ok_or("no Const")?;
                Node::new(name, op).with_attr("dtype", dtype).with_attr("value", tensor)
            } else {
                feeds.push((name.clone(), tensor));
                transfer("_Recv", &name)?.with_attr("tensor_type", dtype)
            };
            sources.push(Output::new(graph.add(source, &[], &[])?, 0));
        }
    }
    for copy in 0..4 {
        let mut like = node.clone();
        like.name = format!("n{copy}").into();
        let id = graph.add(like, &sources, &[])?;
        for (i, port) in node.output_types()?.iter().enumerate() {
            let name = format!("out{copy}_{i}");
            // The `_Send` is marked as a fetch, because a transfer to another task would split the kernels into two
            // segments.
            let send =
                transfer("_Send", &name)?.with_attr("T", port.dtype).with_attr("client_terminated", true);
            graph.add(send, &[Output::new(id, i)], &[])?;
            names.push(name);
        }
    }
    Ok((graph, feeds, names))
}
