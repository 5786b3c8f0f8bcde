//! Operations on the elements of tensor arrays and tensor lists, for each memory space that can hold the elements.

use crate::numeric::copied::CopiedElement;
use bytemuck::{Pod, PodCastError};
use bytes::Bytes;
use device::kernel::KernelContext;
use device::value::{Item, Value};
use device::{Error, Result};
use graph::{DType, ResourceHandle, Shape, Tensor, Variant};
use half::{bf16, f16};

/// The operations of one memory space on tensors: creating zeros, adding, joining and cutting. All elements of one
/// array or list are in the same memory space.
pub trait Memory: Send + Sync + 'static {
    /// Returns a tensor of zeros.
    fn zeros(&self, ctx: &KernelContext<'_>, dtype: DType, shape: Shape) -> Result<Value>;

    /// Adds `by` to `sum`; both have the same dtype and shape.
    ///
    /// # Errors
    /// `InvalidArgument` for dtypes that have no addition.
    fn add(&self, ctx: &KernelContext<'_>, sum: &mut Value, by: &Value) -> Result<()>;

    /// Returns a tensor of `shape` with the elements of all `parts`, one part after the other; the parts have as many
    /// elements as `shape`.
    fn joined<T: Item>(
        &self,
        ctx: &KernelContext<'_>,
        dtype: DType,
        parts: &[&T],
        shape: Shape,
    ) -> Result<Value>;

    /// Cuts `whole` into consecutive tensors of the given shapes, which together have as many elements as `whole`, and
    /// passes each tensor to `put`.
    fn cut<T: Item>(
        &self,
        ctx: &KernelContext<'_>,
        whole: &Value,
        shapes: impl Iterator<Item = Shape>,
        put: impl FnMut(T) -> Result<()>,
    ) -> Result<()>;
}

/// The operations in host memory, which can hold elements of any dtype.
#[derive(Clone, Copy, Debug)]
pub struct Host;

impl Memory for Host {
    fn zeros(&self, _: &KernelContext<'_>, dtype: DType, shape: Shape) -> Result<Value> {
        Ok(Tensor::zeros(dtype, shape)?.into())
    }

    fn add(&self, _: &KernelContext<'_>, sum: &mut Value, by: &Value) -> Result<()> {
        let by = tensor(by)?;
        match sum {
            Value::Host(sum) => add(sum, by),
            _ => Err(not_on_host_error()),
        }
    }

    fn joined<T: Item>(
        &self,
        _: &KernelContext<'_>,
        dtype: DType,
        parts: &[&T],
        shape: Shape,
    ) -> Result<Value> {
        let parts = parts.iter().map(|part| tensor(*part)).collect::<Result<Vec<_>>>()?;
        Ok(join(dtype, shape, &parts)?.into())
    }

    fn cut<T: Item>(
        &self,
        _: &KernelContext<'_>,
        whole: &Value,
        mut shapes: impl Iterator<Item = Shape>,
        mut put: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        cut(tensor(whole)?, &mut shapes, &mut |part| put(T::of(part.into())?))
    }
}

/// Joins `parts` to one tensor, as bytes if their elements have a fixed size, and otherwise as objects.
fn join(dtype: DType, shape: Shape, parts: &[&Tensor]) -> Result<Tensor> {
    match dtype {
        DType::String => join_as::<Bytes>(dtype, shape, parts),
        DType::Resource => join_as::<ResourceHandle>(dtype, shape, parts),
        DType::Variant => join_as::<Variant>(dtype, shape, parts),
        _ => join_as::<u8>(dtype, shape, parts),
    }
}

fn join_as<E: CopiedElement>(dtype: DType, shape: Shape, parts: &[&Tensor]) -> Result<Tensor> {
    E::build(dtype, shape, |mut out| {
        for part in parts {
            let part = E::view(part)?;
            let too_many = || Error::internal("parts have more elements than the whole");
            let (here, rest) = out.split_at_mut_checked(part.len()).ok_or_else(too_many)?;
            here.clone_from_slice(part);
            out = rest;
        }
        Ok(())
    })
}

/// A function that receives the parts of a tensor that is cut, one at a time.
type PutFn<'a> = dyn FnMut(Tensor) -> Result<()> + 'a;

/// Cuts a tensor into `shapes` as bytes if its elements have a fixed size, and otherwise as objects.
fn cut(whole: &Tensor, shapes: &mut dyn Iterator<Item = Shape>, put: &mut PutFn<'_>) -> Result<()> {
    match whole.dtype() {
        DType::String => cut_as::<Bytes>(whole, 1, shapes, put),
        DType::Resource => cut_as::<ResourceHandle>(whole, 1, shapes, put),
        DType::Variant => cut_as::<Variant>(whole, 1, shapes, put),
        dtype => cut_as::<u8>(whole, dtype.size().unwrap_or(1), shapes, put),
    }
}

/// Cuts a tensor into `shapes`; each element of the tensor is `size` items of type `E`.
fn cut_as<E: CopiedElement>(
    whole: &Tensor,
    size: usize,
    shapes: &mut dyn Iterator<Item = Shape>,
    put: &mut PutFn<'_>,
) -> Result<()> {
    let mut rest = E::view(whole)?;
    for shape in shapes {
        let too_few = || Error::internal("a tensor has fewer elements than its parts");
        let (from, behind) = rest.split_at_checked(shape.num_elements() * size).ok_or_else(too_few)?;
        rest = behind;
        let part = E::build(whole.dtype(), shape, |out| {
            out.clone_from_slice(from);
            Ok(())
        })?;
        put(part)?;
    }
    Ok(())
}

fn tensor(item: &impl Item) -> Result<&Tensor> {
    item.on_host().ok_or_else(not_on_host_error)
}

fn not_on_host_error() -> Error {
    Error::internal("an element that must be in host memory is elsewhere")
}

fn add(sum: &mut Tensor, by: &Tensor) -> Result<()> {
    match sum.dtype() {
        // A complex number is a pair of reals: its real and imaginary parts are added independently.
        DType::Float | DType::Complex64 => add_as::<f32>(sum, by, |a, b| a + b),
        DType::Double | DType::Complex128 => add_as::<f64>(sum, by, |a, b| a + b),
        DType::Half => add_as::<f16>(sum, by, |a, b| a + b),
        DType::BFloat16 => add_as::<bf16>(sum, by, |a, b| a + b),
        // Additions of integers wrap on overflow, like in the integer kernels, so signed integers can be added as
        // unsigned integers.
        DType::Int8 | DType::UInt8 => add_as::<u8>(sum, by, u8::wrapping_add),
        DType::Int16 | DType::UInt16 => add_as::<u16>(sum, by, u16::wrapping_add),
        DType::Int32 | DType::UInt32 => add_as::<u32>(sum, by, u32::wrapping_add),
        DType::Int64 | DType::UInt64 => add_as::<u64>(sum, by, u64::wrapping_add),
        dtype => Err(Error::invalid(format!("tensor_array::AddToTensor type not supported: {dtype}"))),
    }
}

/// Adds `by` to `sum`, element by element, as numbers of type `T`.
fn add_as<T: Pod>(sum: &mut Tensor, by: &Tensor, plus: impl Fn(T, T) -> T) -> Result<()> {
    let by: &[T] = bytemuck::try_cast_slice(by.bytes()?).map_err(cast_error)?;
    let sum: &mut [T] = bytemuck::try_cast_slice_mut(sum.bytes_mut()?).map_err(cast_error)?;
    sum.iter_mut().zip(by).for_each(|(sum, &by)| *sum = plus(*sum, by));
    Ok(())
}

fn cast_error(error: PodCastError) -> Error {
    Error::internal(format!("elements are read wrongly: {error}"))
}
