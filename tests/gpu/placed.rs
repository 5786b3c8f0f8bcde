//! A node run on a device, with its inputs where its kernel's row wants them, and variables that hold what they are told.

use super::Fallible;
use device::Device;
use device::kernel::KernelDef;
use device::variable::Variable;
use device::{Value, crossing};
use graph::{DType, Node, PartialShape, ResourceHandle, Tensor};
use kernels::testing::run_node_on;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(120);

/// What a node has made of its inputs.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Its outputs, then what its variables hold; `None` where there is nothing.
    pub(crate) values: Vec<Option<Tensor>>,
    /// How many of them are outputs.
    pub(crate) outputs: usize,
}

pub(crate) fn upload(device: &Arc<Device>, tensor: Tensor) -> Fallible<Value> {
    let (sender, receiver) = channel();
    crossing::to_device(device, tensor.into(), Box::new(move |value| drop(sender.send(value))));
    Ok(receiver.recv_timeout(DEADLINE)??)
}

pub(crate) fn download(device: &Arc<Device>, value: Value) -> Fallible<Tensor> {
    let (sender, receiver) = channel();
    crossing::to_host(device, value, Box::new(move |tensor| drop(sender.send(tensor))));
    Ok(receiver.recv_timeout(DEADLINE)??)
}

/// Runs a node whose kernel on the device is of this row. Inputs that are variables hold what is given for them.
///
/// # Errors
/// The kernel's own are the inner ones.
pub(crate) fn run(
    device: &Arc<Device>,
    def: &KernelDef,
    node: &Node,
    inputs: &[Tensor],
) -> Fallible<device::Result<Outcome>> {
    let (mut placed, mut held) = (Vec::new(), Vec::new());
    let ports = node.input_types()?;
    let mut ports = ports.iter();
    let mut left = inputs.iter();
    for arg in node.op.inputs.iter() {
        let count = node.op.arg_count(arg, &node.attrs)?;
        for (tensor, port) in left.by_ref().take(count).zip(ports.by_ref()) {
            placed.push(if port.is_ref_or_resource() {
                let variable = Held::new(device, tensor, port.is_ref)?;
                let input = variable.input();
                held.push(variable);
                input
            } else if def.is_on_host(arg.name) {
                Value::Host(tensor.clone())
            } else {
                upload(device, tensor.clone())?
            });
        }
    }
    let outputs = match run_node_on(device, node, placed) {
        Ok(outputs) => outputs,
        Err(error) => return Ok(Err(error)),
    };
    let count = outputs.len();
    let mut values = outputs.into_iter().map(Value::dereferenced).collect::<device::Result<Vec<_>>>()?;
    for variable in held {
        values.push(variable.last(device)?);
    }
    let values = values.into_iter().map(|value| value.map(|value| download(device, value)).transpose());
    Ok(Ok(Outcome { values: values.collect::<Fallible<_>>()?, outputs: count }))
}

/// A variable of a device.
enum Held {
    Reference(Arc<Variable>),
    /// Behind this handle.
    Resource(Tensor),
}

impl Held {
    fn new(device: &Arc<Device>, value: &Tensor, is_ref: bool) -> Fallible<Held> {
        let (dtype, shape) = (value.dtype(), PartialShape::from(value.shape()));
        let value = upload(device, value.clone())?;
        if is_ref {
            let variable = Variable::new("v", dtype, shape);
            match value {
                Value::Device(tensor) => *variable.lock_device() = Some(tensor),
                value => *variable.lock() = Some(download(device, value)?),
            }
            return Ok(Held::Reference(Arc::new(variable)));
        }
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("v{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let node = of("VarHandleOp", dtype)?.with_attr("shape", shape).with_attr("shared_name", name);
        let handle = run_node_on(device, &node, vec![])?.remove(0);
        run_node_on(device, &of("AssignVariableOp", dtype)?, vec![handle.clone(), value])?;
        Ok(Held::Resource(download(device, handle)?))
    }

    fn input(&self) -> Value {
        match self {
            Held::Reference(variable) => Value::Ref(variable.clone()),
            Held::Resource(handle) => Value::Host(handle.clone()),
        }
    }

    /// What it holds at last.
    fn last(self, device: &Arc<Device>) -> Fallible<Option<Value>> {
        let handle = match self {
            Held::Reference(variable) => return Ok(variable.snapshot()),
            Held::Resource(handle) => handle,
        };
        let [ResourceHandle { container, name, .. }] = handle.as_resources()? else {
            return Err("no handle".into());
        };
        let store = device.resources();
        let value = store.find::<Variable>(container, name).and_then(|variable| variable.snapshot());
        store.remove::<Variable>(container, name);
        Ok(value)
    }
}

fn of(op: &str, dtype: DType) -> Fallible<Node> {
    let op = graph::ops::lookup(op).ok_or_else(|| format!("no op {op}"))?;
    Ok(Node::new("v", op).with_attr("dtype", dtype))
}
