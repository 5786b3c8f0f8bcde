//! Functions that kernels call: a body compiled for the kernel's device when it is first called, and run as a
//! step of its own within its caller's.

use crate::cancel::Cancellation;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::kernel::{Done, Step};
use crate::kernel_cache::KernelCache;
use crate::pool::Pool;
use crate::rendezvous::LocalRendezvous;
use crate::value::Value;
use graph::function::Body;
use graph::passes::prune;
use graph::{Attrs, Code, DType, DeviceName, FuncAttr, FunctionDef, FunctionLibrary};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak, mpsc};

/// Calls within calls go no deeper than this: each holds memory until it returns.
const MAX_DEPTH: u32 = 2_000;

/// Where the kernels of one graph find the functions that their attributes name.
#[derive(Clone)]
pub struct Functions {
    shared: Option<Arc<Shared>>,
    /// The function whose body the kernel is of, if it is of one.
    within: Option<Arc<Caller>>,
}

/// A body that is there as long as somebody calls it, and the attributes it was made for.
type Known = (Attrs, Weak<Compiled>);

/// What all functions of a graph have in common.
struct Shared {
    library: Arc<FunctionLibrary>,
    device: Arc<dyn Device>,
    /// The devices of its task.
    devices: Arc<[Arc<dyn Device>]>,
    pool: Arc<Pool>,
    known: Mutex<FxHashMap<Arc<str>, Vec<Known>>>,
}

/// A function whose body is being made, and whose body its call stands in.
struct Caller {
    function: Weak<Compiled>,
    within: Option<Arc<Caller>>,
}

/// A function for certain attributes, on one device. It may be kept, and called in any step.
pub struct Function {
    /// Of a function that calls itself, by whatever way, the kernels in the body do not keep the body.
    compiled: Result<Arc<Compiled>, Weak<Compiled>>,
    def: Arc<FunctionDef>,
    arg_types: Vec<DType>,
    return_types: Vec<DType>,
}

struct Compiled {
    shared: Arc<Shared>,
    def: Arc<FunctionDef>,
    attrs: Attrs,
    within: Option<Arc<Caller>>,
    executor: OnceLock<Result<Arc<Executor>>>,
}

/// The arguments and results of one call.
pub struct Call {
    depth: u32,
    args: Mutex<Vec<Value>>,
    returns: Mutex<SmallVec<[Value; 4]>>,
}

static NO_FUNCTIONS: Functions = Functions { shared: None, within: None };

impl Functions {
    /// For kernels of graphs without functions.
    pub fn none() -> &'static Functions {
        &NO_FUNCTIONS
    }

    /// The functions of a library, for one of a task's devices.
    pub fn new(
        library: &Arc<FunctionLibrary>,
        device: &Arc<dyn Device>,
        devices: &Arc<[Arc<dyn Device>]>,
        pool: &Arc<Pool>,
    ) -> Functions {
        if library.functions().is_empty() {
            return NO_FUNCTIONS.clone();
        }
        let shared = Shared {
            library: library.clone(),
            device: device.clone(),
            devices: devices.clone(),
            pool: pool.clone(),
            known: Mutex::default(),
        };
        Functions { shared: Some(Arc::new(shared)), within: None }
    }

    /// The same functions for another device of the task, and that device.
    ///
    /// # Errors
    /// `Unimplemented` if the task has none of the name.
    pub fn elsewhere(&self, name: &DeviceName) -> Result<(Functions, Arc<dyn Device>)> {
        let missing = || Error::new(Code::NotFound, "The graph has no functions to call.");
        let shared = self.shared.as_ref().ok_or_else(missing)?;
        if shared.device.name() == name {
            return Ok((self.clone(), shared.device.clone()));
        }
        let here = &shared.devices;
        let Some(device) = here.iter().find(|device| device.name() == name) else {
            let known: Vec<String> = here.iter().map(|device| device.name().to_string()).collect();
            let message = format!(
                "functions are called on devices of the caller's own task ({}), which {name} is not",
                known.join(", ")
            );
            return Err(Error::unimplemented(message));
        };
        Ok((Functions::new(&shared.library, device, &shared.devices, &shared.pool), device.clone()))
    }

    /// The function for these attributes: one that is known already, or a new one.
    ///
    /// # Errors
    /// `NotFound` if there is none of the name; `InvalidArgument` if attributes are missing.
    pub fn get(&self, func: &FuncAttr) -> Result<Arc<Function>> {
        let missing = || Error::new(Code::NotFound, format!("Function {} is not defined.", func.name));
        let shared = self.shared.as_ref().ok_or_else(missing)?;
        let def = shared.library.get(&func.name).ok_or_else(missing)?;
        let (arg_types, return_types) = (def.arg_types(&func.attrs)?, def.output_types(&func.attrs)?);
        let compiled = match self.own_caller(func) {
            Some(caller) => Err(caller.function.clone()),
            None => Ok(shared.compiled(def, func, &self.within)),
        };
        Ok(Arc::new(Function { compiled, def: def.clone(), arg_types, return_types }))
    }

    /// The function itself, if the kernel that asks stands in its body, or in that of a function called there.
    fn own_caller(&self, func: &FuncAttr) -> Option<&Arc<Caller>> {
        let mut next = self.within.as_ref();
        while let Some(caller) = next {
            if let Some(function) = caller.function.upgrade()
                && function.def.name == func.name
                && function.attrs == func.attrs
            {
                return Some(caller);
            }
            next = caller.within.as_ref();
        }
        None
    }
}

