//! Lists of tensors, held by variants. Who alone holds a list changes it in place.

mod batch;
mod join;
#[cfg(test)]
mod tests;

pub(super) use batch::{add_n, zeros_like};

use crate::error::{Error, Result};
use crate::invalid;
use crate::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::{DType, PartialShape, Shape, Tensor, TensorList};
use std::sync::Arc;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("EmptyTensorList", &[], |init| {
        let dtype = element_dtype(init)?;
        Kernel::sync(move |ctx| {
            let max = scalar(ctx, 1, "max_num_elements")?;
            let mut list = TensorList::new(dtype, shape_of(ctx.input(0)?)?);
            list.max_num_elements = max;
            put(ctx, list)
        })
    }),
    KernelDef::of("TensorListReserve", &[], |init| {
        let dtype = element_dtype(init)?;
        Kernel::sync(move |ctx| {
            let count = scalar(ctx, 1, "num_elements")?;
            let Ok(count) = usize::try_from(count) else {
                invalid!("The num_elements to reserve must be a non negative number, but got {count}");
            };
            let mut list = TensorList::new(dtype, shape_of(ctx.input(0)?)?);
            list.resize(count)?;
            put(ctx, list)
        })
    }),
    KernelDef::of("TensorListGetItem", &[], |init| {
        let dtype = element_dtype(init)?;
        Kernel::sync(move |ctx| get_item(ctx, dtype))
    }),
    KernelDef::of("TensorListSetItem", &[], |init| {
        let dtype = element_dtype(init)?;
        let resize: bool = init.attr("resize_if_index_out_of_bounds")?;
        Kernel::sync(move |ctx| set_item(ctx, dtype, resize))
    }),
    KernelDef::of("TensorListPushBack", &[], |init| {
        let dtype = element_dtype(init)?;
        Kernel::sync(move |ctx| push_back(ctx, dtype))
    }),
    KernelDef::of("TensorListPopBack", &[], |init| {
        let dtype = element_dtype(init)?;
        Kernel::sync(move |ctx| pop_back(ctx, dtype))
    }),
    KernelDef::of("TensorListLength", &[], |_| {
        Kernel::sync(|ctx| {
            let len = i32::try_from(list(ctx, 0)?.len()).unwrap_or(i32::MAX);
            ctx.set_output(0, Tensor::from(len));
            Ok(())
        })
    }),
    KernelDef::of("TensorListResize", &[], |_| {
        Kernel::sync(|ctx| {
            let size = scalar(ctx, 1, "size")?;
            let Ok(size) = usize::try_from(size) else {
                invalid!("TensorListSlice expects size to be non-negative. Got: {size}");
            };
            edit(ctx, |list| Ok(list.resize(size)?))
        })
    }),
    KernelDef::of("TensorListElementShape", &[], |init| {
        let dtype = init.output_type(0);
        Kernel::sync(move |ctx| element_shape(ctx, dtype))
    }),
    KernelDef::of("TensorListFromTensor", &[], |init| join::kernel(init, join::from_tensor)),
    KernelDef::of("TensorListStack", &[], |init| {
        let wanted: i64 = init.attr("num_elements")?;
        join::kernel(init, move |ctx, dtype| join::stack(ctx, dtype, wanted))
    }),
    KernelDef::of("TensorListGather", &[], |init| join::kernel(init, join::gather)),
    KernelDef::of("TensorListScatter", &[], |init| join::kernel(init, |ctx, d| join::scatter(ctx, d, None))),
    KernelDef::of("TensorListScatterV2", &[], |init| {
        join::kernel(init, |ctx, dtype| {
            let count = scalar(ctx, 3, "num_elements")?;
            join::scatter(ctx, dtype, Some(count))
        })
    }),
    KernelDef::of("TensorListScatterIntoExistingList", &[], |init| join::kernel(init, join::scatter_into)),
    KernelDef::of("TensorListSplit", &[], |init| join::kernel(init, join::split)),
    KernelDef::of("TensorListConcat", &[], |init| {
        let shape: PartialShape = init.attr("element_shape")?;
        join::kernel(init, move |ctx, dtype| join::concat(ctx, dtype, shape.clone(), &[]))
    }),
    KernelDef::of("TensorListConcatV2", &[], |init| {
        join::kernel(init, |ctx, dtype| {
            let shape = shape_of(ctx.input(1)?)?;
            let leading = ctx.input(2)?.to_i64s()?;
            join::concat(ctx, dtype, shape, &leading)
        })
    }),
    KernelDef::of("TensorListConcatLists", &[], |init| {
        let dtype = element_dtype(init)?;
        Kernel::sync(move |ctx| batch::concat_lists(ctx, dtype))
    }),
    KernelDef::of("TensorListPushBackBatch", &[], |init| join::kernel(init, batch::push_back_batch)),
];

fn element_dtype(init: &KernelInit<'_>) -> Result<DType> {
    init.attr("element_dtype")
}

fn put(ctx: &mut KernelContext<'_>, list: TensorList) -> Result<()> {
    ctx.set_output(0, Tensor::variant(list));
    Ok(())
}

