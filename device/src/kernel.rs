//! Kernels: what computes a node on a device, how they are tabled, and what they see while they run.

use crate::cancel::Cancellation;
use crate::device::{Device, DeviceTensor};
use crate::error::{Error, Result};
use crate::function::{Call, Function, Functions};
use crate::rendezvous::Rendezvous;
use crate::repeat::Capture;
use crate::resource::ResourceStore;
use crate::value::Value;
use crate::variable::Variable;
use graph::{DType, Element, Node, PortType, Shape, Tensor};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// A row of a kernel table: which op, for which attributes, on the table's device type.
#[derive(Clone, Copy)]
pub struct KernelDef {
    pub op: &'static str,
    /// Type attributes and the types that the kernel takes for them; attributes not named may be any.
    pub types: &'static [(&'static str, &'static [DType])],
    /// An attribute without which a node is not this row's.
    pub mark: Option<&'static str>,
    /// Names of arguments whose tensors are in host memory on every device; [`ALL_ARGUMENTS`] for all.
    pub host_memory: &'static [&'static str],
    /// Names of arguments whose tensors stay in whichever memory they are in; [`ALL_ARGUMENTS`] for all.
    pub any_memory: &'static [&'static str],
    /// Of kernels of several device types, that of the highest goes first where no device is asked for.
    pub priority: i32,
    /// Always ends sooner than another thread would begin: it touches no elements and waits for no lock.
    pub is_brief: bool,
    /// Whether what it enqueues may be captured and repeated.
    pub capture: Capture,
    pub make: MakeKernel,
    /// The op is known, and answers that its kernel is not there.
    pub is_absent: bool,
}

/// The attribute of a node whose kernel computes truth values in host memory on a device with memory of its own.
pub const ON_HOST: &str = "_on_host";

/// All of a kernel's arguments: for `host_memory`, of one that runs on the host, whatever its device.
pub const ALL_ARGUMENTS: &[&str] = &["*"];

/// Builds a kernel for one node, once, when its graph is registered.
pub type MakeKernel = fn(&KernelInit<'_>) -> Result<Kernel>;

impl KernelDef {
    /// What a row leaves out.
    pub const NEW: KernelDef = KernelDef {
        op: "",
        types: &[],
        mark: None,
        host_memory: &[],
        any_memory: &[],
        priority: 0,
        is_brief: false,
        capture: Capture::Never,
        make: |init| Err(Error::unimplemented(format!("{} has no kernel", init.node.op.name()))),
        is_absent: false,
    };

    /// A kernel for one type attribute `T`.
    pub const fn of(
        op: &'static str,
        types: &'static [(&'static str, &'static [DType])],
        make: MakeKernel,
    ) -> Self {
        KernelDef { op, types, make, ..KernelDef::NEW }
    }

    /// As [`KernelDef::of`], of a kernel that does nothing but enqueue work: it may be captured.
    pub const fn enqueuing(
        op: &'static str,
        types: &'static [(&'static str, &'static [DType])],
        make: MakeKernel,
    ) -> Self {
        KernelDef { capture: Capture::Work, ..KernelDef::of(op, types, make) }
    }

    /// As [`KernelDef::enqueuing`], of work that changes variables in place.
    pub const fn updating(
        op: &'static str,
        types: &'static [(&'static str, &'static [DType])],
        make: MakeKernel,
    ) -> Self {
        KernelDef { capture: Capture::Updates, ..KernelDef::of(op, types, make) }
    }

    /// As [`KernelDef::updating`], of work that puts other values where those of variables are.
    pub const fn assigning(
        op: &'static str,
        types: &'static [(&'static str, &'static [DType])],
        make: MakeKernel,
    ) -> Self {
        KernelDef { capture: Capture::Assigns, ..KernelDef::of(op, types, make) }
    }

    /// A row for an op that graphs may hold, and that fails by name where it would run.
    pub const fn absent(op: &'static str) -> Self {
        KernelDef { op, is_absent: true, ..KernelDef::NEW }
    }

    /// The row of a kernel that is brief.
    pub const fn brief(self) -> Self {
        KernelDef { is_brief: true, ..self }
    }

    /// Whether the argument's tensors are in host memory on every device.
    pub fn is_on_host(&self, argument: &str) -> bool {
        is_among(argument, self.host_memory)
    }

    /// Whether the argument's tensors stay where they are.
    pub fn is_anywhere(&self, argument: &str) -> bool {
        is_among(argument, self.any_memory)
    }

    /// Whether the kernel takes the node's attributes.
    pub fn supports(&self, node: &Node) -> bool {
        let takes = |(attr, allowed): &(&str, &[DType])| match node.attr::<DType>(attr) {
            Ok(dtype) => allowed.contains(&dtype),
            Err(_) => {
                node.attr::<Vec<DType>>(attr).is_ok_and(|list| list.iter().all(|d| allowed.contains(d)))
            }
        };
        self.mark.is_none_or(|mark| node.attrs.get(mark).is_some()) && self.types.iter().all(takes)
    }
}

fn is_among(argument: &str, arguments: &[&str]) -> bool {
    arguments == ALL_ARGUMENTS || arguments.contains(&argument)
}

impl fmt::Debug for KernelDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelDef({} {:?})", self.op, self.types)
    }
}

