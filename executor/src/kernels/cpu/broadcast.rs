//! Functions of two tensors, element by element, where an axis of size 1, or one that is missing in front,
//! repeats along the other tensor's.

use super::simd::{Vector, vectorized};
use super::threads::{BLOCK, Cost, chunk_size, for_chunks};
use super::wide::{Lane, block, load, store, wide_block};
use crate::error::{Error, Result};
use crate::kernel::KernelContext;
use bytemuck::Zeroable;
use graph::{Element, Shape, Tensor};
use smallvec::SmallVec;

/// How two shapes fit together. Neighbouring axes that both tensors walk alike are one.
#[derive(Debug)]
pub(crate) struct Plan {
    shape: Shape,
    /// Outermost first, none of size 1. The innermost one's steps are 0 or 1.
    axes: SmallVec<[Axis; 4]>,
}

#[derive(Clone, Copy, Debug)]
struct Axis {
    size: usize,
    /// Elements to the next index, in each tensor: 0 where it repeats.
    step: [usize; 2],
}

impl Plan {
    /// # Errors
    /// `InvalidArgument` if the shapes do not broadcast.
    pub(crate) fn new(x: &Shape, y: &Shape) -> Result<Plan> {
        Plan::fit(x, y)?.ok_or_else(|| Error::invalid(format!("Incompatible shapes: {x} vs. {y}")))
    }

    /// `None` if the shapes do not broadcast.
    pub(crate) fn fit(x: &Shape, y: &Shape) -> Result<Option<Plan>> {
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
                // `passed` grows only along axes that do not repeat: equal kinds continue each other.
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

    /// Both tensors have `x`'s elements in `x`'s order, whatever the second one's shape.
    pub(crate) fn flat(x: &Shape) -> Plan {
        let axes = SmallVec::from_slice(&[Axis { size: x.num_elements(), step: [1, 1] }]);
        Plan { shape: x.clone(), axes }
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Each axis's size, outermost first, and how many elements further its next index is in each tensor.
    #[cfg(feature = "cuda")]
    pub(crate) fn axes(&self) -> impl Iterator<Item = (usize, [usize; 2])> {
        self.axes.iter().map(|axis| (axis.size, axis.step))
    }

    /// After how many elements the second tensor begins anew, if it is one run of elements that repeats.
    pub(crate) fn period(&self) -> Option<usize> {
        match self.axes.as_slice() {
            [outer, inner] => (outer.step[1] == 0 && inner.step[1] == 1).then_some(inner.size),
            _ => None,
        }
    }

    /// Whether each tensor repeats along the innermost axis.
    pub(crate) fn repeats(&self) -> [bool; 2] {
        self.axes.last().map_or([false, false], |a| a.step.map(|s| s == 0))
    }

    /// Calls `visit` with runs of the output's elements `start..start + len`, in order: the run's position
    /// relative to `start`, its length, and where it starts in each tensor.
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

/// A function of two elements.
pub(crate) trait Binary<T> {
    type Out;
    fn apply(x: T, y: T) -> Self::Out;
}

/// One side of a run: an element for each of the output's, or one for all.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand<'a, T> {
    Many(&'a [T]),
    One(T),
}

/// A function of two runs of elements.
pub(crate) type Zip<'f, A, R> = dyn Fn(&mut [R], &Operand<'_, A>, &Operand<'_, A>) + Sync + 'f;

/// The loop over two runs of elements.
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
        // Scalars, most often: they have no use for vectors.
        (Operand::One(x), Operand::One(y)) => out.fill(op(x, y)),
        (x, y) => vectorized(ZipLoop { out, x, y, op }),
    }
}

/// Applies `O` to each pair of elements of a run.
pub(crate) fn zip_run<T: Copy, R: Copy, O: Binary<T, Out = R>>(
    out: &mut [R],
    x: &Operand<'_, T>,
    y: &Operand<'_, T>,
) {
    zip_run_with(out, x, y, O::apply);
}

/// A kernel's whole work: output 0 is `zip` of inputs 0 and 1.
pub(super) fn binary<A: Lane, R: Lane>(
    ctx: &mut KernelContext<'_>,
    cost: Cost,
    zip: &Zip<'_, A::Wide, R::Wide>,
) -> Result<()> {
    // Scalars are read where they are: graphs are full of them, and moving one costs as much as what is done to it.
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

/// Where an operand's elements are.
enum Source<'a, A> {
    Own(&'a [A]),
    /// In the output's memory, at the output's positions.
    Output,
}

/// `zip` of two tensors, in the memory of one of them where its type and size allow it and nobody else reads it.
pub(super) fn zip_tensors<A: Lane, R: Lane>(
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
            zip_part::<A, R>(plan, start, part, [Source::Output, Source::Own(y)], zip);
        });
        return Ok(out);
    }
    if fits(&y) {
        let mut out = y.reshaped(plan.shape.clone())?;
        drop(y);
        let x = x.values::<A>()?;
        for_chunks(out.values_mut::<R>()?, chunk, |start, part| {
            zip_part::<A, R>(plan, start, part, [Source::Own(x), Source::Output], zip);
        });
        return Ok(out);
    }
    let mut out = Tensor::unspecified(R::DTYPE, plan.shape.clone())?;
    let (x, y) = (x.values::<A>()?, y.values::<A>()?);
    for_chunks(out.values_mut::<R>()?, chunk, |start, part| {
        zip_part::<A, R>(plan, start, part, [Source::Own(x), Source::Own(y)], zip);
    });
    Ok(out)
}

/// The output's elements from `start` on.
fn zip_part<A: Lane, R: Lane>(
    plan: &Plan,
    start: usize,
    out: &mut [R],
    sources: [Source<'_, A>; 2],
    zip: &Zip<'_, A::Wide, R::Wide>,
) {
    let repeats = plan.repeats();
    if A::NATIVE
        && R::NATIVE
        && let [Source::Own(x), Source::Own(y)] = sources
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

/// The elements of one operand for the block of output in `out`, `done` elements into a run.
fn operand<'a, A: Lane, R: Element>(
    source: &Source<'a, A>,
    repeats: bool,
    offset: usize,
    done: usize,
    out: &[R],
    buffer: &'a mut [A::Wide],
) -> Operand<'a, A::Wide> {
    match source {
        Source::Own(values) if repeats => Operand::One(load(&values[offset..offset + 1], buffer)[0]),
        Source::Own(values) => {
            let from = offset + done;
            Operand::Many(load(&values[from..from + out.len()], buffer))
        }
        Source::Output => {
            let buffer = &mut buffer[..out.len()];
            A::widen(bytemuck::cast_slice(out), buffer);
            Operand::Many(buffer)
        }
    }
}
