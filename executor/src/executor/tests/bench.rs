//! A test bench: private ops on private devices, graphs of these ops, and functions that run steps.

use crate::executor::*;
use device::KernelTable;
use device::cancel::Cancellation;
use device::kernel::{Kernel, KernelDef, KernelInit};
use device::rendezvous::{LocalRendezvous, RendezvousKey, Sent};
use device::resource::{Resource, ResourceStore};
use device::value::Value;
use device::variable::Variable;
use device::{Device, DeviceAttributes, DeviceMemory, DeviceTensor, Error, Processor, Transfer};
use graph::ops::spec::{Arg, ArgType, AttrKind, AttrSpec};
use graph::ops::{OpDef, Traits};
use graph::{DType, Node, NodeId, Op, Output, PartialShape, Role, Tensor};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

/// Creates an op outside the op table, with float ports and the attributes of Send and Recv.
pub(super) fn op(
    name: &'static str,
    inputs: usize,
    outputs: usize,
    role: Role,
    traits: Traits,
) -> &'static Op {
    let port = |is_ref| Arg { name: "x", ty: ArgType::Fixed(DType::Float), number_attr: None, is_ref };
    let attr = |name, kind| AttrSpec {
        name,
        kind,
        is_list: false,
        minimum: None,
        allowed: Vec::new(),
        default: Some(match kind {
            AttrKind::Int => 0i64.into(),
            AttrKind::Bool => false.into(),
            _ => "".into(),
        }),
    };
    let def = Box::leak(Box::new(OpDef { name, role, traits, ..OpDef::NEW }));
    Box::leak(Box::new(Op {
        def,
        inputs: (0..inputs).map(|_| port(name == "TakesRef")).collect(),
        outputs: (0..outputs).map(|_| port(name == "GivesRef")).collect(),
        attrs: vec![
            attr("tensor_name", AttrKind::Str),
            attr("send_device", AttrKind::Str),
            attr("recv_device", AttrKind::Str),
            attr("send_device_incarnation", AttrKind::Int),
            attr("client_terminated", AttrKind::Bool),
            attr("value", AttrKind::Int),
        ],
        index: 0,
        may_wait: false,
    }))
}

pub(super) fn compute(name: &'static str, inputs: usize, outputs: usize) -> &'static Op {
    op(name, inputs, outputs, Role::Compute, Traits::STATEFUL)
}

pub(super) fn scalar(ctx: &device::kernel::KernelContext<'_>, i: usize) -> Result<f32> {
    Ok(ctx.input(i)?.item::<f32>()?)
}

pub(super) type Callback = Box<dyn FnOnce() + Send>;

/// The events that kernels log, and the callbacks that they leave for the test to call.
#[derive(Default)]
pub(super) struct Log {
    events: Mutex<Vec<String>>,
    callbacks: Mutex<Vec<Callback>>,
}

impl Resource for Log {
    const KIND: &'static str = "Log";
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.events.lock())
    }
}

