//! Kernels of recurrent cells, computed in single precision.

mod gru;
mod lstm;

use crate::numeric::product::{Matrix, Threads, product};
use crate::numeric::widen::to_wide;
use device::kernel::{KernelContext, KernelDef};
use device::{Result, invalid};
use graph::DType::{self, Float, Half};
use graph::{Shape, Tensor};

const TYPES: &[DType] = &[Half, Float];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("LSTMBlockCell", &[("T", TYPES)], lstm::cell),
    KernelDef::of("LSTMBlockCellGrad", &[("T", TYPES)], lstm::cell_gradient),
    KernelDef::of("BlockLSTM", &[("T", TYPES)], |init| lstm::layer(init, lstm::FIRST)),
    KernelDef::of("BlockLSTMV2", &[("T", TYPES)], |init| lstm::layer(init, lstm::SECOND)),
    KernelDef::of("BlockLSTMGrad", &[("T", TYPES)], |init| lstm::layer_gradient(init, lstm::FIRST)),
    KernelDef::of("BlockLSTMGradV2", &[("T", TYPES)], |init| lstm::layer_gradient(init, lstm::SECOND)),
    KernelDef::of("GRUBlockCell", &[("T", &[Float])], |_| device::kernel::Kernel::sync(gru::cell)),
    KernelDef::of("GRUBlockCellGrad", &[("T", &[Float])], |_| {
        device::kernel::Kernel::sync(gru::cell_gradient)
    }),
];

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Returns input `at` in single precision, after checking its shape; `name` is the input's name in messages.
fn operand(ctx: &KernelContext<'_>, at: usize, name: &str, dims: &[usize]) -> Result<Tensor> {
    let input = ctx.input(at)?;
    if input.shape().rank() != dims.len() {
        invalid!("Rank of {name} must be {}, got {}", dims.len(), input.shape().rank());
    }
    if let Some(i) = (0..dims.len()).find(|&i| input.shape()[i] != dims[i]) {
        invalid!("{name}.dim_size({i}) must be {}: {} vs. {}", dims[i], input.shape()[i], dims[i]);
    }
    to_wide(input)
}

/// Returns the sizes of input `at`, which must have rank `N`; `name` is the input's name in messages.
fn sizes<const N: usize>(ctx: &KernelContext<'_>, at: usize, name: &str) -> Result<[usize; N]> {
    let shape = ctx.input(at)?.shape();
    match <[usize; N]>::try_from(shape.dims()) {
        Ok(sizes) => Ok(sizes),
        Err(_) => invalid!("{name} must be {N}D, got {shape}"),
    }
}

/// Returns the size of a cell times a factor; an error if the product overflows.
fn times(count: usize, factor: usize) -> Result<usize> {
    match count.checked_mul(factor) {
        Some(product) => Ok(product),
        None => invalid!("a cell of {count} is too large"),
    }
}

/// Returns a view of a row-major matrix without gaps between its rows.
fn matrix(values: &[f32], rows: usize, columns: usize) -> Matrix<'_, f32> {
    Matrix::new(values, rows, columns, columns)
}

/// Computes `out = a b`, or `out += a b`.
fn multiply(
    out: &mut [f32],
    a: Matrix<'_, f32>,
    b: Matrix<'_, f32>,
    columns: usize,
    accumulate: bool,
    work: usize,
) {
    product(out, columns, a, b, accumulate, Threads::for_work(work));
}

/// Returns the rows of `a` and of `b` side by side.
fn beside(a: &[f32], a_columns: usize, b: &[f32], b_columns: usize, rows: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows * (a_columns + b_columns));
    for row in 0..rows {
        out.extend_from_slice(&a[row * a_columns..(row + 1) * a_columns]);
        out.extend_from_slice(&b[row * b_columns..(row + 1) * b_columns]);
    }
    out
}

/// Sets an output to single-precision values, rounded to `dtype`.
fn set(ctx: &mut KernelContext<'_>, at: usize, dtype: DType, dims: &[usize], values: &[f32]) -> Result<()> {
    let wide = Tensor::from_slice(values, Shape::new(dims)?)?;
    let out = crate::numeric::widen::from_wide(wide, dtype)?;
    ctx.set_output(at, out);
    Ok(())
}
