//! Products of sparse matrices with dense ones, and of dense matrices that are mostly zero.

use super::arithmetic;
use super::coo::Coo;
use crate::numeric::dispatch::dispatch;
use crate::numeric::product::{Matrix, Threads, product};
use crate::numeric::scalar::{Arithmetic, Semiring as _};
use crate::numeric::widen::{Lane, narrowed, widened};
use crate::plan::sparse::product_sizes;
use device::kernel::{Kernel, KernelInit};
use device::{Result, invalid};
use graph::{DType, Shape, Tensor};
use half::bf16;

pub(super) fn with_dense(init: &KernelInit<'_>) -> Result<Kernel> {
    let [adjoint_a, adjoint_b] = [init.attr::<bool>("adjoint_a")?, init.attr::<bool>("adjoint_b")?];
    let types = match init.output_type(0) {
        DType::Int32 => Types::of::<i32>(),
        dtype => dispatch!(fraction, dtype, T => Ok(Types::of::<T>()))?,
    };
    Kernel::sync(move |ctx| {
        let ([rows, inner, columns], shape) = product_sizes(ctx, [adjoint_a, adjoint_b])?;
        let b = ctx.input(3)?;
        let indices = arithmetic::widened(ctx.input(0)?)?;
        let a = Coo::new(&indices, ctx.input(1)?, ctx.input(2)?)?;
        let dense = (types.widen)(b)?;
        let mut out = Tensor::zeros(dense.dtype(), shape)?;
        let (row_axis, inner_axis) = if adjoint_a { (1, 0) } else { (0, 1) };
        let mut places = Vec::with_capacity(a.len());
        for (i, index) in a.rows().enumerate() {
            let (m, k) = (index[row_axis], index[inner_axis]);
            if k < 0 || k as usize >= inner {
                invalid!("k ({k}) from index[{i},{inner_axis}] out of bounds (>={inner})");
            }
            if m < 0 || m as usize >= rows {
                invalid!("m ({m}) from index[{i},{row_axis}] out of bounds (>={rows})");
            }
            places.push((m as usize, k as usize));
        }
        let factors = Factors { places: &places, adjoint_a, adjoint_b, columns, b_columns: b.shape()[1] };
        (types.multiply)(&mut out, a.values, &dense, factors)?;
        let out = (types.narrow)(out)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The functions of the kernel that depend on the element type.
struct Types {
    widen: fn(&Tensor) -> Result<Tensor>,
    multiply: fn(&mut Tensor, &Tensor, &Tensor, Factors<'_>) -> Result<()>,
    narrow: fn(Tensor) -> Result<Tensor>,
}

impl Types {
    fn of<T: Lane<Wide: Arithmetic>>() -> Types {
        Types { widen: widened::<T>, multiply: multiply::<T>, narrow: narrowed::<T> }
    }
}

/// The coordinates of the left factor's values, whether each factor is used as its adjoint, and the widths of the
/// product and of the right factor.
struct Factors<'a> {
    /// The row and the column of each value of the left factor.
    places: &'a [(usize, usize)],
    adjoint_a: bool,
    adjoint_b: bool,
    /// The number of columns of the product.
    columns: usize,
    /// The number of columns of the right factor as it is stored.
    b_columns: usize,
}

/// Adds the product of the values `a` of a sparse matrix with the dense matrix `b` to `out`.
fn multiply<T: Lane<Wide: Arithmetic>>(
    out: &mut Tensor,
    a: &Tensor,
    b: &Tensor,
    Factors { places, adjoint_a, adjoint_b, columns, b_columns }: Factors<'_>,
) -> Result<()> {
    let (values, dense, sums) = (a.values::<T>()?, b.values::<T::Wide>()?, out.values_mut::<T::Wide>()?);
    for (&(m, k), &value) in places.iter().zip(values) {
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
    Ok(())
}

/// Makes the kernel of SparseMatMul, whose operands are dense. The attributes `a_is_sparse` and `b_is_sparse` are only
/// hints that an operand is mostly zero; the kernel ignores them.
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
