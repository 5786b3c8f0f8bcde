//! The functions of a graph's library: a body is compiled for the kernel's device when it is first called, and runs as a step of
//! its own within its caller's.

use crate::executor::Executor;
use crate::kernel_cache::KernelCache;
use device::Device;
use device::Pool;
use device::cancel::Cancellation;
use device::function::{Call, Function, Functions, no_functions, undefined};
use device::kernel::{Done, Step};
use device::rendezvous::LocalRendezvous;
use device::value::Value;
use device::{Error, Result};
use graph::function::Body;
use graph::passes::prune;
use graph::{Attrs, Code, DType, DeviceName, FuncAttr, FunctionDef, FunctionLibrary};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

/// Calls within calls go no deeper than this: each holds memory until it returns.
const MAX_DEPTH: u32 = 2_000;

/// The functions of a graph's library, on one device.
#[derive(Clone)]
pub struct LibraryFunctions {
    shared: Arc<Shared>,
    /// The function whose body the kernel is of, if it is of one.
    within: Option<Arc<Caller>>,
}

/// A body that is there as long as somebody calls it, and the attributes it was made for.
type Known = (Attrs, Weak<Compiled>);

/// What all functions of a graph have in common.
struct Shared {
    library: Arc<FunctionLibrary>,
    device: Arc<Device>,
    /// The devices of its task.
    devices: Arc<[Arc<Device>]>,
    pool: Arc<Pool>,
    known: Mutex<FxHashMap<Arc<str>, Vec<Known>>>,
}

/// A function whose body is being made, and whose body its call stands in.
struct Caller {
    function: Weak<Compiled>,
    within: Option<Arc<Caller>>,
}

/// A function for certain attributes, on one device. It may be kept, and called in any step.
struct LibraryFunction {
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

impl LibraryFunctions {
    /// The functions of a library for the kernels of one of a task's devices.
    pub fn of_graph(
        library: &Arc<FunctionLibrary>,
        device: &Arc<Device>,
        devices: &Arc<[Arc<Device>]>,
        pool: &Arc<Pool>,
    ) -> Arc<dyn Functions> {
        if library.functions().is_empty() {
            return no_functions().clone();
        }
        let shared = Shared {
            library: library.clone(),
            device: device.clone(),
            devices: devices.clone(),
            pool: pool.clone(),
            known: Mutex::default(),
        };
        Arc::new(LibraryFunctions { shared: Arc::new(shared), within: None })
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

impl Functions for LibraryFunctions {
    fn get(&self, func: &FuncAttr) -> Result<Arc<dyn Function>> {
        let shared = &self.shared;
        let def = shared.library.get(&func.name).ok_or_else(|| undefined(&func.name))?;
        let (arg_types, return_types) = (def.arg_types(&func.attrs)?, def.output_types(&func.attrs)?);
        let compiled = match self.own_caller(func) {
            Some(caller) => Err(caller.function.clone()),
            None => Ok(shared.compiled(def, func, &self.within)),
        };
        Ok(Arc::new(LibraryFunction { compiled, def: def.clone(), arg_types, return_types }))
    }

    fn on_device(&self, name: &DeviceName) -> Result<(Arc<dyn Functions>, Arc<Device>)> {
        let shared = &self.shared;
        if shared.device.name() == name {
            return Ok((Arc::new(self.clone()), shared.device.clone()));
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
        Ok((
            LibraryFunctions::of_graph(&shared.library, device, &shared.devices, &shared.pool),
            device.clone(),
        ))
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
        let functions = LibraryFunctions { shared: self.shared.clone(), within: Some(Arc::new(caller)) };
        let functions: Arc<dyn Functions> = Arc::new(functions);
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

impl Function for LibraryFunction {
    fn def(&self) -> &Arc<FunctionDef> {
        &self.def
    }

    fn arg_types(&self) -> &[DType] {
        &self.arg_types
    }

    fn return_types(&self) -> &[DType] {
        &self.return_types
    }

    fn device(&self) -> Result<Arc<Device>> {
        Ok(self.compiled()?.shared.device.clone())
    }

    fn instance(&self) -> Result<Arc<dyn Function>> {
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
        Ok(Arc::new(LibraryFunction {
            compiled: Ok(Arc::new(compiled)),
            def: self.def.clone(),
            arg_types: self.arg_types.clone(),
            return_types: self.return_types.clone(),
        }))
    }

    fn call(&self, step: &Arc<Step>, args: SmallVec<[Value; 4]>, done: Done) {
        match self.prepare(step, args) {
            Ok((executor, call)) => start(&executor, step, call, done),
            Err(error) => done(Err(error)),
        }
    }
}

impl LibraryFunction {
    fn compiled(&self) -> Result<Arc<Compiled>> {
        let gone = || Error::internal(format!("function {} ended before its caller", self.def.name));
        match &self.compiled {
            Ok(compiled) => Ok(compiled.clone()),
            Err(weak) => weak.upgrade().ok_or_else(gone),
        }
    }

    fn prepare(&self, step: &Step, args: SmallVec<[Value; 4]>) -> Result<(Arc<Executor>, Arc<Call>)> {
        let compiled = self.compiled()?;
        let name = &self.def.name;
        if args.len() != self.arg_types.len() {
            device::invalid!("Function {name} takes {} arguments, got {}", self.arg_types.len(), args.len());
        }
        for (i, (arg, want)) in args.iter().zip(&self.arg_types).enumerate() {
            if let Value::Host(tensor) = arg
                && tensor.dtype() != *want
            {
                device::invalid!("Argument {i} of function {name} is {}, not {want}", tensor.dtype());
            }
        }
        let depth = step.call.as_ref().map_or(0, |call| call.depth()) + 1;
        if depth > MAX_DEPTH {
            let message = format!("calls of functions are nested deeper than {MAX_DEPTH}, last of {name}");
            return Err(Error::new(Code::ResourceExhausted, message));
        }
        Ok((compiled.executor()?, Arc::new(Call::new(depth, args, self.return_types.len()))))
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
        call.drop_args();
        done(result.and_then(|_| call.take_returns()));
    };
    executor.run(own, false, Box::new(ended));
}

impl fmt::Debug for LibraryFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LibraryFunctions({})", self.shared.library.functions().len())
    }
}

impl fmt::Debug for LibraryFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LibraryFunction({})", self.def.name)
    }
}
