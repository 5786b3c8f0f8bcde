//! Element-wise functions of two tensors with broadcasting: an axis of size 1, or a missing leading axis, repeats along
//! the other tensor's axis. Only the loop over a run of elements is compiled for each type and function; the remaining
//! code handles elements as bytes.

use super::simd::{Vector, vectorized};
use super::threads::{BLOCK, Cost, chunk_size, for_chunks};
use super::widen::{Lane, LaneType};
use bytemuck::{cast_slice, cast_slice_mut};
use device::kernel::{Kernel, KernelContext};
use device::{Error, Result};
use graph::{DType, Element, Shape, Tensor};
use smallvec::SmallVec;

/// The plan by which two tensors of given shapes broadcast. Neighbouring axes along which the same tensors repeat are
/// merged into one axis.
#[derive(Debug)]
pub struct Plan {
    shape: Shape,
    /// The output's axes, outermost first, without axes of size 1. The innermost axis has steps of 0 or 1.
    axes: SmallVec<[Axis; 4]>,
}

/// An axis of the output, or several merged axes.
#[derive(Clone, Copy, Debug)]
struct Axis {
    pub size: usize,
    /// The stride of each of the two tensors along the axis, in elements; 0 for a tensor that repeats along the axis.
    step: [usize; 2],
}

impl Plan {
    /// Returns the plan by which `x` and `y` broadcast.
    ///
    /// # Errors
    /// `InvalidArgument` if the shapes do not broadcast.
    pub fn new(x: &Shape, y: &Shape) -> Result<Plan> {
        Plan::fit(x, y)?.ok_or_else(|| Error::invalid(format!("Incompatible shapes: {x} vs. {y}")))
    }

    /// Returns the plan by which `x` and `y` broadcast, or `None` if the shapes do not broadcast.
    pub fn fit(x: &Shape, y: &Shape) -> Result<Option<Plan>> {
        if x == y {
            let axes = SmallVec::from_slice(&[Axis { size: x.num_elements(), step: [1, 1] }]);
            return Ok(Some(Plan { shape: x.clone(), axes }));
        }
        let rank = x.rank().max(y.rank());
        let mut dims = SmallVec::<[usize; 4]>::from_elem(1, rank);
        let mut axes = SmallVec::<[Axis; 4]>::new();
        let mut passed = [1usize; 2];
        for back in 1..=rank {
            let size = |s: &Shape| if back <= s.rank() { s[s.rank() - back] } else { 1 };
            let sizes = [size(x), size(y)];
            let out = match sizes {
                [1, d] | [d, 1] => d,
                [a, b] if a == b => a,
                _ => return Ok(None),
            };
            dims[rank - back] = out;
            if out == 1 {
                continue;
            }
            let step = [0, 1].map(|i| if sizes[i] == 1 { 0 } else { passed[i] });
            match axes.last_mut() {
                // The same tensors repeat along both axes, so the axes merge: the stride along the outer axis is the
                // size of the inner axis times its stride, because `passed` grows only along axes that do not repeat.
                Some(inner) if [0, 1].iter().all(|&i| (inner.step[i] == 0) == (step[i] == 0)) => {
                    inner.size = inner.size.saturating_mul(out);
                }
                _ => axes.push(Axis { size: out, step }),
            }
            passed = [0, 1].map(|i| passed[i].saturating_mul(sizes[i]));
        }
        axes.reverse();
        if axes.is_empty() {
            axes.push(Axis { size: 1, step: [1, 1] });
        }
        Ok(Some(Plan { shape: Shape::new(&dims)?, axes }))
    }

    /// Returns the plan that pairs the elements of two tensors of equally many elements in row-major order; the result
    /// has the shape `x`.
    pub fn flat(x: &Shape) -> Plan {
        let axes = SmallVec::from_slice(&[Axis { size: x.num_elements(), step: [1, 1] }]);
        Plan { shape: x.clone(), axes }
    }

    /// Returns the shape of the result.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the size of each axis of the output, outermost first, and the stride in elements of both tensors along
    /// it.
    pub fn axes(&self) -> impl Iterator<Item = (usize, [usize; 2])> {
        self.axes.iter().map(|axis| (axis.size, axis.step))
    }

    /// Returns the number of elements of the second tensor if the whole tensor repeats along the first tensor's outer
    /// axis as one contiguous run.
    pub(crate) fn period(&self) -> Option<usize> {
        match self.axes.as_slice() {
            [outer, inner] => (outer.step[1] == 0 && inner.step[1] == 1).then_some(inner.size),
            _ => None,
        }
    }

