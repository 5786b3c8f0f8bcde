//! Products of sparse matrices with dense ones, and of dense matrices that are mostly zero.

use super::arithmetic;
use super::coo::Coo;
use crate::numeric::dispatch::dispatch;
use crate::numeric::product::{Matrix, Threads, product};
use crate::numeric::scalar::{Arithmetic, Semiring as _};
use crate::numeric::widen::{Lane, narrowed, widened};
use crate::plan::sparse::product_sizes;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Result, invalid};
use graph::{DType, Element, Shape, Tensor};
use half::bf16;

pub(super) fn with_dense(init: &KernelInit<'_>) -> Result<Kernel> {
    let adjoint = [init.attr::<bool>("adjoint_a")?, init.attr::<bool>("adjoint_b")?];
    dispatch!(number, init.output_type(0), T => Kernel::sync(move |ctx| multiply::<T>(ctx, adjoint)))
}

fn multiply<T: Lane>(ctx: &mut KernelContext<'_>, [adjoint_a, adjoint_b]: [bool; 2]) -> Result<()>
where
    T::Wide: Arithmetic,
{
    let ([rows, inner, columns], shape) = product_sizes(ctx, [adjoint_a, adjoint_b])?;
    let b = ctx.input(3)?;
    let b_columns = b.shape()[1];
    let indices = arithmetic::widened(ctx.input(0)?)?;
    let a = Coo::new(&indices, ctx.input(1)?, ctx.input(2)?)?;
    let wide = widened::<T>(b)?;
    let (dense, values) = (wide.values::<T::Wide>()?, a.values.values::<T>()?);
    let mut out = Tensor::zeros(T::Wide::DTYPE, shape)?;
    let sums = out.values_mut::<T::Wide>()?;
    let (row_axis, inner_axis) = if adjoint_a { (1, 0) } else { (0, 1) };
    for (i, (index, &value)) in a.rows().zip(values).enumerate() {
        let (m, k) = (index[row_axis], index[inner_axis]);
        if k < 0 || k as usize >= inner {
            invalid!("k ({k}) from index[{i},{inner_axis}] out of bounds (>={inner})");
        }
        if m < 0 || m as usize >= rows {
            invalid!("m ({m}) from index[{i},{row_axis}] out of bounds (>={rows})");
        }
        let (m, k) = (m as usize, k as usize);
        let factor = value.to_wide();
        let factor = if adjoint_a { factor.conjugated() } else { factor };
        let sums = &mut sums[m * columns..(m + 1) * columns];
        if adjoint_b {
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = sum.plus(factor.times(dense[j * b_columns + k].conjugated()));
            }
        } else {
            for (sum, &y) in sums.iter_mut().zip(&dense[k * columns..(k + 1) * columns]) {
                *sum = sum.plus(factor.times(y));
            }
        }
    }
    let out = narrowed::<T>(out)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Makes the kernel of SparseMatMul, whose operands are dense; that they are mostly zero is only a hint, which the
/// kernel ignores.
pub(super) fn mostly_zero(init: &KernelInit<'_>) -> Result<Kernel> {
    let flips = [init.attr::<bool>("transpose_a")?, init.attr::<bool>("transpose_b")?];
    Kernel::sync(move |ctx| {
        let single = |t: &Tensor| match t.dtype() {
            DType::BFloat16 => widened::<bf16>(t),
            _ => Ok(t.clone()),
        };
        let (a, b) = (ctx.input(0)?, ctx.input(1)?);
        let (&[a_rows, a_columns], &[b_rows, b_columns]) = (a.shape().dims(), b.shape().dims()) else {
            invalid!("a and b must be matrices, not of shapes {} and {}", a.shape(), b.shape());
        };
        let (a, b) = (single(a)?, single(b)?);
        let mut x = Matrix::new(a.values::<f32>()?, a_rows, a_columns, a_columns);
        let mut y = Matrix::new(b.values::<f32>()?, b_rows, b_columns, b_columns);
        let (m, k) = if flips[0] { (a_columns, a_rows) } else { (a_rows, a_columns) };
        let (inner, n) = if flips[1] { (b_columns, b_rows) } else { (b_rows, b_columns) };
        if k != inner {
            invalid!("Matrix size incompatible: a: {}, b: {}", a.shape(), b.shape());
        }
        if flips[0] {
            x = x.transposed();
        }
        if flips[1] {
            y = y.transposed();
        }
        let mut out = Tensor::zeros(DType::Float, Shape::new(&[m, n])?)?;
        if k > 0 && m > 0 && n > 0 {
            let threads = Threads::for_work(m.saturating_mul(k).saturating_mul(n));
            product(out.values_mut::<f32>()?, n, x, y, false, threads);
        }
        ctx.set_output(0, out);
        Ok(())
    })
}
