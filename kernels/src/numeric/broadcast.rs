//! Element-wise functions of two tensors with broadcasting: an axis of size 1, or a missing leading axis, repeats
//! along the other tensor's axis.

use super::simd::{Vector, vectorized};
use super::threads::{BLOCK, Cost, chunk_size, for_chunks};
use super::widen::{Lane, block, load, store, wide_block};
use bytemuck::Zeroable;
use device::kernel::KernelContext;
use device::{Error, Result};
use graph::{Element, Shape, Tensor};
use smallvec::SmallVec;

/// How two shapes broadcast. Neighbouring axes along which each tensor continues the same way are merged into one.
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
    /// Elements from one index to the next in each tensor; 0 where the tensor repeats.
    step: [usize; 2],
}

impl Plan {
    /// Returns how `x` and `y` broadcast.
    ///
    /// # Errors
    /// `InvalidArgument` if the shapes do not broadcast.
    pub fn new(x: &Shape, y: &Shape) -> Result<Plan> {
        Plan::fit(x, y)?.ok_or_else(|| Error::invalid(format!("Incompatible shapes: {x} vs. {y}")))
    }

    /// Returns how `x` and `y` broadcast, or `None` if they do not.
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
                // `passed` grows only along axes that do not repeat, so an axis that repeats in the same tensors as
                // the inner one continues it.
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

    /// Returns the plan for two tensors of equally many elements, paired in order; the result has the shape `x`.
    pub fn flat(x: &Shape) -> Plan {
        let axes = SmallVec::from_slice(&[Axis { size: x.num_elements(), step: [1, 1] }]);
        Plan { shape: x.clone(), axes }
    }

    /// The shape of the result.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns, for each axis from the outermost, its size and the elements from one index to the next in each
    /// tensor.
    pub fn axes(&self) -> impl Iterator<Item = (usize, [usize; 2])> {
        self.axes.iter().map(|axis| (axis.size, axis.step))
    }

    /// Returns the number of elements after which the second tensor repeats, if it is a contiguous run that
    /// repeats.
    pub(crate) fn period(&self) -> Option<usize> {
        match self.axes.as_slice() {
            [outer, inner] => (outer.step[1] == 0 && inner.step[1] == 1).then_some(inner.size),
            _ => None,
        }
    }

    /// Returns, for each tensor, whether it repeats along the innermost axis.
    pub(crate) fn repeats(&self) -> [bool; 2] {
        self.axes.last().map_or([false, false], |a| a.step.map(|s| s == 0))
    }

