//! The position of the largest or smallest element along an axis.

use crate::numeric::dispatch::dispatch;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result};
use graph::DType::{self, *};
use graph::{Bool8, Element, Shape, Tensor};
use half::{bf16, f16};

pub(super) const TYPES: &[DType] = crate::numeric::dispatch::PLAIN;

/// Elements with an order; a search starts from an extreme of the type, so NaN, which compares false, is never found.
trait Ordered: Element + PartialOrd {
    const LOWEST: Self;
    const HIGHEST: Self;
}

macro_rules! ordered {
    ($($t:ty: $low:expr, $high:expr;)*) => {$(
        impl Ordered for $t {
            const LOWEST: $t = $low;
            const HIGHEST: $t = $high;
        }
    )*};
}

ordered! {
    f32: f32::NEG_INFINITY, f32::INFINITY;
    f64: f64::NEG_INFINITY, f64::INFINITY;
    f16: f16::NEG_INFINITY, f16::INFINITY;
    bf16: bf16::NEG_INFINITY, bf16::INFINITY;
    i8: i8::MIN, i8::MAX;
    i16: i16::MIN, i16::MAX;
    i32: i32::MIN, i32::MAX;
    i64: i64::MIN, i64::MAX;
    u8: u8::MIN, u8::MAX;
    u16: u16::MIN, u16::MAX;
    u32: u32::MIN, u32::MAX;
    u64: u64::MIN, u64::MAX;
    Bool8: Bool8::FALSE, Bool8::TRUE;
}

/// An element type for positions.
trait Position: Element {
    fn at(index: usize) -> Self;
}

macro_rules! positions {
    ($($t:ty),*) => { $(impl Position for $t { fn at(index: usize) -> $t { index as $t } })* };
}

positions!(i16, u16, i32, i64);

pub(super) fn make(init: &KernelInit<'_>, largest: bool) -> Result<Kernel> {
    macro_rules! to {
        ($P:ty) => {
            dispatch!(plain, init.input_type(0), T => Kernel::sync(move |ctx| extreme::<T, $P>(ctx, largest)))
        };
    }
    match init.output_type(0) {
        Int16 => to!(i16),
        UInt16 => to!(u16),
        Int32 => to!(i32),
        Int64 => to!(i64),
        other => Err(Error::unimplemented(format!("positions of type {other}"))),
    }
}

/// The most axes of an input, like in TensorFlow.
const HIGHEST: usize = 7;

fn extreme<T: Ordered, P: Position>(ctx: &mut KernelContext<'_>, largest: bool) -> Result<()> {
    let (x, dimension) = (ctx.input(0)?, ctx.input(1)?);
    if dimension.shape().rank() != 0 {
        device::invalid!("dim must be a scalar, but received tensor of shape: {}", dimension.shape());
    }
    let (rank, axis) = (x.shape().rank() as i64, dimension.to_i64s()?[0]);
    let at = if axis < 0 { axis.saturating_add(rank) } else { axis };
    if !(0..rank).contains(&at) {
        device::invalid!("Expected dimension in the range [{}, {rank}), but got {axis}", -rank);
    }
    let at = at as usize;
    let size = x.shape()[at];
    let mut dims = x.shape().dims().to_vec();
    dims.remove(at);
    if size == 0 && at < x.shape().rank() {
        device::invalid!("Reduction axis {axis} is empty in shape {}", x.shape());
    }
    if x.shape().rank() > HIGHEST && x.num_elements() > 0 {
        device::invalid!(
            "Argmax and Argmin only support up to {HIGHEST} input dimensions, but got {}. Inputs shape: {}",
            x.shape().rank(),
            x.shape()
        );
    }
    let inner: usize = x.shape()[at + 1..].iter().product();
    let mut out = Tensor::unspecified(P::DTYPE, Shape::new(&dims)?)?;
    let (values, found) = (x.values::<T>()?, out.values_mut::<P>()?);
    match (largest, found.is_empty()) {
        (_, true) => {}
        (true, _) => search(values, size, inner, found, T::LOWEST, |v, best| v > best),
        (false, _) => search(values, size, inner, found, T::HIGHEST, |v, best| v < best),
    }
    ctx.set_output(0, out);
    Ok(())
}

/// Finds the position of the best element along the axis; of equal elements, the first. `values` are blocks of `size`
/// rows of `inner` elements.
fn search<T: Ordered, P: Position>(
    values: &[T],
    size: usize,
    inner: usize,
    found: &mut [P],
    start: T,
    better: impl Fn(T, T) -> bool,
) {
    if inner == 1 {
        for (found, row) in found.iter_mut().zip(values.chunks_exact(size)) {
            let (mut best, mut at) = (start, 0);
            for (i, &v) in row.iter().enumerate() {
                if better(v, best) {
                    (best, at) = (v, i);
                }
            }
            *found = P::at(at);
        }
        return;
    }
    let mut best = vec![start; inner];
    for (found, rows) in found.chunks_exact_mut(inner).zip(values.chunks_exact(size * inner)) {
        best.fill(start);
        found.fill(P::at(0));
        for (i, row) in rows.chunks_exact(inner).enumerate() {
            for ((found, best), &v) in found.iter_mut().zip(&mut best).zip(row) {
                if better(v, *best) {
                    (*best, *found) = (v, P::at(i));
                }
            }
        }
    }
}
