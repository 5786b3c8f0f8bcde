//! Operations on the elements of tensor arrays and tensor lists, by the memory space that holds the elements.

use crate::numeric::copied::{CopiedElement, copied};
use crate::numeric::dispatch::dispatch;
use device::kernel::KernelContext;
use device::value::{Item, Value};
use device::{Error, Result};
use graph::{DType, Element, Shape, Tensor};
use std::ops::AddAssign;

/// Creates, joins, cuts and adds tensors in one memory space. All elements of one array or list are in the same
/// memory space.
pub trait Memory: Send + Sync + 'static {
    fn zeros(&self, ctx: &KernelContext<'_>, dtype: DType, shape: Shape) -> Result<Value>;

    /// Adds a tensor of the same type and shape to `sum`.
    ///
    /// # Errors
    /// `InvalidArgument` for dtypes that have no addition.
    fn add(&self, ctx: &KernelContext<'_>, sum: &mut Value, by: &Value) -> Result<()>;

    /// Returns a tensor of `shape` with the elements of all parts one after the other; the parts have as many
    /// elements as `shape`.
    fn joined<T: Item>(
        &self,
        ctx: &KernelContext<'_>,
        dtype: DType,
        parts: &[&T],
        shape: Shape,
    ) -> Result<Value>;

    /// Cuts `whole` into consecutive tensors of the given shapes, which together have all of its elements, and passes
    /// each to `put`.
    fn cut<T: Item>(
        &self,
        ctx: &KernelContext<'_>,
        whole: &Value,
        shapes: impl Iterator<Item = Shape>,
        put: impl FnMut(T) -> Result<()>,
    ) -> Result<()>;
}

/// Host memory, which holds elements of any dtype.
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
        let whole = copied!(dtype, E => E::build(dtype, shape, |mut out| {
            for part in parts {
                let part = E::view(tensor(*part)?)?;
                let too_many = || Error::internal("parts have more elements than the whole");
                let (here, rest) = out.split_at_mut_checked(part.len()).ok_or_else(too_many)?;
                here.clone_from_slice(part);
                out = rest;
            }
            Ok(())
        }))?;
        Ok(whole.into())
    }

    fn cut<T: Item>(
        &self,
        _: &KernelContext<'_>,
        whole: &Value,
        shapes: impl Iterator<Item = Shape>,
        mut put: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        let whole = tensor(whole)?;
        let dtype = whole.dtype();
        copied!(dtype, E => {
            let mut rest = E::view(whole)?;
            for shape in shapes {
                let too_few = || Error::internal("a tensor has fewer elements than its parts");
                let (from, behind) = rest.split_at_checked(shape.num_elements()).ok_or_else(too_few)?;
                rest = behind;
                let part = E::build(dtype, shape, |out| {
                    out.clone_from_slice(from);
                    Ok(())
                })?;
                put(T::of(part.into())?)?;
            }
            Ok(())
        })
    }
}

fn tensor(item: &impl Item) -> Result<&Tensor> {
    item.on_host().ok_or_else(not_on_host_error)
}

fn not_on_host_error() -> Error {
    Error::internal("an element that must be in host memory is elsewhere")
}

fn add(sum: &mut Tensor, by: &Tensor) -> Result<()> {
    fn plain<T: Element + AddAssign>(sum: &mut [T], by: &[T]) {
        sum.iter_mut().zip(by).for_each(|(sum, by)| *sum += *by);
    }
    match sum.dtype() {
        DType::Complex64 => add_parts::<f32>(sum.bytes_mut()?, by.bytes()?),
        DType::Complex128 => add_parts::<f64>(sum.bytes_mut()?, by.bytes()?),
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => add_integers(sum, by),
        DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64 => add_integers(sum, by),
        dtype if dtype.is_floating() => dispatch!(float, dtype, T => {
            plain::<T>(sum.values_mut()?, by.values()?);
            Ok(())
        }),
        dtype => Err(Error::invalid(format!("tensor_array::AddToTensor type not supported: {dtype}"))),
    }
}

/// Adds integers with wrapping overflow, like the integer kernels.
fn add_integers(sum: &mut Tensor, by: &Tensor) -> Result<()> {
    dispatch!(integer, sum.dtype(), T => {
        let by = by.values::<T>()?;
        sum.values_mut::<T>()?.iter_mut().zip(by).for_each(|(sum, by)| *sum = sum.wrapping_add(*by));
        Ok(())
    })
}

/// Adds complex numbers as pairs of reals: real and imaginary parts add independently.
fn add_parts<T: bytemuck::Pod + AddAssign>(sum: &mut [u8], by: &[u8]) -> Result<()> {
    let wrong =
        |e: bytemuck::PodCastError| Error::internal(format!("complex elements are read wrongly: {e}"));
    let by: &[T] = bytemuck::try_cast_slice(by).map_err(wrong)?;
    let sum: &mut [T] = bytemuck::try_cast_slice_mut(sum).map_err(wrong)?;
    sum.iter_mut().zip(by).for_each(|(sum, by)| *sum += *by);
    Ok(())
}
