//! Kernels of collectives: they pass requests to the step's [`Collectives`](device::collective::Collectives). Also the
//! combination of several members' elements.

use crate::numeric::scalar::{Arithmetic, Number, Semiring as _};
use crate::numeric::widen::Lane;
use device::collective::{Merge, Operation, Reduction, Request};
use device::kernel::{AsyncContext, Kernel, KernelDef, KernelInit};
use device::value::Value;
use device::{Error, Result};
use graph::{DType, Element, PartialShape, Shape, Tensor};
use half::{bf16, f16};
use smallvec::smallvec;
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
    /// The elements of this input.
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
        let key = |i: usize, name: &str| {
            let tensor = ctx.input(first + i)?;
            match tensor.num_elements() {
                1 => Ok(tensor.item::<i32>()?),
                _ => Err(Error::invalid(format!(
                    "Unexpected dimensions on input {name}, got shape {}",
                    tensor.shape()
                ))),
            }
        };
        Ok(Keys {
            group_size: key(0, "group_size")?,
            group_key: key(1, "group_key")?,
            instance_key: key(2, "instance_key")?,
        })
    }
}

impl Form {
    /// Returns the shape of a member's output.
    fn shape(&self, ctx: &AsyncContext, group_size: u32) -> Result<Shape> {
        let input = || Ok::<_, Error>(ctx.input(0)?.shape());
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

fn reduction(init: &KernelInit<'_>) -> Result<Reduction> {
    let merge = match init.attr::<String>("merge_op")?.as_str() {
        "Add" => Merge::Add,
        "Mul" => Merge::Mul,
        "Min" => Merge::Min,
        _ => Merge::Max,
    };
    Ok(Reduction { merge, is_mean: init.attr::<String>("final_op")? == "Div" })
}

fn kernel(init: &KernelInit<'_>, operation: Operation, keys: KeySource, form: Form) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let timeout = init.attr::<f32>("timeout_seconds")?;
    let timeout = (timeout > 0.0).then(|| Duration::try_from_secs_f32(timeout)).transpose();
    let timeout = timeout.map_err(|e| Error::invalid(format!("timeout_seconds: {e}")))?;
    Kernel::asynchronous(move |ctx| match request(&ctx, operation, keys, &form, dtype, timeout) {
        Err(error) => ctx.done(Err(error)),
        Ok(request) => {
            let AsyncContext { step, done, .. } = ctx;
            match &step.collectives {
                None => done(Err(Error::unimplemented("collectives run in sessions of a server"))),
                Some(of_step) => of_step.collectives.start(
                    of_step,
                    request,
                    Box::new(move |output| done(output.map(|tensor| smallvec![Value::Host(tensor)]))),
                ),
            }
        }
    })
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
    let Some(group_size) = u32::try_from(keys.group_size).ok().filter(|&size| size > 0) else {
        device::invalid!("group_size must be positive integer but got {}", keys.group_size);
    };
    let input = match operation {
        Operation::Broadcast { is_source: false } => None,
        _ => Some(ctx.input(0)?.clone()),
    };
    Ok(Request {
        node: ctx.node.clone(),
        device: ctx.device.clone(),
        operation,
        dtype,
        shape: form.shape(ctx, group_size)?,
        input,
        group_size,
        group_key: keys.group_key,
        instance_key: keys.instance_key,
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

/// Number of elements that are combined at a time.
const STRIP: usize = 1024;

/// Combines the elements of `terms`, one slice for each member in the order of the ranks, into `out`. A mean is divided
/// by `members`. 16-bit floats are combined in `f32` and rounded once.
///
/// # Errors
/// `Internal` if the slices' lengths differ; `Unimplemented` for a type that is not reduced.
pub fn combine(
    dtype: DType,
    reduction: Reduction,
    members: usize,
    terms: &[&[u8]],
    out: &mut [u8],
) -> Result<()> {
    match dtype {
        DType::Float => fold::<f32>(reduction, members, terms, out),
        DType::Double => fold::<f64>(reduction, members, terms, out),
        DType::Half => fold::<f16>(reduction, members, terms, out),
        DType::BFloat16 => fold::<bf16>(reduction, members, terms, out),
        DType::Int32 => fold::<i32>(reduction, members, terms, out),
        DType::Int64 => fold::<i64>(reduction, members, terms, out),
        other => Err(Error::unimplemented(format!("{other} is not reduced"))),
    }
}

fn fold<T: Lane>(reduction: Reduction, members: usize, terms: &[&[u8]], out: &mut [u8]) -> Result<()>
where
    T::Wide: Number,
{
    if terms.is_empty() || terms.iter().any(|term| term.len() != out.len()) {
        return Err(Error::internal("the terms of a reduction have different lengths"));
    }
    match reduction.merge {
        Merge::Add => fold_with::<T>(terms, out, T::Wide::plus, reduction.is_mean.then_some(members)),
        Merge::Mul => fold_with::<T>(terms, out, T::Wide::times, reduction.is_mean.then_some(members)),
        Merge::Min => fold_with::<T>(terms, out, T::Wide::minimum, reduction.is_mean.then_some(members)),
        Merge::Max => fold_with::<T>(terms, out, T::Wide::maximum, reduction.is_mean.then_some(members)),
    }
}

fn fold_with<T: Lane>(
    terms: &[&[u8]],
    out: &mut [u8],
    combine: impl Fn(T::Wide, T::Wide) -> T::Wide + Copy,
    divisor: Option<usize>,
) -> Result<()>
where
    T::Wide: Number,
{
    let out = elements_mut::<T>(out)?;
    let mut sums = [T::Wide::ZERO; STRIP];
    let mut next = [T::Wide::ZERO; STRIP];
    let terms = terms.iter().map(|term| elements::<T>(term)).collect::<Result<Vec<&[T]>>>()?;
    for (strip, out) in out.chunks_mut(STRIP).enumerate() {
        let range = strip * STRIP..strip * STRIP + out.len();
        let sums = &mut sums[..out.len()];
        let next = &mut next[..out.len()];
        for (i, term) in terms.iter().enumerate() {
            if i == 0 {
                T::widen(&term[range.clone()], sums);
                continue;
            }
            T::widen(&term[range.clone()], next);
            for (sum, &next) in sums.iter_mut().zip(&*next) {
                *sum = combine(*sum, next);
            }
        }
        if let Some(divisor) = divisor {
            sums.iter_mut().for_each(|sum| *sum = sum.over_count(divisor));
        }
        T::narrow(sums, out);
    }
    Ok(())
}

fn elements<T: Element>(bytes: &[u8]) -> Result<&[T]> {
    bytemuck::try_cast_slice(bytes).map_err(|e| Error::internal(format!("elements of a collective: {e}")))
}

fn elements_mut<T: Element>(bytes: &mut [u8]) -> Result<&mut [T]> {
    bytemuck::try_cast_slice_mut(bytes).map_err(|e| Error::internal(format!("elements of a collective: {e}")))
}