    /// Returns, for each of the two tensors, whether it repeats along the innermost axis.
    pub(crate) fn repeats(&self) -> [bool; 2] {
        self.axes.last().map_or([false, false], |a| a.step.map(|s| s == 0))
    }

    /// Cuts the output's elements `start..start + len` into runs, and calls `visit` for each run with its position
    /// relative to `start`, its length, and the index of its first element in each tensor.
    pub(crate) fn walk(&self, start: usize, len: usize, mut visit: impl FnMut(usize, usize, [usize; 2])) {
        let Some((inner, outer)) = self.axes.split_last() else { return };
        if len == 0 || inner.size == 0 {
            return;
        }
        let (mut row, mut column) = (start / inner.size, start % inner.size);
        let mut index = SmallVec::<[usize; 4]>::from_elem(0, outer.len());
        let mut offset = [0usize; 2];
        for (i, axis) in outer.iter().enumerate().rev() {
            index[i] = row % axis.size;
            row /= axis.size;
            offset = [0, 1].map(|t| offset[t] + index[i] * axis.step[t]);
        }
        let mut done = 0;
        loop {
            let run = (inner.size - column).min(len - done);
            visit(done, run, [0, 1].map(|t| offset[t] + column * inner.step[t]));
            done += run;
            if done == len {
                return;
            }
            column = 0;
            for (i, axis) in outer.iter().enumerate().rev() {
                index[i] += 1;
                offset = [0, 1].map(|t| offset[t] + axis.step[t]);
                if index[i] < axis.size {
                    break;
                }
                index[i] = 0;
                offset = [0, 1].map(|t| offset[t] - axis.size * axis.step[t]);
            }
        }
    }
}

/// A function of two elements, as a type without values.
pub(crate) trait Binary<T> {
    /// The type of the result.
    type Out;
    /// Returns the function's value for `x` and `y`.
    fn apply(x: T, y: T) -> Self::Out;
}

/// An operand of a run of output elements: one element per output element, or a single element that repeats.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand<'a, T> {
    Many(&'a [T]),
    One(T),
}

/// The bytes of an [`Operand`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperandBytes<'a> {
    bytes: &'a [u8],
    /// True for the bytes of a single element that repeats.
    repeats: bool,
}

impl<'a> OperandBytes<'a> {
    /// Returns an operand that has one element per output element, stored in `bytes`.
    pub(crate) fn many(bytes: &'a [u8]) -> OperandBytes<'a> {
        OperandBytes { bytes, repeats: false }
    }

    /// Returns the operand with its bytes as elements of type `T`.
    #[inline]
    pub(crate) fn elements<T: Element>(self) -> Operand<'a, T> {
        let elements = cast_slice(self.bytes);
        if self.repeats { Operand::One(elements[0]) } else { Operand::Many(elements) }
    }

    /// Returns the part of an operand's `elements` of `size` bytes each for a run of `len` output elements.
    #[inline]
    fn of_run(elements: &'a [u8], size: usize, at: usize, len: usize, repeats: bool) -> OperandBytes<'a> {
        let len = if repeats { 1 } else { len };
        OperandBytes { bytes: &elements[at * size..(at + len) * size], repeats }
    }
}

/// A function that combines the bytes of two runs of elements into the bytes of a run of results, in the types that
/// kernels compute in.
pub(crate) type Zip<'f> = dyn Fn(&mut [u8], OperandBytes<'_>, OperandBytes<'_>) + Sync + 'f;

/// A [`Zip`] that captures nothing.
pub(crate) type ZipFunction = fn(&mut [u8], OperandBytes<'_>, OperandBytes<'_>);

/// The loop over two runs of elements, compiled for each vector instruction set.
pub(crate) struct ZipLoop<'a, T, R, F> {
    pub(crate) out: &'a mut [R],
    pub(crate) x: Operand<'a, T>,
    pub(crate) y: Operand<'a, T>,
    pub(crate) op: F,
}

impl<T: Copy, R: Copy, F: Fn(T, T) -> R> Vector for ZipLoop<'_, T, R, F> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        match (self.x, self.y) {
            (Operand::Many(x), Operand::Many(y)) => {
                for ((o, &x), &y) in self.out.iter_mut().zip(x).zip(y) {
                    *o = (self.op)(x, y);
                }
            }
            (Operand::Many(x), Operand::One(y)) => {
                for (o, &x) in self.out.iter_mut().zip(x) {
                    *o = (self.op)(x, y);
                }
            }
            (Operand::One(x), Operand::Many(y)) => {
                for (o, &y) in self.out.iter_mut().zip(y) {
                    *o = (self.op)(x, y);
                }
            }
            (Operand::One(x), Operand::One(y)) => self.out.fill((self.op)(x, y)),
        }
    }
}

