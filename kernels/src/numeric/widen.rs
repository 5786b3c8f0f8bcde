//! Element types, and the types that kernels compute in: 16-bit floats are widened to `f32` once per element, not once
//! per operation; elements of all other types are computed in their own type.

use super::dispatch::dispatch;
use super::scalar::Real;
use super::threads::BLOCK;
use device::Result;
use device::kernel::KernelContext;
use graph::{Bool8, DType, Element, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use num_complex::Complex;
use smallvec::SmallVec;

/// An element type, with the type `Wide` that its elements are computed in.
pub(crate) trait Lane: Element {
    type Wide: Element;
    /// True if `Wide` is the element type itself.
    const NATIVE: bool;
    fn to_wide(self) -> Self::Wide;
    fn of_wide(wide: Self::Wide) -> Self;
    /// Widens a slice; faster than [`Lane::to_wide`] of each element.
    fn widen(from: &[Self], to: &mut [Self::Wide]);
    /// Narrows a slice; faster than [`Lane::of_wide`] of each element.
    fn narrow(from: &[Self::Wide], to: &mut [Self]);
}

/// A floating-point element type.
pub(crate) trait Float: Lane<Wide: Real> {}

impl<T: Lane<Wide: Real>> Float for T {}

macro_rules! native {
    ($($t:ty),*) => {$(
        impl Lane for $t {
            type Wide = $t;
            const NATIVE: bool = true;
            #[inline(always)]
            fn to_wide(self) -> $t {
                self
            }
            #[inline(always)]
            fn of_wide(wide: $t) -> $t {
                wide
            }
            fn widen(from: &[$t], to: &mut [$t]) {
                to.copy_from_slice(from);
            }
            fn narrow(from: &[$t], to: &mut [$t]) {
                to.copy_from_slice(from);
            }
        }
    )*};
}

native!(f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Bool8, Complex<f32>, Complex<f64>);

macro_rules! through_f32 {
    ($($t:ty),*) => {$(
        impl Lane for $t {
            type Wide = f32;
            const NATIVE: bool = false;
            #[inline(always)]
            fn to_wide(self) -> f32 {
                self.to_f32()
            }
            #[inline(always)]
            fn of_wide(wide: f32) -> $t {
                <$t>::from_f32(wide)
            }
            fn widen(from: &[$t], to: &mut [f32]) {
                from.convert_to_f32_slice(to);
            }
            fn narrow(from: &[f32], to: &mut [$t]) {
                to.convert_from_f32_slice(from);
            }
        }
    )*};
}

through_f32!(f16, bf16);

/// The bytes of a short run of elements on the stack, aligned for every element type.
pub(crate) type ByteBlock = SmallVec<[u64; BLOCK * LARGEST / size_of::<u64>()]>;

/// The size in bytes of the largest elements.
const LARGEST: usize = size_of::<Complex<f64>>();

/// The element type of a [`Lane`] as a value, for code that is compiled once for all element types. Elements are passed
/// as bytes; wide elements are elements in the type that kernels compute in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneType {
    pub(crate) dtype: DType,
    /// The size of an element in bytes.
    pub(crate) size: usize,
    /// The size of a wide element in bytes.
    wide_size: usize,
    /// True if the elements are computed in their own type, without widening.
    pub(crate) is_native: bool,
}

impl LaneType {
    /// Returns the type of a dtype's elements.
    pub(crate) fn of(dtype: DType) -> LaneType {
        let wide = wide_dtype(dtype);
        let [size, wide_size] = [dtype, wide].map(|dtype| dtype.size().unwrap_or(1));
        LaneType { dtype, size, wide_size, is_native: dtype == wide }
    }

    /// Returns the number of elements that `bytes` bytes hold. It is computed without a division, which would be slow;
    /// all sizes are powers of two.
    #[inline]
    pub(crate) fn count(self, bytes: usize) -> usize {
        bytes >> self.size.trailing_zeros()
    }

    /// Returns the bytes of a tensor's elements.
    ///
    /// # Errors
    /// `InvalidArgument` if the tensor has another dtype.
    pub(crate) fn elements(self, tensor: &Tensor) -> Result<&[u8]> {
        self.check(tensor)?;
        Ok(tensor.bytes()?)
    }

    /// Returns the bytes of a tensor's elements for writing, like [`LaneType::elements`].
    pub(crate) fn elements_mut(self, tensor: &mut Tensor) -> Result<&mut [u8]> {
        self.check(tensor)?;
        Ok(tensor.bytes_mut()?)
    }

    fn check(self, tensor: &Tensor) -> Result<()> {
        if tensor.dtype() == self.dtype {
            return Ok(());
        }
        Err(graph::Error::DType { expected: self.dtype, actual: tensor.dtype() }.into())
    }

