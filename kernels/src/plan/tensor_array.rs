//! Kernels of tensor arrays, which are dropped at the end of their step.

mod array;

pub(crate) use array::TensorArray;

use crate::objects::memory::Memory;
use crate::objects::step_object::{HandleKind, address, base_name, object, set_handle, unique_name};
use array::TensorArrayConfig;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::value::Value;
use device::{Error, Result};
use graph::DType::{self, *};
use graph::{PartialShape, Shape, Tensor};
use std::ops::Range;
use std::sync::Arc;

const CONTAINER: &str = "_tensor_arrays";
const GRADIENT_CONTAINER: &str = "_tensor_array_grads";

/// Makes the kernel that creates an array with elements in `memory`; handles, indices and lengths are in host memory.
pub fn create(init: &KernelInit<'_>, memory: impl Memory) -> Result<Kernel> {
    let (base, kind) = (base_name(init, "tensor_array_name")?, HandleKind::of_output(init));
    let (dtype, shape) = (init.attr::<DType>("dtype")?, init.attr::<PartialShape>("element_shape")?);
    let is_dynamic = init.attr::<bool>("dynamic_size")?;
    let clear_after_read = init.attr::<bool>("clear_after_read")?;
    let identical = init.node.op.attr_spec("identical_element_shapes").is_some();
    let identical_shapes = identical && init.attr::<bool>("identical_element_shapes")?;
    Kernel::sync(move |ctx| {
        let size = ctx.input(0)?;
        if size.shape().rank() != 0 {
            device::invalid!("TensorArray size must be scalar, but had shape: {}", size.shape());
        }
        let Ok(size) = usize::try_from(size.item::<i32>()?) else { device::invalid!("Size should be >= 0.") };
        let name = unique_name(&base);
        let config = TensorArrayConfig {
            name: name.clone(),
            dtype,
            shape: shape.clone(),
            size,
            is_dynamic,
            clear_after_read,
            identical_shapes,
        };
        ctx.step().resources.lookup_or_create(CONTAINER, &name, || TensorArray::new(config))?;
        set_handle::<TensorArray>(ctx, kind, CONTAINER, &name)?;
        if ctx.num_outputs() > 1 {
            let flow = memory.zeros(ctx, Float, Shape::scalar())?;
            ctx.set_output(1, flow);
        }
        Ok(())
    })
}

/// Sets output `output`, if the op has it, to the flow in input `input`. Flows order the ops on an array, and their
/// values have no meaning, so the tensor is passed on without copying it to other memory.
fn pass_flow(ctx: &mut KernelContext<'_>, input: usize, output: usize) {
    if output < ctx.num_outputs() {
        let flow = ctx.take_value(input);
        ctx.set_output(output, flow);
    }
}

/// Makes the kernel that creates the array of gradients of a tensor array; nodes with the same attribute `source` get
/// the same array of gradients.
pub(crate) fn gradient(init: &KernelInit<'_>) -> Result<Kernel> {
    let (source, kind) = (init.attr::<std::string::String>("source")?, HandleKind::of_output(init));
    Kernel::sync(move |ctx| {
        let (container, name) = address(ctx)?;
        if *container != *CONTAINER {
            device::invalid!("Wrong input container. {container}{name}");
        }
        let prefix = match ctx.num_inputs() {
            3 => {
                let prefix = ctx.input(2)?.to_i64s()?;
                Some(Shape::from_i64(&prefix)?)
            }
            _ => None,
        };
        let forward = object::<TensorArray>(ctx)?;
        let own = format!("{name}@{source}");
        let make = || forward.gradient(own.clone(), prefix.as_ref().map(Shape::dims));
        ctx.step().resources.lookup_or_create(GRADIENT_CONTAINER, &own, make)?;
        set_handle::<TensorArray>(ctx, kind, GRADIENT_CONTAINER, &own)?;
        pass_flow(ctx, 1, 1);
        Ok(())
    })
}

