//! From a dtype at registration to a Rust type in a kernel.

/// Evaluates an expression with `$T` as the Rust type of a dtype, out of a named group of types; other dtypes
/// are an `Unimplemented` error. Groups: `float`, `real` (float and integers), `plain` (real and bool).
macro_rules! dispatch {
    (float, $dtype:expr, $T:ident => $body:expr) => {
        $crate::kernels::cpu::dispatch::dispatch!(@arms $dtype, $T => $body;
            Float f32, Double f64, Half half::f16, BFloat16 half::bf16)
    };
    (integer, $dtype:expr, $T:ident => $body:expr) => {
        $crate::kernels::cpu::dispatch::dispatch!(@arms $dtype, $T => $body;
            Int8 i8, Int16 i16, Int32 i32, Int64 i64, UInt8 u8, UInt16 u16, UInt32 u32, UInt64 u64)
    };
    (index, $dtype:expr, $T:ident => $body:expr) => {
        $crate::kernels::cpu::dispatch::dispatch!(@arms $dtype, $T => $body; Int32 i32, Int64 i64)
    };
    (real, $dtype:expr, $T:ident => $body:expr) => {
        $crate::kernels::cpu::dispatch::dispatch!(@arms $dtype, $T => $body;
            Float f32, Double f64, Half half::f16, BFloat16 half::bf16,
            Int8 i8, Int16 i16, Int32 i32, Int64 i64, UInt8 u8, UInt16 u16, UInt32 u32, UInt64 u64)
    };
    (plain, $dtype:expr, $T:ident => $body:expr) => {
        $crate::kernels::cpu::dispatch::dispatch!(@arms $dtype, $T => $body;
            Float f32, Double f64, Half half::f16, BFloat16 half::bf16, Bool graph::Bool8,
            Int8 i8, Int16 i16, Int32 i32, Int64 i64, UInt8 u8, UInt16 u16, UInt32 u32, UInt64 u64)
    };
    (@arms $dtype:expr, $T:ident => $body:expr; $($d:ident $t:ty),*) => {
        match $dtype {
            $(graph::DType::$d => { type $T = $t; $body })*
            other => Err($crate::Error::unimplemented(format!("no CPU kernel for elements of type {other}"))),
        }
    };
}
pub(crate) use dispatch;

use graph::DType::{self, *};

/// The groups of [`dispatch`] as data, for kernel tables.
pub(crate) const FLOATS: &[DType] = &[Float, Double, Half, BFloat16];
pub(crate) const INDEX: &[DType] = &[Int32, Int64];
pub(crate) const INTEGERS: &[DType] = &[Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];
pub(crate) const REALS: &[DType] =
    &[Float, Double, Half, BFloat16, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];
pub(crate) const PLAIN: &[DType] =
    &[Float, Double, Half, BFloat16, Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];
