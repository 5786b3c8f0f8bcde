//! Runs single ops on the CPU without a graph, for kernel tests in this crate and others.

use device::Device;
use device::kernel::{AsyncContext, Kernel, LoopPosition};
use device::single_node;
use device::value::Value;
use device::{Error, Result};
use graph::{Node, Tensor};
use std::sync::Arc;

/// Returns a CPU device outside any cluster.
pub use crate::lone_device;

/// Runs a node's synchronous CPU kernel on these inputs.
pub fn run_node(node: &Node, inputs: Vec<Value>) -> Result<Vec<Value>> {
    single_node::run(&Arc::new(crate::lone_device()), node, inputs)
}

/// Runs a node's CPU kernel on a device whose resources persist between calls, and waits for the answer of an
/// asynchronous kernel.
pub fn run_node_on(device: &Arc<Device>, node: &Node, inputs: Vec<Value>) -> Result<Vec<Value>> {
    let kernel = make_kernel(device, node)?;
    let Kernel::Async(start) = &kernel else { return run_kernel(&kernel, device, node, inputs) };
    let (sender, receiver) = std::sync::mpsc::channel();
    let done = Box::new(move |result| drop(sender.send(result)));
    start(AsyncContext {
        node: Arc::new(node.clone()),
        device: device.clone(),
        step: single_node::step(),
        position: LoopPosition::default(),
        inputs: inputs.into(),
        done,
    });
    let answer = receiver.recv_timeout(DEADLINE);
    answer.map_err(|e| Error::internal(format!("{}: {e}", node.op.name())))?.map(|outputs| outputs.into_vec())
}

/// Makes the CPU kernel of a node.
pub fn make_kernel(device: &Arc<Device>, node: &Node) -> Result<Kernel> {
    single_node::make_kernel(device, node)
}

/// Runs a kernel that was made for `node`; calls with the same kernel share its state.
pub fn run_kernel(
    kernel: &Kernel,
    device: &Arc<Device>,
    node: &Node,
    inputs: Vec<Value>,
) -> Result<Vec<Value>> {
    single_node::run_kernel(kernel, device, node, inputs)
}

#[cfg(test)]
pub(crate) use single_node::step as lone_step;

/// A folder for the files of one test, removed when dropped.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct TempDir(std::path::PathBuf);

#[cfg(test)]
impl TempDir {
    /// Creates a folder with a unique name in the system's folder for temporary files.
    pub(crate) fn new() -> Result<TempDir> {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("anabranch-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).map_err(|e| checkpoint::Error::file(&path, &e))?;
        Ok(TempDir(path))
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        &self.0
    }

    /// Writes a file in the folder.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.0.join(name);
        Ok(std::fs::write(&path, bytes).map_err(|e| checkpoint::Error::file(&path, &e))?)
    }
}

#[cfg(test)]
impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a node's CPU kernel on a new device, and waits for the answer of an asynchronous kernel.
pub fn run_to_end(node: &Node, inputs: Vec<Value>) -> Result<Vec<Value>> {
    run_node_on(&Arc::new(crate::lone_device()), node, inputs)
}

/// Maximum time for an asynchronous kernel to answer.
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(60);

/// Runs an op by name with host tensors as inputs, and returns its outputs as host tensors.
pub fn run_op(op: &str, inputs: &[Tensor], attrs: &[(&str, graph::AttrValue)]) -> Result<Vec<Tensor>> {
    let op = graph::ops::lookup(op).ok_or_else(|| Error::invalid(format!("no op {op}")))?;
    let mut node = Node::new("test", op);
    for (name, value) in attrs {
        node.attrs.set(name, value.clone());
    }
    let outputs = run_to_end(&node, inputs.iter().cloned().map(Value::Host).collect())?;
    outputs
        .into_iter()
        .map(|v| match v {
            Value::Host(t) => Ok(t),
            other => Err(Error::internal(format!("output is {other:?}"))),
        })
        .collect()
}
