//! Elements and the types that they are computed in: 16-bit floats are widened to `f32` once per element, not once
//! per operation; all others are computed in their own type.

use super::scalar::Real;
use super::threads::BLOCK;
use device::Result;
use graph::{Bool8, Element, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use num_complex::Complex;
use smallvec::SmallVec;

/// An element and the type that it is computed in.
pub(crate) trait Lane: Element {
    type Wide: Element;
    /// True if `Wide` is this type itself.
    const NATIVE: bool;
    fn to_wide(self) -> Self::Wide;
    fn of_wide(wide: Self::Wide) -> Self;
    /// Widens a slice; faster than [`Lane::to_wide`] of each element.
    fn widen(from: &[Self], to: &mut [Self::Wide]);
    /// Narrows a slice; faster than [`Lane::of_wide`] of each element.
    fn narrow(from: &[Self::Wide], to: &mut [Self]);
}

/// A floating-point element.
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

/// A short run of elements on the stack.
pub(crate) type Block<W> = SmallVec<[W; BLOCK]>;

/// Returns a zeroed block for a run of `len` elements: `len` elements long, but at most [`BLOCK`].
#[inline]
pub(crate) fn block<W: Element>(len: usize) -> Block<W> {
    SmallVec::from_elem(W::zeroed(), len.min(BLOCK))
}

/// Returns a block like [`block`] for elements that are computed in another type; empty for native elements.
#[inline]
pub(crate) fn wide_block<A: Lane>(len: usize) -> Block<A::Wide> {
    block(if A::NATIVE { 0 } else { len })
}

/// Returns the elements in the type that they are computed in; `buffer` holds them if they have to be converted.
pub(crate) fn load<'a, A: Lane>(from: &'a [A], buffer: &'a mut [A::Wide]) -> &'a [A::Wide] {
    if A::NATIVE {
        return bytemuck::cast_slice(from);
    }
    let buffer = &mut buffer[..from.len()];
    A::widen(from, buffer);
    buffer
}

/// Calls `compute` to fill `out` in the type that it computes in; `buffer` is used if the result has to be converted.
pub(crate) fn store<R: Lane>(out: &mut [R], buffer: &mut [R::Wide], compute: impl FnOnce(&mut [R::Wide])) {
    if R::NATIVE {
        return compute(bytemuck::cast_slice_mut(out));
    }
    let buffer = &mut buffer[..out.len()];
    compute(buffer);
    R::narrow(buffer, out);
}

/// Returns the tensor in the type that it is computed in.
pub(crate) fn widened<T: Lane>(x: &Tensor) -> Result<Tensor> {
    if T::NATIVE {
        return Ok(x.clone());
    }
    let mut wide = Tensor::unspecified(T::Wide::DTYPE, x.shape().clone())?;
    T::widen(x.values::<T>()?, wide.values_mut::<T::Wide>()?);
    Ok(wide)
}

/// Converts a tensor back from the type that it was computed in.
pub(crate) fn narrowed<T: Lane>(wide: Tensor) -> Result<Tensor> {
    if T::NATIVE {
        return Ok(wide);
    }
    let mut out = Tensor::unspecified(T::DTYPE, wide.shape().clone())?;
    T::narrow(wide.values::<T::Wide>()?, out.values_mut::<T>()?);
    Ok(out)
}
