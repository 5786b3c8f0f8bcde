//! What running a node means, decided once.

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

/// What running a node means.
pub(super) enum Action {
    Kernel(Arc<Kernel>),
    Send {
        key: Arc<RendezvousKey>,
        way: Way,
    },
    /// `to_device`: what arrives is moved into the device's own memory.
    Recv {
        key: Arc<RendezvousKey>,
        to_device: bool,
    },
    /// Runs with no effect: what is ordered by it is all.
    Nothing,
    /// Decides where a value goes on.
    Steer(Steer),
    /// Runs the kernels of a segment, by its number.
    Segment(u32),
    /// Computed at registration; never scheduled.
    Constant,
}

impl Action {
    /// # Errors
    /// With the node's name: there is no kernel for it, or its op needs what the executor has not.
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
                let way = Way::between(device, &key.dst_device)?;
                Ok(Action::Send { key, way })
            }
            Role::Recv => {
                let wanted = memories(device, node, &node.op.outputs, outputs)?;
                // What variants hold is in memories of its own.
                let is_variant = outputs.first().is_some_and(|port| port.dtype == DType::Variant);
                let to_device = device.processor().has_own_memory()
                    && (is_variant || wanted.first() == Some(&Wanted::Own));
                Ok(Action::Recv { key: key(node)?, to_device })
            }
            Role::ControlTrigger => Ok(Action::Nothing),
            Role::Switch => Ok(Action::Steer(Steer::Switch)),
            Role::Merge => Ok(Action::Steer(Steer::Merge)),
            Role::Enter | Role::Exit | Role::NextIteration | Role::LoopCond => Ok(Action::Steer(Steer::Pass)),
        }
    }

    /// Whether running it early lets another device, or an operation that takes time but no thread, go on.
    pub(super) fn is_awaited_elsewhere(&self) -> bool {
        match self {
            Action::Send { .. } | Action::Recv { .. } => true,
            Action::Kernel(kernel) => matches!(**kernel, Kernel::Async(_)),
            Action::Nothing | Action::Steer(_) | Action::Segment(_) | Action::Constant => false,
        }
    }
}

/// Where who receives finds what is in the device's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// In the host's memory.
    Host,
    /// Where it is: the devices are alike, and of one task.
    HandOver,
    /// Where another process sees it, if it can: the devices are alike.
    Lend,
}

impl Way {
    fn between(device: &Device, other: &str) -> Result<Way> {
        let (own, other) = (device.name(), DeviceName::parse(other)?);
        Ok(match device.processor().can_adopt() && own.device_type == other.device_type {
            false => Way::Host,
            true if DeviceName { id: own.id, ..other } == *own => Way::HandOver,
            true => Way::Lend,
        })
    }
}

/// How control flow moves values between ports; between turns and loops, the frames do.
pub(super) enum Steer {
    /// To the output that the second input chooses: by truth if there are two, else by number, where a number
    /// that is no output's chooses the last. The other outputs are dead.
    Switch,
    /// The input that came, and which one that is.
    Merge,
    Pass,
}

impl Steer {
    pub(super) fn run(&self, inputs: &mut [Value], outputs: &mut [Value]) -> Result<()> {
        match self {
            Steer::Switch => {
                let output = chosen(inputs.get(1), outputs.len())?;
                outputs[output] = std::mem::take(&mut inputs[0]);
            }
            Steer::Merge => {
                let came = inputs.iter().position(|input| !matches!(input, Value::None));
                let came = came.ok_or_else(|| Error::internal("a Merge runs without an input"))?;
                outputs[0] = std::mem::take(&mut inputs[came]);
                outputs[1] = Value::Host((came as i32).into());
            }
            Steer::Pass => outputs[0] = std::mem::take(&mut inputs[0]),
        }
        Ok(())
    }
}

fn chosen(by: Option<&Value>, outputs: usize) -> Result<usize> {
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

/// The key of a Send or Recv, all of whose parts are attributes.
fn key(node: &Node) -> Result<Arc<RendezvousKey>> {
    let text = |name: &str| node.attr::<String>(name);
    let incarnation = node.attr::<i64>("send_device_incarnation")?;
    Ok(Arc::new(RendezvousKey::new(
        &text("send_device")?,
        incarnation as u64,
        &text("recv_device")?,
        &text("tensor_name")?,
    )))
}

/// In which memory a port's tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wanted {
    Host,
    /// The device's own.
    Own,
    /// Wherever it came from: its reader moves it if it must.
    Any,
}

/// For each port, in which memory its tensor is: the host's because the kernel says so, or because its elements are
/// objects. What is sent leaves from where it is. Integers of 32 bits, which count turns and sizes, and truth values,
/// which choose branches, are on the host as a rule: what only steers leaves them where they are, and what receives
/// integers does not bring them over.
pub(super) fn memories(
    device: &Arc<Device>,
    node: &Node,
    args: &[graph::ops::spec::Arg],
    types: &PortTypes,
) -> Result<Vec<Wanted>> {
    let kernel = device.find_kernel(node);
    let role = node.op.role();
    let is_on_host = |argument: &str| match role {
        Role::Switch => ["pred", "output_index"].contains(&argument),
        Role::Merge => argument == "value_index",
        Role::LoopCond => true,
        _ => kernel.is_some_and(|def| def.is_on_host(argument)),
    };
    let is_anywhere = |argument: &str| kernel.is_some_and(|def| def.is_anywhere(argument));
    let of_type = |dtype: DType| match (role, dtype) {
        (Role::Recv, DType::Int32) => Wanted::Host,
        (
            Role::Switch | Role::Merge | Role::Enter | Role::Exit | Role::NextIteration,
            DType::Int32 | DType::Bool,
        ) => Wanted::Any,
        _ => Wanted::Own,
    };
    let op: &Op = node.op;
    let mut ports = Vec::with_capacity(types.len());
    for arg in args {
        let count = op.arg_count(arg, &node.attrs)?;
        let memory = match () {
            () if is_on_host(arg.name) => Some(Wanted::Host),
            () if role == Role::Send || is_anywhere(arg.name) => Some(Wanted::Any),
            () => None,
        };
        ports.extend(std::iter::repeat_n(memory, count));
    }
    let wanted = |(memory, port): (Option<Wanted>, &graph::PortType)| match memory {
        // Objects have no form but the host's.
        _ if port.dtype.size().is_none() => Wanted::Host,
        Some(memory) => memory,
        None => of_type(port.dtype),
    };
    Ok(ports.into_iter().zip(types).map(wanted).collect())
}

/// The outputs of a node that gives the same in every step: it has no state, no inputs, and waits for nobody.
/// A kernel that fails is left to fail in a step that needs it.
pub(super) fn constant(
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

/// The step of the constants, in which no tensor comes from elsewhere.
pub(super) fn lone_step() -> Arc<Step> {
    Arc::new(Step::new(0, Arc::new(LocalRendezvous::new()), Arc::new(Cancellation::new())))
}
