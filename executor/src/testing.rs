//! Runs one op on the CPU without a graph, for kernel tests in this crate and others.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::lone;
use crate::value::Value;
use graph::{Node, Tensor};
use std::sync::Arc;

/// By default, a device outside any cluster.
pub use crate::cpu_device::CpuDevice as LoneDevice;

/// Runs a node's CPU kernel on these inputs.
pub fn run_node(node: &Node, inputs: Vec<Value>) -> Result<Vec<Value>> {
    lone::run(&lone::device(), node, inputs)
}

/// As [`run_node`], on a device whose resources persist between calls.
pub fn run_node_on(device: &Arc<dyn Device>, node: &Node, inputs: Vec<Value>) -> Result<Vec<Value>> {
    lone::run(device, node, inputs)
}

/// Makes a node's CPU kernel.
pub fn make_kernel(device: &Arc<dyn Device>, node: &Node) -> Result<Kernel> {
    lone::make_kernel(device, node)
}

/// Runs a kernel that was made for this node: one that keeps state between runs shows it.
pub fn run_kernel(
    kernel: &Kernel,
    device: &Arc<dyn Device>,
    node: &Node,
    inputs: Vec<Value>,
) -> Result<Vec<Value>> {
    lone::run_kernel(kernel, device, node, inputs)
}

#[cfg(test)]
pub(crate) use lone::step as lone_step;

/// Runs an op by name: inputs and attributes as given, outputs as host tensors.
pub fn run_op(op: &str, inputs: &[Tensor], attrs: &[(&str, graph::AttrValue)]) -> Result<Vec<Tensor>> {
    let op = graph::ops::lookup(op).ok_or_else(|| Error::invalid(format!("no op {op}")))?;
    let mut node = Node::new("test", op);
    for (name, value) in attrs {
        node.attrs.set(name, value.clone());
    }
    let outputs = run_node(&node, inputs.iter().cloned().map(Value::Host).collect())?;
    outputs
        .into_iter()
        .map(|v| match v {
            Value::Host(t) => Ok(t),
            other => Err(Error::internal(format!("output is {other:?}"))),
        })
        .collect()
}
