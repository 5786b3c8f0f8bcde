//! The interface through which kernels find functions by attribute and call them within a step. The executor compiles
//! and runs the bodies.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernel::{Done, Step};
use crate::pool::Pool;
use crate::value::Value;
use graph::{Code, DType, DeviceName, FuncAttr, FunctionDef};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::fmt;
use std::sync::{Arc, OnceLock, mpsc};

/// The functions that the kernels of one graph may call.
pub trait Functions: Send + Sync + fmt::Debug {
    /// Returns the function that `func` names, with the attributes in `func`, on the device of the kernels. The body is
    /// compiled when the function is first called.
    ///
    /// # Errors
    /// `NotFound` if no function has the name; `InvalidArgument` if attributes are missing.
    fn get(&self, func: &FuncAttr) -> Result<Arc<dyn Function>>;

    /// Returns the functions for kernels on the device `name` of the task, and that device.
    ///
    /// # Errors
    /// `NotFound` if the graph has no functions; `Unimplemented` if no device of the task has the name.
    fn on_device(&self, name: &DeviceName) -> Result<(Arc<dyn Functions>, Arc<Device>)>;
}

/// A function with values for its attributes, on one device. A kernel may keep it and call it in any step.
pub trait Function: Send + Sync + fmt::Debug {
    /// Returns the function's definition in the library of the graph.
    fn def(&self) -> &Arc<FunctionDef>;

    /// Returns the dtypes of the arguments.
    fn arg_types(&self) -> &[DType];

    /// Returns the dtypes of the results.
    fn return_types(&self) -> &[DType];

    /// Returns the device that the function runs on.
    ///
    /// # Errors
    /// `Internal` if the function calls itself and its body has been dropped.
    fn device(&self) -> Result<Arc<Device>>;

    /// Returns a copy of the function with new kernels, which therefore have no state in common with the original's.
    ///
    /// # Errors
    /// Those of [`Function::device`].
    fn instance(&self) -> Result<Arc<dyn Function>>;

    /// Returns the name of an op in the function, or in a function that it calls, whose state lasts from call to call;
    /// `None` if there is none.
    fn stateful_op(&self) -> Option<Arc<str>>;

    /// Calls the function as part of `step`: the call ends when the step is cancelled and shares the step's resources,
    /// but a failure of the call does not fail the step. Does not block. `done` gets the results on a compute thread,
    /// or on the calling thread if the call is refused.
    fn call(&self, step: &Arc<Step>, args: SmallVec<[Value; 4]>, done: Done);
}

impl dyn Function {
    /// Calls the function and waits for its results. The calling thread must be allowed to block.
    ///
    /// # Errors
    /// `Internal` on a compute thread, because other calls may need that thread to make progress; the errors of the
    /// call.
    pub fn call_and_wait(
        &self,
        step: &Arc<Step>,
        args: SmallVec<[Value; 4]>,
    ) -> Result<SmallVec<[Value; 4]>> {
        let name = &self.def().name;
        if Pool::is_compute_thread() {
            return Err(Error::internal(format!("a compute thread cannot wait for function {name}")));
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = move |result| {
            // Sending cannot fail, because the receiver exists until the call has ended.
            let _ = sender.send(result);
        };
        self.call(step, args, Box::new(done));
        let lost = |_| Error::internal(format!("the call of function {name} was dropped"));
        receiver.recv().map_err(lost)?
    }
}

/// The empty function library.
#[derive(Debug)]
struct NoFunctions;

impl Functions for NoFunctions {
    fn get(&self, func: &FuncAttr) -> Result<Arc<dyn Function>> {
        Err(undefined(&func.name))
    }

    fn on_device(&self, _: &DeviceName) -> Result<(Arc<dyn Functions>, Arc<Device>)> {
        Err(Error::new(Code::NotFound, "The graph has no functions to call."))
    }
}

/// Returns the empty function library, for graphs that define no functions.
pub fn no_functions() -> &'static Arc<dyn Functions> {
    static NONE: OnceLock<Arc<dyn Functions>> = OnceLock::new();
    NONE.get_or_init(|| Arc::new(NoFunctions))
}

/// Creates the `NotFound` error for a function that the graph does not define.
pub fn undefined(name: &str) -> Error {
    Error::new(Code::NotFound, format!("Function {name} is not defined."))
}

/// The arguments and the results of one call.
pub struct Call {
    depth: u32,
    args: Mutex<SmallVec<[Value; 4]>>,
    returns: Mutex<SmallVec<[Value; 4]>>,
}

impl Call {
    /// Creates a call at nesting depth `depth`, with `returns` results that are not set yet.
    pub fn new(depth: u32, args: SmallVec<[Value; 4]>, returns: usize) -> Call {
        let returns = SmallVec::from_elem(Value::None, returns);
        Call { depth, args: Mutex::new(args), returns: Mutex::new(returns) }
    }

    /// Returns the nesting depth: the number of enclosing calls plus one.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Takes an argument. Each argument is taken once, by its `_Arg` node.
    ///
    /// # Errors
    /// `Internal` if there is no such argument, or it has been taken.
    pub fn take_arg(&self, index: usize) -> Result<Value> {
        let arg = self.args.lock().get_mut(index).map(std::mem::take);
        match arg {
            None | Some(Value::None) => Err(Error::internal(format!("the call has no argument {index}"))),
            Some(value) => Ok(value),
        }
    }

    /// Drops the arguments that no `_Arg` node took, so that other holders of their buffers may write in place.
    pub fn drop_args(&self) {
        self.args.lock().clear();
    }

    /// Takes all results out of the call.
    ///
    /// # Errors
    /// `InvalidArgument` if a result is dead.
    pub fn take_returns(&self) -> Result<SmallVec<[Value; 4]>> {
        let returns = std::mem::take(&mut *self.returns.lock());
        match returns.iter().position(|value| matches!(value, Value::None)) {
            None => Ok(returns),
            Some(dead) => Err(Error::invalid(format!("Retval[{dead}] does not have value"))),
        }
    }

    /// Sets a result; called by its `_Retval` node.
    ///
    /// # Errors
    /// `Internal` if the call has no such result.
    pub fn set_return(&self, index: usize, value: Value) -> Result<()> {
        match self.returns.lock().get_mut(index) {
            Some(slot) => *slot = value,
            None => return Err(Error::internal(format!("the call has no output {index}"))),
        }
        Ok(())
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call(depth {})", self.depth)
    }
}
