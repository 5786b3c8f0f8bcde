//! The functions of a graph's library. A body is compiled for the kernel's device when it is first called, and each
//! call runs it as a step within the caller's step.

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

/// The maximum nesting depth of calls. The limit exists because each call holds memory until it returns.
const MAX_DEPTH: u32 = 2_000;

/// The functions of a graph's library, on one device.
#[derive(Clone)]
pub struct LibraryFunctions {
    shared: Arc<SharedLibrary>,
    /// The function whose body contains the calling kernel, if there is one.
    enclosing: Option<Arc<EnclosingFunction>>,
}

/// The attributes of a compiled function, and a weak reference to the function, which exists as long as it is in use.
type CachedFunction = (Attrs, Weak<CompiledFunction>);

/// The state that all functions of a graph share.
struct SharedLibrary {
    library: Arc<FunctionLibrary>,
    device: Arc<Device>,
    /// The devices of the task.
    devices: Arc<[Arc<Device>]>,
    pool: Arc<Pool>,
    cache: Mutex<FxHashMap<Arc<str>, Vec<CachedFunction>>>,
}

/// A function whose body contains a call. `enclosing` is the function whose body calls this function, if there is one.
struct EnclosingFunction {
    function: Weak<CompiledFunction>,
    enclosing: Option<Arc<EnclosingFunction>>,
}

/// A function with values for its attributes, on one device. A kernel may keep it and call it in any step.
struct LibraryFunction {
    /// The compiled function. A recursive call, direct or indirect, has a weak reference, so that the kernels in the
    /// body do not keep the body alive.
    compiled: Result<Arc<CompiledFunction>, Weak<CompiledFunction>>,
    def: Arc<FunctionDef>,
    arg_types: Vec<DType>,
    return_types: Vec<DType>,
}

struct CompiledFunction {
    shared: Arc<SharedLibrary>,
    def: Arc<FunctionDef>,
    attrs: Attrs,
    enclosing: Option<Arc<EnclosingFunction>>,
    executor: OnceLock<Result<Arc<Executor>>>,
}

impl LibraryFunctions {
    /// Returns the functions of a library for the kernels of one of a task's devices.
    pub fn of_graph(
        library: &Arc<FunctionLibrary>,
        device: &Arc<Device>,
        devices: &Arc<[Arc<Device>]>,
        pool: &Arc<Pool>,
    ) -> Arc<dyn Functions> {
        if library.functions().is_empty() {
            return no_functions().clone();
        }
        let shared = SharedLibrary {
            library: library.clone(),
            device: device.clone(),
            devices: devices.clone(),
            pool: pool.clone(),
            cache: Mutex::default(),
        };
        Arc::new(LibraryFunctions { shared: Arc::new(shared), enclosing: None })
    }

    /// Returns the enclosing function that `func` names, if there is one: the call is then recursive.
    fn enclosing_function(&self, func: &FuncAttr) -> Option<&Arc<EnclosingFunction>> {
        let mut next = self.enclosing.as_ref();
        while let Some(caller) = next {
            if let Some(function) = caller.function.upgrade()
                && function.def.name == func.name
                && function.attrs == func.attrs
            {
                return Some(caller);
            }
            next = caller.enclosing.as_ref();
        }
        None
    }
}

impl Functions for LibraryFunctions {
    fn get(&self, func: &FuncAttr) -> Result<Arc<dyn Function>> {
        let shared = &self.shared;
        let def = shared.library.get(&func.name).ok_or_else(|| undefined(&func.name))?;
        let (arg_types, return_types) = (def.arg_types(&func.attrs)?, def.output_types(&func.attrs)?);
        let compiled = match self.enclosing_function(func) {
            Some(caller) => Err(caller.function.clone()),
            None => Ok(shared.compiled(def, func, &self.enclosing)),
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

impl SharedLibrary {
    fn compiled(
        self: &Arc<SharedLibrary>,
        def: &Arc<FunctionDef>,
        func: &FuncAttr,
        enclosing: &Option<Arc<EnclosingFunction>>,
    ) -> Arc<CompiledFunction> {
        let mut cache = self.cache.lock();
        let of_name = cache.entry(func.name.clone()).or_default();
        of_name.retain(|(_, compiled)| compiled.strong_count() > 0);
        let same = of_name.iter().find(|(attrs, _)| *attrs == func.attrs);
        if let Some(compiled) = same.and_then(|(_, compiled)| compiled.upgrade()) {
            return compiled;
        }
        let compiled = Arc::new(CompiledFunction {
            shared: self.clone(),
            def: def.clone(),
            attrs: func.attrs.clone(),
            enclosing: enclosing.clone(),
            executor: OnceLock::new(),
        });
        of_name.push((func.attrs.clone(), Arc::downgrade(&compiled)));
        compiled
    }
}

impl CompiledFunction {
    fn executor(self: &Arc<CompiledFunction>) -> Result<Arc<Executor>> {
        self.executor.get_or_init(|| self.compile()).clone()
    }

    fn compile(self: &Arc<CompiledFunction>) -> Result<Arc<Executor>> {
        let body = self.def.instantiate(&self.attrs, &self.shared.library)?;
        let graph = prune(&body.graph, &call_targets(&body))?;
        let caller = EnclosingFunction { function: Arc::downgrade(self), enclosing: self.enclosing.clone() };
        let functions = LibraryFunctions { shared: self.shared.clone(), enclosing: Some(Arc::new(caller)) };
        let functions: Arc<dyn Functions> = Arc::new(functions);
        let SharedLibrary { device, pool, .. } = &*self.shared;
        // Each function has a kernel cache of its own, because a node in its body may have the name of a node in the
        // graph.
        let executor =
            Executor::with_functions(&graph, device.clone(), pool.clone(), &KernelCache::new(), &functions)?;
        Ok(Arc::new(executor))
    }
}

/// Returns the nodes that a call must run; unused arguments are not among them.
fn call_targets(body: &Body) -> Vec<graph::NodeId> {
    body.required_nodes().into_iter().filter(|id| !body.args.contains(id)).collect()
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
        let shared = SharedLibrary {
            library: of.shared.library.clone(),
            device: of.shared.device.clone(),
            devices: of.shared.devices.clone(),
            pool: of.shared.pool.clone(),
            cache: Mutex::default(),
        };
        let compiled = CompiledFunction {
            shared: Arc::new(shared),
            def: of.def.clone(),
            attrs: of.attrs.clone(),
            enclosing: of.enclosing.clone(),
            executor: OnceLock::new(),
        };
        Ok(Arc::new(LibraryFunction {
            compiled: Ok(Arc::new(compiled)),
            def: self.def.clone(),
            arg_types: self.arg_types.clone(),
            return_types: self.return_types.clone(),
        }))
    }

    fn stateful_op(&self) -> Option<Arc<str>> {
        // A function that is called by itself and has ended has no state.
        self.compiled().ok().and_then(|compiled| compiled.shared.library.stateful_op(&self.def))
    }

    fn call(&self, step: &Arc<Step>, args: SmallVec<[Value; 4]>, done: Done) {
        match self.prepare(step, args) {
            Ok((executor, call)) => start(&executor, step, call, done),
            Err(error) => done(Err(error)),
        }
    }
}

impl LibraryFunction {
    fn compiled(&self) -> Result<Arc<CompiledFunction>> {
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
        collectives: step.collectives.clone(),
        activity: step.activity.clone(),
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
