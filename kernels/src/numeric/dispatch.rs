//! Selection of the Rust element type of a kernel by a dtype.

/// Evaluates an expression with `$T` as the Rust type of a dtype from a named group of types; other dtypes are an
/// `Unimplemented` error. Groups: `float`, `complex`, `fraction` (float and complex), `real` (float and integers),
/// `number` (real and complex), `plain` (real and bool), `any` (number and bool), `integer`, `index` (signed
/// integers of 32 and 64 bits), `word` (all integers of 32 and 64 bits).
macro_rules! dispatch {
    (float, $dtype:expr, $T:ident => $body:expr) => {
        $crate::numeric::dispatch::dispatch!(@arms $dtype, $T => $body;
            Float f32, Double f64, Half half::f16, BFloat16 half::bf16)
    };
    (fraction, $dtype:expr, $T:ident => $body:expr) => {
        $crate::numeric::dispatch::dispatch!(@arms $dtype, $T => $body;
            Float f32, Double f64, Half half::f16, BFloat16 half::bf16,
            Complex64 num_complex::Complex<f32>, Complex128 num_complex::Complex<f64>)
    };
    (complex, $dtype:expr, $T:ident => $body:expr) => {
        $crate::numeric::dispatch::dispatch!(@arms $dtype, $T => $body;
            Complex64 num_complex::Complex<f32>, Complex128 num_complex::Complex<f64>)
    };
    (number, $dtype:expr, $T:ident => $body:expr) => {
        $crate::numeric::dispatch::dispatch!(@arms $dtype, $T => $body;
            Float f32, Double f64, Half half::f16, BFloat16 half::bf16,
            Int8 i8, Int16 i16, Int32 i32, Int64 i64, UInt8 u8, UInt16 u16, UInt32 u32, UInt64 u64,
            Complex64 num_complex::Complex<f32>, Complex128 num_complex::Complex<f64>)
    };
    (any, $dtype:expr, $T:ident => $body:expr) => {
        $crate::numeric::dispatch::dispatch!(@arms $dtype, $T => $body;
            Float f32, Double f64, Half half::f16, BFloat16 half::bf16, Bool graph::Bool8,
            Int8 i8, Int16 i16, Int32 i32, Int64 i64, UInt8 u8, UInt16 u16, UInt32 u32, UInt64 u64,
            Complex64 num_complex::Complex<f32>, Complex128 num_complex::Complex<f64>)
    };
    (integer, $dtype:expr, $T:ident => $body:expr) => {
        $crate::numeric::dispatch::dispatch!(@arms $dtype, $T => $body;
            Int8 i8, Int16 i16, Int32 i32, Int64 i64, UInt8 u8, UInt16 u16, UInt32 u32, UInt64 u64)
    };
    (index, $dtype:expr, $T:ident => $body:expr) => {
        $crate::numeric::dispatch::dispatch!(@arms $dtype, $T => $body; Int32 i32, Int64 i64)
    };
    (word, $dtype:expr, $T:ident => $body:expr) => {
        $crate::numeric::dispatch::dispatch!(@arms $dtype, $T => $body;
            Int32 i32, Int64 i64, UInt32 u32, UInt64 u64)
    };
    (real, $dtype:expr, $T:ident => $body:expr) => {
        $crate::numeric::dispatch::dispatch!(@arms $dtype, $T => $body;
            Float f32, Double f64, Half half::f16, BFloat16 half::bf16,
            Int8 i8, Int16 i16, Int32 i32, Int64 i64, UInt8 u8, UInt16 u16, UInt32 u32, UInt64 u64)
    };
    (plain, $dtype:expr, $T:ident => $body:expr) => {
        $crate::numeric::dispatch::dispatch!(@arms $dtype, $T => $body;
            Float f32, Double f64, Half half::f16, BFloat16 half::bf16, Bool graph::Bool8,
            Int8 i8, Int16 i16, Int32 i32, Int64 i64, UInt8 u8, UInt16 u16, UInt32 u32, UInt64 u64)
    };
    (@arms $dtype:expr, $T:ident => $body:expr; $($d:ident $t:ty),*) => {
        match $dtype {
            $(graph::DType::$d => { type $T = $t; $body })*
            other => Err(::device::Error::unimplemented(format!("no CPU kernel for elements of type {other}"))),
        }
    };
}
pub(crate) use dispatch;

use graph::DType::{self, *};

/// The floating-point types. The constants below are the groups of `dispatch!`, for kernel tables.
pub const FLOATS: &[DType] = &[Float, Double, Half, BFloat16];
pub const INDEX: &[DType] = &[Int32, Int64];
pub const WORDS: &[DType] = &[Int32, Int64, UInt32, UInt64];
pub const INTEGERS: &[DType] = &[Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];
pub const REALS: &[DType] =
    &[Float, Double, Half, BFloat16, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];
pub const PLAIN: &[DType] =
    &[Float, Double, Half, BFloat16, Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];
pub const FRACTIONS: &[DType] = &[Float, Double, Half, BFloat16, Complex64, Complex128];
pub const COMPLEX: &[DType] = &[Complex64, Complex128];
pub(crate) const NUMBERS: &[DType] = &[
    Float, Double, Half, BFloat16, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Complex64,
    Complex128,
];
pub const ANY: &[DType] = &[
    Float, Double, Half, BFloat16, Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Complex64,
    Complex128,
];