/// The node that a kernel is made for.
#[derive(Debug)]
pub struct KernelInit<'a> {
    pub node: &'a Node,
    pub inputs: &'a [PortType],
    pub outputs: &'a [PortType],
    pub device: &'a Arc<Device>,
    /// The functions of the node's graph.
    pub functions: &'a Arc<dyn Functions>,
}

impl KernelInit<'_> {
    pub fn attr<T: graph::attr::FromAttr>(&self, name: &str) -> Result<T> {
        Ok(self.node.attr(name)?)
    }

    /// The function that attribute `attr` names, on the kernel's device. It is compiled when it is first called,
    /// and may outlive the kernel.
    ///
    /// # Errors
    /// `NotFound` if the graph has no such function.
    pub fn function(&self, attr: &str) -> Result<Arc<dyn Function>> {
        self.functions.get(&self.attr::<graph::FuncAttr>(attr)?)
    }

    /// The functions that attribute `attr`, a list, names.
    ///
    /// # Errors
    /// As [`KernelInit::function`].
    pub fn function_list(&self, attr: &str) -> Result<Vec<Arc<dyn Function>>> {
        self.attr::<Vec<graph::FuncAttr>>(attr)?.iter().map(|f| self.functions.get(f)).collect()
    }

    /// The type of input `i`.
    pub fn input_type(&self, i: usize) -> DType {
        self.inputs[i].dtype
    }

    pub fn output_type(&self, i: usize) -> DType {
        self.outputs[i].dtype
    }
}

/// A node's kernel.
pub enum Kernel {
    /// Returns when it is done.
    Sync(Box<SyncKernel>),
    /// Returns at once and calls back: for what waits (receives, queues), never for what computes.
    Async(Box<AsyncKernel>),
}