impl Shared {
    fn compiled(
        self: &Arc<Shared>,
        def: &Arc<FunctionDef>,
        func: &FuncAttr,
        within: &Option<Arc<Caller>>,
    ) -> Arc<Compiled> {
        let mut known = self.known.lock();
        let of_name = known.entry(func.name.clone()).or_default();
        of_name.retain(|(_, compiled)| compiled.strong_count() > 0);
        let same = of_name.iter().find(|(attrs, _)| *attrs == func.attrs);
        if let Some(compiled) = same.and_then(|(_, compiled)| compiled.upgrade()) {
            return compiled;
        }
        let compiled = Arc::new(Compiled {
            shared: self.clone(),
            def: def.clone(),
            attrs: func.attrs.clone(),
            within: within.clone(),
            executor: OnceLock::new(),
        });
        of_name.push((func.attrs.clone(), Arc::downgrade(&compiled)));
        compiled
    }
}

impl Compiled {
    fn executor(self: &Arc<Compiled>) -> Result<Arc<Executor>> {
        self.executor.get_or_init(|| self.compile()).clone()
    }

    fn compile(self: &Arc<Compiled>) -> Result<Arc<Executor>> {
        let body = self.def.instantiate(&self.attrs, &self.shared.library)?;
        let graph = prune(&body.graph, &wanted(&body))?;
        let caller = Caller { function: Arc::downgrade(self), within: self.within.clone() };
        let functions = Functions { shared: Some(self.shared.clone()), within: Some(Arc::new(caller)) };
        let Shared { device, pool, .. } = &*self.shared;
        // Kernels with state belong to the function: names in bodies are not those of the graph.
        let executor =
            Executor::of_function(&graph, device.clone(), pool.clone(), &KernelCache::new(), &functions)?;
        Ok(Arc::new(executor))
    }
}

/// What runs in a call; an argument that nobody reads is not asked for.
fn wanted(body: &Body) -> Vec<graph::NodeId> {
    body.wanted().into_iter().filter(|id| !body.args.contains(id)).collect()
}

impl Function {
    pub fn name(&self) -> &Arc<str> {
        &self.def.name
    }

    pub fn def(&self) -> &Arc<FunctionDef> {
        &self.def
    }

    pub fn arg_types(&self) -> &[DType] {
        &self.arg_types
    }

    pub fn return_types(&self) -> &[DType] {
        &self.return_types
    }

    /// The device that it runs on.
    ///
    /// # Errors
    /// `Internal` if the body that the function is called in is gone.
    pub fn device(&self) -> Result<Arc<dyn Device>> {
        Ok(self.compiled()?.shared.device.clone())
    }

    /// The same function with kernels of its own, and so with a state of its own.
    ///
    /// # Errors
    /// `Internal` if the body that the function is called in is gone.
    pub fn instance(&self) -> Result<Arc<Function>> {
        let of = self.compiled()?;
        let shared = Shared {
            library: of.shared.library.clone(),
            device: of.shared.device.clone(),
            devices: of.shared.devices.clone(),
            pool: of.shared.pool.clone(),
            known: Mutex::default(),
        };
        let compiled = Compiled {
            shared: Arc::new(shared),
            def: of.def.clone(),
            attrs: of.attrs.clone(),
            within: of.within.clone(),
            executor: OnceLock::new(),
        };
        Ok(Arc::new(Function {
            compiled: Ok(Arc::new(compiled)),
            def: self.def.clone(),
            arg_types: self.arg_types.clone(),
            return_types: self.return_types.clone(),
        }))
    }

    fn compiled(&self) -> Result<Arc<Compiled>> {
        let gone = || Error::internal(format!("function {} ended before its caller", self.name()));
        match &self.compiled {
            Ok(compiled) => Ok(compiled.clone()),
            Err(weak) => weak.upgrade().ok_or_else(gone),
        }
    }

