//! Running sums and products along an axis.

use super::fold::Monoid;
use super::{Prod, Sum};
use crate::numeric::dispatch::dispatch;
use crate::numeric::scalar::Arithmetic;
use crate::numeric::threads::{Cost, chunk_size, for_chunks};
use crate::numeric::widen::Lane;
use crate::plan::reduce::{Direction, lines};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelInit};
use graph::Tensor;

#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Sum,
    Product,
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
        let chunk = chunk_size(values.len(), Cost::Expensive).next_multiple_of(step);
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