fn writable(ctx: &KernelContext<'_>, dtype: DType) -> Result<Arc<TensorArray>> {
    let array = object::<TensorArray>(ctx)?;
    if array.dtype != dtype {
        device::invalid!("TensorArray dtype is {} but Op is trying to write dtype {dtype}.", array.dtype);
    }
    Ok(array)
}

fn readable(ctx: &KernelContext<'_>, dtype: DType) -> Result<Arc<TensorArray>> {
    let array = object::<TensorArray>(ctx)?;
    if array.dtype != dtype {
        device::invalid!("TensorArray dtype is {} but Op requested dtype {dtype}.", array.dtype);
    }
    Ok(array)
}

fn index(ctx: &KernelContext<'_>) -> Result<i32> {
    let index = ctx.input(1)?;
    if index.shape().rank() != 0 {
        device::invalid!("TensorArray index must be scalar, but had shape: {}", index.shape());
    }
    Ok(index.item::<i32>()?)
}

/// Makes the kernel that writes an element of an array. In an array of gradients, a second write to an element is added
/// to the first.
pub fn write(init: &KernelInit<'_>, memory: impl Memory) -> Result<Kernel> {
    let dtype = init.attr::<DType>("T")?;
    Kernel::sync(move |ctx| {
        let (index, array) = (index(ctx)?, writable(ctx, dtype)?);
        let value = ctx.take_value(2);
        array.write(index, value, |sum, by| memory.add(ctx, sum, by))?;
        pass_flow(ctx, 3, 0);
        Ok(())
    })
}

/// Makes the kernel that reads an element of an array.
pub fn read(init: &KernelInit<'_>, memory: impl Memory) -> Result<Kernel> {
    let dtype = init.output_type(0);
    Kernel::sync(move |ctx| {
        let array = readable(ctx, dtype)?;
        let value = array.read(index(ctx)?, |shape| zeros(ctx, &memory, dtype, shape))?;
        ctx.set_output(0, value);
        Ok(())
    })
}

/// Returns zeros, the value of an element that was not written.
fn zeros(ctx: &KernelContext<'_>, memory: &impl Memory, dtype: DType, shape: Shape) -> Result<Value> {
    if dtype.size().is_none() {
        device::invalid!("tensor_array::TensorSetZero type not supported: {dtype}");
    }
    memory.zeros(ctx, dtype, shape)
}

fn read_all(
    ctx: &KernelContext<'_>,
    array: &TensorArray,
    memory: &impl Memory,
    indices: impl Iterator<Item = i32>,
) -> Result<Vec<(Value, Shape)>> {
    let element = |index| {
        let value = array.read(index, |shape| zeros(ctx, memory, array.dtype, shape))?;
        let shape = value.shape().ok_or_else(|| Error::internal(format!("an element is {value:?}")))?;
        Ok((value, shape))
    };
    indices.map(element).collect()
}

/// Returns the range of the indices of all elements; `InvalidArgument` if the length does not fit an `i32`.
fn all(array: &TensorArray) -> Result<Range<i32>> {
    let len = array.len()?;
    Ok(0..i32::try_from(len).map_err(|_| Error::invalid(format!("a TensorArray of {len} elements")))?)
}

/// Makes the kernel that stacks the elements at the given indices, or all elements if `every` is set.
pub fn gather(init: &KernelInit<'_>, memory: impl Memory, every: bool) -> Result<Kernel> {
    let (dtype, wanted) = (init.output_type(0), init.attr::<PartialShape>("element_shape")?);
    Kernel::sync(move |ctx| {
        let array = readable(ctx, dtype)?;
        let elements = if every {
            read_all(ctx, &array, &memory, all(&array)?)?
        } else {
            let indices = ctx.input(1)?;
            if indices.shape().rank() != 1 {
                device::invalid!("Expected indices to be a vector, but received shape: {}", indices.shape());
            }
            read_all(ctx, &array, &memory, indices.values::<i32>()?.iter().copied())?
        };
        let shape = match elements.first() {
            Some((_, shape)) => shape.clone(),
            None => wanted.as_shape().ok_or_else(|| {
                Error::unimplemented(format!(
                    "TensorArray has size zero, but element shape {wanted} is not fully defined. Currently only \
                     static shapes are supported when packing zero-size TensorArrays."
                ))
            })?,
        };
        if !wanted.accepts(&shape) {
            device::invalid!(
                "TensorArray was passed element_shape {wanted} which does not match the Tensor at index 0: {shape}"
            );
        }
        if let Some((i, other)) = elements.iter().enumerate().find(|(_, e)| e.1 != shape) {
            device::invalid!(
                "TensorArray has inconsistent shapes.  Index 0 has shape: {shape} but index {i} has shape: {}",
                other.1
            );
        }
        let whole = Shape::new(&[&[elements.len()], shape.dims()].concat())?;
        let parts: Vec<Value> = elements.into_iter().map(|(value, _)| value).collect();
        let whole = memory.joined(ctx, dtype, &parts.iter().collect::<Vec<_>>(), whole)?;
        ctx.set_output(0, whole);
        Ok(())
    })
}

