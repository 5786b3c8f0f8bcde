//! Kernels of tensor lists, which are stored in variants. A kernel changes a list in place if no other variant shares
//! it.
//!
//! The kernels are generic over the type of the elements: host tensors on the CPU, and [`AnyTensor`] tensors on a
//! device with separate memory. A [`Memory`] creates, joins and cuts the elements.
//!
//! [`AnyTensor`]: device::value::AnyTensor

mod batch;
mod join;
#[cfg(test)]
mod tests;

pub use batch::{add_n, concat_lists, push_back_batch, zeros_like};
pub use join::{concat, concat_v2, from_tensor, gather, scatter, scatter_into, scatter_v2, split, stack};

use crate::objects::memory::Memory;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::value::ListElement;
use device::{Error, Result, invalid};
use graph::{DType, PartialShape, Shape, Tensor, TensorList};
use std::sync::Arc;

/// `EmptyTensorList`: makes the kernel that outputs an empty list.
pub fn empty<T: ListElement>(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = element_dtype(init)?;
    Kernel::sync(move |ctx| {
        let max = scalar(ctx, 1, "max_num_elements")?;
        let mut list = TensorList::<T>::new(dtype, shape_of(ctx.input(0)?)?);
        list.max_num_elements = max;
        set_list(ctx, list)
    })
}

/// `TensorListReserve`: makes the kernel that outputs a list of uninitialized elements.
pub fn reserve<T: ListElement>(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = element_dtype(init)?;
    Kernel::sync(move |ctx| {
        let count = scalar(ctx, 1, "num_elements")?;
        let Ok(count) = usize::try_from(count) else {
            invalid!("The num_elements to reserve must be a non negative number, but got {count}");
        };
        let mut list = TensorList::<T>::new(dtype, shape_of(ctx.input(0)?)?);
        list.resize(count)?;
        set_list(ctx, list)
    })
}

/// `TensorListLength`: makes the kernel that outputs the number of elements of the list.
pub fn length<T: ListElement>(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let len = i32::try_from(list::<T>(ctx, 0)?.len()).unwrap_or(i32::MAX);
        ctx.set_output(0, Tensor::from(len));
        Ok(())
    })
}

/// `TensorListResize`: makes the kernel that removes elements from the end of the list, or appends uninitialized
/// elements.
pub fn resize<T: ListElement>(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let size = scalar(ctx, 1, "size")?;
        let Ok(size) = usize::try_from(size) else {
            invalid!("TensorListSlice expects size to be non-negative. Got: {size}");
        };
        edit::<T>(ctx, |_, list| Ok(list.resize(size)?))
    })
}

fn element_dtype(init: &KernelInit<'_>) -> Result<DType> {
    init.attr("element_dtype")
}

fn set_list<T: ListElement>(ctx: &mut KernelContext<'_>, list: TensorList<T>) -> Result<()> {
    ctx.set_output(0, Tensor::variant(list));
    Ok(())
}

/// Returns the tensor list in input `i`, which must be a scalar variant.
fn list<T: ListElement>(ctx: &KernelContext<'_>, i: usize) -> Result<Arc<TensorList<T>>> {
    match ctx.input(i)?.as_variants()? {
        [variant] => Ok(variant.expect("a list of tensors")?),
        all => Err(Error::invalid(format!("a list of tensors is a scalar, not {} variants", all.len()))),
    }
}

