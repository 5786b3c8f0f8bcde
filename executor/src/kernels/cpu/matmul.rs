//! Products of matrices, alone and in batches.

use super::broadcast::Plan;
use super::dispatch::dispatch;
use super::elementwise::Lane;
use super::scalar::Number;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use gemm::Parallelism;
use graph::DType::{self, *};
use graph::{Element, Shape, Tensor};
use rayon::prelude::*;
use std::any::TypeId;

const TYPES: &[DType] =
    &[BFloat16, Half, Float, Double, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("MatMul", &[("T", TYPES)], |init| {
        let flips = [init.attr("transpose_a")?, init.attr("transpose_b")?];
        make(init, flips, single)
    }),
    KernelDef::of("BatchMatMul", &[("T", TYPES)], |init| {
        make(init, [init.attr("adj_x")?, init.attr("adj_y")?], same_batches)
    }),
    KernelDef::of("BatchMatMulV2", &[("T", TYPES)], |init| {
        make(init, [init.attr("adj_x")?, init.attr("adj_y")?], broadcast_batches)
    }),
];

/// Checks ranks, and says how the batches fit together.
type Batches = fn(&Shape, &Shape) -> Result<Plan>;

fn make(init: &KernelInit<'_>, flips: [bool; 2], batches: Batches) -> Result<Kernel> {
    dispatch!(real, init.input_type(0), T => Kernel::sync(move |ctx| multiply::<T>(ctx, flips, batches)))
}

fn single(x: &Shape, y: &Shape) -> Result<Plan> {
    for (i, s) in [x, y].into_iter().enumerate() {
        if s.rank() != 2 {
            crate::invalid!("In[{i}] is not a matrix. Instead it has shape {s}");
        }
    }
    Plan::new(&Shape::scalar(), &Shape::scalar())
}

fn same_batches(x: &Shape, y: &Shape) -> Result<Plan> {
    if x.rank() != y.rank() {
        crate::invalid!("In[0] and In[1] has different ndims: {x} vs. {y}");
    }
    at_least_matrices(x, y)?;
    for i in 0..x.rank() - 2 {
        if x[i] != y[i] {
            crate::invalid!("In[0].dim({i}) and In[1].dim({i}) must be the same: {x} vs {y}");
        }
    }
    broadcast_batches(x, y)
}

fn broadcast_batches(x: &Shape, y: &Shape) -> Result<Plan> {
    at_least_matrices(x, y)?;
    let batch = |s: &Shape| Shape::new(&s[..s.rank() - 2]);
    Plan::fit(&batch(x)?, &batch(y)?)?.ok_or_else(|| {
        Error::invalid(format!("In[0] and In[1] must have compatible batch dimensions: {x} vs. {y}"))
    })
}

fn at_least_matrices(x: &Shape, y: &Shape) -> Result<()> {
    for (i, s) in [x, y].into_iter().enumerate() {
        if s.rank() < 2 {
            crate::invalid!("In[{i}] ndims must be >= 2: {}", s.rank());
        }
    }
    Ok(())
}

fn multiply<T: Lane>(ctx: &mut KernelContext<'_>, flips: [bool; 2], batches: Batches) -> Result<()>
where
    T::Wide: Number,
{
    let (x, y) = (ctx.input(0)?, ctx.input(1)?);
    let plan = batches(x.shape(), y.shape())?;
    let size = |t: &Tensor, flip: bool| {
        let [.., rows, columns] = *t.shape().dims() else { return [0, 0] };
        if flip { [columns, rows] } else { [rows, columns] }
    };
    let ([m, k], [inner, n]) = (size(x, flips[0]), size(y, flips[1]));
    if k != inner {
        crate::invalid!("Matrix size-incompatible: In[0]: {}, In[1]: {}", x.shape(), y.shape());
    }
    let mut dims = plan.shape().dims().to_vec();
    dims.extend([m, n]);
    let mut out = Tensor::unspecified(T::DTYPE, Shape::new(&dims)?)?;
    if k == 0 || out.num_elements() == 0 {
        out.bytes_mut()?.fill(0);
    } else if T::NATIVE {
        let work = Work { m, k, n, flips, plan: &plan };
        work.run(wide::<T>(x)?.values()?, wide::<T>(y)?.values()?, out.values_mut::<T::Wide>()?);
    } else {
        let work = Work { m, k, n, flips, plan: &plan };
        let mut product = Tensor::unspecified(<T::Wide as Element>::DTYPE, out.shape().clone())?;
        work.run(wide::<T>(x)?.values()?, wide::<T>(y)?.values()?, product.values_mut::<T::Wide>()?);
        T::narrow(product.values()?, out.values_mut()?);
    }
    ctx.set_output(0, out);
    Ok(())
}

/// The tensor in the type that is computed in.
fn wide<T: Lane>(x: &Tensor) -> Result<Tensor> {
    if T::NATIVE {
        return Ok(x.clone());
    }
    let mut out = Tensor::unspecified(<T::Wide as Element>::DTYPE, x.shape().clone())?;
    T::widen(x.values::<T>()?, out.values_mut::<T::Wide>()?);
    Ok(out)
}

/// `m` by `k` times `k` by `n`, for each batch.
struct Work<'a> {
    m: usize,
    k: usize,
    n: usize,
    flips: [bool; 2],
    plan: &'a Plan,
}