pub type SyncKernel = dyn Fn(&mut KernelContext<'_>) -> Result<()> + Send + Sync;
pub type AsyncKernel = dyn Fn(AsyncContext) + Send + Sync;

impl Kernel {
    pub fn sync(
        compute: impl Fn(&mut KernelContext<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Kernel> {
        Ok(Kernel::Sync(Box::new(compute)))
    }

    pub fn asynchronous(start: impl Fn(AsyncContext) + Send + Sync + 'static) -> Result<Kernel> {
        Ok(Kernel::Async(Box::new(start)))
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kernel::Sync(_) => "Kernel::Sync",
            Kernel::Async(_) => "Kernel::Async",
        })
    }
}

/// What all kernels of one step share.
#[derive(Debug)]
pub struct Step {
    pub id: i64,
    pub rendezvous: Arc<dyn Rendezvous>,
    pub cancellation: Arc<Cancellation>,
    /// Resources that end with the step; calls of functions share them.
    pub resources: Arc<ResourceStore>,
    /// The call that the step is the inside of, if it is that of a function.
    pub call: Option<Arc<Call>>,
}

impl Step {
    /// A step with resources of its own, that is no call.
    pub fn new(id: i64, rendezvous: Arc<dyn Rendezvous>, cancellation: Arc<Cancellation>) -> Step {
        Step { id, rendezvous, cancellation, resources: Arc::new(ResourceStore::new("")), call: None }
    }
}

/// What a kernel sees while it runs.
#[derive(Debug)]
pub struct KernelContext<'a> {
    pub node: &'a Node,
    pub device: &'a Arc<Device>,
    pub step: &'a Arc<Step>,
    /// Owned by the kernel: what it does not take is dropped after it.
    pub inputs: &'a mut [Value],
    pub outputs: &'a mut [Value],
}

