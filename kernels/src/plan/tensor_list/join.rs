//! Conversion between a list and a tensor that has the list's elements, stacked or concatenated.

use crate::objects::memory::Memory;
use crate::plan::tensor_list::{
    check_dtype, edit, element_dtype, list, merged, scalar, set_list, shape_of, zeros,
};
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::value::ListElement;
use device::{Error, Result, invalid};
use graph::{Code, DType, PartialShape, Shape, Tensor, TensorList};

/// Returns the rows of input `i`, cut along its first axis.
pub(super) fn rows<T: ListElement>(
    ctx: &mut KernelContext<'_>,
    memory: &impl Memory,
    i: usize,
) -> Result<Vec<T>> {
    let (count, dims) = first_and_rest(ctx, i)?;
    let row = Shape::new(dims)?;
    let (bytes, mut rows) = (count as u128 * size_of::<T>() as u128, Vec::new());
    if bytes > u128::from(graph::tensor::memory_limit()) || rows.try_reserve_exact(count).is_err() {
        let text = format!("OOM when allocating a list of {count} tensors: {bytes} bytes");
        return Err(Error::new(Code::ResourceExhausted, text));
    }
    let whole = ctx.take_value(i);
    memory.cut(ctx, &whole, std::iter::repeat_n(row, count), |row| {
        rows.push(row);
        Ok(())
    })?;
    Ok(rows)
}

/// Returns the number of rows of the tensor in input `i`, and the dimensions of a row.
fn first_and_rest<'a>(ctx: &'a KernelContext<'_>, i: usize) -> Result<(usize, &'a [usize])> {
    let shape = ctx.shape(i)?;
    match shape.dims().split_first() {
        Some((&first, rest)) => Ok((first, rest)),
        None => Err(Error::invalid(format!("Tensor must be at least a vector, but saw shape: {shape}"))),
    }
}

fn row_shape(tensor: &Shape) -> PartialShape {
    PartialShape::of_dims(tensor.dims().iter().skip(1).map(|&d| Some(d)))
}

/// `TensorListFromTensor`: makes the kernel that outputs a list of the rows of a tensor.
pub fn from_tensor<T: ListElement>(init: &KernelInit<'_>, memory: impl Memory) -> Result<Kernel> {
    let dtype = element_dtype(init)?;
    Kernel::sync(move |ctx| {
        let (row, wanted) = (row_shape(ctx.shape(0)?), shape_of(ctx.input(1)?)?);
        let elements = rows::<T>(ctx, &memory, 0)?;
        if !wanted.is_compatible(&row) {
            invalid!(
                "Specified a list with shape {wanted} from a tensor with shape {row}, of which each row is an \
                 element"
            );
        }
        set_list(ctx, TensorList::of(dtype, wanted, elements.into_iter().map(Some).collect())?)
    })
}

