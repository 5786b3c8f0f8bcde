//! Element-wise functions of one tensor. Results overwrite the operand if it has no other reader, and large tensors
//! are split among threads.

use super::simd::{Vector, vectorized};
use super::threads::{BLOCK, Cost, chunk_size, for_chunks};
use super::widen::{Lane, block, load, store, wide_block};
use bytemuck::Zeroable;
use device::Result;
use device::kernel::KernelContext;
use graph::Tensor;

/// A function of one element, as a type without values.
pub(crate) trait Unary<T> {
    /// The type of the result.
    type Out;
    /// Returns the function's value.
    fn apply(x: T) -> Self::Out;
}

/// A function that maps a run of elements to a run of results.
pub(crate) type Map<'f, A, R> = dyn Fn(&mut [R], &[A]) + Sync + 'f;

/// The loop over a run of elements, compiled for each vector instruction set.
pub(crate) struct MapLoop<'a, T, R, F> {
    pub(crate) out: &'a mut [R],
    pub(crate) x: &'a [T],
    pub(crate) op: F,
}

impl<T: Copy, R, F: Fn(T) -> R> Vector for MapLoop<'_, T, R, F> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        for (o, &x) in self.out.iter_mut().zip(self.x) {
            *o = (self.op)(x);
        }
    }
}

/// Applies `op`, which should be `#[inline(always)]` or a closure, to a run of elements.
pub(crate) fn map_run_with<T: Copy, R>(out: &mut [R], x: &[T], op: impl Fn(T) -> R) {
    vectorized(MapLoop { out, x, op });
}

/// Applies the function `O` to a run of elements.
pub(crate) fn map_run<T: Copy, R, O: Unary<T, Out = R>>(out: &mut [R], x: &[T]) {
    vectorized(MapLoop { out, x, op: O::apply });
}

/// Computes a whole kernel: output 0 is `map` of input 0, element by element.
pub(crate) fn unary<A: Lane, R: Lane>(
    ctx: &mut KernelContext<'_>,
    cost: Cost,
    map: &Map<'_, A::Wide, R::Wide>,
) -> Result<()> {
    let x = ctx.input(0)?;
    if x.shape().rank() == 0 {
        let mut out = [R::Wide::zeroed()];
        map(&mut out, &[x.item::<A>()?.to_wide()]);
        ctx.set_scalar(0, R::of_wide(out[0]));
        return Ok(());
    }
    let x = ctx.take_input(0)?;
    ctx.set_output(0, map_tensor::<A, R>(x, cost, map)?);
    Ok(())
}

/// Computes `map` of a tensor, in the operand's buffer if the types are equal and the tensor has no other reader.
pub(crate) fn map_tensor<A: Lane, R: Lane>(
    x: Tensor,
    cost: Cost,
    map: &Map<'_, A::Wide, R::Wide>,
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
        let (mut wide_x, mut wide_out) = (wide_block::<A>(part.len()), wide_block::<R>(part.len()));
        for (out, x) in part.chunks_mut(BLOCK).zip(x.chunks(BLOCK)) {
            map_block::<A, R>(out, load(x, &mut wide_x), &mut wide_out, map);
        }
    });
    Ok(out)
}

/// Maps elements in place; `A` and `R` are the same type.
fn map_in_place<A: Lane, R: Lane>(values: &mut [R], map: &Map<'_, A::Wide, R::Wide>) {
    let (mut x, mut wide_out) = (block::<A::Wide>(values.len()), wide_block::<R>(values.len()));
    for out in values.chunks_mut(BLOCK) {
        let x = &mut x[..out.len()];
        A::widen(bytemuck::cast_slice(out), x);
        map_block::<A, R>(out, x, &mut wide_out, map);
    }
}

/// Maps a block of elements in the wide type and stores the results.
fn map_block<A: Lane, R: Lane>(
    out: &mut [R],
    x: &[A::Wide],
    wide: &mut [R::Wide],
    map: &Map<'_, A::Wide, R::Wide>,
) {
    store(out, wide, |out| map(out, x));
}
