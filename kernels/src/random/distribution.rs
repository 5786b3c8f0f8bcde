//! Conversion of random bits to distributed numbers, bit for bit like TensorFlow: the number of bits per number and
//! the order in which they are drawn are visible to programs.

use crate::numeric::philox::{GROUP, Philox, PhiloxWords};
use crate::numeric::scalar::Real as _;
use crate::numeric::widen::{Float, Lane};
use graph::Element;
use half::{bf16, f16};

/// The maximum number of elements in a [`Group`].
pub(super) const MOST: usize = GROUP;

/// The numbers made from one 128-bit output of the Philox generator; only the first [`Distribution::COUNT`] are set.
pub(super) type Group<T> = [T; MOST];

/// A distribution that needs a fixed number of bits per number.
pub(super) trait Distribution: Sync {
    type Out: Element + Default;
    /// The number of results made from a group of four 32-bit words.
    const COUNT: usize;
    fn make(&self, bits: [u32; GROUP]) -> Group<Self::Out>;
}

/// A floating-point element of random tensors.
pub(super) trait RandomFloat: Float + Default {
    /// The number of results made from 128 bits.
    const COUNT: usize;
    /// Returns uniform numbers in [0, 1), made from 128 random bits.
    fn uniform(bits: [u32; GROUP]) -> Group<Self>;
    /// Returns standard normal numbers in pairs, made from 128 random bits.
    fn normal(bits: [u32; GROUP]) -> Group<Self>;
    /// Returns two standard normal numbers.
    fn normal_pair(bits: &mut PhiloxWords) -> [Self::Wide; 2];
}

/// Returns a number in [0, 1): 23 bits as the mantissa of a number in [1, 2), minus 1.
#[inline]
pub(in super::super) fn unit_f32(bits: u32) -> f32 {
    f32::from_bits(0x3f80_0000 | bits & 0x7f_ffff) - 1.0
}

/// Returns a number in [0, 1): 52 bits as the mantissa of a number in [1, 2), minus 1. The first word has the upper
/// bits.
#[inline]
pub(in super::super) fn unit_f64(high: u32, low: u32) -> f64 {
    f64::from_bits(0x3ff << 52 | u64::from(high & 0xf_ffff) << 32 | u64::from(low)) - 1.0
}

/// The lower limit of a uniform number before its logarithm is taken, so that the logarithm is finite.
const EPSILON: f64 = 1e-7;

#[inline]
fn box_muller_f32(a: u32, b: u32) -> [f32; 2] {
    let u = unit_f32(a).max(EPSILON as f32);
    let angle = (2.0 * std::f64::consts::PI * f64::from(unit_f32(b))) as f32;
    let radius = (-2.0 * u.ln()).sqrt();
    [angle.sin() * radius, angle.cos() * radius]
}

#[inline]
fn box_muller_f64(a: u32, b: u32, c: u32, d: u32) -> [f64; 2] {
    let u = unit_f64(a, b).max(EPSILON);
    let angle = 2.0 * std::f64::consts::PI * unit_f64(c, d);
    let radius = (-2.0 * u.ln()).sqrt();
    [angle.sin() * radius, angle.cos() * radius]
}

macro_rules! through_f32 {
    ($($t:ty, $unit:expr;)*) => {
        $(impl RandomFloat for $t {
            const COUNT: usize = 4;
            fn uniform(bits: [u32; GROUP]) -> Group<$t> {
                bits.map($unit)
            }
            fn normal([a, b, c, d]: [u32; GROUP]) -> Group<$t> {
                let ([p, q], [r, s]) = (box_muller_f32(a, b), box_muller_f32(c, d));
                [p, q, r, s].map(<$t as Lane>::of_wide)
            }
            fn normal_pair(bits: &mut PhiloxWords) -> [f32; 2] {
                let a = bits.next();
                box_muller_f32(a, bits.next())
            }
        })*
    };
}