/// Input `i`, a list in a scalar.
fn list(ctx: &KernelContext<'_>, i: usize) -> Result<Arc<TensorList>> {
    match ctx.input(i)?.as_variants()? {
        [variant] => Ok(variant.expect::<TensorList>("a list of tensors")?),
        all => Err(Error::invalid(format!("a list of tensors is a scalar, not {} variants", all.len()))),
    }
}

/// Changes the list of input 0, in place if nobody else holds it, and puts it out.
fn edit(ctx: &mut KernelContext<'_>, change: impl FnOnce(&mut TensorList) -> Result<()>) -> Result<()> {
    let mut handle = ctx.take_input(0)?;
    match handle.variants_mut()? {
        [variant] => change(variant.make_mut("a list of tensors")?)?,
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

/// The shape that a tensor describes: a vector of sizes, of which -1 is open, or -1 for any shape.
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

fn check_dtype(list: &TensorList, dtype: DType) -> Result<()> {
    if list.element_dtype != dtype {
        invalid!("Invalid data types; op elements {dtype} but list elements {}", list.element_dtype);
    }
    Ok(())
}

/// Both shapes in one; the error says which do not agree.
fn merged(a: &PartialShape, b: &PartialShape) -> Result<PartialShape> {
    a.merge(b).map_err(|_| Error::invalid(format!("Incompatible shapes during merge: {a} vs. {b}")))
}

fn zeros(dtype: DType, shape: &PartialShape) -> Result<Tensor> {
    match shape.as_shape() {
        Some(shape) => Ok(Tensor::zeros(dtype, shape)?),
        None => Err(Error::invalid(format!(
            "Trying to read an uninitialized tensor but element_shape is not fully defined: {shape}"
        ))),
    }
}

fn get_item(ctx: &mut KernelContext<'_>, dtype: DType) -> Result<()> {
    let (list, index) = (list(ctx, 0)?, scalar(ctx, 1, "index")?);
    check_dtype(&list, dtype)?;
    let item = usize::try_from(index).ok().and_then(|i| list.elements().get(i));
    let Some(item) = item else {
        invalid!("Trying to access element {index} in a list with {} elements.", list.len());
    };
    let item = match item {
        Some(item) => item.clone(),
        None => {
            let mut shape = merged(&shape_of(ctx.input(2)?)?, &list.element_shape)?;
            // What the others are, if they agree, this one would have been.
            if !shape.is_fully_defined() {
                for other in list.elements().iter().flatten() {
                    shape = merged(&shape, &other.shape().into())?;
                }
            }
            zeros(dtype, &shape)?
        }
    };
    ctx.set_output(0, item);
    Ok(())
}

fn set_item(ctx: &mut KernelContext<'_>, dtype: DType, resize: bool) -> Result<()> {
    let (index, item) = (scalar(ctx, 1, "index")?, ctx.take_input(2)?);
    edit(ctx, |list| {
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
}

fn push_back(ctx: &mut KernelContext<'_>, dtype: DType) -> Result<()> {
    let item = ctx.take_input(1)?;
    edit(ctx, |list| {
        if !list.element_shape.accepts(item.shape()) {
            invalid!(
                "Tried to append a tensor with incompatible shape to a list. Op element shape: {} list shape: {}",
                item.shape(),
                list.element_shape
            );
        }
        if list.element_dtype != dtype {
            invalid!("Invalid data types; list elements {} but tried to append {dtype}", list.element_dtype);
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
}

fn pop_back(ctx: &mut KernelContext<'_>, dtype: DType) -> Result<()> {
    let wanted = shape_of(ctx.input(1)?)?;
    let mut popped = None;
    edit(ctx, |list| {
        check_dtype(list, dtype)?;
        let Some(last) = list.pop() else { invalid!("Trying to pop from an empty list.") };
        popped = Some(match last {
            Some(tensor) => tensor,
            None => zeros(dtype, &merged(&wanted, &list.element_shape)?)?,
        });
        Ok(())
    })?;
    if let Some(popped) = popped {
        ctx.set_output(1, popped);
    }
    Ok(())
}

fn element_shape(ctx: &mut KernelContext<'_>, dtype: DType) -> Result<()> {
    let list = list(ctx, 0)?;
    let (sizes, shape) = match list.element_shape.dims() {
        None => (vec![-1], Shape::scalar()),
        Some(dims) => {
            let sizes: Vec<i64> = dims.iter().map(|d| d.map_or(-1, |d| d as i64)).collect();
            let shape = Shape::new(&[sizes.len()])?;
            (sizes, shape)
        }
    };
    let sizes = match dtype {
        DType::Int32 => {
            let narrow = sizes.iter().map(|s| i32::try_from(*s)).collect::<Result<Vec<_>, _>>();
            let narrow =
                narrow.map_err(|_| Error::invalid(format!("{} exceeds int32", list.element_shape)))?;
            Tensor::from_slice(&narrow, shape)?
        }
        _ => Tensor::from_slice(&sizes, shape)?,
    };
    ctx.set_output(0, sizes);
    Ok(())
}
