//! Runs of a node on a device: inputs are copied to the memory that the kernel's definition demands, and variables are
//! assigned before the run.

use super::Fallible;
use device::Device;
use device::kernel::KernelDef;
use device::variable::Variable;
use device::{Value, transfer};
use graph::{DType, Node, PartialShape, ResourceHandle, Tensor};
use kernels::testing::run_node_on;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(120);

/// The results of a run of a node.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The outputs, then the variables' values; `None` for an output or variable without a value.
    pub(crate) values: Vec<Option<Tensor>>,
    /// The number of outputs, which are the first entries of `values`.
    pub(crate) outputs: usize,
}

/// Copies a tensor to a device.
pub(crate) fn upload(device: &Arc<Device>, tensor: Tensor) -> Fallible<Value> {
    let (sender, receiver) = channel();
    transfer::to_device(device, tensor.into(), Box::new(move |value| drop(sender.send(value))));
    Ok(receiver.recv_timeout(DEADLINE)??)
}

/// Copies a value to the host.
pub(crate) fn download(device: &Arc<Device>, value: Value) -> Fallible<Tensor> {
    let (sender, receiver) = channel();
    transfer::to_host(device, value, Box::new(move |tensor| drop(sender.send(tensor))));
    Ok(receiver.recv_timeout(DEADLINE)??)
}

/// Runs a node with the kernel definition `def`; an input that is a variable is first created with the value in
/// `inputs`.
///
/// # Errors
/// The inner error is the kernel's; the outer error is any other failure.
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
                let variable = TestVariable::new(device, tensor, port.is_ref)?;
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

/// A variable on a device: a reference, or a resource handle.
enum TestVariable {
    Reference(Arc<Variable>),
    /// The handle of a resource variable.
    Resource(Tensor),
}

impl TestVariable {
    /// Creates a variable with a value.
    fn new(device: &Arc<Device>, value: &Tensor, is_ref: bool) -> Fallible<TestVariable> {
        let (dtype, shape) = (value.dtype(), PartialShape::from(value.shape()));
        let value = upload(device, value.clone())?;
        if is_ref {
            let variable = Variable::new("v", dtype, shape);
            match value {
                Value::Device(tensor) => *variable.lock_device() = Some(tensor),
                value => *variable.lock() = Some(download(device, value)?),
            }
            return Ok(TestVariable::Reference(Arc::new(variable)));
        }
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("v{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let node = of("VarHandleOp", dtype)?.with_attr("shape", shape).with_attr("shared_name", name);
        let handle = run_node_on(device, &node, vec![])?.remove(0);
        run_node_on(device, &of("AssignVariableOp", dtype)?, vec![handle.clone(), value])?;
        Ok(TestVariable::Resource(download(device, handle)?))
    }

    /// Returns the variable as an input.
    fn input(&self) -> Value {
        match self {
            TestVariable::Reference(variable) => Value::Ref(variable.clone()),
            TestVariable::Resource(handle) => Value::Host(handle.clone()),
        }
    }

    /// Returns the variable's final value, and deletes the variable if it is a resource.
    fn last(self, device: &Arc<Device>) -> Fallible<Option<Value>> {
        let handle = match self {
            TestVariable::Reference(variable) => return Ok(variable.snapshot()),
            TestVariable::Resource(handle) => handle,
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

/// Returns a node of the variable op `op`, whose variable has type `dtype`.
fn of(op: &str, dtype: DType) -> Fallible<Node> {
    let op = graph::ops::lookup(op).ok_or_else(|| format!("no op {op}"))?;
    Ok(Node::new("v", op).with_attr("dtype", dtype))
}
