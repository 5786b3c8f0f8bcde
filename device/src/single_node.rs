//! Runs of a single node without a graph, for constant folding and kernel tests.

use crate::cancel::Cancellation;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::function::no_functions;
use crate::kernel::{Kernel, KernelContext, KernelInit, Step};
use crate::rendezvous::{Receive, Rendezvous, RendezvousKey, Sent};
use crate::value::Value;
use graph::Node;
use std::sync::Arc;

/// Creates the node's kernel and runs it on these inputs, in a new step.
pub fn run(device: &Arc<Device>, node: &Node, inputs: Vec<Value>) -> Result<Vec<Value>> {
    run_kernel(&make_kernel(device, node)?, device, node, inputs)
}

/// Creates the kernel of a node.
pub fn make_kernel(device: &Arc<Device>, node: &Node) -> Result<Kernel> {
    let (input_types, output_types) = (node.input_types()?, node.output_types()?);
    let def = device.find_kernel(node).ok_or_else(|| {
        Error::unimplemented(format!("no {} kernel for {}", device.name().device_type, node.op.name()))
    })?;
    (def.make)(&KernelInit {
        node,
        inputs: &input_types,
        outputs: &output_types,
        device,
        functions: no_functions(),
    })
}

/// Runs a kernel that was created for this node, in a new step. The kernel keeps its state from one run to the next.
pub fn run_kernel(
    kernel: &Kernel,
    device: &Arc<Device>,
    node: &Node,
    mut inputs: Vec<Value>,
) -> Result<Vec<Value>> {
    let expected = node.input_types()?.len();
    if inputs.len() != expected {
        crate::invalid!("{} takes {expected} inputs, not {}", node.op.name(), inputs.len());
    }
    let mut outputs = vec![Value::None; node.output_types()?.len()];
    let step = step();
    match kernel {
        Kernel::Sync(compute) => {
            let mut ctx =
                KernelContext { node, device, step: &step, inputs: &mut inputs, outputs: &mut outputs };
            compute(&mut ctx)?;
            Ok(outputs)
        }
        Kernel::Async(_) => Err(Error::unimplemented(format!("{} is asynchronous", node.op.name()))),
    }
}

/// Creates a step that is never cancelled and receives no tensors.
pub fn step() -> Arc<Step> {
    Arc::new(Step::new(1, Arc::new(NoRendezvous), Arc::new(Cancellation::new())))
}

/// The rendezvous of a step without other devices: sends are dropped, receives fail.
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