    /// Calls `visit` with runs of the output's elements `start..start + len`, in order. Its arguments are the run's
    /// position relative to `start`, its length, and its start in each tensor.
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
/// The type of the result.
pub(crate) trait Binary<T> {
    /// Returns the function's value.
    type Out;
    fn apply(x: T, y: T) -> Self::Out;
}

/// One side of a run: one element per output element, or a single element that repeats.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand<'a, T> {
    Many(&'a [T]),
    One(T),
}

/// A function that combines two runs of elements into a run of results.
pub(crate) type Zip<'f, A, R> = dyn Fn(&mut [R], &Operand<'_, A>, &Operand<'_, A>) + Sync + 'f;

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
pub(crate) fn zip_run_with<T: Copy, R: Copy>(
    out: &mut [R],
    x: &Operand<'_, T>,
    y: &Operand<'_, T>,
    op: impl Fn(T, T) -> R,
) {
    match (*x, *y) {
        // Mostly scalars, which gain nothing from vector instructions.
        (Operand::One(x), Operand::One(y)) => out.fill(op(x, y)),
        (x, y) => vectorized(ZipLoop { out, x, y, op }),
    }
}

/// Applies the function `O` to each pair of elements of a run.
pub(crate) fn zip_run<T: Copy, R: Copy, O: Binary<T, Out = R>>(
    out: &mut [R],
    x: &Operand<'_, T>,
    y: &Operand<'_, T>,
) {
    zip_run_with(out, x, y, O::apply);
}

/// Computes a whole kernel: output 0 is `zip` of inputs 0 and 1.
pub(crate) fn binary<A: Lane, R: Lane>(
    ctx: &mut KernelContext<'_>,
    cost: Cost,
    zip: &Zip<'_, A::Wide, R::Wide>,
) -> Result<()> {
    // Scalars are read in place: they are frequent in graphs, and moving one costs as much as the computation.
    let (x, y) = (ctx.input(0)?, ctx.input(1)?);
    if x.shape().rank() == 0 && y.shape().rank() == 0 {
        let mut out = [R::Wide::zeroed()];
        let (a, b) = (x.item::<A>()?, y.item::<A>()?);
        zip(&mut out, &Operand::One(a.to_wide()), &Operand::One(b.to_wide()));
        ctx.set_scalar(0, R::of_wide(out[0]));
        return Ok(());
    }
    let plan = Plan::new(x.shape(), y.shape())?;
    let out = zip_tensors::<A, R>(&plan, ctx.take_input(0)?, ctx.take_input(1)?, cost, zip)?;
    ctx.set_output(0, out);
    Ok(())
}

/// The location of an operand's elements.
enum OperandSource<'a, A> {
    Slice(&'a [A]),
    /// The output's buffer, at the output's positions.
    Output,
}

/// Computes `zip` of two tensors. The result reuses the buffer of an operand if dtype and size allow it and the
/// tensor has no other reader.
pub(crate) fn zip_tensors<A: Lane, R: Lane>(
    plan: &Plan,
    x: Tensor,
    y: Tensor,
    cost: Cost,
    zip: &Zip<'_, A::Wide, R::Wide>,
) -> Result<Tensor> {
    let count = plan.shape.num_elements();
    let fits = |t: &Tensor| A::DTYPE == R::DTYPE && t.num_elements() == count && t.is_unique();
    let chunk = chunk_size(count, cost);
    if fits(&x) {
        let mut out = x.reshaped(plan.shape.clone())?;
        drop(x);
        let y = y.values::<A>()?;
        for_chunks(out.values_mut::<R>()?, chunk, |start, part| {
            zip_part::<A, R>(plan, start, part, [OperandSource::Output, OperandSource::Slice(y)], zip);
        });
        return Ok(out);
    }
    if fits(&y) {
        let mut out = y.reshaped(plan.shape.clone())?;
        drop(y);
        let x = x.values::<A>()?;
        for_chunks(out.values_mut::<R>()?, chunk, |start, part| {
            zip_part::<A, R>(plan, start, part, [OperandSource::Slice(x), OperandSource::Output], zip);
        });
        return Ok(out);
    }
    let mut out = Tensor::unspecified(R::DTYPE, plan.shape.clone())?;
    let (x, y) = (x.values::<A>()?, y.values::<A>()?);
    for_chunks(out.values_mut::<R>()?, chunk, |start, part| {
        zip_part::<A, R>(plan, start, part, [OperandSource::Slice(x), OperandSource::Slice(y)], zip);
    });
    Ok(out)
}

/// Computes the output's elements from position `start` on.
fn zip_part<A: Lane, R: Lane>(
    plan: &Plan,
    start: usize,
    out: &mut [R],
    sources: [OperandSource<'_, A>; 2],
    zip: &Zip<'_, A::Wide, R::Wide>,
) {
    let repeats = plan.repeats();
    if A::NATIVE
        && R::NATIVE
        && let [OperandSource::Slice(x), OperandSource::Slice(y)] = sources
    {
        let (x, y): (&[A::Wide], &[A::Wide]) = (bytemuck::cast_slice(x), bytemuck::cast_slice(y));
        plan.walk(start, out.len(), |at, len, [i, j]| {
            let x = if repeats[0] { Operand::One(x[i]) } else { Operand::Many(&x[i..i + len]) };
            let y = if repeats[1] { Operand::One(y[j]) } else { Operand::Many(&y[j..j + len]) };
            zip(bytemuck::cast_slice_mut(&mut out[at..at + len]), &x, &y);
        });
        return;
    }
    let mut wide = [block::<A::Wide>(out.len()), block(out.len())];
    let mut wide_out = wide_block::<R>(out.len());
    plan.walk(start, out.len(), |at, len, offsets| {
        for done in (0..len).step_by(BLOCK) {
            let len = (len - done).min(BLOCK);
            let out = &mut out[at + done..at + done + len];
            let [x, y] = &mut wide;
            let x = operand(&sources[0], repeats[0], offsets[0], done, out, x);
            let y = operand(&sources[1], repeats[1], offsets[1], done, out, y);
            store(out, &mut wide_out, |out| zip(out, &x, &y));
        }
    });
}

/// Returns the elements of one operand for the block of output in `out`, which begins `done` elements into a run.
fn operand<'a, A: Lane, R: Element>(
    source: &OperandSource<'a, A>,
    repeats: bool,
    offset: usize,
    done: usize,
    out: &[R],
    buffer: &'a mut [A::Wide],
) -> Operand<'a, A::Wide> {
    match source {
        OperandSource::Slice(values) if repeats => Operand::One(load(&values[offset..offset + 1], buffer)[0]),
        OperandSource::Slice(values) => {
            let from = offset + done;
            Operand::Many(load(&values[from..from + out.len()], buffer))
        }
        OperandSource::Output => {
            let buffer = &mut buffer[..out.len()];
            A::widen(bytemuck::cast_slice(out), buffer);
            Operand::Many(buffer)
        }
    }
}
