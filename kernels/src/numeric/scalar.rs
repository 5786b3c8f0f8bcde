//! Arithmetic of single elements, as TensorFlow defines it for each dtype: integers wrap, divisions round as their
//! names say, and maxima and minima propagate NaN.

use graph::{Bool8, Element};
use half::{bf16, f16};
use num_complex::Complex;
use num_traits::{Float, NumAssign, PrimInt};
use std::iter::Sum;
use std::ops::Neg;

/// An element with addition and multiplication; for `bool`, addition is "or" and multiplication is "and".
pub(crate) trait Semiring: Element {
    const ZERO: Self;
    const ONE: Self;
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
}

/// A number as it is stored in tensors, real or complex. 16-bit floats are rounded after each operation.
pub(crate) trait Arithmetic: Semiring {
    const IS_INTEGER: bool;
    fn minus(self, other: Self) -> Self;
    /// Returns the quotient, for integers rounded towards zero. An integer divisor must not be zero.
    fn over(self, other: Self) -> Self;
    /// Returns the quotient by a count, which must not be 0.
    fn over_count(self, count: usize) -> Self;
    /// Returns the complex conjugate; a real number is its own conjugate.
    #[inline(always)]
    fn conjugated(self) -> Self {
        self
    }
}

/// A real number as it is stored in tensors.
pub(crate) trait Stored: Arithmetic + PartialOrd {
    /// The least finite value.
    const LEAST: Self;
    /// The greatest finite value.
    const GREATEST: Self;
}

macro_rules! stored {
    ($($t:ty = $zero:expr, $one:expr, is integer: $integer:literal,
        $plus:expr, $minus:expr, $times:expr, $over:expr, $over_count:expr;)*) => {$(
        impl Semiring for $t {
            const ZERO: $t = $zero;
            const ONE: $t = $one;
            #[inline(always)]
            fn plus(self, other: $t) -> $t { $plus(self, other) }
            #[inline(always)]
            fn times(self, other: $t) -> $t { $times(self, other) }
        }
        impl Stored for $t {
            const LEAST: $t = <$t>::MIN;
            const GREATEST: $t = <$t>::MAX;
        }
        impl Arithmetic for $t {
            const IS_INTEGER: bool = $integer;
            #[inline(always)]
            fn minus(self, other: $t) -> $t { $minus(self, other) }
            #[inline(always)]
            fn over(self, other: $t) -> $t { $over(self, other) }
            #[inline(always)]
            fn over_count(self, count: usize) -> $t { $over_count(self, count) }
        }
    )*};
    (integers: $($t:ident),*) => {
        stored! {$($t = 0, 1, is integer: true, $t::wrapping_add, $t::wrapping_sub, $t::wrapping_mul,
            $t::wrapping_div, |sum, count| (sum as i128 / count as i128) as $t;)*}
    };
    (floats: $($t:ident = $zero:expr, $one:expr, $of:expr;)*) => {
        stored! {$($t = $zero, $one, is integer: false, |x: $t, y: $t| x + y, |x: $t, y: $t| x - y,
            |x: $t, y: $t| x * y, |x: $t, y: $t| x / y, |sum: $t, count| sum / $of(count as f64);)*}
    };
}

stored!(integers: i8, i16, i32, i64, u8, u16, u32, u64);
stored! {floats:
    f32 = 0.0, 1.0, |n| n as f32;
    f64 = 0.0, 1.0, std::convert::identity;
    f16 = f16::ZERO, f16::ONE, f16::from_f64;
    bf16 = bf16::ZERO, bf16::ONE, bf16::from_f64;
}

impl Semiring for Bool8 {
    const ZERO: Bool8 = Bool8::FALSE;
    const ONE: Bool8 = Bool8::TRUE;
    fn plus(self, other: Bool8) -> Bool8 {
        (self.get() || other.get()).into()
    }
    fn times(self, other: Bool8) -> Bool8 {
        (self.get() && other.get()).into()
    }
}

/// Booleans as the numbers 0 and 1: a sum or difference other than 0 is true.
impl Arithmetic for Bool8 {
    const IS_INTEGER: bool = true;
    fn minus(self, other: Bool8) -> Bool8 {
        (self.get() != other.get()).into()
    }
    fn over(self, _: Bool8) -> Bool8 {
        self
    }
    fn over_count(self, _: usize) -> Bool8 {
        self
    }
}

impl Stored for Bool8 {
    const LEAST: Bool8 = Bool8::FALSE;
    const GREATEST: Bool8 = Bool8::TRUE;
}

