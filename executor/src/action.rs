//! The action of each node of a plan, and the memory of each of its ports; both are decided once, at registration.

use crate::kernel_cache::KernelCache;
use device::Device;
use device::cancel::Cancellation;
use device::function::Functions;
use device::kernel::{Kernel, KernelContext, Step};
use device::rendezvous::{LocalRendezvous, RendezvousKey};
use device::value::Value;
use device::{Error, Result};
use graph::ops::PortTypes;
use graph::{Bool8, DType, DeviceName, Node, Op, Role};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The work that running a node consists of.
pub(super) enum Action {
    /// Computes the node by its kernel.
    Kernel(Arc<Kernel>),
    /// Sends the input to another device.
    Send { key: Arc<RendezvousKey>, path: SendPath },
    /// Receives a tensor from another device. If `to_device`, it is then moved into the device's own memory.
    Recv { key: Arc<RendezvousKey>, to_device: bool },
    /// Does nothing (ControlTrigger). The node only orders other nodes by its control edges, and runs even if its
    /// inputs are dead.
    Trigger,
    /// Forwards a value between ports by the rules of a control-flow op.
    ControlFlow(ControlFlowOp),
    /// Runs the kernels of the segment with this number.
    Segment(u32),
    /// Nothing: the node's outputs were computed at registration, and the node is never scheduled.
    Constant,
}

impl Action {
    /// Returns the action of `node`, whose outputs have the types `outputs`.
    ///
    /// # Errors
    /// An error that names the node if there is no kernel for it, or its op needs features that the executor does not
    /// have.
    pub(super) fn new(
        device: &Arc<Device>,
        kernels: &KernelCache,
        functions: &Arc<dyn Functions>,
        node: &Node,
        outputs: &PortTypes,
    ) -> Result<Action> {
        match node.op.role() {
            Role::Compute => Ok(Action::Kernel(kernels.kernel(device, node, functions)?)),
            Role::Send => {
                let key = key(node)?;
                let path = SendPath::between(device, &key.dst_device)?;
                Ok(Action::Send { key, path })
            }
            Role::Recv => {
                let required = port_memories(device, node, &node.op.outputs, outputs)?;
                // A variant may contain tensors in host or device memory, so that every received variant goes through
                // the transfer to the device.
                let is_variant = outputs.first().is_some_and(|port| port.dtype == DType::Variant);
                let to_device = device.processor().has_own_memory()
                    && (is_variant || required.first() == Some(&RequiredMemory::Device));
                Ok(Action::Recv { key: key(node)?, to_device })
            }
            Role::ControlTrigger => Ok(Action::Trigger),
            Role::Switch => Ok(Action::ControlFlow(ControlFlowOp::Switch)),
            Role::Merge => Ok(Action::ControlFlow(ControlFlowOp::Merge)),
            Role::Enter | Role::Exit | Role::NextIteration | Role::LoopCond => {
                Ok(Action::ControlFlow(ControlFlowOp::Forward))
            }
        }
    }

    /// Returns whether running the node early lets another device proceed, or starts an operation that needs time but
    /// no thread of this process.
    pub(super) fn is_awaited_elsewhere(&self) -> bool {
        match self {
            Action::Send { .. } | Action::Recv { .. } => true,
            Action::Kernel(kernel) => matches!(**kernel, Kernel::Async(_)),
            Action::Trigger | Action::ControlFlow(_) | Action::Segment(_) | Action::Constant => false,
        }
    }
}

/// How a Send delivers a tensor that is in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendPath {
    /// The tensor is copied to host memory.
    Host,
    /// The receiver gets the tensor itself: the sending and the receiving device are of the same device type and belong
    /// to the same task.
    SameTask,
    /// The tensor is exported to a buffer that the receiver's process can map, if the receiving device has access to
    /// the sending device's memory; both devices are of the same type.
    PeerProcess,
}

impl SendPath {
    fn between(device: &Device, other: &str) -> Result<SendPath> {
        let (own, other) = (device.name(), DeviceName::parse(other)?);
        Ok(match device.processor().can_adopt() && own.device_type == other.device_type {
            false => SendPath::Host,
            true if DeviceName { id: own.id, ..other } == *own => SendPath::SameTask,
            true => SendPath::PeerProcess,
        })
    }
}

/// A control-flow op's rule for forwarding values from inputs to outputs. Values are forwarded between iterations and
/// loop frames by the module `frames`.
pub(super) enum ControlFlowOp {
    /// Forwards to the output that the second input selects: by a boolean if there are two outputs, else by index,
    /// where an index out of range selects the last output. The other outputs are dead.
    Switch,
    /// Forwards the input that has arrived, together with the index of that input.
    Merge,
    /// Forwards the only input.
    Forward,
}

impl ControlFlowOp {
    pub(super) fn run(&self, inputs: &mut [Value], outputs: &mut [Value]) -> Result<()> {
        match self {
            ControlFlowOp::Switch => {
                let output = selected_output(inputs.get(1), outputs.len())?;
                outputs[output] = std::mem::take(&mut inputs[0]);
            }
            ControlFlowOp::Merge => {
                let arrived = inputs.iter().position(|input| !matches!(input, Value::None));
                let arrived = arrived.ok_or_else(|| Error::internal("a Merge runs without an input"))?;
                outputs[0] = std::mem::take(&mut inputs[arrived]);
                outputs[1] = Value::Host((arrived as i32).into());
            }
            ControlFlowOp::Forward => outputs[0] = std::mem::take(&mut inputs[0]),
        }
        Ok(())
    }
}