/// Makes the kernel that writes the rows of a value to the elements at the given indices, or to all elements in order
/// if `every` is set.
pub fn scatter(init: &KernelInit<'_>, memory: impl Memory, every: bool) -> Result<Kernel> {
    let (dtype, at) = (init.attr::<DType>("T")?, if every { 1 } else { 2 });
    let flow = if every { 2 } else { 3 };
    Kernel::sync(move |ctx| {
        let array = writable(ctx, dtype)?;
        let shape = ctx.shape(at)?;
        let Some((&rows, of_row)) = shape.split_first() else {
            device::invalid!("Input value for unpack must be at least a vector but received shape: {shape}");
        };
        let indices: Vec<i32> = if every {
            let rows =
                i32::try_from(rows).map_err(|_| Error::invalid(format!("{rows} rows are too many")))?;
            (0..rows).collect()
        } else {
            let indices = ctx.input(1)?;
            if indices.shape().rank() != 1 {
                device::invalid!("Expected indices to be a vector, but received shape: {}", indices.shape());
            }
            indices.values::<i32>()?.to_vec()
        };
        if indices.len() != rows {
            device::invalid!(
                "Expected len(indices) == values.shape[0], but saw: {} vs. {rows}",
                indices.len()
            );
        }
        let highest = indices.iter().copied().max().unwrap_or(-1);
        let needed = usize::try_from(i64::from(highest) + 1).unwrap_or(0);
        array.grow_to(needed)?;
        let size = array.len()?;
        if every && size != rows {
            device::invalid!(
                "Input value must have first dimension equal to the array size ({rows} vs. {size})"
            );
        }
        if needed > size {
            device::invalid!("Max scatter index must be < array size ({highest} vs. {size})");
        }
        let row = Shape::new(of_row)?;
        let value = ctx.take_value(at);
        let mut indices = indices.into_iter();
        memory.cut(ctx, &value, std::iter::repeat_n(row, rows), |row: Value| {
            let index = indices.next().ok_or_else(|| Error::internal("there are more rows than indices"))?;
            array.write(index, row, |sum, by| memory.add(ctx, sum, by))
        })?;
        pass_flow(ctx, flow, 0);
        Ok(())
    })
}