through_f32! {
    f32, unit_f32;
    // The lowest 10 or 7 random bits become the mantissa of a number in [1, 2), from which 1 is subtracted.
    f16, |bits| f16::from_f32(f16::from_bits(0x3c00 | bits as u16 & 0x3ff).to_f32() - 1.0);
    bf16, |bits| bf16::from_f32(bf16::from_bits(0x3f80 | bits as u16 & 0x7f).to_f32() - 1.0);
}

impl RandomFloat for f64 {
    const COUNT: usize = 2;
    fn uniform([a, b, c, d]: [u32; GROUP]) -> Group<f64> {
        [unit_f64(a, b), unit_f64(c, d), 0.0, 0.0]
    }
    fn normal([a, b, c, d]: [u32; GROUP]) -> Group<f64> {
        let [p, q] = box_muller_f64(a, b, c, d);
        [p, q, 0.0, 0.0]
    }
    fn normal_pair(bits: &mut PhiloxWords) -> [f64; 2] {
        let (a, b, c) = (bits.next(), bits.next(), bits.next());
        box_muller_f64(a, b, c, bits.next())
    }
}

/// The uniform distribution over [0, 1).
pub(super) struct Uniform<T>(pub(super) std::marker::PhantomData<T>);

impl<T: RandomFloat> Distribution for Uniform<T> {
    type Out = T;
    const COUNT: usize = T::COUNT;
    fn make(&self, bits: [u32; GROUP]) -> Group<T> {
        T::uniform(bits)
    }
}

/// The normal distribution with mean 0 and deviation 1.
pub(super) struct Normal<T>(pub(super) std::marker::PhantomData<T>);

impl<T: RandomFloat> Distribution for Normal<T> {
    type Out = T;
    const COUNT: usize = T::COUNT;
    fn make(&self, bits: [u32; GROUP]) -> Group<T> {
        T::normal(bits)
    }
}

/// Uniform integers in `low..low + range`: `low` plus the remainder of the random bits by `range`. If `range` does not
/// divide the number of values of the bits, the distribution is slightly uneven, like in TensorFlow.
pub(super) struct Integers<T> {
    pub(super) low: T,
    pub(super) range: u64,
}

impl Distribution for Integers<i32> {
    type Out = i32;
    const COUNT: usize = 4;
    fn make(&self, bits: [u32; GROUP]) -> Group<i32> {
        bits.map(|b| self.low.wrapping_add((u64::from(b) % self.range) as i32))
    }
}

impl Distribution for Integers<i64> {
    type Out = i64;
    const COUNT: usize = 2;
    fn make(&self, [a, b, c, d]: [u32; GROUP]) -> Group<i64> {
        let number = |low: u32, high: u32| {
            let bits = u64::from(low) | u64::from(high) << 32;
            self.low.wrapping_add((bits % self.range) as i64)
        };
        [number(a, b), number(c, d), 0, 0]
    }
}

/// Unsigned integers in which every bit is random.
pub(super) struct Bits<T>(pub(super) std::marker::PhantomData<T>);

impl Distribution for Bits<u32> {
    type Out = u32;
    const COUNT: usize = 4;
    fn make(&self, bits: [u32; GROUP]) -> Group<u32> {
        bits
    }
}

impl Distribution for Bits<u64> {
    type Out = u64;
    const COUNT: usize = 2;
    fn make(&self, [a, b, c, d]: [u32; GROUP]) -> Group<u64> {
        let number = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [number(a, b), number(c, d), 0, 0]
    }
}

/// Returns [`RandomFloat::COUNT`] standard normal numbers between -2 and 2; numbers outside are drawn again.
pub(super) fn truncated_normal<T: RandomFloat>(stream: Philox) -> Group<T> {
    use num_traits::Float as _;
    let limit = T::Wide::of(2.0);
    let mut bits = PhiloxWords::new(stream);
    let mut out = [T::default(); MOST];
    let mut count = 0;
    loop {
        for value in T::normal_pair(&mut bits) {
            if value.abs() < limit {
                out[count] = T::of_wide(value);
                count += 1;
                if count == T::COUNT {
                    return out;
                }
            }
        }
    }
}