/// Multiplications and additions from which on threads help.
const PARALLEL: usize = 25_000_000;

impl Work<'_> {
    fn run<W: Number>(&self, x: &[W], y: &[W], out: &mut [W]) {
        let (m, k, n) = (self.m, self.k, self.n);
        let each = m * k * n;
        let a = |batch: usize| Matrix::new(&x[batch * m * k..(batch + 1) * m * k], [m, k], self.flips[0]);
        let b = |batch: usize| Matrix::new(&y[batch * k * n..(batch + 1) * k * n], [k, n], self.flips[1]);
        let mut batches = Vec::with_capacity(out.len() / (m * n));
        let repeats = self.plan.repeats();
        self.plan.walk(0, out.len() / (m * n), |_, len, [i, j]| {
            batches.extend(
                (0..len).map(|c| (if repeats[0] { i } else { i + c }, if repeats[1] { j } else { j + c })),
            );
        });
        if batches.len() > 1 && each <= PARALLEL && each * batches.len() > PARALLEL {
            out.par_chunks_mut(m * n)
                .zip(&batches)
                .for_each(|(out, &(i, j))| product(out, a(i), b(j), false, false));
        } else {
            for (out, &(i, j)) in out.chunks_mut(m * n).zip(&batches) {
                product(out, a(i), b(j), false, each > PARALLEL);
            }
        }
    }
}

/// A matrix over elements that may lie in either order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, T> {
    values: &'a [T],
    rows: usize,
    columns: usize,
    row_step: usize,
    column_step: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// A matrix of this size: row by row in `values`, or, if `flipped`, column by column.
    ///
    /// # Panics
    /// If the number of values is not the size's.
    pub(crate) fn new(values: &'a [T], [rows, columns]: [usize; 2], flipped: bool) -> Matrix<'a, T> {
        assert_eq!(values.len(), rows * columns);
        let (row_step, column_step) = if flipped { (1, rows) } else { (columns, 1) };
        Matrix { values, rows, columns, row_step, column_step }
    }
}

/// Writes the product of two matrices row by row into `out`, or adds it to what is there.
///
/// # Panics
/// If the sizes do not fit.
pub(crate) fn product<T: Number>(
    out: &mut [T],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    add: bool,
    threads: bool,
) {
    assert_eq!(a.columns, b.rows);
    assert_eq!(out.len(), a.rows * b.columns);
    if TypeId::of::<T>() != TypeId::of::<f32>() && TypeId::of::<T>() != TypeId::of::<f64>() {
        return integer_product(out, a, b, add);
    }
    let threads = if threads { rayon::current_num_threads() } else { 1 };
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    // SAFETY: each matrix is a slice of rows * columns elements that its steps enumerate, as checked when it was
    // made; `out` has one element for each of the product's and is borrowed for writing.
    unsafe {
        gemm::gemm(
            a.rows,
            b.columns,
            a.columns,
            out.as_mut_ptr(),
            1,
            b.columns as isize,
            add,
            a.values.as_ptr(),
            a.column_step as isize,
            a.row_step as isize,
            b.values.as_ptr(),
            b.column_step as isize,
            b.row_step as isize,
            T::ONE,
            T::ONE,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// Row by row: each element of `a` times a row of `b`.
fn integer_product<T: Number>(out: &mut [T], a: Matrix<'_, T>, b: Matrix<'_, T>, add: bool) {
    if !add {
        out.fill(T::ZERO);
    }
    let columns = b.columns;
    for (i, out) in out.chunks_mut(columns.max(1)).enumerate() {
        for j in 0..a.columns {
            let factor = a.values[i * a.row_step + j * a.column_step];
            let row = &b.values[j * b.row_step..];
            if b.column_step == 1 {
                for (o, &v) in out.iter_mut().zip(&row[..columns]) {
                    *o = o.plus(factor.times(v));
                }
            } else {
                for (o, &v) in out.iter_mut().zip(row.iter().step_by(b.column_step)) {
                    *o = o.plus(factor.times(v));
                }
            }
        }
    }
}
