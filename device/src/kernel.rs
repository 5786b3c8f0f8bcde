//! Kernels: the functions that compute nodes on a device, the rows of kernel tables that register kernels, and the
//! context in which kernels run.

use crate::activity::Activity;
use crate::cancel::Cancellation;
use crate::collective::StepCollectives;
use crate::device::{Device, DeviceTensor};
use crate::error::{Error, Result};
use crate::function::{Call, Function, Functions};
use crate::rendezvous::Rendezvous;
use crate::resource::ResourceStore;
use crate::segment_runner::CaptureClass;
use crate::value::Value;
use crate::variable::Variable;
use graph::{DType, Element, Node, PortType, Shape, Tensor};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// A row of a kernel table: the kernel of an op for certain attributes on the table's device type.
#[derive(Clone, Copy)]
pub struct KernelDef {
    pub op: &'static str,
    /// Type attributes and the dtypes that the kernel supports for each; attributes not listed may have any value.
    pub types: &'static [(&'static str, &'static [DType])],
    /// The name of an attribute that a node must have for this row to apply.
    pub mark: Option<&'static str>,
    /// Names of the arguments whose tensors are in host memory on every device; [`ALL_ARGUMENTS`] for all.
    pub host_memory: &'static [&'static str],
    /// Names of the arguments whose tensors may be in host memory or in the device's own; [`ALL_ARGUMENTS`] for all.
    pub any_memory: &'static [&'static str],
    /// The priority among device types for a node that requests no device: the type with the highest priority is
    /// chosen.
    pub priority: i32,
    /// True if the kernel always ends sooner than another thread would start: it reads no elements and waits for no
    /// lock.
    pub is_brief: bool,
    /// The extent to which work that the kernel enqueues may be captured and replayed.
    pub capture: CaptureClass,
    pub make: MakeKernel,
    /// True if graphs may contain the op although it has no kernel; a node of the op fails, with the op's name, when it
    /// runs.
    pub is_absent: bool,
}

/// The attribute of nodes that compute booleans in host memory although their device has its own memory.
pub const ON_HOST: &str = "_on_host";

/// The list that stands for all arguments of a kernel. In `host_memory`, it marks a kernel that computes on the host
/// for every device.
pub const ALL_ARGUMENTS: &[&str] = &["*"];

