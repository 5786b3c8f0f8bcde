//! Kernels of collectives: they pass requests to the step's [`Collectives`](device::collective::Collectives).

mod assembly;
mod combination;
mod communicator;

pub use combination::combine;

use device::Device;
use device::collective::{DeviceHint, DeviceInput, Merge, Operation, Reduction, Request};
use device::kernel::{AsyncContext, Done, Kernel, KernelDef, KernelInit, Step};
use device::value::Value;
use device::{Error, Result};
use graph::{BucketPlace, DType, PartialShape, ReductionPlace, Shape, Tensor};
use smallvec::smallvec;
use std::sync::Arc;
use std::time::Duration;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("CollectiveReduce", REDUCED, |init| {
        kernel(init, Operation::Reduce(reduction(init)?), Keys::of_attrs(init)?, Form::Same)
    }),
    KernelDef::of("CollectiveReduceV2", REDUCED, |init| {
        kernel(init, Operation::Reduce(reduction(init)?), KeySource::Inputs(1), Form::Same)
    }),
    KernelDef::of("CollectiveReduceScatterV2", REDUCED, |init| {
        kernel(init, Operation::ReduceScatter(reduction(init)?), KeySource::Inputs(1), Form::Divided)
    }),
    KernelDef::of("CollectiveGather", MOVED, |init| {
        kernel(init, Operation::Gather, Keys::of_attrs(init)?, Form::Multiplied)
    }),
    KernelDef::of("CollectiveGatherV2", MOVED, |init| {
        kernel(init, Operation::Gather, KeySource::Inputs(1), Form::Multiplied)
    }),
    KernelDef::of("CollectiveBcastSend", BROADCAST, |init| {
        kernel(init, Operation::Broadcast { is_source: true }, Keys::of_attrs(init)?, Form::Same)
    }),
    KernelDef::of("CollectiveBcastSendV2", BROADCAST, |init| {
        kernel(init, Operation::Broadcast { is_source: true }, KeySource::Inputs(1), Form::Same)
    }),
    KernelDef::of("CollectiveBcastRecv", BROADCAST, |init| {
        let shape: PartialShape = init.attr("shape")?;
        let form = Form::Given(shape.as_shape().ok_or_else(|| {
            Error::invalid(format!("the shape of a broadcast must be known, it is {shape}"))
        })?);
        kernel(init, Operation::Broadcast { is_source: false }, Keys::of_attrs(init)?, form)
    }),
    KernelDef::of("CollectiveBcastRecvV2", BROADCAST, |init| {
        kernel(init, Operation::Broadcast { is_source: false }, KeySource::Inputs(0), Form::Input(3))
    }),
    KernelDef::of("CollectiveAllToAllV2", REDUCED, |init| {
        kernel(init, Operation::AllToAll, KeySource::Inputs(1), Form::Rows)
    }),
    KernelDef::of("CollectiveAssignGroupV2", &[], |_| Kernel::sync(assign_group)),
    KernelDef::of("CollectiveInitializeCommunicator", &[], communicator::initialize),
    KernelDef::of("_CollectiveAssemble", &[], |_| assembly::kernel(assembly::join)),
    KernelDef::of("_CollectiveWatch", &[], |_| assembly::kernel(assembly::watch)),
    KernelDef::of("_CollectiveFinish", &[], |_| assembly::kernel(assembly::finish)),
    KernelDef::of("CollectiveReduceV3", REDUCED, communicator::reduce),
    KernelDef::of("CollectiveAllToAllV3", REDUCED, communicator::all_to_all),
];

const REDUCED: &[(&str, &[DType])] =
    &[("T", &[DType::BFloat16, DType::Float, DType::Half, DType::Double, DType::Int32, DType::Int64])];
const MOVED: &[(&str, &[DType])] =
    &[("T", &[DType::Float, DType::Half, DType::Double, DType::Int32, DType::Int64])];
const BROADCAST: &[(&str, &[DType])] =
    &[("T", &[DType::Bool, DType::Float, DType::Half, DType::Double, DType::Int32, DType::Int64])];

/// The keys of a collective, by which its members meet.
#[derive(Clone, Copy, Debug)]
struct Keys {
    group_size: i32,
    group_key: i32,
    instance_key: i32,
}

