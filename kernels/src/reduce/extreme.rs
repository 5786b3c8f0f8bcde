//! The position of the largest or smallest element along an axis.

use crate::numeric::dispatch::dispatch;
use crate::numeric::threads::BLOCK;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result};
use graph::DType::{self, *};
use graph::{Bool8, Element, Shape, Tensor};
use half::{bf16, f16};

pub(super) const TYPES: &[DType] = crate::numeric::dispatch::PLAIN;

/// Element types with an order. A search starts from `LOWEST` or `HIGHEST`, so it never finds NaN, which compares
/// false.
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

/// A kernel's output elements, which are positions, in one of the dtypes for positions.
enum Positions<'a> {
    Int16(&'a mut [i16]),
    UInt16(&'a mut [u16]),
    Int32(&'a mut [i32]),
    Int64(&'a mut [i64]),
}

impl Positions<'_> {
    fn of(out: &mut Tensor) -> Result<Positions<'_>> {
        Ok(match out.dtype() {
            Int16 => Positions::Int16(out.values_mut()?),
            UInt16 => Positions::UInt16(out.values_mut()?),
            Int32 => Positions::Int32(out.values_mut()?),
            _ => Positions::Int64(out.values_mut()?),
        })
    }

    /// Stores `found`, the positions for the output elements from index `first` on.
    fn store(&mut self, first: usize, found: &[usize]) {
        fn convert<P>(out: &mut [P], found: &[usize], position: impl Fn(usize) -> P) {
            out.iter_mut().zip(found).for_each(|(o, &at)| *o = position(at));
        }
        match self {
            Positions::Int16(out) => convert(&mut out[first..], found, |at| at as i16),
            Positions::UInt16(out) => convert(&mut out[first..], found, |at| at as u16),
            Positions::Int32(out) => convert(&mut out[first..], found, |at| at as i32),
            Positions::Int64(out) => convert(&mut out[first..], found, |at| at as i64),
        }
    }
}

pub(super) fn make(init: &KernelInit<'_>, largest: bool) -> Result<Kernel> {
    let positions = init.output_type(0);
    if !matches!(positions, Int16 | UInt16 | Int32 | Int64) {
        return Err(Error::unimplemented(format!("positions of type {positions}")));
    }
    let search = dispatch!(plain, init.input_type(0), T => Ok(search::<T> as Search))?;
    Kernel::sync(move |ctx| extreme(ctx, positions, largest, search))
}

/// The maximum number of axes of an input, like in TensorFlow.
const HIGHEST: usize = 7;

fn extreme(ctx: &mut KernelContext<'_>, positions: DType, largest: bool, search: Search) -> Result<()> {
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
    let lines = Lines { size, inner: x.shape()[at + 1..].iter().product() };
    let mut out = Tensor::unspecified(positions, Shape::new(&dims)?)?;
    let count = out.num_elements();
    let mut positions = Positions::of(&mut out)?;
    let mut found = [0; BLOCK];
    for first in (0..count).step_by(BLOCK) {
        let found = &mut found[..BLOCK.min(count - first)];
        search(x, lines, largest, first, found)?;
        positions.store(first, found);
    }
    ctx.set_output(0, out);
    Ok(())
}

/// The lines along the reduced axis: the tensor consists of blocks of `size` rows of `inner` elements, and each column
/// of a block is a line.
#[derive(Clone, Copy)]
struct Lines {
    size: usize,
    inner: usize,
}

/// A function `(input, lines, largest, first, found)` that finds the position of the largest or smallest element of at
/// most [`BLOCK`] lines, from line number `first` on.
type Search = fn(&Tensor, Lines, bool, usize, &mut [usize]) -> Result<()>;

fn search<T: Ordered>(
    x: &Tensor,
    lines: Lines,
    largest: bool,
    first: usize,
    found: &mut [usize],
) -> Result<()> {
    let values = x.values::<T>()?;
    match largest {
        true => search_by(values, lines, first, found, T::LOWEST, |v, best| v > best),
        false => search_by(values, lines, first, found, T::HIGHEST, |v, best| v < best),
    }
    Ok(())
}

/// Finds the position of the best element of each line from line number `first` on; of equal elements, the lowest
/// position.
fn search_by<T: Ordered>(
    values: &[T],
    Lines { size, inner }: Lines,
    first: usize,
    found: &mut [usize],
    start: T,
    better: impl Fn(T, T) -> bool,
) {
    if inner == 1 {
        for (found, row) in found.iter_mut().zip(values[first * size..].chunks_exact(size)) {
            let (mut best, mut at) = (start, 0);
            for (i, &v) in row.iter().enumerate() {
                if better(v, best) {
                    (best, at) = (v, i);
                }
            }
            *found = at;
        }
        return;
    }
    let (mut best, mut at) = ([start; BLOCK], [0u32; BLOCK]);
    let mut done = 0;
    while done < found.len() {
        let (block, column) = ((first + done) / inner, (first + done) % inner);
        let width = (found.len() - done).min(inner - column);
        let (found, best, at) = (&mut found[done..done + width], &mut best[..width], &mut at[..width]);
        found.fill(0);
        best.fill(start);
        let rows = &values[block * size * inner..(block + 1) * size * inner];
        for (span, rows) in rows.chunks(SPAN * inner).enumerate() {
            at.fill(NONE);
            for (i, row) in rows.chunks_exact(inner).enumerate() {
                for ((at, best), &v) in at.iter_mut().zip(&mut *best).zip(&row[column..column + width]) {
                    if better(v, *best) {
                        (*best, *at) = (v, i as u32);
                    }
                }
            }
            for (found, &at) in found.iter_mut().zip(&*at).filter(|(_, at)| **at != NONE) {
                *found = span * SPAN + at as usize;
            }
        }
        done += width;
    }
}

/// The number of rows per span. Within a span, positions have 32 bits, because a vector holds more 32-bit numbers than
/// 64-bit ones.
const SPAN: usize = 1 << 20;
/// The position that marks a column in which no element of the current span is better than those of earlier spans.
const NONE: u32 = u32::MAX;
