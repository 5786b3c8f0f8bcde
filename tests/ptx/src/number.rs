//! Types of numbers in registers. A register holds the bits of a number in its lowest bits.

use half::f16;

/// A type of numbers in registers.
pub(crate) trait Number: Copy + PartialOrd {
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
}

/// An integer type.
pub(crate) trait Integer: Number {
    const BITS: u32;
    const LEAST: i128;
    const MOST: i128;
    fn wide(self) -> i128;
    /// Returns the integer of the lowest bits of `wide`.
    fn cut(wide: i128) -> Self;
}

/// A floating-point type.
pub(crate) trait Float: Number {
    const BITS: u32;
    fn wide(self) -> f64;
    /// Returns `wide` rounded to the nearest number of this type, ties to even.
    fn narrow(wide: f64) -> Self;
    fn of_integer(integer: i128) -> Self;
    /// Returns `a * b + c`, rounded once.
    fn fused(a: Self, b: Self, c: Self) -> Self;
}

macro_rules! integers {
    ($($type:ident as $unsigned:ident),*) => {$(
        impl Number for $type {
            fn of(bits: u64) -> $type {
                bits as $type
            }
            fn bits(self) -> u64 {
                u64::from(self as $unsigned)
            }
        }
        impl Integer for $type {
            const BITS: u32 = $type::BITS;
            const LEAST: i128 = $type::MIN as i128;
            const MOST: i128 = $type::MAX as i128;
            fn wide(self) -> i128 {
                i128::from(self)
            }
            fn cut(wide: i128) -> $type {
                wide as $type
            }
        }
    )*};
}

integers!(u8 as u8, i8 as u8, u16 as u16, i16 as u16, u32 as u32, i32 as u32, u64 as u64, i64 as u64);

macro_rules! floats {
    ($($type:ident, $bits:ident, $wide:expr, $narrow:expr, $of_integer:expr, $fused:expr;)*) => {$(
        impl Number for $type {
            fn of(bits: u64) -> $type {
                $type::from_bits(bits as $bits)
            }
            fn bits(self) -> u64 {
                u64::from(self.to_bits())
            }
        }
        impl Float for $type {
            const BITS: u32 = $bits::BITS;
            fn wide(self) -> f64 {
                $wide(self)
            }
            fn narrow(wide: f64) -> $type {
                $narrow(wide)
            }
            fn of_integer(integer: i128) -> $type {
                $of_integer(integer)
            }
            fn fused(a: $type, b: $type, c: $type) -> $type {
                $fused(a, b, c)
            }
        }
    )*};
}

floats! {
    f16, u16, f16::to_f64, f16::from_f64, |i| f16::from_f64(i as f64),
        |a: f16, b: f16, c: f16| f16::from_f64(a.to_f64().mul_add(b.to_f64(), c.to_f64()));
    f32, u32, f64::from, |x| x as f32, |i| i as f32, f32::mul_add;
    f64, u64, |x| x, |x| x, |i| i as f64, f64::mul_add;
}