/// The source of a node's keys: attributes, or three inputs from this index on.
#[derive(Clone, Copy, Debug)]
enum KeySource {
    Attrs(Keys),
    Inputs(usize),
}

/// The rule for the shape of a node's output.
#[derive(Clone, Debug)]
enum Form {
    /// The input's shape.
    Same,
    /// The input's shape; its first dimension must be the group's size.
    Rows,
    /// The input's shape with its first dimension divided by the group's size.
    Divided,
    /// The input's shape with its first dimension multiplied by the group's size.
    Multiplied,
    Given(Shape),
    /// The shape that the elements of the input with this index describe.
    Input(usize),
}

impl Keys {
    fn of_attrs(init: &KernelInit<'_>) -> Result<KeySource> {
        let key = |name: &str| {
            let value = init.attr::<i64>(name)?;
            i32::try_from(value).map_err(|_| Error::invalid(format!("{name} is {value}, not an int32")))
        };
        Ok(KeySource::Attrs(Keys {
            group_size: key("group_size")?,
            group_key: key("group_key")?,
            instance_key: key("instance_key")?,
        }))
    }

    fn of_inputs(ctx: &AsyncContext, first: usize) -> Result<Keys> {
        Ok(Keys {
            group_size: scalar(ctx, first, "group_size")?,
            group_key: scalar(ctx, first + 1, "group_key")?,
            instance_key: scalar(ctx, first + 2, "instance_key")?,
        })
    }
}

impl Form {
    /// Returns the shape of a member's output.
    fn shape(&self, ctx: &AsyncContext, group_size: u32) -> Result<Shape> {
        let input = || match ctx.inputs.first() {
            Some(Value::Device(tensor)) => Ok(&tensor.shape),
            _ => Ok::<_, Error>(ctx.input(0)?.shape()),
        };
        let with_rows = |rows: fn(usize, usize) -> Option<usize>| {
            let shape = input()?;
            let Some((&first, rest)) = shape.dims().split_first() else {
                device::invalid!("the input must have at least one dimension");
            };
            let Some(first) = rows(first, group_size as usize) else {
                device::invalid!(
                    "the first dimension of the input, {first}, does not suit a group of {group_size} members"
                );
            };
            let dims: Vec<usize> = std::iter::once(first).chain(rest.iter().copied()).collect();
            Ok(Shape::new(&dims)?)
        };
        match self {
            Form::Same => input().cloned(),
            Form::Rows => with_rows(|rows, size| (rows == size).then_some(rows)),
            Form::Divided => with_rows(|rows, size| (rows % size == 0).then_some(rows / size)),
            Form::Multiplied => with_rows(usize::checked_mul),
            Form::Given(shape) => Ok(shape.clone()),
            Form::Input(i) => {
                let dims = ctx.input(*i)?.to_i64s()?;
                let dims: Option<Vec<usize>> = dims.iter().map(|&d| usize::try_from(d).ok()).collect();
                match dims {
                    Some(dims) => Ok(Shape::new(&dims)?),
                    None => Err(Error::invalid("a dimension of the shape is negative")),
                }
            }
        }
    }
}

/// Returns the only element of input `i`, which errors call `name`.
fn scalar(ctx: &AsyncContext, i: usize, name: &str) -> Result<i32> {
    let tensor = ctx.input(i)?;
    match tensor.num_elements() {
        1 => Ok(tensor.item::<i32>()?),
        _ => Err(Error::invalid(format!(
            "Unexpected dimensions on input {name}, got shape {}",
            tensor.shape()
        ))),
    }
}

/// Returns the size of a group as `u32`, after checking that it is positive.
fn group_size(size: i32) -> Result<u32> {
    let members = u32::try_from(size).ok().filter(|&members| members > 0);
    members.ok_or_else(|| Error::invalid(format!("group_size must be positive integer but got {size}")))
}

fn reduction(init: &KernelInit<'_>) -> Result<Reduction> {
    let merge = Merge::parse(&init.attr::<String>("merge_op")?);
    Ok(Reduction { merge, is_mean: init.attr::<String>("final_op")? == "Div" })
}

/// Returns the node's timeout; `None` if it sets none.
fn timeout(init: &KernelInit<'_>) -> Result<Option<Duration>> {
    let timeout = init.attr::<f32>("timeout_seconds")?;
    let timeout = (timeout > 0.0).then(|| Duration::try_from_secs_f32(timeout)).transpose();
    timeout.map_err(|e| Error::invalid(format!("timeout_seconds: {e}")))
}

