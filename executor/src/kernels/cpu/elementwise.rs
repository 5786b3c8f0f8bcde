//! Walking over tensors element by element: types that are computed in a wider one, results written over their
//! operand where nobody else reads it, and large tensors split over threads.

use super::simd::{Vector, vectorized};
use crate::error::Result;
use crate::kernel::KernelContext;
use graph::{Bool8, Element, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;

/// Elements with the type that they are computed in.
pub(crate) trait Lane: Element {
    type Wide: Element;
    /// Whether `Wide` is this type itself.
    const NATIVE: bool;
    fn widen(from: &[Self], to: &mut [Self::Wide]);
    fn narrow(from: &[Self::Wide], to: &mut [Self]);
}

macro_rules! native {
    ($($t:ty),*) => {$(
        impl Lane for $t {
            type Wide = $t;
            const NATIVE: bool = true;
            fn widen(from: &[$t], to: &mut [$t]) {
                to.copy_from_slice(from);
            }
            fn narrow(from: &[$t], to: &mut [$t]) {
                to.copy_from_slice(from);
            }
        }
    )*};
}

native!(f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Bool8);

macro_rules! through_f32 {
    ($($t:ty),*) => {$(
        impl Lane for $t {
            type Wide = f32;
            const NATIVE: bool = false;
            fn widen(from: &[$t], to: &mut [f32]) {
                from.convert_to_f32_slice(to);
            }
            fn narrow(from: &[f32], to: &mut [$t]) {
                to.convert_from_f32_slice(from);
            }
        }
    )*};
}

through_f32!(f16, bf16);

/// Elements converted or copied at a time: they stay in the first cache.
pub(crate) const BLOCK: usize = 512;

/// A block of `Wide` elements on the stack.
pub(crate) fn block<W: Element>() -> [W; BLOCK] {
    [W::zeroed(); BLOCK]
}

/// The elements in the type that they are computed in; `buffer` holds them if that is another.
pub(crate) fn load<'a, A: Lane>(from: &'a [A], buffer: &'a mut [A::Wide]) -> &'a [A::Wide] {
    if A::NATIVE {
        return bytemuck::cast_slice(from);
    }
    let buffer = &mut buffer[..from.len()];
    A::widen(from, buffer);
    buffer
}

/// How much an element costs: it decides from which size on threads help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    /// Memory is the limit.
    Cheap,
    /// A division or a short polynomial and more.
    Dear,
}

impl Cost {
    pub(crate) fn threshold(self) -> usize {
        match self {
            Cost::Cheap => 1 << 20,
            Cost::Dear => 1 << 18,
        }
    }
}

/// How many elements a thread takes; all where splitting does not pay.
pub(crate) fn chunk_size(len: usize, cost: Cost) -> usize {
    if len <= cost.threshold() {
        return len.max(1);
    }
    let threads = rayon::current_num_threads();
    if threads == 1 { len } else { len.div_ceil(threads * 2).next_multiple_of(BLOCK) }
}

/// Calls `work` with each chunk and the position of its first element, on several threads if there are several.
pub(crate) fn for_chunks<R: Send>(out: &mut [R], chunk: usize, work: impl Fn(usize, &mut [R]) + Sync) {
    if chunk >= out.len() {
        work(0, out);
    } else {
        out.par_chunks_mut(chunk).enumerate().for_each(|(i, part)| work(i * chunk, part));
    }
}

/// A function of one element.
pub(crate) trait Unary<T> {
    type Out;
    fn apply(x: T) -> Self::Out;
}

/// A function of a run of elements.
pub(crate) type Map<A, R> = dyn Fn(&mut [R], &[A]) + Sync;

struct MapLoop<'a, T, R, O> {
    out: &'a mut [R],
    x: &'a [T],
    op: std::marker::PhantomData<O>,
}

impl<T: Copy, R, O: Unary<T, Out = R>> Vector for MapLoop<'_, T, R, O> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        for (o, &x) in self.out.iter_mut().zip(self.x) {
            *o = O::apply(x);
        }
    }
}

/// Applies `O` to a run of elements.
pub(crate) fn map_run<T: Copy, R, O: Unary<T, Out = R>>(out: &mut [R], x: &[T]) {
    vectorized(MapLoop::<T, R, O> { out, x, op: std::marker::PhantomData });
}

/// A kernel's whole work: output 0 is `map` of input 0, element by element.
pub(crate) fn unary<A: Lane, R: Lane>(
    ctx: &mut KernelContext<'_>,
    cost: Cost,
    map: &Map<A::Wide, R::Wide>,
) -> Result<()> {
    let x = ctx.take_input(0)?;
    ctx.set_output(0, map_tensor::<A, R>(x, cost, map)?);
    Ok(())
}

/// `map` of a tensor, in its own memory where the type allows it and nobody else reads it.
pub(crate) fn map_tensor<A: Lane, R: Lane>(
    x: Tensor,
    cost: Cost,
    map: &Map<A::Wide, R::Wide>,
) -> Result<Tensor> {
    let chunk = chunk_size(x.num_elements(), cost);
    if A::DTYPE == R::DTYPE && x.is_unique() {
        let mut out = x;
        for_chunks(out.values_mut::<R>()?, chunk, |_, part| map_in_place::<A, R>(part, map));
        return Ok(out);
    }
    let mut out = Tensor::unspecified(R::DTYPE, x.shape().clone())?;
    let x = x.values::<A>()?;
    for_chunks(out.values_mut::<R>()?, chunk, |start, part| {
        let x = &x[start..start + part.len()];
        if A::NATIVE && R::NATIVE {
            return map(bytemuck::cast_slice_mut(part), bytemuck::cast_slice(x));
        }
        let (mut wide_x, mut wide_out) = (block::<A::Wide>(), block::<R::Wide>());
        for (out, x) in part.chunks_mut(BLOCK).zip(x.chunks(BLOCK)) {
            map_block::<A, R>(out, load(x, &mut wide_x), &mut wide_out, map);
        }
    });
    Ok(out)
}

/// `A` and `R` are one type.
fn map_in_place<A: Lane, R: Lane>(values: &mut [R], map: &Map<A::Wide, R::Wide>) {
    let (mut x, mut wide_out) = (block::<A::Wide>(), block::<R::Wide>());
    for out in values.chunks_mut(BLOCK) {
        let x = &mut x[..out.len()];
        A::widen(bytemuck::cast_slice(out), x);
        map_block::<A, R>(out, x, &mut wide_out, map);
    }
}

fn map_block<A: Lane, R: Lane>(
    out: &mut [R],
    x: &[A::Wide],
    wide: &mut [R::Wide],
    map: &Map<A::Wide, R::Wide>,
) {
    store(out, wide, |out| map(out, x));
}

/// Lets `compute` fill `out` in the type that it computes in; `buffer` is used if that is another.
pub(crate) fn store<R: Lane>(out: &mut [R], buffer: &mut [R::Wide], compute: impl FnOnce(&mut [R::Wide])) {
    if R::NATIVE {
        return compute(bytemuck::cast_slice_mut(out));
    }
    let buffer = &mut buffer[..out.len()];
    compute(buffer);
    R::narrow(buffer, out);
}
