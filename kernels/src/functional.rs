//! Kernels that call functions on one device: calls, and control flow whose branches and bodies are functions.

use super::iterator::dataset_thread_kernel;
use crate::numeric::scratch::check_scratch;
use crate::objects::dataset::element::{row, stack};
use device::Device;
use device::function::Function;
use device::kernel::{AsyncContext, Done, Kernel, KernelContext, KernelDef, KernelInit, Step};
use device::transfer::all_to_host;
use device::value::Value;
use device::{Error, Result};
use graph::device::DeviceSpec;
use graph::{DType, DeviceName, FuncAttr, PartialShape, Shape, Tensor};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::{Arc, mpsc};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("PartitionedCall", &[], call),
    KernelDef::of("StatefulPartitionedCall", &[], call),
    KernelDef::of("If", &[], if_),
    KernelDef::of("StatelessIf", &[], if_),
    KernelDef::of("While", &[], while_),
    KernelDef::of("StatelessWhile", &[], while_),
    KernelDef::of("Case", &[], case),
    KernelDef::of("StatelessCase", &[], case),
    KernelDef::of("For", &[], for_),
    KernelDef::of("RemoteCall", &[], remote_call),
    KernelDef::of("MapDefun", &[], map_defun),
    KernelDef::absent("SymbolicGradient"),
    KernelDef::of("ToBool", &[], |_| {
        Kernel::sync(|ctx| {
            let truth = is_true(ctx.input(0)?)?;
            ctx.set_output(0, Tensor::from(truth));
            Ok(())
        })
    }),
    KernelDef::of("DeviceIndex", &[], device_index),
    KernelDef::of("FakeParam", &[], |init| {
        let (dtype, shape) = (init.output_type(0), init.attr::<graph::PartialShape>("shape")?);
        let dims = shape.dims().unwrap_or_default().iter().map(|d| d.unwrap_or(0));
        let shape = graph::Shape::new(&dims.collect::<Vec<_>>())?;
        Kernel::sync(move |ctx| {
            ctx.set_output(0, Tensor::zeros(dtype, shape.clone())?);
            Ok(())
        })
    }),
];

fn call(init: &KernelInit<'_>) -> Result<Kernel> {
    let function = init.function("f")?;
    Kernel::asynchronous(move |ctx| {
        let AsyncContext { step, inputs, done, .. } = ctx;
        function.call(&step, inputs, done);
    })
}

/// The number of calls of the function of a `MapDefun` that run at the same time.
const CONCURRENT_CALLS: usize = 16;

/// `MapDefun`: calls a function with each row of the arguments, and stacks the results.
fn map_defun(init: &KernelInit<'_>) -> Result<Kernel> {
    let function = init.function("f")?;
    let arguments = init.attr::<Vec<DType>>("Targuments")?.len();
    let dtypes = init.attr::<Vec<DType>>("output_types")?;
    let shapes = init.attr::<Vec<PartialShape>>("output_shapes")?;
    if shapes.len() != dtypes.len() {
        device::invalid!("`output_shapes` must be the same length as `output_types`");
    }
    dataset_thread_kernel(move |ctx| {
        let mut count = None;
        for i in 0..arguments {
            let shape = ctx.input(i)?.shape();
            let Some(rows) = shape.first() else {
                device::invalid!("All inputs must have rank at least 1. Input {i} has a rank of 0.");
            };
            let first = *count.get_or_insert(*rows);
            if *rows != first {
                device::invalid!(
                    "All inputs must have the same dimension 0. Input {i} has leading dimension {rows}, while all \
                     previous inputs have leading dimension {first}"
                );
            }
        }
        let count = count.unwrap_or(0);
        check_scratch::<Vec<Tensor>>(count)?;
        let mut results: Vec<Vec<Tensor>> = Vec::new();
        while results.len() < count {
            let end = (results.len() + CONCURRENT_CALLS).min(count);
            let calls = (results.len()..end).map(|row| start_call(&function, ctx, arguments, row));
            let calls = calls.collect::<Result<Vec<_>>>()?;
            for call in calls {
                let lost = |_| Error::internal("a call of the function of MapDefun was dropped");
                let values = call.recv().map_err(lost)??;
                let values = values.into_iter().map(|value| match value {
                    Value::Host(tensor) => Ok(tensor),
                    _ => Err(Error::unimplemented("a result of the function of MapDefun in device memory")),
                });
                results.push(checked_results(values.collect::<Result<_>>()?, &dtypes, &shapes)?);
            }
        }
        let stacked = (0..dtypes.len()).map(|i| {
            if count > 0 {
                return stack(&results.iter().map(|result| &result[i]).collect::<Vec<_>>(), i);
            }
            let row = shapes[i].as_shape();
            let dims = row.iter().flat_map(|row| row.iter().copied());
            Ok(Tensor::zeros(dtypes[i], Shape::new(&std::iter::once(0).chain(dims).collect::<Vec<_>>())?)?)
        });
        stacked.map(|tensor| tensor.map(Value::Host)).collect()
    })
}

