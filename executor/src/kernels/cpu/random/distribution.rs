//! From random bits to distributed numbers, bit for bit as TensorFlow does it: how many bits a number takes
//! and in which order it draws them is part of what programs see.

use super::philox::{GROUP, Philox, Singles};
use crate::kernels::cpu::scalar::Real as _;
use crate::kernels::cpu::wide::{Float, Lane};
use graph::Element;
use half::{bf16, f16};

/// Numbers that a [`Group`] can hold.
pub(super) const MOST: usize = GROUP;

/// What one step of a stream gives: the first [`Distribution::COUNT`] are set.
pub(super) type Group<T> = [T; MOST];

/// A distribution that takes a fixed number of bits a number.
pub(super) trait Distribution: Sync {
    type Out: Element + Default;
    /// Numbers a group of four times 32 bits makes.
    const COUNT: usize;
    fn make(&self, bits: [u32; GROUP]) -> Group<Self::Out>;
}

/// An element that random numbers are made of.
pub(super) trait RandomFloat: Float + Default {
    /// Numbers that 128 bits make.
    const COUNT: usize;
    /// In [0, 1), of 128 bits.
    fn uniform(bits: [u32; GROUP]) -> Group<Self>;
    /// Pairs from the standard normal distribution, of 128 bits.
    fn normal(bits: [u32; GROUP]) -> Group<Self>;
    /// Two from the standard normal distribution.
    fn normal_pair(bits: &mut Singles) -> [Self::Wide; 2];
}

/// In [0, 1): 23 bits under the exponent of 1, less 1.
#[inline]
pub(in super::super) fn unit_f32(bits: u32) -> f32 {
    f32::from_bits(0x3f80_0000 | bits & 0x7f_ffff) - 1.0
}

/// In [0, 1): 52 bits under the exponent of 1, less 1. The first word has the upper bits.
#[inline]
pub(in super::super) fn unit_f64(high: u32, low: u32) -> f64 {
    f64::from_bits(0x3ff << 52 | u64::from(high & 0xf_ffff) << 32 | u64::from(low)) - 1.0
}

/// Keeps the logarithm of a uniform number finite.
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
            fn normal_pair(bits: &mut Singles) -> [f32; 2] {
                let a = bits.next();
                box_muller_f32(a, bits.next())
            }
        })*
    };
}

through_f32! {
    f32, unit_f32;
    // 10 and 7 bits under the exponent of 1, less 1.
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
    fn normal_pair(bits: &mut Singles) -> [f64; 2] {
        let (a, b, c) = (bits.next(), bits.next(), bits.next());
        box_muller_f64(a, b, c, bits.next())
    }
}

/// In [0, 1).
pub(super) struct Uniform<T>(pub(super) std::marker::PhantomData<T>);

impl<T: RandomFloat> Distribution for Uniform<T> {
    type Out = T;
    const COUNT: usize = T::COUNT;
    fn make(&self, bits: [u32; GROUP]) -> Group<T> {
        T::uniform(bits)
    }
}

/// With mean 0 and deviation 1.
pub(super) struct Normal<T>(pub(super) std::marker::PhantomData<T>);

impl<T: RandomFloat> Distribution for Normal<T> {
    type Out = T;
    const COUNT: usize = T::COUNT;
    fn make(&self, bits: [u32; GROUP]) -> Group<T> {
        T::normal(bits)
    }
}

/// Integers from `low` on, `range` of them: the remainder of the bits. Ranges that do not divide the number of
/// values the bits have are a little uneven, as everywhere that this is how it is done.
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

/// Whole numbers of all the bits that they have.
pub(super) struct Bits<T>(pub(super) std::marker::PhantomData<T>);

macro_rules! bits {
    ($($narrow:ty, $wide:ty;)*) => {$(
        impl Distribution for Bits<$narrow> {
            type Out = $narrow;
            const COUNT: usize = 4;
            fn make(&self, bits: [u32; GROUP]) -> Group<$narrow> {
                bits.map(|b| b as $narrow)
            }
        }

        impl Distribution for Bits<$wide> {
            type Out = $wide;
            const COUNT: usize = 2;
            fn make(&self, [a, b, c, d]: [u32; GROUP]) -> Group<$wide> {
                let number = |low: u32, high: u32| (u64::from(low) | u64::from(high) << 32) as $wide;
                [number(a, b), number(c, d), 0, 0]
            }
        }
    )*};
}

bits! {
    i32, i64;
    u32, u64;
}

/// Groups of 128 bits that are set aside for each number of a distribution that draws until it is content.
pub(in crate::kernels) const RESERVED: usize = 256;

/// Normal numbers within two deviations; others are drawn again. Gives [`RandomFloat::COUNT`].
pub(super) fn truncated_normal<T: RandomFloat>(stream: Philox) -> Group<T> {
    use num_traits::Float as _;
    let limit = T::Wide::of(2.0);
    let mut bits = Singles::new(stream);
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