macro_rules! complex {
    ($($part:ty),*) => {$(
        impl Semiring for Complex<$part> {
            const ZERO: Self = Complex::new(0.0, 0.0);
            const ONE: Self = Complex::new(1.0, 0.0);
            #[inline(always)]
            fn plus(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn times(self, other: Self) -> Self { self * other }
        }
        impl Arithmetic for Complex<$part> {
            const IS_INTEGER: bool = false;
            #[inline(always)]
            fn minus(self, other: Self) -> Self { self - other }
            #[inline(always)]
            fn over(self, other: Self) -> Self { self / other }
            #[inline(always)]
            fn over_count(self, count: usize) -> Self { self / count as $part }
            #[inline(always)]
            fn conjugated(self) -> Self { self.conj() }
        }
    )*};
}

complex!(f32, f64);

/// A native number type, in which kernels compute. 16-bit floats are computed in `f32`.
pub(crate) trait Number: Stored {
    /// The lowest value: `-inf` for floats.
    const LOWEST: Self;
    /// The greatest value: `inf` for floats.
    const HIGHEST: Self;

    /// Returns the quotient rounded towards zero.
    fn truncate_div(self, other: Self) -> Self;
    /// Returns the remainder of `truncate_div`, which has this number's sign.
    fn truncate_mod(self, other: Self) -> Self;
    /// Returns the quotient rounded down to an integer.
    fn floor_div(self, other: Self) -> Self;
    /// Returns the remainder of `floor_div`, which has the divisor's sign.
    fn floor_mod(self, other: Self) -> Self;
    /// Returns the power; the exponent of an integer must not be negative.
    fn power(self, exponent: Self) -> Self;
    fn negated(self) -> Self;
    fn magnitude(self) -> Self;
    /// Returns -1, 0 or 1, or NaN for NaN.
    fn sign(self) -> Self;
    /// Rounds to the nearest integer; a number halfway between two integers is rounded to the even integer.
    fn round_even(self) -> Self;
    /// Returns the square root, for integers rounded towards zero; 0 for negative integers.
    fn square_root(self) -> Self;

    /// Returns the larger number; NaN if either number is NaN, and `self` if both are equal.
    #[inline(always)]
    fn maximum(self, other: Self) -> Self {
        #[allow(clippy::eq_op)]
        if other > self || other != other { other } else { self }
    }

    /// Returns the smaller number; NaN if either number is NaN, and `self` if both are equal.
    #[inline(always)]
    fn minimum(self, other: Self) -> Self {
        #[allow(clippy::eq_op)]
        if other < self || other != other { other } else { self }
    }
}

macro_rules! integers {
    ($($t:ident $sign:ident),*) => {$(
        impl Number for $t {
            const LOWEST: $t = $t::MIN;
            const HIGHEST: $t = $t::MAX;

            #[inline(always)]
            fn truncate_div(self, other: $t) -> $t { self.wrapping_div(other) }
            #[inline(always)]
            fn truncate_mod(self, other: $t) -> $t { self.wrapping_rem(other) }
            #[inline(always)]
            fn floor_div(self, other: $t) -> $t {
                let quotient = self.wrapping_div(other);
                let rest = self.wrapping_rem(other);
                quotient.wrapping_sub((rest != 0 && integers!(@differ $sign rest other)) as $t)
            }
            #[inline(always)]
            fn floor_mod(self, other: $t) -> $t {
                let rest = self.wrapping_rem(other);
                if rest != 0 && integers!(@differ $sign rest other) { rest.wrapping_add(other) } else { rest }
            }
            #[inline(always)]
            fn power(self, exponent: $t) -> $t {
                let (mut base, mut rest, mut product) = (self, exponent, 1);
                while rest > 0 {
                    if rest & 1 == 1 {
                        product = <$t>::wrapping_mul(product, base);
                    }
                    base = base.wrapping_mul(base);
                    rest >>= 1;
                }
                product
            }
            #[inline(always)]
            fn negated(self) -> $t { self.wrapping_neg() }
            #[inline(always)]
            fn magnitude(self) -> $t { integers!(@abs $sign self) }
            #[inline(always)]
            fn sign(self) -> $t { integers!(@signum $sign self) }
            #[inline(always)]
            fn round_even(self) -> $t { self }
            #[inline(always)]
            fn square_root(self) -> $t { (self as f64).sqrt() as $t }
        }
    )*};
    (@differ signed $a:ident $b:ident) => { ($a < 0) != ($b < 0) };
    (@differ unsigned $a:ident $b:ident) => { false };
    (@abs signed $a:ident) => { $a.wrapping_abs() };
    (@abs unsigned $a:ident) => { $a };
    (@signum signed $a:ident) => { $a.signum() };
    (@signum unsigned $a:ident) => { ($a != 0) as Self };
}

integers!(
    i8 signed, i16 signed, i32 signed, i64 signed, u8 unsigned, u16 unsigned, u32 unsigned, u64 unsigned
);

macro_rules! floats {
    ($($t:ident),*) => {$(
        impl Number for $t {
            const LOWEST: $t = $t::NEG_INFINITY;
            const HIGHEST: $t = $t::INFINITY;

            #[inline(always)]
            fn truncate_div(self, other: $t) -> $t { (self / other).trunc() }
            #[inline(always)]
            fn truncate_mod(self, other: $t) -> $t { self % other }
            #[inline(always)]
            fn floor_div(self, other: $t) -> $t { (self / other).floor() }
            #[inline(always)]
            fn floor_mod(self, other: $t) -> $t {
                let rest = self % other;
                if rest != 0.0 && (rest < 0.0) != (other < 0.0) { rest + other } else { rest }
            }
            #[inline(always)]
            fn power(self, exponent: $t) -> $t { self.powf(exponent) }
            #[inline(always)]
            fn negated(self) -> $t { -self }
            #[inline(always)]
            fn magnitude(self) -> $t { self.abs() }
            #[inline(always)]
            fn sign(self) -> $t {
                if self.is_nan() { self } else { ((self > 0.0) as i8 - (self < 0.0) as i8) as $t }
            }
            #[inline(always)]
            fn round_even(self) -> $t { self.round_ties_even() }
            #[inline(always)]
            fn square_root(self) -> $t { self.sqrt() }
        }
    )*};
}

floats!(f32, f64);

/// A native integer type, in which kernels compute.
pub(crate) trait Integer: Number + PrimInt {
    const BITS: u32;

    /// Shifts left by `by` bits, clamped to the valid range.
    #[inline(always)]
    fn shifted_left(self, by: Self) -> Self {
        self << clamped_shift(by)
    }

    /// Shifts right by `by` bits, clamped to the valid range; the sign bit is copied into the freed bits.
    #[inline(always)]
    fn shifted_right(self, by: Self) -> Self {
        self >> clamped_shift(by)
    }
}

#[inline(always)]
fn clamped_shift<T: Integer>(by: T) -> usize {
    by.to_usize().unwrap_or(0).min(<T as Integer>::BITS as usize - 1)
}

macro_rules! bits {
    ($($t:ident),*) => { $(impl Integer for $t { const BITS: u32 = $t::BITS; })* };
}

bits!(i8, i16, i32, i64, u8, u16, u32, u64);

/// A native floating-point type, in which kernels compute.
pub(crate) trait Real: Number + Float + NumAssign + Sum {
    /// Returns the nearest number of this type.
    fn of(value: f64) -> Self;
    fn erf(self) -> Self;
    fn erfc(self) -> Self;
    /// Returns the logarithm of the absolute value of the gamma function.
    fn lgamma(self) -> Self;
    /// Returns the derivative of `lgamma`: NaN at 0 and at the negative integers.
    fn digamma(self) -> Self;
}

/// A native real or complex number, with analytic functions.
pub(crate) trait Analytic: Arithmetic + Neg<Output = Self> {
    /// Returns `value` as a number of this type, rounded to its precision.
    fn of_real(value: f64) -> Self;
    fn exp(self) -> Self;
    fn exp_m1(self) -> Self;
    fn ln(self) -> Self;
    fn ln_1p(self) -> Self;
    fn sqrt(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn tan(self) -> Self;
    fn asin(self) -> Self;
    fn acos(self) -> Self;
    fn atan(self) -> Self;
    fn sinh(self) -> Self;
    fn cosh(self) -> Self;
    fn tanh(self) -> Self;
    fn asinh(self) -> Self;
    fn acosh(self) -> Self;
    fn atanh(self) -> Self;
    fn powc(self, exponent: Self) -> Self;
}

macro_rules! analytic {
    ($($t:ident),*) => {$(
        impl Analytic for $t {
            #[inline(always)]
            fn of_real(value: f64) -> $t { value as $t }
            analytic!(@float exp exp_m1 ln ln_1p sqrt sin cos tan asin acos atan sinh cosh tanh);
            /// Returns the inverse hyperbolic sine, with the sign of `self`. If doubling the absolute value `a` may
            /// overflow, the result is computed as `ln(a) + ln(2)` instead of `ln(2 a)`.
            #[inline(always)]
            fn asinh(self) -> $t {
                let a = self.abs();
                let large = a > 1.0 / <$t>::EPSILON && a.is_finite();
                if large { (a.ln() + std::$t::consts::LN_2).copysign(self) } else { Float::asinh(self) }
            }
            #[inline(always)]
            fn acosh(self) -> $t {
                let large = self > 1.0 / <$t>::EPSILON;
                if large { self.ln() + std::$t::consts::LN_2 } else { Float::acosh(self) }
            }
            /// Returns the inverse hyperbolic tangent, computed from the absolute value, because `(1 + x) / (1 - x)`
            /// cancels for `x` near -1.
            #[inline(always)]
            fn atanh(self) -> $t {
                let a = self.abs();
                (0.5 * ((a + a) / (1.0 - a)).ln_1p()).copysign(self)
            }
            #[inline(always)]
            fn powc(self, exponent: $t) -> $t { self.powf(exponent) }
        }
        impl Analytic for Complex<$t> {
            fn of_real(value: f64) -> Self { Complex::new(value as $t, 0.0) }
            /// Returns `exp(x) - 1`, computed with `exp_m1` of the real part, because the difference cancels near 0.
            fn exp_m1(self) -> Self {
                let half = (0.5 * self.im).sin();
                let re = self.re.exp_m1() * self.im.cos() - 2.0 * half * half;
                Complex::new(re, self.re.exp() * self.im.sin())
            }
            /// Returns `ln(1 + x)`, accurate near 0, where `1 + x` loses digits of `x`.
            fn ln_1p(self) -> Self {
                let one = Complex::new(1.0 as $t, 0.0);
                let u = one + self;
                let last = u - one;
                if u == one || u == self {
                    if u == one { self } else { Complex::ln(u) }
                } else {
                    Complex::ln(u) * (self / last)
                }
            }
            /// Returns the hyperbolic tangent. Large real parts are computed separately, so that an overflow in one
            /// part of the result leaves the other part exact, like in the C library.
            fn tanh(self) -> Self {
                if self.re.abs() > 20.0 {
                    let decay = 4.0 * (-2.0 * self.re.abs()).exp() * self.im.sin() * self.im.cos();
                    return Complex::new((1.0 as $t).copysign(self.re), decay);
                }
                Complex::tanh(self)
            }
            fn tan(self) -> Self {
                let turned = Analytic::tanh(Complex::new(-self.im, self.re));
                Complex::new(turned.im, -turned.re)
            }
            fn powc(self, exponent: Self) -> Self {
                if exponent == Complex::new(0.0, 0.0) {
                    return Complex::new(1.0, 0.0);
                }
                if self == Complex::new(0.0, 0.0) {
                    return self;
                }
                Complex::powc(self, exponent)
            }
            analytic!(@complex exp ln sqrt sin cos asin acos atan sinh cosh asinh acosh atanh);
        }
    )*};
    (@float $($f:ident)*) => {$(
        #[inline(always)]
        fn $f(self) -> Self { Float::$f(self) }
    )*};
    (@complex $($f:ident)*) => {$(
        fn $f(self) -> Self { Complex::$f(self) }
    )*};
}

analytic!(f32, f64);

impl Real for f32 {
    #[inline(always)]
    fn of(value: f64) -> f32 {
        value as f32
    }
    fn erf(self) -> f32 {
        libm::erff(self)
    }
    fn erfc(self) -> f32 {
        libm::erfcf(self)
    }
    fn lgamma(self) -> f32 {
        libm::lgamma(self.into()) as f32
    }
    fn digamma(self) -> f32 {
        digamma(self.into()) as f32
    }
}

impl Real for f64 {
    #[inline(always)]
    fn of(value: f64) -> f64 {
        value
    }
    fn erf(self) -> f64 {
        libm::erf(self)
    }
    fn erfc(self) -> f64 {
        libm::erfc(self)
    }
    fn lgamma(self) -> f64 {
        libm::lgamma(self)
    }
    fn digamma(self) -> f64 {
        digamma(self)
    }
}

/// Computes the digamma function: by the recurrence for arguments up to 10, and by the asymptotic series, which is
/// accurate to the last bits, for larger arguments (Abramowitz and Stegun 6.3.5, 6.3.7, 6.3.18).
fn digamma(x: f64) -> f64 {
    if x.is_nan() || x == f64::NEG_INFINITY || (x <= 0.0 && x == x.floor()) {
        return f64::NAN;
    }
    if x == f64::INFINITY {
        return x;
    }
    if x < 0.0 {
        let angle = std::f64::consts::PI * (x - x.round());
        return digamma(1.0 - x) - std::f64::consts::PI / angle.tan();
    }
    let (mut at, mut sum) = (x, 0.0);
    while at < 10.0 {
        sum -= 1.0 / at;
        at += 1.0;
    }
    const BERNOULLI: [f64; 7] =
        [1.0 / 12.0, -1.0 / 120.0, 1.0 / 252.0, -1.0 / 240.0, 1.0 / 132.0, -691.0 / 32760.0, 1.0 / 12.0];
    let square = 1.0 / (at * at);
    let series = BERNOULLI.iter().rev().fold(0.0, |s, b| (s + b) * square);
    sum + at.ln() - 0.5 / at - series
}