fn selected_output(by: Option<&Value>, outputs: usize) -> Result<usize> {
    let Some(Value::Host(by)) = by else {
        return Err(Error::internal("a Switch runs without its choice in host memory"));
    };
    if by.shape().rank() != 0 {
        device::invalid!("The second input must be a scalar, but it has shape {}", by.shape());
    }
    if by.dtype() == DType::Bool {
        return Ok(usize::from(by.item::<Bool8>()?.get()));
    }
    let number = by.item::<i32>()?;
    Ok(usize::try_from(number).ok().filter(|n| *n < outputs).unwrap_or(outputs - 1))
}

/// Returns the rendezvous key of a Send or Recv, from the node's attributes.
fn key(node: &Node) -> Result<Arc<RendezvousKey>> {
    let text = |name: &str| node.attr::<String>(name);
    let incarnation = node.attr::<i64>("send_device_incarnation")?;
    Ok(Arc::new(RendezvousKey::new(
        text("send_device")?,
        incarnation as u64,
        text("recv_device")?,
        text("tensor_name")?,
    )))
}

/// The memory that a port's tensor must be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RequiredMemory {
    /// Host memory.
    Host,
    /// The device's own memory.
    Device,
    /// Host memory or the device's own: the reader of the tensor copies it if necessary.
    Any,
}

/// Returns the required memory of each input port or each output port of a node. A port is in host memory if the kernel
/// requires it, or if the tensor's elements are objects. A Send takes its input from any memory. 32-bit integers, which
/// count iterations and sizes, and booleans, which select branches, are usually in host memory: control-flow ops take
/// values of these types from either memory, and a Recv leaves integers in host memory.
pub(super) fn port_memories(
    device: &Arc<Device>,
    node: &Node,
    args: &[graph::ops::spec::Arg],
    types: &PortTypes,
) -> Result<Vec<RequiredMemory>> {
    let kernel = device.find_kernel(node);
    let role = node.op.role();
    let is_on_host = |argument: &str| match role {
        Role::Switch => ["pred", "output_index"].contains(&argument),
        Role::Merge => argument == "value_index",
        Role::LoopCond => true,
        _ => kernel.is_some_and(|def| def.is_on_host(argument)),
    };
    let accepts_any_memory = |argument: &str| kernel.is_some_and(|def| def.accepts_any_memory(argument));
    let of_type = |dtype: DType| match (role, dtype) {
        (Role::Recv, DType::Int32) => RequiredMemory::Host,
        (
            Role::Switch | Role::Merge | Role::Enter | Role::Exit | Role::NextIteration,
            DType::Int32 | DType::Bool,
        ) => RequiredMemory::Any,
        _ => RequiredMemory::Device,
    };
    let op: &Op = node.op;
    let mut ports = Vec::with_capacity(types.len());
    for arg in args {
        let count = op.arg_count(arg, &node.attrs)?;
        let memory = match () {
            () if is_on_host(arg.name) => Some(RequiredMemory::Host),
            () if role == Role::Send || accepts_any_memory(arg.name) => Some(RequiredMemory::Any),
            () => None,
        };
        ports.extend(std::iter::repeat_n(memory, count));
    }
    let required = |(memory, port): (Option<RequiredMemory>, &graph::PortType)| match memory {
        // Elements that are objects exist in host memory only.
        _ if port.dtype.size().is_none() => RequiredMemory::Host,
        Some(memory) => memory,
        None => of_type(port.dtype),
    };
    Ok(ports.into_iter().zip(types).map(required).collect())
}

/// Returns the outputs of a node without state and data inputs, which are the same in every step; `None` if the kernel
/// is stateful, asynchronous or fails. A kernel that fails is run again in each step that needs it, so that the step
/// reports the error.
pub(super) fn constant_outputs(
    action: &Action,
    node: &Node,
    num_outputs: usize,
    device: &Arc<Device>,
    step: &Arc<Step>,
) -> Option<Vec<Value>> {
    let Action::Kernel(kernel) = action else { return None };
    let Kernel::Sync(compute) = &**kernel else { return None };
    if node.op.is_stateful() {
        return None;
    }
    let mut outputs = vec![Value::None; num_outputs];
    let mut ctx = KernelContext { node, device, step, inputs: &mut [], outputs: &mut outputs };
    let result = catch_unwind(AssertUnwindSafe(|| compute(&mut ctx)))
        .unwrap_or_else(|payload| Err(Error::panicked(node, payload.as_ref())));
    let is_complete = result.is_ok() && !outputs.iter().any(|v| matches!(v, Value::None));
    is_complete.then_some(outputs)
}

/// Creates the step in which constants are computed, without any received tensors.
pub(super) fn constants_step() -> Arc<Step> {
    Arc::new(Step::new(0, Arc::new(LocalRendezvous::new()), Arc::new(Cancellation::new())))
}
