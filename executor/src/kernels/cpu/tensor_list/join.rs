//! Between lists and the tensors that hold all their elements: side by side, or one after the other.

use super::super::moved::{Moved, moved};
use super::{check_dtype, edit, list, merged, put, shape_of};
use crate::error::{Error, Result};
use crate::invalid;
use crate::kernel::{Kernel, KernelContext, KernelInit};
use graph::{DType, PartialShape, Shape, Tensor, TensorList};

/// A kernel that knows its elements' type.
pub(super) fn kernel(
    init: &KernelInit<'_>,
    compute: impl Fn(&mut KernelContext<'_>, DType) -> Result<()> + Send + Sync + 'static,
) -> Result<Kernel> {
    let dtype = super::element_dtype(init)?;
    Kernel::sync(move |ctx| compute(ctx, dtype))
}

/// Part of a tensor: `count` elements from `start`, in the shape given, whose size that is.
fn part(tensor: &Tensor, start: usize, shape: Shape) -> Result<Tensor> {
    let count = shape.num_elements();
    moved!(tensor.dtype(), E => {
        let all = E::view(tensor)?;
        let some = start.checked_add(count).and_then(|end| all.get(start..end));
        let some = some.ok_or_else(|| Error::internal(format!("{count} elements from {start} are not there")))?;
        E::build(tensor.dtype(), shape, |out| {
            out.clone_from_slice(some);
            Ok(())
        })
    })
}

/// One after the other, as a tensor of this shape.
fn joined(dtype: DType, shape: Shape, parts: &[&Tensor]) -> Result<Tensor> {
    moved!(dtype, E => E::build(dtype, shape, |out| {
        let mut rest = out;
        for part in parts {
            let elements = E::view(part)?;
            let too_many = || Error::internal("parts exceed the whole");
            let (here, after) = rest.split_at_mut_checked(elements.len()).ok_or_else(too_many)?;
            here.clone_from_slice(elements);
            rest = after;
        }
        Ok(())
    }))
}

/// The rows of a tensor.
pub(super) fn rows(tensor: &Tensor) -> Result<Vec<Tensor>> {
    let Some((&count, dims)) = tensor.shape().dims().split_first() else {
        invalid!("Tensor must be at least a vector, but saw shape: {}", tensor.shape());
    };
    let shape = Shape::new(dims)?;
    let size = shape.num_elements();
    if size == 0 && count as u128 * size_of::<Tensor>() as u128 > u128::from(graph::tensor::memory_limit()) {
        return Err(Error::new(graph::Code::ResourceExhausted, format!("a list of {count} tensors")));
    }
    (0..count).map(|i| part(tensor, i * size, shape.clone())).collect()
}

fn row_shape(tensor: &Tensor) -> PartialShape {
    PartialShape::of_dims(tensor.shape().dims().iter().skip(1).map(|&d| Some(d)))
}

pub(super) fn from_tensor(ctx: &mut KernelContext<'_>, dtype: DType) -> Result<()> {
    let (tensor, wanted) = (ctx.input(0)?, shape_of(ctx.input(1)?)?);
    let elements = rows(tensor)?;
    let row = row_shape(tensor);
    if !wanted.is_compatible(&row) {
        invalid!(
            "Specified a list with shape {wanted} from a tensor with shape {row}, of which each row is an element"
        );
    }
    let list = TensorList::of(dtype, wanted, elements.into_iter().map(Some).collect())?;
    put(ctx, list)
}

/// The elements' one shape, from what all say of it.
fn common_shape(list: &TensorList, wanted: PartialShape) -> Result<PartialShape> {
    let mut shape = merged(&wanted, &list.element_shape)?;
    for element in list.elements().iter().flatten() {
        if !shape.accepts(element.shape()) {
            invalid!("Incompatible shapes during merge: {} vs. {shape}", element.shape());
        }
        if !shape.is_fully_defined() {
            shape = merged(&shape, &element.shape().into())?;
        }
    }
    Ok(shape)
}

fn side_by_side(
    ctx: &mut KernelContext<'_>,
    list: &TensorList,
    shape: &PartialShape,
    chosen: &[Option<&Tensor>],
    op: &str,
) -> Result<()> {
    let Some(element) = shape.as_shape() else {
        let what = if list.is_empty() {
            "elements of an empty list"
        } else {
            "list which only contains uninitialized tensors"
        };
        invalid!("Tried to {op} {what} with non-fully-defined element_shape: {shape}");
    };
    let dims: Vec<usize> = std::iter::once(chosen.len()).chain(element.dims().iter().copied()).collect();
    let whole = Shape::new(&dims)?;
    let blank = Tensor::zeros(
        list.element_dtype,
        if chosen.iter().any(Option::is_none) { element.clone() } else { Shape::new(&[0])? },
    )?;
    for tensor in chosen.iter().flatten() {
        if *tensor.shape() != element {
            invalid!("Tried to {op} elements of shapes {} and {element}", tensor.shape());
        }
    }
    let parts: Vec<&Tensor> = chosen.iter().map(|t| t.unwrap_or(&blank)).collect();
    let out = joined(list.element_dtype, whole, &parts)?;
    ctx.set_output(0, out);
    Ok(())
}

pub(super) fn stack(ctx: &mut KernelContext<'_>, dtype: DType, wanted: i64) -> Result<()> {
    let list = list(ctx, 0)?;
    check_dtype(&list, dtype)?;
    if wanted >= 0 && wanted != list.len() as i64 {
        invalid!(
            "Operation expected a list with {wanted} elements but got a list with {} elements.",
            list.len()
        );
    }
    let shape = common_shape(&list, shape_of(ctx.input(1)?)?)?;
    let chosen: Vec<Option<&Tensor>> = list.elements().iter().map(Option::as_ref).collect();
    side_by_side(ctx, &list, &shape, &chosen, "stack")
}

pub(super) fn gather(ctx: &mut KernelContext<'_>, dtype: DType) -> Result<()> {
    let list = list(ctx, 0)?;
    check_dtype(&list, dtype)?;
    let indices = ctx.input(1)?.values::<i32>()?;
    let choose = |&index: &i32| {
        let element = usize::try_from(index).ok().and_then(|i| list.elements().get(i));
        element.map(Option::as_ref).ok_or_else(|| {
            Error::invalid(format!("Index {index} out o range; list only has {} elements.", list.len()))
        })
    };
    let chosen = indices.iter().map(choose).collect::<Result<Vec<_>>>()?;
    let shape = common_shape(&list, shape_of(ctx.input(2)?)?)?;
    side_by_side(ctx, &list, &shape, &chosen, "gather")
}

/// The rows and where each goes.
fn indexed(ctx: &KernelContext<'_>, tensor: usize, indices: usize) -> Result<Vec<(usize, Tensor)>> {
    let (tensor, indices) = (ctx.input(tensor)?, ctx.input(indices)?);
    let numbers = indices.values::<i32>()?;
    if indices.shape().rank() != 1 {
        invalid!("Expected indices to be a vector, but saw shape: {}", indices.shape());
    }
    if tensor.shape().dims().first().is_none_or(|&count| count != numbers.len()) {
        invalid!(
            "Expected len(indices) == tensor.shape[0], but saw: {} and a tensor of shape {}",
            numbers.len(),
            tensor.shape()
        );
    }
    let place = |(&index, row): (&i32, Tensor)| match usize::try_from(index) {
        Ok(index) => Ok((index, row)),
        Err(_) => Err(Error::invalid("Indices in TensorListScatter must all be non-negative.")),
    };
    numbers.iter().zip(rows(tensor)?).map(place).collect()
}

pub(super) fn scatter(ctx: &mut KernelContext<'_>, dtype: DType, count: Option<i32>) -> Result<()> {
    let wanted = shape_of(ctx.input(2)?)?;
    let placed = indexed(ctx, 0, 1)?;
    let row = row_shape(ctx.input(0)?);
    if !wanted.is_compatible(&row) {
        invalid!("Specified a list with shape {wanted} from a tensor with shape {row}");
    }
    let mut list = TensorList::new(dtype, wanted);
    let needed = placed.iter().map(|(index, _)| index + 1).max().unwrap_or(0);
    let count = match count {
        Some(count) if count >= 0 => {
            let count = count as usize;
            if needed > count {
                invalid!(
                    "TensorListScatter: Trying to scatter at index {} in list with size {count}",
                    needed - 1
                );
            }
            count
        }
        Some(count) if count < -1 => {
            invalid!("TensorListScatter expects num_elements >= -1, found: {count}")
        }
        _ => needed,
    };
    list.resize(count)?;
    for (index, row) in placed {
        list.set(index, row)?;
    }
    put(ctx, list)
}

pub(super) fn scatter_into(ctx: &mut KernelContext<'_>, dtype: DType) -> Result<()> {
    let placed = indexed(ctx, 1, 2)?;
    let row = row_shape(ctx.input(1)?);
    edit(ctx, |list| {
        check_dtype(list, dtype)?;
        if !list.element_shape.is_compatible(&row) {
            invalid!("Specified a list with shape {} from a tensor with shape {row}", list.element_shape);
        }
        let needed = placed.iter().map(|(index, _)| index + 1).max().unwrap_or(0);
        if needed > list.len() {
            list.resize(needed)?;
        }
        for (index, row) in placed {
            list.set(index, row)?;
        }
        Ok(())
    })
}

pub(super) fn split(ctx: &mut KernelContext<'_>, dtype: DType) -> Result<()> {
    let (tensor, wanted, lengths) = (ctx.input(0)?, shape_of(ctx.input(1)?)?, ctx.input(2)?);
    let Some((&total, dims)) = tensor.shape().dims().split_first() else {
        invalid!("Tensor must be at least a vector, but saw shape: {}", tensor.shape());
    };
    if lengths.shape().rank() != 1 {
        invalid!("Expected lengths to be a vector, received shape: {}", lengths.shape());
    }
    let of_row = PartialShape::of_dims(std::iter::once(None).chain(dims.iter().map(|&d| Some(d))));
    if !wanted.is_compatible(&of_row) {
        invalid!("tensor shape {} is not compatible with element_shape {wanted}", tensor.shape());
    }
    let row = Shape::new(dims)?.num_elements();
    let (mut elements, mut at) = (Vec::new(), 0usize);
    for &length in lengths.values::<i64>()? {
        let end = usize::try_from(length).ok().and_then(|length| at.checked_add(length));
        let Some(end) = end.filter(|end| *end <= total) else {
            invalid!("Attempted to slice [{at}, {at} + {length}] from tensor with length {total}");
        };
        let shape: Vec<usize> = std::iter::once(end - at).chain(dims.iter().copied()).collect();
        elements.push(Some(part(tensor, at * row, Shape::new(&shape)?)?));
        at = end;
    }
    if at != total {
        invalid!("Unused values in tensor. Length of tensor: {total} Values used: {at}");
    }
    let list = TensorList::of(dtype, wanted, elements)?;
    put(ctx, list)
}

/// `leading`: the first dimensions of elements without a value.
pub(super) fn concat(
    ctx: &mut KernelContext<'_>,
    dtype: DType,
    wanted: PartialShape,
    leading: &[i64],
) -> Result<()> {
    let list = list(ctx, 0)?;
    check_dtype(&list, dtype)?;
    let rest_of = |shape: &PartialShape| match shape.dims() {
        None => Ok(PartialShape::unknown()),
        Some([]) => {
            Err(Error::invalid("Concat requires elements to be at least vectors, found scalars instead."))
        }
        Some([_, rest @ ..]) => Ok(PartialShape::of_dims(rest.iter().copied())),
    };
    let mut rest = merged(&rest_of(&wanted)?, &rest_of(&list.element_shape)?)?;
    for element in list.elements().iter().flatten() {
        rest = merged(&rest, &rest_of(&element.shape().into())?)?;
    }
    let Some(rest) = rest.as_shape() else {
        let what = if list.is_empty() {
            "elements of an empty list"
        } else {
            "list which only contains uninitialized tensors"
        };
        invalid!(
            "All except the first dimension must be fully defined when concating {what}. element_shape: {rest}"
        );
    };
    let first = merged(&wanted, &list.element_shape)
        .ok()
        .and_then(|s| s.dims().and_then(|d| d.first().copied().flatten()));
    let mut blanks = Vec::new();
    let mut lengths = Vec::with_capacity(list.len());
    let mut total = 0usize;
    for (i, element) in list.elements().iter().enumerate() {
        let length = match (element, leading.get(i)) {
            (Some(element), _) => element.shape().dims().first().copied().unwrap_or(0),
            (None, leading) => {
                let given = leading.and_then(|&l| usize::try_from(l).ok()).or(first);
                let Some(length) = given else {
                    invalid!(
                        "List contains uninitialized tensor at index {i} but leading_dims has only {} elements.",
                        leading.map_or(0, |_| i)
                    );
                };
                let dims: Vec<usize> = std::iter::once(length).chain(rest.dims().iter().copied()).collect();
                blanks.push(Tensor::zeros(dtype, Shape::new(&dims)?)?);
                length
            }
        };
        lengths.push(length as i64);
        total = total.checked_add(length).ok_or_else(|| Error::invalid("the elements are too many"))?;
    }
    let mut blank = blanks.iter();
    let parts: Vec<&Tensor> =
        list.elements().iter().filter_map(|e| e.as_ref().or_else(|| blank.next())).collect();
    let dims: Vec<usize> = std::iter::once(total).chain(rest.dims().iter().copied()).collect();
    let out = joined(dtype, Shape::new(&dims)?, &parts)?;
    ctx.set_output(0, out);
    ctx.set_output(1, Tensor::vector(&lengths)?);
    Ok(())
}