/// Creates the kernel of one node; called once, when the node's graph is registered.
pub type MakeKernel = fn(&KernelInit<'_>) -> Result<Kernel>;

impl KernelDef {
    /// The defaults of a row's fields.
    pub const NEW: KernelDef = KernelDef {
        op: "",
        types: &[],
        mark: None,
        host_memory: &[],
        any_memory: &[],
        priority: 0,
        is_brief: false,
        capture: CaptureClass::Never,
        make: |init| Err(Error::unimplemented(format!("{} has no kernel", init.node.op.name()))),
        is_absent: false,
    };

    /// Creates a row for an op with the dtypes that the kernel supports for each type attribute; other fields have
    /// their defaults.
    pub const fn of(
        op: &'static str,
        types: &'static [(&'static str, &'static [DType])],
        make: MakeKernel,
    ) -> Self {
        KernelDef { op, types, make, ..KernelDef::NEW }
    }

    /// Creates a row like [`KernelDef::of`] for a kernel that only enqueues work and may therefore be captured.
    pub const fn enqueuing(
        op: &'static str,
        types: &'static [(&'static str, &'static [DType])],
        make: MakeKernel,
    ) -> Self {
        KernelDef { capture: CaptureClass::Work, ..KernelDef::of(op, types, make) }
    }

    /// Creates a row like [`KernelDef::enqueuing`] for a kernel whose work changes variables in place.
    pub const fn updating(
        op: &'static str,
        types: &'static [(&'static str, &'static [DType])],
        make: MakeKernel,
    ) -> Self {
        KernelDef { capture: CaptureClass::Updates, ..KernelDef::of(op, types, make) }
    }

    /// Creates a row like [`KernelDef::updating`] for a kernel whose work replaces the values of variables.
    pub const fn assigning(
        op: &'static str,
        types: &'static [(&'static str, &'static [DType])],
        make: MakeKernel,
    ) -> Self {
        KernelDef { capture: CaptureClass::Assigns, ..KernelDef::of(op, types, make) }
    }

    /// Creates a row for an op that graphs may contain but whose nodes fail, with the op's name, when they run.
    pub const fn absent(op: &'static str) -> Self {
        KernelDef { op, is_absent: true, ..KernelDef::NEW }
    }

    /// Marks the row's kernel as [brief](KernelDef::is_brief).
    pub const fn brief(self) -> Self {
        KernelDef { is_brief: true, ..self }
    }

    /// Returns whether the argument's tensors are in host memory on every device.
    pub fn is_on_host(&self, argument: &str) -> bool {
        is_among(argument, self.host_memory)
    }

    /// Returns whether the argument's tensors may be in host memory or in the device's own.
    pub fn accepts_any_memory(&self, argument: &str) -> bool {
        is_among(argument, self.any_memory)
    }

    /// Returns whether the kernel supports the node's attributes.
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

/// The node for which a kernel is created, with its port types, device and functions.
#[derive(Debug)]
pub struct KernelInit<'a> {
    pub node: &'a Node,
    pub inputs: &'a [PortType],
    pub outputs: &'a [PortType],
    pub device: &'a Arc<Device>,
    /// The functions that kernels of the node's graph may call.
    pub functions: &'a Arc<dyn Functions>,
}

impl KernelInit<'_> {
    /// Returns the value of the node's attribute `name`.
    pub fn attr<T: graph::attr::FromAttr>(&self, name: &str) -> Result<T> {
        Ok(self.node.attr(name)?)
    }

    /// Returns the function that attribute `attr` names, on the kernel's device. The body is compiled when the function
    /// is first called. The function may outlive the kernel.
    ///
    /// # Errors
    /// `NotFound` if the graph has no such function.
    pub fn function(&self, attr: &str) -> Result<Arc<dyn Function>> {
        self.functions.get(&self.attr::<graph::FuncAttr>(attr)?)
    }

    /// Returns the functions named by attribute `attr`, a list.
    ///
    /// # Errors
    /// Those of [`KernelInit::function`].
    pub fn function_list(&self, attr: &str) -> Result<Vec<Arc<dyn Function>>> {
        self.attr::<Vec<graph::FuncAttr>>(attr)?.iter().map(|f| self.functions.get(f)).collect()
    }

    /// Returns the dtype of the node's input `i`.
    pub fn input_type(&self, i: usize) -> DType {
        self.inputs[i].dtype
    }

    /// Returns the dtype of the node's output `i`.
    pub fn output_type(&self, i: usize) -> DType {
        self.outputs[i].dtype
    }
}

/// The kernel of one node: a function that is called for each run of the node.
pub enum Kernel {
    /// A kernel that has finished when it returns.
    Sync(Box<SyncKernel>),
    /// A kernel that returns at once and calls back later. It is meant for operations that wait (receives, queues),
    /// never for computation.
    Async(Box<AsyncKernel>),
}