/// Applies `op`, which should be `#[inline(always)]` or a closure, to each pair of elements of a run.
pub(crate) fn zip_with<T: Element, R: Element>(
    out: &mut [u8],
    x: OperandBytes<'_>,
    y: OperandBytes<'_>,
    op: impl Fn(T, T) -> R,
) {
    let out: &mut [R] = cast_slice_mut(out);
    match (x.elements(), y.elements()) {
        // The operands are mostly scalars, which gain nothing from vector instructions.
        (Operand::One(x), Operand::One(y)) => out.fill(op(x, y)),
        (x, y) => vectorized(ZipLoop { out, x, y, op }),
    }
}

/// Applies the function `O` to each pair of elements of a run.
pub(crate) fn zip_run<T: Element, R: Element, O: Binary<T, Out = R>>(
    out: &mut [u8],
    x: OperandBytes<'_>,
    y: OperandBytes<'_>,
) {
    zip_with(out, x, y, O::apply);
}

/// Applies the function `O` to each pair of elements of a run without vector instructions.
pub(crate) fn zip_each<T: Element, R: Element, O: Binary<T, Out = R>>(
    out: &mut [u8],
    x: OperandBytes<'_>,
    y: OperandBytes<'_>,
) {
    let out: &mut [R] = cast_slice_mut(out);
    let [x_step, y_step] = [usize::from(!x.repeats), usize::from(!y.repeats)];
    let (x, y): (&[T], &[T]) = (cast_slice(x.bytes), cast_slice(y.bytes));
    for (i, o) in out.iter_mut().enumerate() {
        *o = O::apply(x[i * x_step], y[i * y_step]);
    }
}

/// Makes a kernel: output 0 is the function `O` of inputs 0 and 1.
pub(crate) fn kernel<A: Lane, R: Lane, O: Binary<A::Wide, Out = R::Wide>>(cost: Cost) -> Result<Kernel> {
    zip_kernel([A::DTYPE, R::DTYPE], cost, zip_run::<A::Wide, R::Wide, O>)
}

/// Makes a kernel like [`kernel`], but without vector instructions, for a function that calls a library or divides
/// integers.
pub(crate) fn unvectorized_kernel<A: Lane, R: Lane, O: Binary<A::Wide, Out = R::Wide>>() -> Result<Kernel> {
    zip_kernel([A::DTYPE, R::DTYPE], Cost::Expensive, zip_each::<A::Wide, R::Wide, O>)
}

/// Makes a kernel that sets output 0 to `zip` of inputs 0 and 1; `dtypes` holds the dtype of both inputs and the dtype
/// of the output.
pub(crate) fn zip_kernel(dtypes: [DType; 2], cost: Cost, zip: ZipFunction) -> Result<Kernel> {
    let types = dtypes.map(LaneType::of);
    Kernel::sync(move |ctx| binary(ctx, types, cost, &zip))
}

/// Sets output 0 to `zip` of inputs 0 and 1; `types` holds the element type of both inputs and the element type of the
/// output.
pub(crate) fn binary(
    ctx: &mut KernelContext<'_>,
    types: [LaneType; 2],
    cost: Cost,
    zip: &Zip<'_>,
) -> Result<()> {
    // Scalars are read in place: they are frequent in graphs, and moving a scalar costs as much as the computation.
    let (x, y) = (ctx.input(0)?, ctx.input(1)?);
    if x.shape().rank() == 0 && y.shape().rank() == 0 {
        let [from, to] = types;
        let [mut out, mut wide_x, mut wide_y, mut wide_out] = [[0u64; 2]; 4];
        let single = |bytes| OperandBytes { bytes, repeats: true };
        let x = single(from.load(from.elements(x)?, cast_slice_mut(&mut wide_x)));
        let y = single(from.load(from.elements(y)?, cast_slice_mut(&mut wide_y)));
        let out = &mut cast_slice_mut(&mut out)[..to.size];
        to.store(out, cast_slice_mut(&mut wide_out), |out| zip(out, x, y));
        return to.set_scalar(ctx, out);
    }
    let plan = Plan::new(x.shape(), y.shape())?;
    let operands = [ctx.take_input(0)?, ctx.take_input(1)?];
    ctx.set_output(0, zip_tensors(&plan, operands, types, cost, zip)?);
    Ok(())
}

