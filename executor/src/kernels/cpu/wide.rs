//! Floating-point elements and the type that arithmetic on them is done in: half-precision elements are
//! widened to `f32`, once an element, not once an operation. Also the loops over elements that go to several
//! threads when they are long.

use crate::error::{Error, Result};
use crate::kernel::KernelContext;
use graph::Element;
use half::{bf16, f16};
use rayon::prelude::*;

/// An element that is computed with in `Wide`.
pub(super) trait Float: Element {
    type Wide: Wide;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

/// `f32` or `f64`.
pub(super) trait Wide: num_traits::Float + num_traits::NumAssign + std::iter::Sum + Element {
    fn of(value: f64) -> Self;
}

impl Wide for f32 {
    #[inline(always)]
    fn of(value: f64) -> f32 {
        value as f32
    }
}

impl Wide for f64 {
    #[inline(always)]
    fn of(value: f64) -> f64 {
        value
    }
}

macro_rules! floats {
    ($($t:ty, $wide:ty, $widen:expr, $narrow:expr;)*) => {
        $(impl Float for $t {
            type Wide = $wide;
            #[inline(always)]
            fn widen(self) -> $wide {
                $widen(self)
            }
            #[inline(always)]
            fn narrow(wide: $wide) -> $t {
                $narrow(wide)
            }
        })*
    };
}

floats! {
    f32, f32, std::convert::identity, std::convert::identity;
    f64, f64, std::convert::identity, std::convert::identity;
    f16, f32, f16::to_f32, f16::from_f32;
    bf16, f32, bf16::to_f32, bf16::from_f32;
}

/// An element and the type it is summed in; integers wrap.
pub(super) trait Summed: Element {
    type Sum: Copy + Default + Send + Sync;
    fn plus(self, other: Self) -> Self;
    fn into_sum(self) -> Self::Sum;
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn from_sum(sum: Self::Sum) -> Self;
}

macro_rules! summed {
    (integer: $($i:ty),*; float: $($f:ty),*; half: $($h:ty),*) => {
        $(impl Summed for $i {
            type Sum = $i;
            fn plus(self, other: $i) -> $i { self.wrapping_add(other) }
            fn into_sum(self) -> $i { self }
            fn add(a: $i, b: $i) -> $i { a.wrapping_add(b) }
            fn from_sum(sum: $i) -> $i { sum }
        })*
        $(impl Summed for $f {
            type Sum = $f;
            fn plus(self, other: $f) -> $f { self + other }
            fn into_sum(self) -> $f { self }
            fn add(a: $f, b: $f) -> $f { a + b }
            fn from_sum(sum: $f) -> $f { sum }
        })*
        $(impl Summed for $h {
            type Sum = f32;
            fn plus(self, other: $h) -> $h { <$h>::from_f32(self.to_f32() + other.to_f32()) }
            fn into_sum(self) -> f32 { self.to_f32() }
            fn add(a: f32, b: f32) -> f32 { a + b }
            fn from_sum(sum: f32) -> $h { <$h>::from_f32(sum) }
        })*
    };
}

summed!(integer: i8, i16, i32, i64, u8, u16, u32, u64; float: f32, f64; half: f16, bf16);

/// Loops over fewer elements than this stay on their thread: handing out costs more than it gains.
pub(super) const PARALLEL_ELEMENTS: usize = 256 << 10;

/// Elements a thread takes at a time.
const CHUNK: usize = 64 << 10;

/// Output 0: each element of input 0 through `op`, in place where nobody else reads the input.
pub(super) fn map<T: Element>(ctx: &mut KernelContext<'_>, op: impl Fn(T) -> T + Sync) -> Result<()> {
    let mut x = ctx.take_input(0)?;
    if x.is_unique() {
        let all = x.values_mut::<T>()?;
        let in_place = |chunk: &mut [T]| chunk.iter_mut().for_each(|v| *v = op(*v));
        if all.len() < PARALLEL_ELEMENTS {
            in_place(all);
        } else {
            all.par_chunks_mut(CHUNK).for_each(in_place);
        }
        ctx.set_output(0, x);
        return Ok(());
    }
    let mut out = ctx.allocate(T::DTYPE, x.shape().clone())?;
    let from = x.values::<T>()?;
    let apply = |(out, from): (&mut [T], &[T])| out.iter_mut().zip(from).for_each(|(o, &v)| *o = op(v));
    let to = out.values_mut::<T>()?;
    if from.len() < PARALLEL_ELEMENTS {
        apply((to, from));
    } else {
        to.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK)).for_each(apply);
    }
    ctx.set_output(0, out);
    Ok(())
}

/// Output 0: inputs 0 and 1, of one shape, pair by pair through `op`, in place of input 0 where nobody else
/// reads it.
pub(super) fn zip<T: Element>(ctx: &mut KernelContext<'_>, op: impl Fn(T, T) -> T + Sync) -> Result<()> {
    let mut x = ctx.take_input(0)?;
    let y = ctx.take_input(1)?;
    if x.shape() != y.shape() {
        let (name, op) = (&ctx.node().name, ctx.node().op.name());
        crate::invalid!(
            "Inputs to operation {name} of type {op} must have the same size and shape.  Input 0: {} != input 1: \
             {}",
            x.shape(),
            y.shape()
        );
    }
    if !x.is_unique() {
        let mut copy = ctx.allocate(T::DTYPE, x.shape().clone())?;
        copy.values_mut::<T>()?.copy_from_slice(x.values::<T>()?);
        x = copy;
    }
    let right = y.values::<T>()?;
    let apply =
        |(left, right): (&mut [T], &[T])| left.iter_mut().zip(right).for_each(|(l, &r)| *l = op(*l, r));
    let left = x.values_mut::<T>()?;
    if left.len() < PARALLEL_ELEMENTS {
        apply((left, right));
    } else {
        left.par_chunks_mut(CHUNK).zip(right.par_chunks(CHUNK)).for_each(apply);
    }
    ctx.set_output(0, x);
    Ok(())
}

/// The product of sizes.
///
/// # Errors
/// `InvalidArgument` if it overflows.
pub(super) fn checked_product(sizes: &[usize]) -> Result<usize> {
    sizes
        .iter()
        .try_fold(1usize, |n, &s| n.checked_mul(s))
        .ok_or_else(|| Error::invalid(format!("sizes {sizes:?} overflow")))
}
