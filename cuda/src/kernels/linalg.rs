//! Linear algebra on batches of matrices.

pub(super) mod factors;

use super::support::{Axes, allocate, function, kernel_stream, read, type_name, write};
use crate::engine::driver::Address;
use crate::engine::{Arguments, Source};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{DeviceTensor, Result};
use graph::DType::{self, Double, Float, Half};
use graph::Shape;
use kernels::numeric::dispatch::{FLOATS, INDEX};
use kernels::plan::linalg::{check_systems, matrices, square, triangular_plan};

static SOURCE: Source = Source { file: "linalg.cu", text: include_str!("linalg.cu") };

const WITH_HALF: &[(&str, &[DType])] = &[("T", &[Float, Double, Half])];
/// Dtypes of the `BatchMatrix...` and `BatchCholesky` ops, which only old graphs use.
const OLD: &[(&str, &[DType])] = &[("T", &[Float, Double])];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("Cholesky", WITH_HALF, cholesky),
    KernelDef::enqueuing("BatchCholesky", OLD, cholesky),
    KernelDef::enqueuing("MatrixDeterminant", WITH_HALF, |init| determinant(init, "determinant", 1)),
    KernelDef::enqueuing("BatchMatrixDeterminant", OLD, |init| determinant(init, "determinant", 1)),
    KernelDef::enqueuing("LogMatrixDeterminant", WITH_HALF, |init| determinant(init, "log_determinant", 2)),
    KernelDef::enqueuing("Lu", &[("T", &[Float, Double, Half]), ("output_idx_type", INDEX)], lu),
    KernelDef::enqueuing("MatrixInverse", WITH_HALF, |init| solve(init, false)),
    KernelDef::enqueuing("BatchMatrixInverse", OLD, |init| solve(init, false)),
    KernelDef::enqueuing("MatrixSolve", WITH_HALF, |init| solve(init, true)),
    KernelDef::enqueuing("BatchMatrixSolve", OLD, |init| solve(init, true)),
    KernelDef::enqueuing("MatrixTriangularSolve", &[("T", FLOATS)], triangular_solve),
    KernelDef::enqueuing("BatchMatrixTriangularSolve", OLD, triangular_solve),
];

/// Allocates working memory of `count` double-precision numbers.
fn work(ctx: &KernelContext<'_>, count: usize) -> Result<DeviceTensor> {
    allocate(ctx, Double, Shape::new(&[count])?)
}

/// Makes the kernel of `Cholesky`.
fn cholesky(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let cholesky = function(init, &SOURCE, format!("cholesky<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let (batch, size) = square(&x.shape)?;
        let count = batch.iter().product();
        let (y, work) = (allocate(ctx, dtype, x.shape.clone())?, work(ctx, x.shape.num_elements())?);
        let arguments = Arguments::new().address(read(x)?).address(write(&y)?).count(count).count(size);
        kernel_stream(ctx)?.launch_blocks(&cholesky, count, &arguments.address(write(&work)?))?;
        ctx.set_output(0, y);
        Ok(())
    })
}

/// Makes a kernel of a determinant function of the `.cu` file, with `outputs` scalar results per matrix.
fn determinant(init: &KernelInit<'_>, named: &str, outputs: usize) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let determinant = function(init, &SOURCE, format!("{named}<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let (batch, size) = square(&x.shape)?;
        let (count, shape) = (batch.iter().product(), Shape::new(batch)?);
        let work = work(ctx, x.shape.num_elements())?;
        let mut arguments = Arguments::new().address(read(x)?);
        for i in 0..outputs {
            let out = allocate(ctx, dtype, shape.clone())?;
            arguments = arguments.address(write(&out)?);
            ctx.set_output(i, out);
        }
        let arguments = arguments.count(count).count(size).address(write(&work)?);
        kernel_stream(ctx)?.launch_blocks(&determinant, count, &arguments)
    })
}

/// Makes the kernel of `Lu`.
fn lu(init: &KernelInit<'_>) -> Result<Kernel> {
    let (dtype, index) = (init.output_type(0), init.output_type(1));
    let lu = function(init, &SOURCE, format!("lu<{}, {}>", type_name(dtype)?, type_name(index)?))?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let (batch, size) = square(&x.shape)?;
        let count = batch.iter().product();
        let order = allocate(ctx, index, Shape::new(&[batch, &[size]].concat())?)?;
        let (factors, numbers) = (work(ctx, x.shape.num_elements())?, work(ctx, order.shape.num_elements())?);
        let y = allocate(ctx, dtype, x.shape.clone())?;
        let arguments = Arguments::new()
            .address(read(x)?)
            .address(write(&y)?)
            .address(write(&order)?)
            .count(count)
            .count(size)
            .address(write(&factors)?)
            .address(write(&numbers)?);
        kernel_stream(ctx)?.launch_blocks(&lu, count, &arguments)?;
        ctx.set_output(0, y);
        ctx.set_output(1, order);
        Ok(())
    })
}

/// Makes a kernel that solves systems with the right-hand sides in input 1 (`has_right`), or computes inverses.
fn solve(init: &KernelInit<'_>, has_right: bool) -> Result<Kernel> {
    let (dtype, is_adjoint) = (init.output_type(0), init.attr::<bool>("adjoint")?);
    let solve = function(init, &SOURCE, format!("solve<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let (batch, size) = square(&x.shape)?;
        let count = batch.iter().product();
        let (right, shape) = match has_right {
            true => {
                let right = ctx.device_input(1)?;
                check_systems(&x.shape, &right.shape)?;
                (read(right)?, right.shape.clone())
            }
            false => (Address(0), x.shape.clone()),
        };
        let (_, [_, columns]) = matrices(&shape)?;
        let factors = work(ctx, x.shape.num_elements())?;
        let solutions = work(ctx, shape.num_elements())?;
        let y = allocate(ctx, dtype, shape)?;
        let arguments = Arguments::new()
            .address(read(x)?)
            .address(right)
            .address(write(&y)?)
            .count(count)
            .count(size)
            .count(columns)
            .flag(is_adjoint)
            .address(write(&factors)?)
            .address(write(&solutions)?);
        kernel_stream(ctx)?.launch_blocks(&solve, count, &arguments)?;
        ctx.set_output(0, y);
        Ok(())
    })
}

/// Makes the kernel of `MatrixTriangularSolve`.
fn triangular_solve(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let (is_lower, is_adjoint): (bool, bool) = (init.attr("lower")?, init.attr("adjoint")?);
    let solve = function(init, &SOURCE, format!("triangular_solve<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let (x, right) = (ctx.device_input(0)?, ctx.device_input(1)?);
        let plan = triangular_plan(&x.shape, &right.shape)?;
        let axes = Axes::new(plan.axes().map(|(size, steps)| (size, steps.map(|step| step as isize))))?;
        let (_, [size, columns]) = matrices(&right.shape)?;
        let count = plan.shape().num_elements();
        let y = allocate(ctx, dtype, Shape::new(&[&plan.shape()[..], &[size, columns]].concat())?)?;
        let solutions = work(ctx, y.shape.num_elements())?;
        let arguments = Arguments::new()
            .address(read(x)?)
            .address(read(right)?)
            .address(write(&y)?)
            .count(count)
            .count(size)
            .count(columns)
            .flag(is_lower)
            .flag(is_adjoint)
            .address(write(&solutions)?)
            .structure(axes.words());
        kernel_stream(ctx)?.launch_blocks(&solve, count, &arguments)?;
        ctx.set_output(0, y);
        Ok(())
    })
}