/// The memory that holds an operand's elements.
#[derive(Clone, Copy)]
enum OperandSource<'a> {
    Elements(&'a [u8]),
    /// The elements are in the output's buffer; each lies at the position of the output element that is computed from
    /// it.
    Output,
}

/// Computes `zip` of two tensors. The result reuses the buffer of an operand that has the result's dtype and size and
/// no other reader.
pub(crate) fn zip_tensors(
    plan: &Plan,
    operands: [Tensor; 2],
    types: [LaneType; 2],
    cost: Cost,
    zip: &Zip<'_>,
) -> Result<Tensor> {
    let ([x, y], [from, to]) = (operands, types);
    let count = plan.shape.num_elements();
    let fits = |t: &Tensor| from.dtype == to.dtype && t.num_elements() == count && t.is_unique();
    let chunk = chunk_size(count, cost) * to.size;
    let compute = |out: &mut [u8], sources| {
        for_chunks(out, chunk, |start, part| zip_part(plan, to.count(start), part, sources, types, zip));
    };
    if fits(&x) {
        let mut out = x.reshaped(plan.shape.clone())?;
        drop(x);
        let y = from.elements(&y)?;
        compute(to.elements_mut(&mut out)?, [OperandSource::Output, OperandSource::Elements(y)]);
        return Ok(out);
    }
    if fits(&y) {
        let mut out = y.reshaped(plan.shape.clone())?;
        drop(y);
        let x = from.elements(&x)?;
        compute(to.elements_mut(&mut out)?, [OperandSource::Elements(x), OperandSource::Output]);
        return Ok(out);
    }
    let mut out = Tensor::unspecified(to.dtype, plan.shape.clone())?;
    let sources = [OperandSource::Elements(from.elements(&x)?), OperandSource::Elements(from.elements(&y)?)];
    compute(to.elements_mut(&mut out)?, sources);
    Ok(out)
}

/// Computes the elements of `out`, a part of the output that begins at element `start`.
fn zip_part(
    plan: &Plan,
    start: usize,
    out: &mut [u8],
    sources: [OperandSource<'_>; 2],
    types: [LaneType; 2],
    zip: &Zip<'_>,
) {
    let ([from, to], repeats) = (types, plan.repeats());
    let count = to.count(out.len());
    if from.is_native
        && to.is_native
        && let [OperandSource::Elements(x), OperandSource::Elements(y)] = sources
    {
        plan.walk(start, count, |at, len, [i, j]| {
            let x = OperandBytes::of_run(x, from.size, i, len, repeats[0]);
            let y = OperandBytes::of_run(y, from.size, j, len, repeats[1]);
            zip(&mut out[at * to.size..(at + len) * to.size], x, y);
        });
        return;
    }
    let mut wide = [from.block(count), from.block(count)];
    let mut wide_out = to.wide_block(count);
    plan.walk(start, count, |at, len, offsets| {
        for done in (0..len).step_by(BLOCK) {
            let len = (len - done).min(BLOCK);
            let out = &mut out[(at + done) * to.size..(at + done + len) * to.size];
            let [x, y] = &mut wide;
            let position = |i: usize| if repeats[i] { offsets[i] } else { offsets[i] + done };
            let x = sources[0].load(from, (position(0), len), repeats[0], out, cast_slice_mut(x));
            let y = sources[1].load(from, (position(1), len), repeats[1], out, cast_slice_mut(y));
            to.store(out, cast_slice_mut(&mut wide_out), |out| zip(out, x, y));
        }
    });
}

impl OperandSource<'_> {
    /// Returns the operand for the block `out` of the output; `run` is the index of the operand's first element and the
    /// length of the block. The operand's elements are in `buffer` if they have to be converted or would be
    /// overwritten.
    fn load<'a>(
        &'a self,
        lane: LaneType,
        run: (usize, usize),
        repeats: bool,
        out: &[u8],
        buffer: &'a mut [u8],
    ) -> OperandBytes<'a> {
        match *self {
            OperandSource::Elements(elements) => {
                let run = OperandBytes::of_run(elements, lane.size, run.0, run.1, repeats);
                OperandBytes { bytes: lane.load(run.bytes, buffer), repeats }
            }
            OperandSource::Output => OperandBytes::many(lane.widen(out, buffer)),
        }
    }
}
