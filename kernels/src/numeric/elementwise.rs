//! Element-wise functions of one tensor. Results overwrite the operand if it has no other reader, and large tensors are
//! split among threads. Only the loop over a run of elements is compiled for each type and function; the remaining code
//! handles elements as bytes.

use super::simd::{Vector, vectorized};
use super::threads::{BLOCK, Cost, chunk_size, for_chunks};
use super::widen::{Lane, LaneType};
use bytemuck::{cast_slice, cast_slice_mut};
use device::Result;
use device::kernel::{Kernel, KernelContext};
use graph::{DType, Element, Tensor};

/// A function of one element, as a type without values.
pub(crate) trait Unary<T> {
    /// The type of the result.
    type Out;
    /// Returns the function's value for `x`.
    fn apply(x: T) -> Self::Out;
}

/// A function that maps the bytes of a run of elements to the bytes of a run of results; elements and results have the
/// types that kernels compute in.
pub(crate) type Map<'f> = dyn Fn(&mut [u8], &[u8]) + Sync + 'f;

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

/// Applies `op`, which should be `#[inline(always)]` or a closure, to the bytes of a run of elements.
pub(crate) fn map_with<T: Element, R: Element>(out: &mut [u8], x: &[u8], op: impl Fn(T) -> R) {
    vectorized(MapLoop { out: cast_slice_mut(out), x: cast_slice(x), op });
}

/// Applies the function `O` to the bytes of a run of elements.
pub(crate) fn map_run<T: Element, R: Element, O: Unary<T, Out = R>>(out: &mut [u8], x: &[u8]) {
    map_with(out, x, O::apply);
}

/// Applies the function `O` to a run of elements without vector instructions.
pub(crate) fn map_each<T: Element, R: Element, O: Unary<T, Out = R>>(out: &mut [R], x: &[T]) {
    MapLoop { out, x, op: O::apply }.run();
}

/// Makes a kernel: output 0 is the function `O` of input 0, element by element.
pub(crate) fn kernel<A: Lane, R: Lane, O: Unary<A::Wide, Out = R::Wide>>(cost: Cost) -> Result<Kernel> {
    map_kernel([A::DTYPE, R::DTYPE], cost, map_run::<A::Wide, R::Wide, O>)
}

/// Makes a kernel like [`kernel`], but without vector instructions, for a function that calls a library for each
/// element.
pub(crate) fn unvectorized_kernel<A: Lane, R: Lane, O: Unary<A::Wide, Out = R::Wide>>() -> Result<Kernel> {
    map_kernel([A::DTYPE, R::DTYPE], Cost::Expensive, |out, x| {
        map_each::<A::Wide, R::Wide, O>(cast_slice_mut(out), cast_slice(x));
    })
}

/// Makes a kernel that sets output 0 to `map` of input 0; `dtypes` holds the dtype of the input and the dtype of the
/// output.
pub(crate) fn map_kernel(dtypes: [DType; 2], cost: Cost, map: fn(&mut [u8], &[u8])) -> Result<Kernel> {
    let types = dtypes.map(LaneType::of);
    Kernel::sync(move |ctx| unary(ctx, types, cost, &map))
}

/// Sets output 0 to `map` of input 0; `types` holds the element type of the input and the element type of the output.
pub(crate) fn unary(
    ctx: &mut KernelContext<'_>,
    types: [LaneType; 2],
    cost: Cost,
    map: &Map<'_>,
) -> Result<()> {
    let [from, to] = types;
    let x = ctx.input(0)?;
    if x.shape().rank() == 0 {
        // Scalars are read in place: they are frequent in graphs, and moving a scalar costs as much as the computation.
        let [mut out, mut wide_x, mut wide_out] = [[0u64; 2]; 3];
        let x = from.load(from.elements(x)?, cast_slice_mut(&mut wide_x));
        let out = &mut cast_slice_mut(&mut out)[..to.size];
        to.store(out, cast_slice_mut(&mut wide_out), |out| map(out, x));
        return to.set_scalar(ctx, out);
    }
    let x = ctx.take_input(0)?;
    ctx.set_output(0, map_tensor(x, types, cost, map)?);
    Ok(())
}

/// Computes `map` of a tensor, in the operand's buffer if both element types are equal and the tensor has no other
/// reader.
pub(crate) fn map_tensor(x: Tensor, types: [LaneType; 2], cost: Cost, map: &Map<'_>) -> Result<Tensor> {
    let [from, to] = types;
    let chunk = chunk_size(x.num_elements(), cost) * to.size;
    if from.dtype == to.dtype && x.is_unique() {
        let mut out = x;
        for_chunks(to.elements_mut(&mut out)?, chunk, |_, part| map_in_place(part, to, map));
        return Ok(out);
    }
    let mut out = Tensor::unspecified(to.dtype, x.shape().clone())?;
    let x = from.elements(&x)?;
    for_chunks(to.elements_mut(&mut out)?, chunk, |start, part| {
        let (start, count) = (to.count(start), to.count(part.len()));
        let x = &x[start * from.size..][..count * from.size];
        if from.is_native && to.is_native {
            return map(part, x);
        }
        let (mut wide_x, mut wide_out) = (from.wide_block(count), to.wide_block(count));
        for (out, x) in part.chunks_mut(BLOCK * to.size).zip(x.chunks(BLOCK * from.size)) {
            let x = from.load(x, cast_slice_mut(&mut wide_x));
            to.store(out, cast_slice_mut(&mut wide_out), |out| map(out, x));
        }
    });
    Ok(out)
}

/// Applies `map` to the elements `values` in place.
fn map_in_place(values: &mut [u8], lane: LaneType, map: &Map<'_>) {
    let count = lane.count(values.len());
    let (mut x, mut wide_out) = (lane.block(count), lane.wide_block(count));
    for out in values.chunks_mut(BLOCK * lane.size) {
        let x = &*lane.widen(out, cast_slice_mut(&mut x));
        lane.store(out, cast_slice_mut(&mut wide_out), |out| map(out, x));
    }
}
