//! Elements that kernels copy without computing: kernels are instantiated by element size, not by dtype.

use super::transpose_block;
use bytes::Bytes;
use device::{Error, Result};
use graph::tensor::memory_limit;
use graph::{Code, DType, ResourceHandle, Shape, Tensor, Variant};

/// A function that sets the elements of a new tensor.
pub(crate) type Fill<'f, E> = dyn FnMut(&mut [E]) -> Result<()> + 'f;

/// An element type of kernels that copy elements without computing on them.
pub(crate) trait CopiedElement: Clone + Send + Sync + 'static {
    /// Returns zero, the empty string, an empty handle or an empty variant.
    fn zero() -> Self;

    /// Returns the tensor's elements as a slice of `Self`.
    fn view(tensor: &Tensor) -> Result<&[Self]>;

    /// Returns a new tensor whose elements `fill` sets; `fill` is called with unspecified elements.
    fn build(dtype: DType, shape: Shape, fill: impl FnOnce(&mut [Self]) -> Result<()>) -> Result<Tensor> {
        let mut fill = Some(fill);
        Self::build_with(dtype, shape, &mut |out| fill.take().map_or(Ok(()), |fill| fill(out)))
    }

    /// Returns a tensor like [`CopiedElement::build`], and calls `fill` at most once. `fill` is a trait object, so that
    /// the function is compiled once per element type.
    fn build_with(dtype: DType, shape: Shape, fill: &mut Fill<'_, Self>) -> Result<Tensor>;

    /// Transposes a matrix of `sizes` rows and columns, like [`super::transpose_block::words`].
    fn transpose_block(from: &[Self], stride: usize, to: &mut [Self], step: usize, sizes: [usize; 2]) {
        transpose_block::elements(from, stride, to, step, sizes);
    }

    /// Applies `change` to the elements of a tensor, in place if the tensor's buffer is not shared.
    fn edit(tensor: &mut Tensor, change: impl FnOnce(&mut [Self]) -> Result<()>) -> Result<()> {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().clone());
        *tensor = Self::build(dtype, shape, |out| {
            out.clone_from_slice(Self::view(tensor)?);
            change(out)
        })?;
        Ok(())
    }
}

macro_rules! plain {
    ($($t:ty $(=> $transpose:path)?),*) => { $(impl CopiedElement for $t {
        fn zero() -> $t {
            0
        }

        fn view(tensor: &Tensor) -> Result<&[$t]> {
            bytemuck::try_cast_slice(tensor.bytes()?)
                .map_err(|e| Error::internal(format!("elements of {} are read wrongly: {e}", tensor.dtype())))
        }

        fn build_with(dtype: DType, shape: Shape, fill: &mut Fill<'_, $t>) -> Result<Tensor> {
            let mut tensor = Tensor::unspecified(dtype, shape)?;
            let elements = bytemuck::try_cast_slice_mut(tensor.bytes_mut()?)
                .map_err(|e| Error::internal(format!("elements of {dtype} are written wrongly: {e}")))?;
            fill(elements)?;
            Ok(tensor)
        }

        $(fn transpose_block(from: &[$t], stride: usize, to: &mut [$t], step: usize, sizes: [usize; 2]) {
            $transpose(from, stride, to, step, sizes);
        })?

        fn edit(tensor: &mut Tensor, change: impl FnOnce(&mut [$t]) -> Result<()>) -> Result<()> {
            let dtype = tensor.dtype();
            let elements = bytemuck::try_cast_slice_mut(tensor.bytes_mut()?)
                .map_err(|e| Error::internal(format!("elements of {dtype} are written wrongly: {e}")))?;
            change(elements)
        }
    })* };
}
plain!(u8, u16, u32 => transpose_block::words, u64, u128);

impl CopiedElement for Bytes {
    fn zero() -> Bytes {
        Bytes::new()
    }

