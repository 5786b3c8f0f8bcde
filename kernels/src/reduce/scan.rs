//! Running sums and products along an axis.

use super::fold::Monoid;
use super::{Modular, Prod, Sum};
use crate::numeric::dispatch::dispatch;
use crate::numeric::threads::{Cost, chunk_size, for_chunks};
use crate::numeric::widen::Lane;
use crate::plan::reduce::{Direction, scan_lines};
use device::Result;
use device::kernel::{Kernel, KernelInit};
use graph::Tensor;

#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Sum,
    Product,
}

/// A function `(input, output, [length of a line, distance between its elements], direction)` that scans whole lines,
/// given as bytes.
type Scan = fn(&[u8], &mut [u8], [usize; 2], Direction);

pub(super) fn make(init: &KernelInit<'_>, operation: Operation) -> Result<Kernel> {
    let dtype = init.input_type(0);
    let scan = dispatch!(number, dtype, T => Ok(match operation {
        Operation::Sum => scan::<<T as Modular>::Bits, Sum> as Scan,
        Operation::Product => scan::<<T as Modular>::Bits, Prod>,
    }))?;
    scanned(init, scan)
}

/// Makes the kernel of running logarithms of sums of exponentials.
pub(super) fn log_sum_exp(init: &KernelInit<'_>) -> Result<Kernel> {
    let scan = dispatch!(float, init.input_type(0), T => Ok(scan::<T, LogSumExp> as Scan))?;
    scanned(init, scan)
}

/// Adds numbers that are given by their logarithms.
struct LogSumExp;

macro_rules! log_sums {
    ($($t:ident),*) => { $(impl Monoid<$t> for LogSumExp {
        const IDENTITY: $t = $t::NEG_INFINITY;

        fn combine(x: $t, y: $t) -> $t {
            if x.is_nan() || y.is_nan() {
                return $t::NAN;
            }
            let (less, more) = if x < y { (x, y) } else { (y, x) };
            // Infinite operands are not subtracted, because the difference of equal infinities is NaN.
            if less == $t::NEG_INFINITY || more == $t::INFINITY { more } else { (less - more).exp().ln_1p() + more }
        }
    })* };
}
log_sums!(f32, f64);

fn scanned(init: &KernelInit<'_>, scan: Scan) -> Result<Kernel> {
    let (direction, dtype) = (Direction::of(init)?, init.input_type(0));
    Kernel::sync(move |ctx| {
        let (size, inner) = scan_lines(ctx)?;
        let x = ctx.input(0)?;
        let mut out = Tensor::unspecified(dtype, x.shape().clone())?;
        let count = out.num_elements();
        if let Some(element) = out.num_bytes().checked_div(count) {
            if x.dtype() != dtype {
                return Err(graph::Error::DType { expected: dtype, actual: x.dtype() }.into());
            }
            let values = x.bytes()?;
            let chunk = chunk_size(count, Cost::Expensive).next_multiple_of(size * inner);
            for_chunks(out.bytes_mut()?, chunk * element, |start, out| {
                scan(&values[start..start + out.len()], out, [size, inner], direction);
            });
        }
        ctx.set_output(0, out);
        Ok(())
    })
}

fn scan<T: Lane, O: Monoid<T::Wide>>(
    x: &[u8],
    out: &mut [u8],
    [size, inner]: [usize; 2],
    direction: Direction,
) {
    let (x, out) = (bytemuck::cast_slice::<u8, T>(x), bytemuck::cast_slice_mut::<u8, T>(out));
    let mut running = vec![O::IDENTITY; inner];
    let mut wide = running.clone();
    for (x, out) in x.chunks_exact(size * inner).zip(out.chunks_exact_mut(size * inner)) {
        running.fill(O::IDENTITY);
        for i in 0..size {
            let row = if direction.reverse { size - 1 - i } else { i } * inner;
            let out = &mut out[row..row + inner];
            T::widen(&x[row..row + inner], &mut wide);
            if direction.exclusive {
                T::narrow(&running, out);
            }
            running.iter_mut().zip(&wide).for_each(|(r, &v)| *r = O::combine(*r, v));
            if !direction.exclusive {
                T::narrow(&running, out);
            }
        }
    }
}
