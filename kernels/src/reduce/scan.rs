//! Running sums and products along an axis.

use super::fold::Monoid;
use super::{Prod, Sum};
use crate::numeric::dispatch::dispatch;
use crate::numeric::scalar::Arithmetic;
use crate::numeric::threads::{Cost, chunk_size, for_chunks};
use crate::numeric::wide::Lane;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelInit};
use graph::Tensor;

#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Sum,
    Product,
}

/// The elements that a running result includes.
#[derive(Clone, Copy, Debug)]
pub struct Direction {
    /// True if the element at the result's own position is excluded.
    pub exclusive: bool,
    /// True if the scan runs from the end of the axis.
    pub reverse: bool,
}

impl Direction {
    pub fn of(init: &KernelInit<'_>) -> Result<Direction> {
        Ok(Direction { exclusive: init.attr("exclusive")?, reverse: init.attr("reverse")? })
    }
}

/// Returns the length of the axis given by input 1, and the distance between consecutive elements along it.
pub fn lines(ctx: &KernelContext<'_>) -> Result<(usize, usize)> {
    let (x, axis) = (ctx.shape(0)?, ctx.input(1)?);
    if axis.num_elements() != 1 || axis.shape().rank() != 0 {
        device::invalid!("ScanOp: axis must be a scalar, not {}", axis.shape());
    }
    let (rank, axis) = (x.rank() as i64, axis.to_i64s()?[0]);
    let at = if axis < 0 { axis.saturating_add(rank) } else { axis };
    if !(0..rank).contains(&at) {
        device::invalid!("ScanOp: Expected scan axis in the range [{}, {rank}), but got {axis}", -rank);
    }
    Ok((x[at as usize], x[at as usize + 1..].iter().product()))
}

pub(super) fn make(init: &KernelInit<'_>, operation: Operation) -> Result<Kernel> {
    let direction = Direction::of(init)?;
    dispatch!(number, init.input_type(0), T => match operation {
        Operation::Sum => Kernel::sync(move |ctx| scan::<T, Sum>(ctx, direction)),
        Operation::Product => Kernel::sync(move |ctx| scan::<T, Prod>(ctx, direction)),
    })
}

fn scan<T: Lane, O: Monoid<T::Wide>>(ctx: &mut KernelContext<'_>, direction: Direction) -> Result<()>
where
    T::Wide: Arithmetic,
{
    let (size, inner) = lines(ctx)?;
    let x = ctx.input(0)?;
    let mut out = Tensor::unspecified(T::DTYPE, x.shape().clone())?;
    if out.num_elements() > 0 {
        let (values, step) = (x.values::<T>()?, size * inner);
        let chunk = chunk_size(values.len(), Cost::Dear).next_multiple_of(step);
        for_chunks(out.values_mut::<T>()?, chunk, |start, out| {
            let mut running = vec![O::IDENTITY; inner];
            let mut wide = running.clone();
            for (b, out) in out.chunks_exact_mut(step).enumerate() {
                running.fill(O::IDENTITY);
                for i in 0..size {
                    let row = if direction.reverse { size - 1 - i } else { i } * inner;
                    let out = &mut out[row..row + inner];
                    let from = start + b * step + row;
                    T::widen(&values[from..from + inner], &mut wide);
                    if direction.exclusive {
                        T::narrow(&running, out);
                    }
                    running.iter_mut().zip(&wide).for_each(|(r, &v)| *r = O::combine(*r, v));
                    if !direction.exclusive {
                        T::narrow(&running, out);
                    }
                }
            }
        });
    }
    ctx.set_output(0, out);
    Ok(())
}