fn kernel(init: &KernelInit<'_>, operation: Operation, keys: KeySource, form: Form) -> Result<Kernel> {
    let (dtype, timeout, bucket) = (init.output_type(0), timeout(init)?, BucketPlace::of(init.node));
    let place = ReductionPlace::of(init.node);
    let hint = DeviceHint::parse(&init.attr::<String>("communication_hint")?);
    Kernel::asynchronous(move |ctx| match request(&ctx, operation, keys, &form, dtype, timeout) {
        Err(error) => ctx.done(Err(error)),
        Ok(request) => {
            let AsyncContext { device, step, mut inputs, done, .. } = ctx;
            match inputs.first_mut().map(std::mem::take) {
                Some(Value::Device(tensor)) if request.input.is_none() => {
                    let on_device = Some(DeviceInput { tensor, place, hint });
                    start(&step, Request { on_device, ..request }, reply_on(device, done));
                }
                _ => start(&step, Request { bucket, ..request }, reply(done)),
            }
        }
    })
}

/// Passes a request to the collectives of the step; `finish` gets the member's output or the error.
fn start(step: &Step, request: Request, finish: impl FnOnce(Result<Value>) + Send + 'static) {
    match &step.collectives {
        None => finish(Err(Error::unimplemented("collectives run in sessions of a server"))),
        Some(of_step) => of_step.collectives.start(of_step, request, Box::new(finish)),
    }
}

/// Returns the callback that ends a kernel with a member's output.
fn reply(done: Done) -> impl FnOnce(Result<Value>) + Send + 'static {
    move |output| done(output.map(|value| smallvec![value]))
}

/// Returns the callback that ends a kernel with a member's output in device memory: an output in host memory is copied
/// there.
fn reply_on(device: Arc<Device>, done: Done) -> impl FnOnce(Result<Value>) + Send + 'static {
    let reply = reply(done);
    move |output| match output {
        Ok(Value::Host(tensor)) => device.processor().upload(tensor, Box::new(reply)),
        output => reply(output),
    }
}

fn request(
    ctx: &AsyncContext,
    operation: Operation,
    keys: KeySource,
    form: &Form,
    dtype: DType,
    timeout: Option<Duration>,
) -> Result<Request> {
    let keys = match keys {
        KeySource::Attrs(keys) => keys,
        KeySource::Inputs(first) => Keys::of_inputs(ctx, first)?,
    };
    let group_size = group_size(keys.group_size)?;
    let input = match operation {
        Operation::Broadcast { is_source: false } => None,
        _ => match ctx.inputs.first() {
            Some(Value::Device(_)) => None,
            _ => Some(ctx.input(0)?.clone()),
        },
    };
    Ok(Request {
        node: ctx.node.clone(),
        device: ctx.device.clone(),
        operation,
        dtype,
        shape: form.shape(ctx, group_size)?,
        input,
        on_device: None,
        group_size,
        group_key: keys.group_key,
        instance_key: keys.instance_key,
        placed: None,
        bucket: None,
        position: ctx.position,
        timeout,
    })
}

/// The kernel of CollectiveAssignGroupV2: returns the length and key of the row of `group_assignment` that contains the
/// device's index.
fn assign_group(ctx: &mut device::kernel::KernelContext<'_>) -> Result<()> {
    let (index, base) = (ctx.input(1)?.item::<i32>()?, ctx.input(2)?.item::<i32>()?);
    let assignment = ctx.input(0)?;
    let &[_, columns] = assignment.shape().dims() else {
        device::invalid!("group_assignment must be a matrix, got shape {}", assignment.shape());
    };
    let values = assignment.values::<i32>()?;
    let row = values.chunks_exact(columns.max(1)).position(|row| row.contains(&index));
    let Some(row) = row.and_then(|row| i32::try_from(row).ok()) else {
        device::invalid!("device_index {index} is not in group_assignment");
    };
    ctx.set_output(0, Tensor::from(columns as i32));
    ctx.set_output(1, Tensor::from(base.wrapping_add(row)));
    Ok(())
}

/// Returns whether [`combine`] reduces elements of a type.
pub fn is_reduced(dtype: DType) -> bool {
    REDUCED[0].1.contains(&dtype)
}