    /// Calls the function as part of `step`: it ends when the step is cancelled, shares the step's resources,
    /// and fails alone. Does not wait; `done` gets what it returns, on a pool thread, or at once if the call is
    /// refused.
    pub fn call(&self, step: &Arc<Step>, args: impl IntoIterator<Item = Value>, done: Done) {
        match self.prepare(step, args) {
            Ok((executor, call)) => start(&executor, step, call, done),
            Err(error) => done(Err(error)),
        }
    }

    /// As [`Function::call`], for threads that may block. On a compute thread, which others may need to go on,
    /// it is an error.
    pub fn call_and_wait(
        &self,
        step: &Arc<Step>,
        args: impl IntoIterator<Item = Value>,
    ) -> Result<SmallVec<[Value; 4]>> {
        if Pool::is_compute_thread() {
            return Err(Error::internal(format!(
                "a compute thread cannot wait for function {}",
                self.name()
            )));
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = move |result| {
            // The caller waits for it.
            let _ = sender.send(result);
        };
        self.call(step, args, Box::new(done));
        let lost = || Error::internal(format!("the call of function {} was dropped", self.name()));
        receiver.recv().map_err(|_| lost())?
    }

    fn prepare(
        &self,
        step: &Step,
        args: impl IntoIterator<Item = Value>,
    ) -> Result<(Arc<Executor>, Arc<Call>)> {
        let compiled = self.compiled()?;
        let args: Vec<Value> = args.into_iter().collect();
        if args.len() != self.arg_types.len() {
            crate::invalid!(
                "Function {} takes {} arguments, got {}",
                self.name(),
                self.arg_types.len(),
                args.len()
            );
        }
        for (i, (arg, want)) in args.iter().zip(&self.arg_types).enumerate() {
            if let Value::Host(tensor) = arg
                && tensor.dtype() != *want
            {
                crate::invalid!("Argument {i} of function {} is {}, not {want}", self.name(), tensor.dtype());
            }
        }
        let depth = step.call.as_ref().map_or(0, |call| call.depth) + 1;
        if depth > MAX_DEPTH {
            return Err(Error::new(
                Code::ResourceExhausted,
                format!("calls of functions are nested deeper than {MAX_DEPTH}, last of {}", self.name()),
            ));
        }
        let returns = SmallVec::from_elem(Value::None, self.return_types.len());
        let call = Call { depth, args: Mutex::new(args), returns: Mutex::new(returns) };
        Ok((compiled.executor()?, Arc::new(call)))
    }
}

fn start(executor: &Arc<Executor>, step: &Arc<Step>, call: Arc<Call>, done: Done) {
    let cancellation = Arc::new(Cancellation::new());
    let inner = cancellation.clone();
    let registered = step.cancellation.register(move |reason| inner.cancel(reason.clone().derived()));
    let registration = match registered {
        Ok(registration) => registration,
        Err(reason) => return done(Err(reason)),
    };
    let own = Arc::new(Step {
        id: step.id,
        rendezvous: Arc::new(LocalRendezvous::new()),
        cancellation,
        resources: step.resources.clone(),
        call: Some(call.clone()),
    });
    let outer = step.clone();
    let ended = move |result: Result<_>| {
        outer.cancellation.deregister(registration);
        // What was not read is not kept from being written in place.
        call.args.lock().clear();
        done(result.and_then(|_| call.take_returns()));
    };
    executor.run(own, false, Box::new(ended));
}

impl Call {
    /// The argument; each is read once, by its `_Arg`.
    pub(crate) fn take_arg(&self, index: usize) -> Result<Value> {
        let arg = self.args.lock().get_mut(index).map(std::mem::take);
        match arg {
            None | Some(Value::None) => Err(Error::internal(format!("the call has no argument {index}"))),
            Some(value) => Ok(value),
        }
    }

    fn take_returns(&self) -> Result<SmallVec<[Value; 4]>> {
        let returns = std::mem::take(&mut *self.returns.lock());
        match returns.iter().position(|value| matches!(value, Value::None)) {
            None => Ok(returns),
            Some(dead) => Err(Error::invalid(format!("Retval[{dead}] does not have value"))),
        }
    }

    pub(crate) fn set_return(&self, index: usize, value: Value) -> Result<()> {
        match self.returns.lock().get_mut(index) {
            Some(slot) => *slot = value,
            None => return Err(Error::internal(format!("the call has no output {index}"))),
        }
        Ok(())
    }
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Functions({})", self.shared.as_ref().map_or(0, |s| s.library.functions().len()))
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({})", self.def.name)
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call(depth {})", self.depth)
    }
}
