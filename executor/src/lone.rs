//! One node run on the CPU without a graph: what constant folding and kernel tests share.

use crate::cancel::Cancellation;
use crate::cpu_device::CpuDevice;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, KernelContext, KernelInit, Step};
use crate::rendezvous::{Receive, Rendezvous, RendezvousKey, Sent};
use crate::resource::ResourceStore;
use crate::value::Value;
use graph::Node;
use std::sync::Arc;

pub(crate) fn device() -> Arc<dyn Device> {
    Arc::new(CpuDevice::default())
}

/// Runs a node's kernel on these inputs, in a step of its own.
pub(crate) fn run(device: &Arc<dyn Device>, node: &Node, mut inputs: Vec<Value>) -> Result<Vec<Value>> {
    let (input_types, output_types) = (node.input_types()?, node.output_types()?);
    if inputs.len() != input_types.len() {
        crate::invalid!("{} takes {} inputs, not {}", node.op.name(), input_types.len(), inputs.len());
    }
    let def = device
        .find_kernel(node)
        .ok_or_else(|| Error::unimplemented(format!("no CPU kernel for {}", node.op.name())))?;
    let init = KernelInit { node, inputs: &input_types, outputs: &output_types, device };
    let mut outputs = vec![Value::None; output_types.len()];
    let step = Arc::new(Step {
        id: 1,
        rendezvous: Arc::new(Nowhere),
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

/// The rendezvous of a step in which nobody else takes part.
#[derive(Debug)]
struct Nowhere;

impl Rendezvous for Nowhere {
    fn send(&self, _: &Arc<RendezvousKey>, _: Sent) -> Result<()> {
        Ok(())
    }

    fn recv(&self, key: &Arc<RendezvousKey>, receive: Receive) {
        receive(Err(Error::internal(format!("nothing is sent to {}", key.text))));
    }

    fn abort(&self, _: Error) {}
}