/// The function of a synchronous kernel.
pub type SyncKernel = dyn Fn(&mut KernelContext<'_>) -> Result<()> + Send + Sync;
/// The function of an asynchronous kernel.
pub type AsyncKernel = dyn Fn(AsyncContext) + Send + Sync;

impl Kernel {
    /// Creates a synchronous kernel.
    pub fn sync(
        compute: impl Fn(&mut KernelContext<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Kernel> {
        Ok(Kernel::Sync(Box::new(compute)))
    }

    /// Creates an asynchronous kernel.
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

/// The state that the kernels of one step have in common.
#[derive(Debug)]
pub struct Step {
    pub id: i64,
    pub rendezvous: Arc<dyn Rendezvous>,
    pub cancellation: Arc<Cancellation>,
    /// Resources that are dropped with the step; function calls of the step share them.
    pub resources: Arc<ResourceStore>,
    /// The call whose body this step runs; `None` if the step is not a function call.
    pub call: Option<Arc<Call>>,
    /// The collectives of the server that runs the step; `None` outside a server.
    pub collectives: Option<StepCollectives>,
    /// The kernels of the step that run; function calls of the step share it.
    pub activity: Arc<Activity>,
}

impl Step {
    /// Creates a step with its own resources that is not a function call.
    pub fn new(id: i64, rendezvous: Arc<dyn Rendezvous>, cancellation: Arc<Cancellation>) -> Step {
        let resources = Arc::new(ResourceStore::new(""));
        let activity = Arc::default();
        Step { id, rendezvous, cancellation, resources, call: None, collectives: None, activity }
    }
}

/// The context of one run of a synchronous kernel.
#[derive(Debug)]
pub struct KernelContext<'a> {
    pub node: &'a Node,
    pub device: &'a Arc<Device>,
    pub step: &'a Arc<Step>,
    /// The inputs, which the kernel owns; those that it does not take are dropped when it returns.
    pub inputs: &'a mut [Value],
    pub outputs: &'a mut [Value],
}

impl<'a> KernelContext<'a> {
    /// Returns the node that the kernel computes.
    #[inline]
    pub fn node(&self) -> &'a Node {
        self.node
    }

    /// Returns the device that the kernel runs on.
    pub fn device(&self) -> &'a Arc<Device> {
        self.device
    }

    /// Returns the resource store of the device that the kernel runs on.
    #[inline]
    pub fn resources(&self) -> &'a ResourceStore {
        self.device.resources()
    }

    /// Returns the state of the step that the kernel runs in.
    pub fn step(&self) -> &'a Arc<Step> {
        self.step
    }

    /// Returns the number of the node's inputs.
    #[inline]
    pub fn num_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Returns the number of the node's outputs.
    #[inline]
    pub fn num_outputs(&self) -> usize {
        self.outputs.len()
    }

    /// Returns input `i`, which must be a tensor in host memory.
    #[inline]
    pub fn input(&self, i: usize) -> Result<&Tensor> {
        match self.inputs.get(i) {
            Some(Value::Host(tensor)) => Ok(tensor),
            other => Err(no_host_tensor(i, other)),
        }
    }

    /// Returns the shape of input `i`, a tensor in host or device memory.
    pub fn shape(&self, i: usize) -> Result<&Shape> {
        match self.inputs.get(i) {
            Some(Value::Host(tensor)) => Ok(tensor.shape()),
            Some(Value::Device(tensor)) => Ok(&tensor.shape),
            other => Err(no_host_tensor(i, other)),
        }
    }

    /// Returns input `i`, which must be a tensor in the device's own memory.
    pub fn device_input(&self, i: usize) -> Result<&DeviceTensor> {
        match self.inputs.get(i) {
            Some(Value::Device(tensor)) => Ok(tensor),
            other => Err(no_device_tensor(i, other)),
        }
    }

    /// Takes input `i` like [`KernelContext::device_input`], but by value: its memory is uniquely owned, and therefore
    /// writable in place, if nothing else refers to it.
    pub fn take_device_input(&mut self, i: usize) -> Result<DeviceTensor> {
        match self.inputs.get_mut(i).map(std::mem::take) {
            Some(Value::Device(tensor)) => Ok(tensor),
            other => Err(no_device_tensor(i, other.as_ref())),
        }
    }

    /// Returns input `i`, which must have rank 0; errors call the input `name`.
    pub fn scalar(&self, i: usize, name: &str) -> Result<&Tensor> {
        let value = self.input(i)?;
        if value.shape().rank() != 0 {
            crate::invalid!("{name} must be a scalar, not shape {}", value.shape());
        }
        Ok(value)
    }

    /// Takes input `i` by value: its buffer is uniquely owned, and therefore writable in place, if nothing else refers
    /// to it.
    #[inline]
    pub fn take_input(&mut self, i: usize) -> Result<Tensor> {
        match self.inputs.get_mut(i).map(std::mem::take) {
            Some(Value::Host(tensor)) => Ok(tensor),
            other => Err(no_host_tensor(i, other.as_ref())),
        }
    }

    /// Returns all inputs from number `from` on, which must be in host memory.
    pub fn inputs_from(&self, from: usize) -> Result<SmallVec<[&Tensor; 8]>> {
        (from..self.inputs.len()).map(|i| self.input(i)).collect()
    }

    /// Returns the variable behind reference input `i`.
    pub fn ref_input(&self, i: usize) -> Result<&Arc<Variable>> {
        match self.inputs.get(i) {
            Some(Value::Ref(variable)) => Ok(variable),
            other => Err(Error::internal(format!("input {i} is no reference but {other:?}"))),
        }
    }

    /// Returns input `i`, which may be a tensor or a reference; `None` if there is no such input.
    pub fn value(&self, i: usize) -> Option<&Value> {
        self.inputs.get(i)
    }

    /// Takes input `i`, which may be a tensor or a reference, for kernels that forward the value.
    #[inline]
    pub fn take_value(&mut self, i: usize) -> Value {
        self.inputs.get_mut(i).map(std::mem::take).unwrap_or_default()
    }

    /// Sets output `i` to `value`; an earlier value of the output is dropped.
    #[inline]
    pub fn set_output(&mut self, i: usize, value: impl Into<Value>) {
        self.outputs[i].discard();
        Value::fill(&mut self.outputs[i], value.into());
    }

    /// Sets output `i` to a scalar.
    #[inline]
    pub fn set_scalar<T: Element>(&mut self, i: usize, value: T) {
        let output = &mut self.outputs[i];
        output.discard();
        Value::fill(output, Value::Host(Tensor::scalar(value)));
    }

    /// Allocates a host tensor of a dtype with fixed-size elements; the contents are unspecified.
    pub fn allocate(&self, dtype: DType, shape: Shape) -> Result<Tensor> {
        Ok(Tensor::unspecified(dtype, shape)?)
    }

    /// Returns a tensor for an output of this dtype and shape: in the buffer of input `i` if nothing else refers to it
    /// and its size matches, else in new memory. The contents are unspecified in either case.
    pub fn forward_or_allocate(&mut self, i: usize, dtype: DType, shape: Shape) -> Result<Tensor> {
        match self.forward(i, dtype, &shape)? {
            Some(tensor) => Ok(tensor),
            None => self.allocate(dtype, shape),
        }
    }

    /// Returns a tensor like [`KernelContext::forward_or_allocate`], or `None` if the buffer of input `i` cannot be
    /// reused.
    pub fn forward(&mut self, i: usize, dtype: DType, shape: &Shape) -> Result<Option<Tensor>> {
        if let Some(Value::Host(tensor)) = self.inputs.get(i)
            && tensor.dtype() == dtype
            && tensor.num_elements() == shape.num_elements()
            && dtype.size().is_some()
            && tensor.is_unique()
        {
            // `reshaped` is skipped if possible, because it increments and decrements the buffer's reference count.
            let is_same_shape = tensor.shape() == shape;
            let tensor = self.take_input(i)?;
            return Ok(Some(if is_same_shape { tensor } else { tensor.reshaped(shape.clone())? }));
        }
        Ok(None)
    }

    /// Returns an error once the step is cancelled. Kernels that run for long call it repeatedly.
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

