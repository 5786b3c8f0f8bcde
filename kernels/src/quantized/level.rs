//! The integer types of quantized values.

use device::{Error, Result};
use graph::{DType, Shape, Tensor};

/// A quantized value as it is stored in tensors: an integer between the lowest and the highest level.
pub(crate) trait Level: bytemuck::Pod + Ord + Send + Sync {
    const DTYPE: DType;
    const LOWEST: i64;
    const HIGHEST: i64;
    /// The number of levels, `HIGHEST - LOWEST + 1`.
    const COUNT: f64 = (Self::HIGHEST - Self::LOWEST + 1) as f64;
    const IS_SIGNED: bool = Self::LOWEST < 0;

    fn wide(self) -> i64;
    /// Returns the level whose bits are the low bits of `value`.
    fn wrapped(value: i64) -> Self;
    /// Returns the level nearest to `value`.
    fn clamped(value: i64) -> Self {
        Self::wrapped(value.clamp(Self::LOWEST, Self::HIGHEST))
    }
}

macro_rules! level {
    ($($t:ty = $dtype:ident),*) => { $(impl Level for $t {
        const DTYPE: DType = DType::$dtype;
        const LOWEST: i64 = <$t>::MIN as i64;
        const HIGHEST: i64 = <$t>::MAX as i64;

        fn wide(self) -> i64 {
            self.into()
        }

        fn wrapped(value: i64) -> $t {
            value as $t
        }
    })* };
}
level!(i8 = QInt8, u8 = QUInt8, i16 = QInt16, u16 = QUInt16, i32 = QInt32);

/// Evaluates an expression with `$T` as the integer type of quantized values of `$dtype`.
macro_rules! of_levels {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::numeric::dispatch::dispatch!(@arms $dtype, $T => $body;
            QInt8 i8, QUInt8 u8, QInt16 i16, QUInt16 u16, QInt32 i32)
    };
}
pub(crate) use of_levels;

/// Returns the elements of a tensor of quantized values.
pub(crate) fn levels<T: Level>(tensor: &Tensor) -> Result<&[T]> {
    if tensor.dtype() != T::DTYPE {
        return Err(Error::internal(format!("elements of {} are read as {}", tensor.dtype(), T::DTYPE)));
    }
    bytemuck::try_cast_slice(tensor.bytes()?)
        .map_err(|e| Error::internal(format!("elements of {} are read wrongly: {e}", tensor.dtype())))
}

/// Returns a new tensor whose elements `fill` sets; `fill` is called with unspecified elements.
pub(crate) fn build<T: Level>(shape: Shape, fill: impl FnOnce(&mut [T]) -> Result<()>) -> Result<Tensor> {
    let mut tensor = Tensor::unspecified(T::DTYPE, shape)?;
    let elements = bytemuck::try_cast_slice_mut(tensor.bytes_mut()?)
        .map_err(|e| Error::internal(format!("elements of {} are written wrongly: {e}", T::DTYPE)))?;
    fill(elements)?;
    Ok(tensor)
}

/// Returns a new tensor of the results of `map` for each element of `values`.
pub(crate) fn map<A: Copy, T: Level>(shape: Shape, values: &[A], map: impl Fn(A) -> T) -> Result<Tensor> {
    build(shape, |out: &mut [T]| {
        out.iter_mut().zip(values).for_each(|(o, &v)| *o = map(v));
        Ok(())
    })
}

/// Converts to an integer as x86 processors do: NaN and values out of range give the lowest integer.
pub(crate) fn to_i32(value: f32) -> i32 {
    if (-2_147_483_648.0..2_147_483_648.0).contains(&value) { value as i32 } else { i32::MIN }
}

/// Like [`to_i32`], for 64 bits.
pub(crate) fn to_i64(value: f64) -> i64 {
    if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&value) {
        value as i64
    } else {
        i64::MIN
    }
}
