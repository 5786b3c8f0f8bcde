//! Runs one op on the CPU without a graph: what kernel tests and constant folding need.

use crate::cancel::Cancellation;
use crate::device::{Device, DeviceAttributes, DeviceTensor, Transfer};
use crate::error::{Error, Result};
use crate::kernel::{Kernel, KernelContext, KernelInit, Step};
use crate::kernels;
use crate::rendezvous::{Receive, Rendezvous, RendezvousKey, Sent};
use crate::resource::ResourceStore;
use crate::value::Value;
use graph::{DeviceName, Node, TaskName, Tensor};
use std::sync::Arc;

/// Runs a node's CPU kernel on these inputs.
pub fn run_node(node: &Node, inputs: Vec<Value>) -> Result<Vec<Value>> {
    let device: Arc<dyn Device> = Arc::new(LoneDevice::default());
    run_node_on(&device, node, inputs)
}

/// As [`run_node`], on a device whose resources persist between calls.
pub fn run_node_on(device: &Arc<dyn Device>, node: &Node, mut inputs: Vec<Value>) -> Result<Vec<Value>> {
    let (input_types, output_types) = (node.input_types()?, node.output_types()?);
    let def = kernels::find("CPU", node)
        .ok_or_else(|| Error::unimplemented(format!("no CPU kernel for {}", node.op.name())))?;
    let init = KernelInit { node, inputs: &input_types, outputs: &output_types, device };
    let mut outputs = vec![Value::None; output_types.len()];
    let step = Arc::new(Step {
        id: 1,
        rendezvous: Arc::new(NoRendezvous),
        cancellation: Arc::new(Cancellation::new()),
        resources: ResourceStore::new(""),
    });
    match (def.make)(&init)? {
        Kernel::Sync(compute) => {
            let mut ctx =
                KernelContext { node, device, step: &step, inputs: &mut inputs, outputs: &mut outputs };
            compute(&mut ctx)?;
            Ok(outputs)
        }
        Kernel::Async(_) => Err(Error::unimplemented(format!("{} is asynchronous", node.op.name()))),
    }
}

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

/// A CPU device outside any cluster.
#[derive(Debug)]
pub struct LoneDevice {
    attributes: DeviceAttributes,
    resources: ResourceStore,
}

impl Default for LoneDevice {
    fn default() -> LoneDevice {
        let name = DeviceName::new(&TaskName::new("localhost", 0), "CPU", 0);
        LoneDevice {
            attributes: DeviceAttributes {
                name,
                memory_limit: 1 << 28,
                incarnation: 1,
                physical_description: String::new(),
            },
            resources: ResourceStore::new("localhost"),
        }
    }
}

impl Device for LoneDevice {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn resources(&self) -> &ResourceStore {
        &self.resources
    }

    fn upload(&self, tensor: Tensor, done: Transfer<Value>) {
        done(Ok(Value::Host(tensor)));
    }

    fn download(&self, tensor: DeviceTensor, done: Transfer<Tensor>) {
        done(Err(Error::internal(format!("{tensor:?} is of another device"))));
    }
}

#[derive(Debug)]
struct NoRendezvous;

impl Rendezvous for NoRendezvous {
    fn send(&self, _: &Arc<RendezvousKey>, _: Sent) -> Result<()> {
        Ok(())
    }

    fn recv(&self, key: &Arc<RendezvousKey>, receive: Receive) {
        receive(Err(Error::internal(format!("nothing is sent to {}", key.text))));
    }

    fn abort(&self, _: Error) {}
}