/// The iteration of a loop in which a node runs, as in the rendezvous keys of the loop's Sends. The default is the only
/// iteration outside all loops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoopPosition {
    /// The id of the loop frame; 0 outside all loops.
    pub frame: u64,
    pub iteration: u64,
    /// A hash of the iterations of the loops around this one, which does not depend on the loops' names; 0 outside all
    /// loops.
    pub enclosing: u64,
}

/// The context of one run of an asynchronous kernel. The context owns the node's inputs, and the kernel ends the run
/// with [`AsyncContext::done`].
pub struct AsyncContext {
    pub node: Arc<Node>,
    pub device: Arc<Device>,
    pub step: Arc<Step>,
    /// The iteration of the loop in which the node runs.
    pub position: LoopPosition,
    pub inputs: SmallVec<[Value; 4]>,
    pub done: Done,
}

/// A callback that receives the outputs of an asynchronous kernel. It is called exactly once.
pub type Done = Box<dyn FnOnce(Result<SmallVec<[Value; 4]>>) + Send>;

impl AsyncContext {
    /// Returns input `i`, which must be a tensor in host memory.
    pub fn input(&self, i: usize) -> Result<&Tensor> {
        match self.inputs.get(i) {
            Some(Value::Host(tensor)) => Ok(tensor),
            other => Err(no_host_tensor(i, other)),
        }
    }

    /// Ends the kernel's run with its outputs or an error.
    pub fn done(self, result: Result<SmallVec<[Value; 4]>>) {
        (self.done)(result);
    }
}

impl fmt::Debug for AsyncContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncContext({})", self.node.name)
    }
}