    /// Returns a zeroed block for `count` wide elements, or for [`BLOCK`] if `count` is greater.
    #[inline]
    pub(crate) fn block(self, count: usize) -> ByteBlock {
        SmallVec::from_elem(0, (count.min(BLOCK) * self.wide_size).div_ceil(size_of::<u64>()))
    }

    /// Returns a block like [`LaneType::block`] if elements are computed in another type, and an empty block otherwise.
    #[inline]
    pub(crate) fn wide_block(self, count: usize) -> ByteBlock {
        self.block(if self.is_native { 0 } else { count })
    }

    /// Widens the elements `from` into the front of `buffer`; returns the wide elements.
    pub(crate) fn widen<'b>(self, from: &[u8], buffer: &'b mut [u8]) -> &'b mut [u8] {
        let to = &mut buffer[..self.count(from.len()) * self.wide_size];
        match self.dtype {
            DType::Half => f16::widen(bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to)),
            DType::BFloat16 => bf16::widen(bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to)),
            _ => to.copy_from_slice(from),
        }
        to
    }

    /// Returns the elements `from` as wide elements, in `buffer` if they have to be converted.
    pub(crate) fn load<'a>(self, from: &'a [u8], buffer: &'a mut [u8]) -> &'a [u8] {
        if self.is_native { from } else { self.widen(from, buffer) }
    }

    /// Calls `compute` to write wide elements to `out` or, if they have to be narrowed, to `buffer`, and then narrows
    /// them into `out`.
    pub(crate) fn store(self, out: &mut [u8], buffer: &mut [u8], compute: impl FnOnce(&mut [u8])) {
        if self.is_native {
            return compute(out);
        }
        let wide = &mut buffer[..self.count(out.len()) * self.wide_size];
        compute(wide);
        match self.dtype {
            DType::Half => f16::narrow(bytemuck::cast_slice(wide), bytemuck::cast_slice_mut(out)),
            _ => bf16::narrow(bytemuck::cast_slice(wide), bytemuck::cast_slice_mut(out)),
        }
    }

    /// Sets output 0 to the scalar with the bytes `element`.
    pub(crate) fn set_scalar(self, ctx: &mut KernelContext<'_>, element: &[u8]) -> Result<()> {
        dispatch!(any, self.dtype, T => {
            ctx.set_scalar(0, bytemuck::pod_read_unaligned::<T>(element));
            Ok(())
        })
    }
}

/// Evaluates an expression like `dispatch!` for the group `any`, but with an unsigned type `$T` for signed integers and
/// for `bool`. Used for functions whose results have the same bits for signed and unsigned elements.
macro_rules! dispatch_unsigned {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::numeric::dispatch::dispatch!(@arms $dtype, $T => $body;
            Float f32, Double f64, Half half::f16, BFloat16 half::bf16, Bool u8,
            Int8 u8, Int16 u16, Int32 u32, Int64 u64, UInt8 u8, UInt16 u16, UInt32 u32, UInt64 u64,
            Complex64 num_complex::Complex<f32>, Complex128 num_complex::Complex<f64>)
    };
}
pub(crate) use dispatch_unsigned;

/// Returns the tensor with elements of type `T::Wide`.
pub(crate) fn widened<T: Lane>(x: &Tensor) -> Result<Tensor> {
    if T::NATIVE {
        return Ok(x.clone());
    }
    let mut wide = Tensor::unspecified(T::Wide::DTYPE, x.shape().clone())?;
    T::widen(x.values::<T>()?, wide.values_mut::<T::Wide>()?);
    Ok(wide)
}

/// Converts a tensor with elements of type `T::Wide` to elements of type `T`.
pub(crate) fn narrowed<T: Lane>(wide: Tensor) -> Result<Tensor> {
    if T::NATIVE {
        return Ok(wide);
    }
    let mut out = Tensor::unspecified(T::DTYPE, wide.shape().clone())?;
    T::narrow(wide.values::<T::Wide>()?, out.values_mut::<T>()?);
    Ok(out)
}

/// Returns the tensor in the dtype that kernels compute in: 16-bit floats as `float`, tensors of all other dtypes
/// unchanged.
pub(crate) fn to_wide(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::Half => widened::<f16>(x),
        DType::BFloat16 => widened::<bf16>(x),
        _ => Ok(x.clone()),
    }
}

/// Converts a tensor to `dtype` from the type that `dtype` is computed in: the inverse of [`to_wide`].
pub(crate) fn from_wide(wide: Tensor, dtype: DType) -> Result<Tensor> {
    match dtype {
        DType::Half => narrowed::<f16>(wide),
        DType::BFloat16 => narrowed::<bf16>(wide),
        _ => Ok(wide),
    }
}

/// Returns the dtype that elements of `dtype` are computed in.
pub(crate) fn wide_dtype(dtype: DType) -> DType {
    if matches!(dtype, DType::Half | DType::BFloat16) { DType::Float } else { dtype }
}