/// Returns the common shape of the elements: `wanted`, the list's element shape and the shapes of all elements merged.
fn common_shape<T: ListElement>(list: &TensorList<T>, wanted: PartialShape) -> Result<PartialShape> {
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

/// Stacks the chosen elements of a list to one tensor; uninitialized elements become zeros.
fn stack_elements<T: ListElement>(
    ctx: &mut KernelContext<'_>,
    memory: &impl Memory,
    list: &TensorList<T>,
    shape: &PartialShape,
    chosen: &[Option<&T>],
    op: &str,
) -> Result<()> {
    let Some(element) = shape.as_shape() else {
        invalid!(
            "Tried to {op} {} with non-fully-defined element_shape: {shape}",
            describe_shapeless_list(list)
        );
    };
    for tensor in chosen.iter().flatten() {
        if *tensor.shape() != element {
            invalid!("Tried to {op} elements of shapes {} and {element}", tensor.shape());
        }
    }
    let dims: Vec<usize> = std::iter::once(chosen.len()).chain(element.dims().iter().copied()).collect();
    let (dtype, whole) = (list.element_dtype, Shape::new(&dims)?);
    let blank: Option<T> = match chosen.iter().any(Option::is_none) {
        true => Some(zeros(ctx, memory, dtype, shape)?),
        false => None,
    };
    let parts: Vec<&T> = chosen.iter().filter_map(|&tensor| tensor.or(blank.as_ref())).collect();
    let out = memory.joined(ctx, dtype, &parts, whole)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Describes, for error messages, a list whose elements do not determine a shape.
fn describe_shapeless_list<T: ListElement>(list: &TensorList<T>) -> &'static str {
    match list.is_empty() {
        true => "elements of an empty list",
        false => "list which only contains uninitialized tensors",
    }
}

/// `TensorListStack`: makes the kernel that stacks all elements along a new first axis.
pub fn stack<T: ListElement>(init: &KernelInit<'_>, memory: impl Memory) -> Result<Kernel> {
    let (dtype, wanted) = (element_dtype(init)?, init.attr::<i64>("num_elements")?);
    Kernel::sync(move |ctx| {
        let list = list::<T>(ctx, 0)?;
        check_dtype(&list, dtype)?;
        if wanted >= 0 && wanted != list.len() as i64 {
            invalid!(
                "Operation expected a list with {wanted} elements but got a list with {} elements.",
                list.len()
            );
        }
        let shape = common_shape(&list, shape_of(ctx.input(1)?)?)?;
        let chosen: Vec<Option<&T>> = list.elements().iter().map(Option::as_ref).collect();
        stack_elements(ctx, &memory, &list, &shape, &chosen, "stack")
    })
}

/// `TensorListGather`: makes the kernel that stacks the elements at the indices in input 1.
pub fn gather<T: ListElement>(init: &KernelInit<'_>, memory: impl Memory) -> Result<Kernel> {
    let dtype = element_dtype(init)?;
    Kernel::sync(move |ctx| {
        let list = list::<T>(ctx, 0)?;
        check_dtype(&list, dtype)?;
        let choose = |&index: &i32| {
            let element = usize::try_from(index).ok().and_then(|i| list.elements().get(i));
            element.map(Option::as_ref).ok_or_else(|| {
                Error::invalid(format!("Index {index} out o range; list only has {} elements.", list.len()))
            })
        };
        let chosen = ctx.input(1)?.values::<i32>()?.iter().map(choose).collect::<Result<Vec<_>>>()?;
        let shape = common_shape(&list, shape_of(ctx.input(2)?)?)?;
        stack_elements(ctx, &memory, &list, &shape, &chosen, "gather")
    })
}

/// Returns the rows of input `tensor`, each with its index in a list, given by input `indices`.
fn indexed<T: ListElement>(
    ctx: &mut KernelContext<'_>,
    memory: &impl Memory,
    tensor: usize,
    indices: usize,
) -> Result<Vec<(usize, T)>> {
    let (shape, numbers) = (ctx.shape(tensor)?, ctx.input(indices)?);
    if numbers.shape().rank() != 1 {
        invalid!("Expected indices to be a vector, but saw shape: {}", numbers.shape());
    }
    let numbers = numbers.values::<i32>()?.to_vec();
    if shape.dims().first().is_none_or(|&count| count != numbers.len()) {
        invalid!(
            "Expected len(indices) == tensor.shape[0], but saw: {} and a tensor of shape {shape}",
            numbers.len()
        );
    }
    let place = |(index, row): (i32, T)| match usize::try_from(index) {
        Ok(index) => Ok((index, row)),
        Err(_) => Err(Error::invalid("Indices in TensorListScatter must all be non-negative.")),
    };
    numbers.into_iter().zip(rows(ctx, memory, tensor)?).map(place).collect()
}

/// `TensorListScatter`: makes the kernel that outputs a list with the rows of a tensor at the given indices. The
/// list is as long as the greatest index requires.
pub fn scatter<T: ListElement>(init: &KernelInit<'_>, memory: impl Memory) -> Result<Kernel> {
    let dtype = element_dtype(init)?;
    Kernel::sync(move |ctx| scattered::<T>(ctx, &memory, dtype, None))
}

/// `TensorListScatterV2`: makes a kernel like that of [`scatter`], with the length of the list in input 3; -1 for the
/// length that the indices require.
pub fn scatter_v2<T: ListElement>(init: &KernelInit<'_>, memory: impl Memory) -> Result<Kernel> {
    let dtype = element_dtype(init)?;
    Kernel::sync(move |ctx| {
        let count = scalar(ctx, 3, "num_elements")?;
        scattered::<T>(ctx, &memory, dtype, Some(count))
    })
}

fn scattered<T: ListElement>(
    ctx: &mut KernelContext<'_>,
    memory: &impl Memory,
    dtype: DType,
    count: Option<i32>,
) -> Result<()> {
    let (row, wanted) = (row_shape(ctx.shape(0)?), shape_of(ctx.input(2)?)?);
    let placed = indexed::<T>(ctx, memory, 0, 1)?;
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
    set_list(ctx, list)
}

/// `TensorListScatterIntoExistingList`: makes the kernel that sets the elements at the given indices of a list to the
/// rows of a tensor.
pub fn scatter_into<T: ListElement>(init: &KernelInit<'_>, memory: impl Memory) -> Result<Kernel> {
    let dtype = element_dtype(init)?;
    Kernel::sync(move |ctx| {
        let row = row_shape(ctx.shape(1)?);
        let placed = indexed::<T>(ctx, &memory, 1, 2)?;
        edit::<T>(ctx, |_, list| {
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
    })
}

/// `TensorListSplit`: makes the kernel that cuts a tensor along its first axis into elements of the lengths in input 2.
pub fn split<T: ListElement>(init: &KernelInit<'_>, memory: impl Memory) -> Result<Kernel> {
    let dtype = element_dtype(init)?;
    Kernel::sync(move |ctx| {
        let (wanted, lengths) = (shape_of(ctx.input(1)?)?, ctx.input(2)?);
        let (total, dims) = first_and_rest(ctx, 0)?;
        if lengths.shape().rank() != 1 {
            invalid!("Expected lengths to be a vector, received shape: {}", lengths.shape());
        }
        let of_row = PartialShape::of_dims(std::iter::once(None).chain(dims.iter().map(|&d| Some(d))));
        if !wanted.is_compatible(&of_row) {
            invalid!("tensor shape {} is not compatible with element_shape {wanted}", ctx.shape(0)?);
        }
        let whole = ctx.value(0).ok_or_else(|| Error::internal("there is no tensor to split"))?;
        let (mut shapes, mut at) = (Vec::new(), 0usize);
        for &length in lengths.values::<i64>()? {
            let end = usize::try_from(length).ok().and_then(|length| at.checked_add(length));
            let Some(end) = end.filter(|end| *end <= total) else {
                invalid!("Attempted to slice [{at}, {at} + {length}] from tensor with length {total}");
            };
            let shape: Vec<usize> = std::iter::once(end - at).chain(dims.iter().copied()).collect();
            shapes.push(Shape::new(&shape)?);
            at = end;
        }
        if at != total {
            invalid!("Unused values in tensor. Length of tensor: {total} Values used: {at}");
        }
        let mut elements = Vec::with_capacity(shapes.len());
        memory.cut(ctx, whole, shapes.into_iter(), |part: T| {
            elements.push(Some(part));
            Ok(())
        })?;
        set_list(ctx, TensorList::of(dtype, wanted, elements)?)
    })
}

/// `TensorListConcat`: makes the kernel that concatenates the elements along their first axis, and outputs their
/// lengths.
pub fn concat<T: ListElement>(init: &KernelInit<'_>, memory: impl Memory) -> Result<Kernel> {
    let (dtype, shape) = (element_dtype(init)?, init.attr::<PartialShape>("element_shape")?);
    Kernel::sync(move |ctx| concat_elements::<T>(ctx, &memory, dtype, &shape, &[]))
}

/// `TensorListConcatV2`: makes a kernel like that of [`concat()`], with the shape of the elements in input 1, and the
/// lengths of uninitialized elements in input 2.
pub fn concat_v2<T: ListElement>(init: &KernelInit<'_>, memory: impl Memory) -> Result<Kernel> {
    let dtype = element_dtype(init)?;
    Kernel::sync(move |ctx| {
        let shape = shape_of(ctx.input(1)?)?;
        let leading = ctx.input(2)?.to_i64s()?;
        concat_elements::<T>(ctx, &memory, dtype, &shape, &leading)
    })
}

/// Concatenates the elements of the list in input 0; `leading` has the first dimensions of uninitialized elements.
fn concat_elements<T: ListElement>(
    ctx: &mut KernelContext<'_>,
    memory: &impl Memory,
    dtype: DType,
    wanted: &PartialShape,
    leading: &[i64],
) -> Result<()> {
    let list = list::<T>(ctx, 0)?;
    check_dtype(&list, dtype)?;
    let rest_of = |shape: &PartialShape| match shape.dims() {
        None => Ok(PartialShape::unknown()),
        Some([]) => {
            Err(Error::invalid("Concat requires elements to be at least vectors, found scalars instead."))
        }
        Some([_, rest @ ..]) => Ok(PartialShape::of_dims(rest.iter().copied())),
    };
    let mut rest = merged(&rest_of(wanted)?, &rest_of(&list.element_shape)?)?;
    for element in list.elements().iter().flatten() {
        rest = merged(&rest, &rest_of(&element.shape().into())?)?;
    }
    let Some(rest) = rest.as_shape() else {
        invalid!(
            "All except the first dimension must be fully defined when concating {}. element_shape: {rest}",
            describe_shapeless_list(&list)
        );
    };
    let first = merged(wanted, &list.element_shape)
        .ok()
        .and_then(|s| s.dims().and_then(|d| d.first().copied().flatten()));
    let mut blanks: Vec<T> = Vec::new();
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
                blanks.push(T::of(memory.zeros(ctx, dtype, Shape::new(&dims)?)?)?);
                length
            }
        };
        lengths.push(length as i64);
        total = total.checked_add(length).ok_or_else(|| Error::invalid("the elements are too many"))?;
    }
    let dims: Vec<usize> = std::iter::once(total).chain(rest.dims().iter().copied()).collect();
    let mut blank = blanks.iter();
    let parts: Vec<&T> = list.elements().iter().filter_map(|e| e.as_ref().or_else(|| blank.next())).collect();
    let out = memory.joined(ctx, dtype, &parts, Shape::new(&dims)?)?;
    ctx.set_output(0, out);
    ctx.set_output(1, Tensor::vector(&lengths)?);
    Ok(())
}