impl<'a> KernelContext<'a> {
    #[inline]
    pub fn node(&self) -> &'a Node {
        self.node
    }

    pub fn device(&self) -> &'a Arc<Device> {
        self.device
    }

    #[inline]
    pub fn resources(&self) -> &'a ResourceStore {
        self.device.resources()
    }

    pub fn step(&self) -> &'a Arc<Step> {
        self.step
    }

    #[inline]
    pub fn num_inputs(&self) -> usize {
        self.inputs.len()
    }

    #[inline]
    pub fn num_outputs(&self) -> usize {
        self.outputs.len()
    }

    /// Input `i`, a tensor in host memory.
    #[inline]
    pub fn input(&self, i: usize) -> Result<&Tensor> {
        match self.inputs.get(i) {
            Some(Value::Host(tensor)) => Ok(tensor),
            other => Err(no_host_tensor(i, other)),
        }
    }

    /// The shape of input `i`, in whichever memory it is.
    pub fn shape(&self, i: usize) -> Result<&Shape> {
        match self.inputs.get(i) {
            Some(Value::Host(tensor)) => Ok(tensor.shape()),
            Some(Value::Device(tensor)) => Ok(&tensor.shape),
            other => Err(no_host_tensor(i, other)),
        }
    }

    /// Input `i`, a tensor in the device's own memory.
    pub fn device_input(&self, i: usize) -> Result<&DeviceTensor> {
        match self.inputs.get(i) {
            Some(Value::Device(tensor)) => Ok(tensor),
            other => Err(no_device_tensor(i, other)),
        }
    }

    /// As [`KernelContext::device_input`], by value: unique, and so writable in place, where nobody else reads it.
    pub fn take_device_input(&mut self, i: usize) -> Result<DeviceTensor> {
        match self.inputs.get_mut(i).map(std::mem::take) {
            Some(Value::Device(tensor)) => Ok(tensor),
            other => Err(no_device_tensor(i, other.as_ref())),
        }
    }

    /// Input `i`, which must be of rank 0; `name` is what the error calls it.
    pub fn scalar(&self, i: usize, name: &str) -> Result<&Tensor> {
        let value = self.input(i)?;
        if value.shape().rank() != 0 {
            crate::invalid!("{name} must be a scalar, not shape {}", value.shape());
        }
        Ok(value)
    }

    /// Input `i` by value: unique, and so writable in place, where nobody else reads it.
    #[inline]
    pub fn take_input(&mut self, i: usize) -> Result<Tensor> {
        match self.inputs.get_mut(i).map(std::mem::take) {
            Some(Value::Host(tensor)) => Ok(tensor),
            other => Err(no_host_tensor(i, other.as_ref())),
        }
    }

    /// All inputs from `from` on.
    pub fn inputs_from(&self, from: usize) -> Result<SmallVec<[&Tensor; 8]>> {
        (from..self.inputs.len()).map(|i| self.input(i)).collect()
    }

    /// The variable behind reference input `i`.
    pub fn ref_input(&self, i: usize) -> Result<&Arc<Variable>> {
        match self.inputs.get(i) {
            Some(Value::Ref(variable)) => Ok(variable),
            other => Err(Error::internal(format!("input {i} is no reference but {other:?}"))),
        }
    }

    /// Input `i` whatever it holds.
    pub fn value(&self, i: usize) -> Option<&Value> {
        self.inputs.get(i)
    }

    /// Input `i` whatever it holds, for kernels that pass it on.
    #[inline]
    pub fn take_value(&mut self, i: usize) -> Value {
        self.inputs.get_mut(i).map(std::mem::take).unwrap_or_default()
    }

    #[inline]
    pub fn set_output(&mut self, i: usize, value: impl Into<Value>) {
        self.outputs[i].discard();
        Value::fill(&mut self.outputs[i], value.into());
    }

    /// Output `i` is one element of rank 0.
    #[inline]
    pub fn set_scalar<T: Element>(&mut self, i: usize, value: T) {
        let output = &mut self.outputs[i];
        output.discard();
        Value::fill(output, Value::Host(Tensor::scalar(value)));
    }

    /// Memory for an output, of a plain type, with unspecified contents.
    pub fn allocate(&self, dtype: DType, shape: Shape) -> Result<Tensor> {
        Ok(Tensor::unspecified(dtype, shape)?)
    }

    /// A tensor for an output of this type and shape: input `i`'s memory if nobody else reads it and its size
    /// is the same, else new memory. The contents are unspecified in either case.
    pub fn forward_or_allocate(&mut self, i: usize, dtype: DType, shape: Shape) -> Result<Tensor> {
        match self.forward(i, dtype, &shape)? {
            Some(tensor) => Ok(tensor),
            None => self.allocate(dtype, shape),
        }
    }

    /// As [`KernelContext::forward_or_allocate`], without new memory.
    pub fn forward(&mut self, i: usize, dtype: DType, shape: &Shape) -> Result<Option<Tensor>> {
        if let Some(Value::Host(tensor)) = self.inputs.get(i)
            && tensor.dtype() == dtype
            && tensor.num_elements() == shape.num_elements()
            && dtype.size().is_some()
            && tensor.is_unique()
        {
            // Reshaping counts the storage up and down again.
            let is_same_shape = tensor.shape() == shape;
            let tensor = self.take_input(i)?;
            return Ok(Some(if is_same_shape { tensor } else { tensor.reshaped(shape.clone())? }));
        }
        Ok(None)
    }

    /// An error once the step is cancelled: for kernels that run long.
    pub fn check_cancelled(&self) -> Result<()> {
        self.step.cancellation.check()
    }
}

#[cold]
fn no_host_tensor(i: usize, input: Option<&Value>) -> Error {
    Error::internal(format!("input {i} is no host tensor but {input:?}"))
}

#[cold]
fn no_device_tensor(i: usize, input: Option<&Value>) -> Error {
    Error::internal(format!("input {i} is no tensor in the device's memory but {input:?}"))
}

/// An asynchronous kernel's step: it owns its inputs and answers through [`AsyncContext::done`].
pub struct AsyncContext {
    pub node: Arc<Node>,
    pub device: Arc<Device>,
    pub step: Arc<Step>,
    pub inputs: SmallVec<[Value; 4]>,
    pub done: Done,
}

/// Called once with the outputs.
pub type Done = Box<dyn FnOnce(Result<SmallVec<[Value; 4]>>) + Send>;

impl AsyncContext {
    pub fn input(&self, i: usize) -> Result<&Tensor> {
        match self.inputs.get(i) {
            Some(Value::Host(tensor)) => Ok(tensor),
            other => Err(no_host_tensor(i, other)),
        }
    }

    pub fn done(self, result: Result<SmallVec<[Value; 4]>>) {
        (self.done)(result);
    }
}

impl fmt::Debug for AsyncContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncContext({})", self.node.name)
    }
}