/// Starts the call of a function with a row of the first `arguments` inputs and with the other inputs.
fn start_call(
    function: &Arc<dyn Function>,
    ctx: &AsyncContext,
    arguments: usize,
    at: usize,
) -> Result<mpsc::Receiver<Result<Values>>> {
    let mut values = Values::new();
    for i in 0..ctx.inputs.len() {
        let input = ctx.input(i)?;
        values.push(Value::Host(if i < arguments { row(input, at)? } else { input.clone() }));
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    let done = move |results| {
        // Sending fails only if another call has failed.
        let _ = sender.send(results);
    };
    function.call(&ctx.step, values, Box::new(done));
    Ok(receiver)
}

/// Returns the results of a call of `MapDefun` if they have the promised dtypes and shapes.
fn checked_results(results: Vec<Tensor>, dtypes: &[DType], shapes: &[PartialShape]) -> Result<Vec<Tensor>> {
    if results.len() < dtypes.len() {
        device::invalid!("the function returned {} values, not {}", results.len(), dtypes.len());
    }
    for ((result, dtype), shape) in results.iter().zip(dtypes).zip(shapes) {
        if result.dtype() != *dtype {
            device::invalid!("the function returned a tensor of {}, not of {dtype}", result.dtype());
        }
        if !shape.is_compatible(&result.shape().into()) {
            device::invalid!(
                "Mismatch in function retval shape, {}, and expected output shape, {shape}.",
                result.shape()
            );
        }
    }
    Ok(results)
}

/// `RemoteCall`: calls a function on another device of the same task. The results are copied to host memory.
fn remote_call(init: &KernelInit<'_>) -> Result<Kernel> {
    let (func, functions) = (init.attr::<FuncAttr>("f")?, init.functions.clone());
    let own = init.device.name().to_spec();
    let cached = Mutex::new(None::<(DeviceName, Arc<dyn Function>, Arc<Device>)>);
    let find = move |target: &Tensor| {
        let target = target_of(target, &own)?;
        let mut cached = cached.lock();
        if let Some((name, function, device)) = &*cached
            && *name == target
        {
            return Ok((function.clone(), device.clone()));
        }
        let (functions, device) = functions.on_device(&target)?;
        let function = functions.get(&func)?;
        *cached = Some((target, function.clone(), device.clone()));
        Ok((function, device))
    };
    Kernel::asynchronous(move |mut ctx| match ctx.input(0).and_then(&find) {
        Ok((function, device)) => {
            ctx.inputs.remove(0);
            let AsyncContext { step, inputs, done, .. } = ctx;
            let returned = move |results: Result<Values>| match results {
                Ok(results) => all_to_host(&device, results, done),
                Err(error) => done(Err(error)),
            };
            function.call(&step, inputs, Box::new(returned));
        }
        Err(error) => (ctx.done)(Err(error)),
    })
}

/// Returns the device named `target`; missing parts of the name come from `own`, the caller's device.
fn target_of(target: &Tensor, own: &DeviceSpec) -> Result<DeviceName> {
    let [target] = target.as_strings()? else { device::invalid!("target must be a scalar") };
    let target = String::from_utf8_lossy(target);
    // A short name, such as "CPU:0", may lack the prefix "/device:".
    let spec = DeviceSpec::parse(&target)
        .or_else(|error| DeviceSpec::parse(&format!("/device:{target}")).map_err(|_| error))?;
    spec.or(own).to_name().ok_or_else(|| Error::invalid(format!("{target} does not name a device")))
}

fn if_(init: &KernelInit<'_>) -> Result<Kernel> {
    let (then, otherwise) = (init.function("then_branch")?, init.function("else_branch")?);
    Kernel::asynchronous(move |mut ctx| match ctx.input(0).and_then(is_true) {
        Ok(truth) => {
            ctx.inputs.remove(0);
            let branch = if truth { &then } else { &otherwise };
            branch.call(&ctx.step, ctx.inputs, ctx.done);
        }
        Err(error) => (ctx.done)(Err(error)),
    })
}

/// `Case`: calls the branch that input 0 selects.
fn case(init: &KernelInit<'_>) -> Result<Kernel> {
    let branches = init.function_list("branches")?;
    let last = branches.last().cloned().ok_or_else(|| Error::invalid("Case has no branches"))?;
    Kernel::asynchronous(move |mut ctx| {
        match ctx.input(0).and_then(|index| scalar_int(index, "branch_index")) {
            Ok(index) => {
                ctx.inputs.remove(0);
                // An index out of range selects the last branch.
                let branch = usize::try_from(index).ok().and_then(|i| branches.get(i)).unwrap_or(&last);
                branch.call(&ctx.step, ctx.inputs, ctx.done);
            }
            Err(error) => (ctx.done)(Err(error)),
        }
    })
}

/// The inputs or results of a function.
type Values = SmallVec<[Value; 4]>;

/// A running `While` loop; each call of its functions continues the loop on the thread that completes the call.
struct WhileLoop {
    step: Arc<Step>,
    cond: Arc<dyn Function>,
    body: Arc<dyn Function>,
    done: Done,
}

fn while_(init: &KernelInit<'_>) -> Result<Kernel> {
    let (cond, body) = (init.function("cond")?, init.function("body")?);
    if *cond.return_types() != [cond.return_types().first().copied().unwrap_or(DType::Bool)] {
        device::invalid!(
            "the condition {} has {} outputs, not 1",
            cond.def().name,
            cond.return_types().len()
        );
    }
    check_loop(&*body, init.outputs.len(), 0)?;
    Kernel::asynchronous(move |ctx| {
        let AsyncContext { step, inputs, done, .. } = ctx;
        WhileLoop { step, cond: cond.clone(), body: body.clone(), done }.check_condition(inputs);
    })
}

/// Checks that the loop body returns `state` values with the types of its arguments from index `before` on.
fn check_loop(body: &dyn Function, state: usize, before: usize) -> Result<()> {
    let types = body.return_types();
    if types.len() != state || body.arg_types().get(before..) != Some(types) {
        device::invalid!(
            "the body {} turns {:?} into {:?}: a loop of {state} values needs equal argument and result types",
            body.def().name,
            body.arg_types(),
            types
        );
    }
    Ok(())
}

impl WhileLoop {
    /// Evaluates the condition on `state`, then runs the body or ends the loop.
    fn check_condition(self, state: Values) {
        let (step, cond) = (self.step.clone(), self.cond.clone());
        let arguments = state.clone();
        cond.call(
            &step,
            arguments,
            Box::new(move |answer| match answer.and_then(|values| truth_of(&values)) {
                Ok(true) => self.run_body(state),
                Ok(false) => (self.done)(Ok(state)),
                Err(error) => (self.done)(Err(error)),
            }),
        );
    }

    fn run_body(self, state: Values) {
        let (step, body) = (self.step.clone(), self.body.clone());
        body.call(
            &step,
            state,
            Box::new(move |state| match state {
                Ok(state) => self.check_condition(state),
                Err(error) => (self.done)(Err(error)),
            }),
        );
    }
}

/// Returns the truth value of the first result of a `While` condition.
fn truth_of(values: &Values) -> Result<bool> {
    match values.first() {
        Some(Value::Host(tensor)) => is_true(tensor),
        other => Err(Error::internal(format!("the condition returned {other:?}"))),
    }
}

/// A running `For` loop, whose body takes the counter and the loop state.
struct ForLoop {
    step: Arc<Step>,
    body: Arc<dyn Function>,
    at: i64,
    limit: i64,
    delta: i64,
    done: Done,
}

fn for_(init: &KernelInit<'_>) -> Result<Kernel> {
    let body = init.function("body")?;
    check_loop(&*body, init.outputs.len(), 1)?;
    Kernel::asynchronous(move |mut ctx| {
        let bound = |i: usize, name: &str| ctx.input(i).and_then(|t| scalar_int(t, name));
        let bounds = bound(0, "start").and_then(|start| {
            let (limit, delta) = (bound(1, "limit")?, bound(2, "delta")?);
            match delta {
                0 if start != limit => Err(Error::invalid("delta cannot be zero")),
                _ if (limit - start).signum() * delta.signum() < 0 => {
                    Err(Error::invalid(format!("a loop from {start} to {limit} by {delta} never ends")))
                }
                _ => Ok((start, limit, delta)),
            }
        });
        match bounds {
            Err(error) => (ctx.done)(Err(error)),
            Ok((at, limit, delta)) => {
                let state = ctx.inputs.drain(..).skip(3).collect();
                ForLoop { step: ctx.step, body: body.clone(), at, limit, delta, done: ctx.done }
                    .run_body(state);
            }
        }
    })
}

impl ForLoop {
    fn run_body(mut self, state: Values) {
        let is_over = if self.delta < 0 { self.at <= self.limit } else { self.at >= self.limit };
        if is_over {
            return (self.done)(Ok(state));
        }
        let (step, body) = (self.step.clone(), self.body.clone());
        // The counter fits into `int32`, because both bounds of the loop are `int32`.
        let counter = Value::Host(Tensor::from(self.at as i32));
        self.at += self.delta;
        body.call(
            &step,
            std::iter::once(counter).chain(state).collect(),
            Box::new(move |state| match state {
                Ok(state) => self.run_body(state),
                Err(error) => (self.done)(Err(error)),
            }),
        );
    }
}

fn scalar_int(tensor: &Tensor, name: &str) -> Result<i64> {
    match tensor.values::<i32>()? {
        [value] if tensor.shape().is_empty() => Ok(i64::from(*value)),
        _ => Err(Error::invalid(format!("{name} must be a scalar, its shape is {}", tensor.shape()))),
    }
}

/// Returns whether a value counts as true: a scalar that is neither zero nor empty, or another tensor that has
/// elements.
pub(super) fn is_true(tensor: &Tensor) -> Result<bool> {
    if !tensor.shape().is_empty() {
        return Ok(tensor.num_elements() > 0);
    }
    match tensor.dtype() {
        DType::String => Ok(tensor.as_strings()?.first().is_some_and(|s| !s.is_empty())),
        DType::Float => Ok(tensor.values::<f32>()?.first().is_some_and(|v| *v != 0.0)),
        DType::Double => Ok(tensor.values::<f64>()?.first().is_some_and(|v| *v != 0.0)),
        DType::Int8
        | DType::UInt8
        | DType::Int16
        | DType::UInt16
        | DType::Int32
        | DType::Int64
        | DType::Bool => Ok(tensor.bytes()?.iter().any(|byte| *byte != 0)),
        other => Err(Error::invalid(format!("{other} cannot be converted to a bool"))),
    }
}

/// `DeviceIndex`: outputs the index of the kernel's device type in the attribute `device_names`, or the number of names
/// if `device_names` does not contain the type.
fn device_index(init: &KernelInit<'_>) -> Result<Kernel> {
    let names = init.attr::<Vec<bytes::Bytes>>("device_names")?;
    let own = init.device.name().device_type.clone();
    let index = names.iter().position(|name| **name == *own.as_bytes()).unwrap_or(names.len());
    let index = i32::try_from(index).map_err(|_| Error::invalid("too many device names"))?;
    Kernel::sync(move |ctx: &mut KernelContext<'_>| {
        ctx.set_output(0, Tensor::from(index));
        Ok(())
    })
}
