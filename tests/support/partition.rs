//! A partition on one device, run step after step: what a step is fed it receives, what is fetched it sends.

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

/// A client, to which tensors are sent, and from which they come: not a device of a GPU.
const PLACE: &str = "/job:localhost/replica:0/task:0/device:CPU:0";

/// Nothing takes longer.
const DEADLINE: Duration = Duration::from_secs(120);

pub struct Partition(Arc<Executor>);

/// A step that has begun.
pub struct Begun {
    step: Arc<Step>,
    end: Receiver<device::Result<Trace>>,
}

fn key(name: &str) -> Arc<RendezvousKey> {
    Arc::new(RendezvousKey::new(PLACE, 0, PLACE, name))
}

/// The attributes of a `_Send` or `_Recv` under a name, in a graph's text.
fn key_attrs(name: &str) -> String {
    format!(
        "tensor_name=\"{name}\", send_device=\"{PLACE}\", recv_device=\"{PLACE}\", send_device_incarnation=0"
    )
}

/// A graph's text, in which lines may be indented. `name <- type` receives, `node -> type` sends.
pub fn transferring(text: &str) -> Fallible<Graph> {
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
    pub fn new(graph: &Graph, device: &Arc<Device>) -> Fallible<Partition> {
        let executor = Executor::new(graph, device.clone(), Pool::new(2)?, &KernelCache::new())?;
        Ok(Partition(Arc::new(executor)))
    }

    /// Of a graph's text, as [`transferring`] reads it.
    pub fn of_text(text: &str, device: &Arc<Device>) -> Fallible<Partition> {
        Partition::new(&transferring(text)?, device)
    }

    pub fn begin(&self, trace: bool) -> Begun {
        let step = Step::new(1, Arc::new(LocalRendezvous::new()), Arc::new(Cancellation::new()));
        let step = Arc::new(step);
        let (sender, end) = channel();
        self.0.run(step.clone(), trace, Box::new(move |result| drop(sender.send(result))));
        Begun { step, end }
    }

    /// Runs a step to its end.
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
    /// `None` is a dead tensor.
    pub fn feed(&self, name: &str, tensor: Option<Tensor>) -> Fallible {
        let sent = tensor.map_or_else(Sent::dead, |tensor| Sent { value: tensor.into(), is_dead: false });
        Ok(self.step.rendezvous.send(&key(name), sent)?)
    }

    /// What is sent under a name, when it comes.
    pub fn fetch(&self, name: &str) -> Fallible<Option<Tensor>> {
        let (sender, receiver) = channel();
        self.step.rendezvous.recv(&key(name), Box::new(move |sent| drop(sender.send(sent))));
        match receiver.recv_timeout(DEADLINE)?? {
            Sent { is_dead: true, .. } => Ok(None),
            Sent { value: Value::Host(tensor), .. } => Ok(Some(tensor)),
            other => Err(format!("{other:?} was sent").into()),
        }
    }

    /// Waits until the step has ended.
    pub fn end(&self) -> Fallible<Trace> {
        Ok(self.end.recv_timeout(DEADLINE)??)
    }
}

/// A `_Send` or `_Recv` under a name, but for its type.
fn transfer(op: &str, name: &str) -> Fallible<Node> {
    let op = graph::ops::lookup(op).ok_or_else(|| format!("no {op}"))?;
    let prefix = if op.name() == "_Send" { "send_" } else { "" };
    Ok(Node::new(format!("{prefix}{name}"), op)
        .with_attr("tensor_name", name)
        .with_attr("send_device", PLACE)
        .with_attr("recv_device", PLACE)
        .with_attr("send_device_incarnation", 0i64))
}

/// A graph, what it is fed, and the names of what it gives.
pub type Fed = (Graph, Vec<(String, Tensor)>, Vec<String>);

/// A partition of four nodes like one, all given the same: what is for the host's memory is in constants, the rest is fed.
pub fn four_of(def: &KernelDef, node: &Node, set: Vec<Tensor>) -> Fallible<Fed> {
    let mut graph = Graph::new();
    let (mut sources, mut feeds, mut names) = (Vec::new(), Vec::new(), Vec::new());
    let mut left = set.into_iter();
    for arg in node.op.inputs.iter() {
        for tensor in left.by_ref().take(node.op.arg_count(arg, &node.attrs)?) {
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
            // A fetch: transfers to other tasks would part the kernels.
            let send =
                transfer("_Send", &name)?.with_attr("T", port.dtype).with_attr("client_terminated", true);
            graph.add(send, &[Output::new(id, i)], &[])?;
            names.push(name);
        }
    }
    Ok((graph, feeds, names))
}