/// Applies a change to the list in input 0, in place if the list is not shared, and sets output 0 to the changed list.
fn edit<T: ListElement>(
    ctx: &mut KernelContext<'_>,
    change: impl FnOnce(&mut KernelContext<'_>, &mut TensorList<T>) -> Result<()>,
) -> Result<()> {
    let mut handle = ctx.take_input(0)?;
    match handle.variants_mut()? {
        [variant] => change(ctx, variant.make_mut("a list of tensors")?)?,
        all => invalid!("a list of tensors is a scalar, not {} variants", all.len()),
    }
    ctx.set_output(0, handle);
    Ok(())
}

fn scalar(ctx: &KernelContext<'_>, i: usize, name: &str) -> Result<i32> {
    let tensor = ctx.input(i)?;
    match tensor.values::<i32>()? {
        [value] if tensor.shape().is_empty() => Ok(*value),
        _ => Err(Error::invalid(format!("{name} expected to be a scalar but got shape: {}", tensor.shape()))),
    }
}

/// Returns the shape that a tensor describes: a vector of sizes, where -1 is unknown, or the scalar -1 for an unknown
/// shape.
fn shape_of(tensor: &Tensor) -> Result<PartialShape> {
    let sizes = tensor.to_i64s()?;
    match tensor.shape().dims() {
        [] if sizes == [-1] => Ok(PartialShape::unknown()),
        [] => Err(Error::invalid(
            "The only valid scalar shape tensor is the fully unknown shape specified as -1.",
        )),
        [_] => Ok(PartialShape::from_i64(&sizes)?),
        _ => Err(Error::invalid(format!(
            "a shape must be a vector or the scalar -1, not a tensor of shape {}",
            tensor.shape()
        ))),
    }
}

fn check_dtype<T: ListElement>(list: &TensorList<T>, dtype: DType) -> Result<()> {
    if list.element_dtype != dtype {
        invalid!("Invalid data types; op elements {dtype} but list elements {}", list.element_dtype);
    }
    Ok(())
}

fn check_appended<T: ListElement>(list: &TensorList<T>, item: &T) -> Result<()> {
    if !list.element_shape.accepts(item.shape()) {
        invalid!(
            "Tried to append a tensor with incompatible shape to a list. Op element shape: {} list shape: {}",
            item.shape(),
            list.element_shape
        );
    }
    Ok(())
}

/// Merges two shapes; the error names shapes that are incompatible.
fn merged(a: &PartialShape, b: &PartialShape) -> Result<PartialShape> {
    a.merge(b).map_err(|_| Error::invalid(format!("Incompatible shapes during merge: {a} vs. {b}")))
}

/// Returns zeros, the value of an uninitialized element; `shape` must be fully known.
fn zeros<T: ListElement>(
    ctx: &KernelContext<'_>,
    memory: &impl Memory,
    dtype: DType,
    shape: &PartialShape,
) -> Result<T> {
    match shape.as_shape() {
        Some(shape) => T::of(memory.zeros(ctx, dtype, shape)?),
        None => Err(Error::invalid(format!(
            "Trying to read an uninitialized tensor but element_shape is not fully defined: {shape}"
        ))),
    }
}

/// `TensorListGetItem`: makes the kernel that outputs an element, or zeros if the element is uninitialized.
pub fn get_item<T: ListElement>(init: &KernelInit<'_>, memory: impl Memory) -> Result<Kernel> {
    let dtype = element_dtype(init)?;
    Kernel::sync(move |ctx| {
        let (list, index) = (list::<T>(ctx, 0)?, scalar(ctx, 1, "index")?);
        check_dtype(&list, dtype)?;
        let item = usize::try_from(index).ok().and_then(|i| list.elements().get(i));
        let Some(item) = item else {
            invalid!("Trying to access element {index} in a list with {} elements.", list.len());
        };
        let item = match item {
            Some(item) => item.clone(),
            None => {
                let mut shape = merged(&shape_of(ctx.input(2)?)?, &list.element_shape)?;
                // If the shape is not fully known, an uninitialized element takes the common shape of the initialized
                // elements.
                if !shape.is_fully_defined() {
                    for other in list.elements().iter().flatten() {
                        shape = merged(&shape, &other.shape().into())?;
                    }
                }
                zeros(ctx, &memory, dtype, &shape)?
            }
        };
        ctx.set_output(0, item);
        Ok(())
    })
}

/// `TensorListSetItem`: makes the kernel that replaces an element, and resizes the list first if the node's attribute
/// allows that.
pub fn set_item<T: ListElement>(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = element_dtype(init)?;
    let resize: bool = init.attr("resize_if_index_out_of_bounds")?;
    Kernel::sync(move |ctx| {
        let (index, item) = (scalar(ctx, 1, "index")?, T::of(ctx.take_value(2))?);
        edit::<T>(ctx, |_, list| {
            check_dtype(list, dtype)?;
            let index = match usize::try_from(index) {
                Ok(index) if index < list.len() => index,
                Ok(index) if resize => {
                    list.resize(index + 1)?;
                    index
                }
                _ => invalid!("Trying to modify element {index} in a list with {} elements.", list.len()),
            };
            if !list.element_shape.accepts(item.shape()) {
                invalid!(
                    "Tried to set a tensor with incompatible shape at a list index. Item element shape: {} list \
                     shape: {}",
                    item.shape(),
                    list.element_shape
                );
            }
            Ok(list.set(index, item)?)
        })
    })
}

/// `TensorListPushBack`: makes the kernel that appends an element.
pub fn push_back<T: ListElement>(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = element_dtype(init)?;
    Kernel::sync(move |ctx| {
        let item = T::of(ctx.take_value(1))?;
        edit::<T>(ctx, |_, list| {
            check_appended(list, &item)?;
            if list.element_dtype != dtype {
                invalid!(
                    "Invalid data types; list elements {} but tried to append {dtype}",
                    list.element_dtype
                );
            }
            if usize::try_from(list.max_num_elements).is_ok_and(|max| list.len() >= max) {
                invalid!(
                    "Tried to push item into a full list list size: {} max_num_elements: {}",
                    list.len(),
                    list.max_num_elements
                );
            }
            Ok(list.push(item)?)
        })
    })
}

/// `TensorListPopBack`: makes the kernel that removes the last element of the list, and outputs the list and the
/// element.
pub fn pop_back<T: ListElement>(init: &KernelInit<'_>, memory: impl Memory) -> Result<Kernel> {
    let dtype = element_dtype(init)?;
    Kernel::sync(move |ctx| {
        let wanted = shape_of(ctx.input(1)?)?;
        edit::<T>(ctx, |ctx, list| {
            check_dtype(list, dtype)?;
            let Some(last) = list.pop() else { invalid!("Trying to pop from an empty list.") };
            let popped = match last {
                Some(tensor) => tensor,
                None => zeros(ctx, &memory, dtype, &merged(&wanted, &list.element_shape)?)?,
            };
            ctx.set_output(1, popped);
            Ok(())
        })
    })
}

/// `TensorListElementShape`: makes the kernel that outputs the shape of the elements, with -1 for unknown sizes.
pub fn element_shape<T: ListElement>(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    Kernel::sync(move |ctx| {
        let shape = &list::<T>(ctx, 0)?.element_shape;
        let (sizes, rank) = match shape.dims() {
            None => (vec![-1], Shape::scalar()),
            Some(dims) => {
                let sizes: Vec<i64> = dims.iter().map(|d| d.map_or(-1, |d| d as i64)).collect();
                let rank = Shape::new(&[sizes.len()])?;
                (sizes, rank)
            }
        };
        let sizes = match dtype {
            DType::Int32 => {
                let narrow = sizes.iter().map(|s| i32::try_from(*s)).collect::<Result<Vec<_>, _>>();
                let narrow = narrow.map_err(|_| Error::invalid(format!("{shape} exceeds int32")))?;
                Tensor::from_slice(&narrow, rank)?
            }
            _ => Tensor::from_slice(&sizes, rank)?,
        };
        ctx.set_output(0, sizes);
        Ok(())
    })
}