    fn view(tensor: &Tensor) -> Result<&[Bytes]> {
        Ok(tensor.as_strings()?)
    }

    fn build_with(_: DType, shape: Shape, fill: &mut Fill<'_, Bytes>) -> Result<Tensor> {
        let mut all = objects(&shape, Bytes::new())?;
        fill(&mut all)?;
        Ok(Tensor::strings(all, shape)?)
    }
}

impl CopiedElement for ResourceHandle {
    fn zero() -> ResourceHandle {
        ResourceHandle {
            device: "".into(),
            container: "".into(),
            name: "".into(),
            hash_code: 0,
            type_name: "".into(),
            dtypes_and_shapes: Vec::new(),
        }
    }

    fn view(tensor: &Tensor) -> Result<&[ResourceHandle]> {
        Ok(tensor.as_resources()?)
    }

    fn build_with(_: DType, shape: Shape, fill: &mut Fill<'_, ResourceHandle>) -> Result<Tensor> {
        let mut all = objects(&shape, ResourceHandle::zero())?;
        fill(&mut all)?;
        Ok(Tensor::resources(all, shape)?)
    }
}

impl CopiedElement for Variant {
    fn zero() -> Variant {
        Variant::EMPTY
    }

    fn view(tensor: &Tensor) -> Result<&[Variant]> {
        Ok(tensor.as_variants()?)
    }

    fn build_with(_: DType, shape: Shape, fill: &mut Fill<'_, Variant>) -> Result<Tensor> {
        let mut all = objects(&shape, Variant::EMPTY)?;
        fill(&mut all)?;
        Ok(Tensor::variants(all, shape)?)
    }
}

/// Allocates a tensor's elements as clones of `object`. Returns `ResourceExhausted` before allocating if the memory
/// limit or the allocator does not permit them.
fn objects<T: Clone>(shape: &Shape, object: T) -> Result<Vec<T>> {
    let count = shape.num_elements();
    let bytes = count as u128 * size_of::<T>() as u128;
    let refused = || {
        Error::new(
            Code::ResourceExhausted,
            format!("OOM when allocating tensor with shape{shape}: {bytes} bytes"),
        )
    };
    if bytes > u128::from(memory_limit()) {
        return Err(refused());
    }
    let mut all = Vec::new();
    all.try_reserve_exact(count).map_err(|_| refused())?;
    all.resize(count, object);
    Ok(all)
}

/// Evaluates an expression in which `$E` is the [`CopiedElement`] type by which elements of a dtype are copied.
macro_rules! copied {
    ($dtype:expr, $E:ident => $body:expr) => {{
        let dtype: graph::DType = $dtype;
        match (dtype, dtype.size()) {
            (_, Some(1)) => {
                type $E = u8;
                $body
            }
            (_, Some(2)) => {
                type $E = u16;
                $body
            }
            (_, Some(4)) => {
                type $E = u32;
                $body
            }
            (_, Some(8)) => {
                type $E = u64;
                $body
            }
            (_, Some(16)) => {
                type $E = u128;
                $body
            }
            (graph::DType::String, _) => {
                type $E = bytes::Bytes;
                $body
            }
            (graph::DType::Resource, _) => {
                type $E = graph::ResourceHandle;
                $body
            }
            (graph::DType::Variant, _) => {
                type $E = graph::Variant;
                $body
            }
            _ => Err(::device::Error::unimplemented(format!("no CPU kernel for elements of type {dtype}"))),
        }
    }};
}
pub(crate) use copied;

use DType::*;

/// The dtypes that the macro [`copied`] supports, for kernel tables.
pub(crate) const COPIED: &[DType] = &[
    Float,
    Double,
    Half,
    BFloat16,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    String,
    Complex64,
    Complex128,
    Resource,
    DType::Variant,
    QInt8,
    QUInt8,
    QInt16,
    QUInt16,
    QInt32,
    Float8E5M2,
    Float8E4M3FN,
    Int4,
    UInt4,
];