pub(super) fn log(resources: &ResourceStore) -> Result<Arc<Log>> {
    resources.lookup_or_create("", "log", || Ok(Log::default()))
}

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Value", &[], |init| {
        let value = init.attr::<i64>("value")? as f32;
        Kernel::sync(move |ctx| {
            ctx.set_output(0, Tensor::scalar(value));
            Ok(())
        })
    }),
    KernelDef::of("Const", &[], |init| {
        let value = init.attr::<i64>("value")? as f32;
        Kernel::sync(move |ctx| {
            log(ctx.resources())?.events.lock().push("const".into());
            ctx.set_output(0, Tensor::scalar(value));
            Ok(())
        })
    }),
    KernelDef::of("Add", &[], |_| {
        Kernel::sync(|ctx| {
            let sum = scalar(ctx, 0)? + scalar(ctx, 1)?;
            let mut out = ctx.take_input(0)?;
            out.values_mut::<f32>()?[0] = sum;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef::of("Row", &[], |_| {
        Kernel::sync(|ctx| {
            ctx.set_output(0, Tensor::vector(&[1.0f32; 3])?);
            Ok(())
        })
    }),
    KernelDef::of("IsUnique", &[], |_| {
        Kernel::sync(|ctx| {
            let unique = ctx.take_input(0)?.is_unique();
            log(ctx.resources())?.events.lock().push(format!("{} {unique}", ctx.node().name));
            Ok(())
        })
    }),
    KernelDef::of("Counter", &[], |_| {
        let count = AtomicU64::new(0);
        Kernel::sync(move |ctx| {
            ctx.set_output(0, Tensor::scalar(count.fetch_add(1, Ordering::Relaxed) as f32));
            Ok(())
        })
    }),
    KernelDef::of("Later", &[], |_| {
        Kernel::asynchronous(|mut ctx| {
            let input = ctx.inputs.pop().unwrap_or_default();
            let done = ctx.done;
            let answer: Callback = Box::new(move || done(Ok([input].into_iter().collect())));
            match log(ctx.device.resources()) {
                Ok(log) => log.callbacks.lock().push(answer),
                Err(_) => answer(),
            }
        })
    }),
    KernelDef::of("Forgets", &[], |_| Kernel::asynchronous(drop)),
    KernelDef::of("Fails", &[], |_| Kernel::sync(|_| Err(Error::invalid("it fails")))),
    KernelDef::of("Panics", &[], |_| Kernel::sync(|_| std::panic::resume_unwind(Box::new("it panics")))),
    KernelDef::of("PanicsAtStart", &[], |_| {
        Kernel::asynchronous(|_| std::panic::resume_unwind(Box::new("it panics")))
    }),
    KernelDef::of("GivesNothing", &[], |_| Kernel::sync(|_| Ok(()))),
    KernelDef::of("Thread", &[], |_| {
        Kernel::sync(|ctx| {
            let thread = std::thread::current().name().unwrap_or("").to_owned();
            log(ctx.resources())?.events.lock().push(thread);
            Ok(())
        })
    }),
    KernelDef::of("GivesRef", &[], |init| {
        let variable = Arc::new(Variable::new("v", DType::Float, PartialShape::scalar()));
        let value = init.attr::<i64>("value")?;
        if value != 0 {
            *variable.lock() = Some(Tensor::scalar(value as f32));
        }
        Kernel::sync(move |ctx| {
            ctx.set_output(0, Value::Ref(variable.clone()));
            Ok(())
        })
    }),
    KernelDef::of("TakesRef", &[], |_| Kernel::sync(|ctx| ctx.ref_input(0).map(|_| ()))),
    KernelDef { op: "WantsHost", host_memory: &["x"], make: log_memory, ..KernelDef::NEW },
    KernelDef { op: "WantsDevice", make: log_memory, ..KernelDef::NEW },
];

/// Creates a kernel that logs the memory of its input and passes it on.
pub(super) fn log_memory(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let value = ctx.take_value(0);
        let memory = if matches!(value, Value::Host(_)) { "host" } else { "device" };
        log(ctx.resources())?.events.lock().push(format!("{} {memory}", ctx.node().name));
        ctx.set_output(0, value);
        Ok(())
    })
}

fn table() -> &'static KernelTable {
    static TABLE: OnceLock<KernelTable> = OnceLock::new();
    TABLE.get_or_init(|| KernelTable::new("CPU", &[KERNELS], |_| false))
}

/// The processor of the device that has the kernels in [`KERNELS`]. If it has its own memory, it logs each transfer and
/// ends it on another thread.
#[derive(Debug)]
pub(super) struct TestProcessor {
    log: OnceLock<Arc<Log>>,
    own_memory: bool,
}

impl TestProcessor {
    fn device(own_memory: bool) -> Device {
        let name = graph::DeviceName::new(&graph::TaskName::new("localhost", 0), "CPU", 0);
        let attributes = DeviceAttributes {
            name,
            memory_limit: 1 << 28,
            incarnation: 1,
            physical_description: String::new(),
        };
        let processor = Arc::new(TestProcessor { log: OnceLock::new(), own_memory });
        let device = Device::new(attributes, processor.clone(), table());
        if let Ok(log) = log(device.resources()) {
            processor.log.get_or_init(|| log);
        }
        device
    }
}

#[derive(Debug)]
pub(super) struct Memory(Tensor);

impl DeviceMemory for Memory {
    fn len(&self) -> usize {
        self.0.num_bytes()
    }
}

impl TestProcessor {
    fn note<T: Send + 'static>(&self, event: &str, result: Result<T>, done: Transfer<T>) {
        if let Some(log) = self.log.get() {
            log.events.lock().push(event.into());
        }
        std::thread::spawn(move || done(result));
    }
}

impl Processor for TestProcessor {
    fn has_own_memory(&self) -> bool {
        self.own_memory
    }