/// Makes the kernel that concatenates all elements along their first axis.
pub fn concat(init: &KernelInit<'_>, memory: impl Memory) -> Result<Kernel> {
    let (dtype, wanted) = (init.output_type(0), init.attr::<PartialShape>("element_shape_except0")?);
    Kernel::sync(move |ctx| {
        let array = readable(ctx, dtype)?;
        let elements = read_all(ctx, &array, &memory, all(&array)?)?;
        let mut rest: Option<Shape> = None;
        let mut lengths = Vec::with_capacity(elements.len());
        for (i, (_, shape)) in elements.iter().enumerate() {
            let Some((&length, others)) = shape.split_first() else {
                device::invalid!(
                    "Concat saw a scalar shape at index {i} but requires at least vectors.  Did you mean to call \
                     pack?"
                );
            };
            let others = Shape::new(others)?;
            if !wanted.accepts(&others) {
                device::invalid!(
                    "TensorArray was passed element_shape_except0 {wanted} but index {i} has (excepting dimension \
                     0) shape: {others} which does not match."
                );
            }
            match &rest {
                Some(first) if *first != others => device::invalid!(
                    "TensorArray has inconsistent shapes.  Index 0 has (excepting dimension 0) shape: {first} but \
                     index {i} has (excepting dimension 0) shape: {others}"
                ),
                Some(_) => {}
                None => rest = Some(others),
            }
            lengths.push(length as i64);
        }
        let rest = rest.or_else(|| wanted.as_shape()).ok_or_else(|| {
            Error::unimplemented(format!(
                "TensorArray has size zero, but element_shape_except0 {wanted} is not fully defined. Currently only \
                 static shapes are supported when concatenating zero-size TensorArrays."
            ))
        })?;
        let rows =
            lengths.iter().try_fold(0i64, |sum, l| sum.checked_add(*l)).and_then(|r| r.try_into().ok());
        let rows: usize = rows.ok_or_else(|| Error::invalid("the result is too large"))?;
        let whole = Shape::new(&[&[rows], rest.dims()].concat())?;
        let parts: Vec<Value> = elements.into_iter().map(|(value, _)| value).collect();
        let whole = memory.joined(ctx, dtype, &parts.iter().collect::<Vec<_>>(), whole)?;
        ctx.set_output(0, whole);
        ctx.set_output(1, Tensor::vector(&lengths)?);
        Ok(())
    })
}

/// Makes the kernel that splits a value along its first axis and writes the parts to the elements in order.
pub fn split(init: &KernelInit<'_>, memory: impl Memory) -> Result<Kernel> {
    let dtype = init.attr::<DType>("T")?;
    Kernel::sync(move |ctx| {
        let array = writable(ctx, dtype)?;
        let (shape, lengths) = (ctx.shape(1)?, ctx.input(2)?);
        if lengths.shape().rank() != 1 {
            device::invalid!("Expected lengths to be a vector, received shape: {}", lengths.shape());
        }
        let Some((&rows, of_row)) = shape.split_first() else {
            device::invalid!("Expected value to be at least a vector, but received shape: {shape}");
        };
        let lengths = lengths.values::<i64>()?;
        let mut sizes = Vec::with_capacity(lengths.len());
        for &length in lengths {
            let Ok(size) = usize::try_from(length) else {
                device::invalid!("Expected lengths >= 0, but saw {length}");
            };
            sizes.push(size);
        }
        let sum = sizes.iter().try_fold(0usize, |sum, size| sum.checked_add(*size));
        let sum = sum.ok_or_else(|| Error::invalid("the sum of lengths is too large"))?;
        if sum != rows {
            device::invalid!(
                "Expected sum of lengths to be equal to values.shape[0], but sum of lengths is {sum} and value's shape \
                 is: {shape}"
            );
        }
        array.grow_to(sizes.len())?;
        let size = array.len()?;
        if size != sizes.len() {
            device::invalid!(
                "TensorArray's size is not equal to the size of lengths ({size} vs. {}), and the TensorArray is not \
                 marked as dynamically resizeable",
                sizes.len()
            );
        }
        let shape = |size: &usize| Shape::new(&[&[*size], of_row].concat());
        let shapes = sizes.iter().map(shape).collect::<Result<Vec<_>, _>>()?;
        let value = ctx.take_value(1);
        let mut index = 0;
        memory.cut(ctx, &value, shapes.into_iter(), |part: Value| {
            array.write(index, part, |sum, by| memory.add(ctx, sum, by))?;
            index += 1;
            Ok(())
        })?;
        pass_flow(ctx, 3, 0);
        Ok(())
    })
}

pub(crate) fn size(ctx: &mut KernelContext<'_>) -> Result<()> {
    let len = object::<TensorArray>(ctx)?.len()?;
    let len =
        i32::try_from(len).map_err(|_| Error::invalid(format!("a size of {len} does not fit int32")))?;
    ctx.set_output(0, Tensor::scalar(len));
    Ok(())
}