    fn upload(&self, tensor: Tensor, done: Transfer<Value>) {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().clone());
        let value = Value::Device(DeviceTensor { dtype, shape, memory: Arc::new(Memory(tensor)) });
        self.note("upload", Ok(value), done);
    }

    fn download(&self, tensor: DeviceTensor, done: Transfer<Tensor>) {
        let memory: Arc<dyn std::any::Any + Send + Sync> = tensor.memory;
        let tensor = memory.downcast::<Memory>().map(|m| m.0.clone());
        self.note("download", tensor.map_err(|_| Error::internal("another device's memory")), done);
    }
}

/// A graph under construction, and the device and kernels that run it.
pub(super) struct Bench {
    pub(super) graph: Graph,
    pub(super) device: Arc<Device>,
    pub(super) kernels: KernelCache,
    pub(super) threads: usize,
}

pub(super) const PLACE: &str = "/job:localhost/replica:0/task:0/device:CPU:0";

impl Bench {
    pub(super) fn new() -> Bench {
        Bench::on(false)
    }

    pub(super) fn on(own_memory: bool) -> Bench {
        Bench {
            graph: Graph::new(),
            device: Arc::new(TestProcessor::device(own_memory)),
            kernels: KernelCache::new(),
            threads: 2,
        }
    }

    pub(super) fn add(
        &mut self,
        name: &str,
        op: &'static Op,
        inputs: &[NodeId],
        control: &[NodeId],
    ) -> Result<NodeId> {
        self.add_with(name, op, 0, inputs, control)
    }

    pub(super) fn add_with(
        &mut self,
        name: &str,
        op: &'static Op,
        value: i64,
        inputs: &[NodeId],
        control: &[NodeId],
    ) -> Result<NodeId> {
        let node = Node::new(name, op)
            .with_attr("tensor_name", name)
            .with_attr("send_device", PLACE)
            .with_attr("recv_device", PLACE)
            .with_attr("value", value);
        let inputs: Vec<Output> = inputs.iter().map(|&id| id.into()).collect();
        Ok(self.graph.add(node, &inputs, control)?)
    }

    pub(super) fn executor(&self) -> Result<Arc<Executor>> {
        let pool = Pool::new(self.threads)?;
        Ok(Arc::new(Executor::new(&self.graph, self.device.clone(), pool, &self.kernels)?))
    }

    pub(super) fn events(&self) -> Result<Vec<String>> {
        Ok(std::mem::take(&mut *log(self.device.resources())?.events.lock()))
    }

    pub(super) fn callbacks(&self) -> Result<Vec<Callback>> {
        Ok(std::mem::take(&mut *log(self.device.resources())?.callbacks.lock()))
    }
}

pub(super) fn send() -> &'static Op {
    op("Send", 1, 0, Role::Send, Traits::STATEFUL)
}

pub(super) fn recv() -> &'static Op {
    op("Recv", 0, 1, Role::Recv, Traits::STATEFUL)
}

pub(super) fn new_step() -> Arc<Step> {
    Arc::new(Step::new(1, Arc::new(LocalRendezvous::new()), Arc::new(Cancellation::new())))
}

pub(super) fn start(
    executor: &Arc<Executor>,
    step: &Arc<Step>,
    trace: bool,
) -> mpsc::Receiver<Result<Trace>> {
    let (sender, receiver) = mpsc::channel();
    executor.run(step.clone(), trace, Box::new(move |result| drop(sender.send(result))));
    receiver
}

pub(super) fn wait<T>(receiver: &mpsc::Receiver<Result<T>>) -> Result<T> {
    receiver.recv_timeout(Duration::from_secs(60)).map_err(|e| Error::internal(e.to_string()))?
}

pub(super) fn run(executor: &Arc<Executor>, step: &Arc<Step>) -> Result<()> {
    wait(&start(executor, step, false)).map(|_| ())
}

pub(super) fn key(edge: &str) -> Arc<RendezvousKey> {
    Arc::new(RendezvousKey::new(PLACE, 0, PLACE, edge))
}

pub(super) fn received(step: &Arc<Step>, edge: &str) -> Result<Value> {
    let (sender, receiver) = mpsc::channel();
    step.rendezvous.recv(&key(edge), Box::new(move |sent| drop(sender.send(sent))));
    Ok(wait(&receiver)?.value)
}

pub(super) fn fetch(step: &Arc<Step>, edge: &str) -> Result<f32> {
    match received(step, edge)? {
        Value::Host(tensor) => Ok(tensor.item::<f32>()?),
        other => Err(Error::internal(format!("{other:?}"))),
    }
}

pub(super) fn feed(step: &Arc<Step>, edge: &str, value: f32) -> Result<()> {
    step.rendezvous.send(&key(edge), Sent { value: Value::Host(value.into()), is_dead: false })
}
