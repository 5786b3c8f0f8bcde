//! Matrix decompositions: QR, eigenvalues and eigenvectors of self-adjoint matrices, and singular values and
//! vectors.

use crate::engine::driver::Address;
use crate::engine::{Arguments, Source};
use crate::kernels::copy::zeros;
use crate::kernels::support::{allocate, function, kernel_stream, read, type_name, write};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{DeviceTensor, Result};
use graph::DType::{self, Complex64, Complex128, Double, Float};
use graph::Shape;
use kernels::plan::linalg::{matrices, square};

static SOURCE: Source = Source { file: "factors.cu", text: include_str!("../factors.cu") };

const TYPES: &[(&str, &[DType])] = &[("T", &[Float, Double, Complex64, Complex128])];

pub(in crate::kernels) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("Qr", TYPES, qr),
    KernelDef::enqueuing("SelfAdjointEigV2", TYPES, self_adjoint),
    KernelDef::enqueuing("Svd", TYPES, svd),
];

/// Allocates working memory: for each of `count` matrices, one array for each pair of sizes in `entries`.
fn work(ctx: &KernelContext<'_>, dtype: DType, count: usize, entries: &[[usize; 2]]) -> Result<DeviceTensor> {
    let dtype = if dtype.is_complex() { Complex128 } else { Double };
    let each = entries.iter().fold(0usize, |sum, [a, b]| sum.saturating_add(a.saturating_mul(*b)));
    allocate(ctx, dtype, Shape::new(&[count, each])?)
}

/// Returns the shape of a batch of results: the sizes `batch`, then the sizes `inner`.
fn shape(batch: &[usize], inner: &[usize]) -> Result<Shape> {
    Ok(Shape::new(&[batch, inner].concat())?)
}

/// Makes the kernel of `Qr`.
fn qr(init: &KernelInit<'_>) -> Result<Kernel> {
    let (dtype, is_full) = (init.output_type(0), init.attr::<bool>("full_matrices")?);
    let qr = function(init, &SOURCE, format!("qr<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let (batch, [rows, columns]) = matrices(&x.shape)?;
        let (count, steps) = (batch.iter().product(), rows.min(columns));
        let inner = if is_full { rows } else { steps };
        let q = allocate(ctx, dtype, shape(batch, &[rows, inner])?)?;
        let r = allocate(ctx, dtype, shape(batch, &[inner, columns])?)?;
        let work = work(ctx, dtype, count, &[[rows, columns], [rows, inner], [steps, 1]])?;
        let arguments = Arguments::new()
            .address(read(x)?)
            .address(write(&q)?)
            .address(write(&r)?)
            .count(count)
            .count(rows)
            .count(columns)
            .count(inner)
            .address(write(&work)?);
        kernel_stream(ctx)?.launch_blocks(&qr, count, &arguments)?;
        ctx.set_output(0, q);
        ctx.set_output(1, r);
        Ok(())
    })
}

/// Makes the kernel of `SelfAdjointEigV2`.
fn self_adjoint(init: &KernelInit<'_>) -> Result<Kernel> {
    let (dtype, has_vectors) = (init.output_type(0), init.attr::<bool>("compute_v")?);
    let self_adjoint = function(init, &SOURCE, format!("self_adjoint<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let (batch, size) = square(&x.shape)?;
        let count = batch.iter().product();
        let values = allocate(ctx, dtype, shape(batch, &[size])?)?;
        let (vectors, at) = match has_vectors {
            true => {
                let vectors = allocate(ctx, dtype, x.shape.clone())?;
                let at = write(&vectors)?;
                (vectors, at)
            }
            false => (zeros(ctx, dtype, Shape::scalar())?, Address(0)),
        };
        let work = work(ctx, dtype, count, &[[size, size], [size, size], [2, size.div_ceil(2)]])?;
        let arguments = Arguments::new()
            .address(read(x)?)
            .address(write(&values)?)
            .address(at)
            .count(count)
            .count(size)
            .address(write(&work)?);
        kernel_stream(ctx)?.launch_blocks(&self_adjoint, count, &arguments)?;
        ctx.set_output(0, values);
        ctx.set_output(1, vectors);
        Ok(())
    })
}

/// Makes the kernel of `Svd`.
fn svd(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let (has_vectors, is_full): (bool, bool) = (init.attr("compute_uv")?, init.attr("full_matrices")?);
    let singular = function(init, &SOURCE, format!("singular<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let (batch, [rows, columns]) = matrices(&x.shape)?;
        let (count, size, length) = (batch.iter().product(), rows.min(columns), rows.max(columns));
        // The number of singular vectors for the longer side of a matrix; the number for the shorter side is
        // its length.
        let longer = match (has_vectors, is_full) {
            (false, _) => 0,
            (true, true) => length,
            (true, false) => size,
        };
        let values = allocate(ctx, dtype, shape(batch, &[size])?)?;
        let side = |length: usize| match has_vectors {
            true => allocate(ctx, dtype, shape(batch, &[length, if is_full { length } else { size }])?),
            false => zeros(ctx, dtype, Shape::scalar()),
        };
        let (u, v) = (side(rows)?, side(columns)?);
        let entries = [[size, length], [size, size], [longer, length], [longer, 1], [2, size]];
        let work = work(ctx, dtype, count, &entries)?;
        let arguments = Arguments::new()
            .address(read(x)?)
            .address(write(&values)?)
            .address(write(&u)?)
            .address(write(&v)?)
            .count(count)
            .count(rows)
            .count(columns)
            .count(longer)
            .flag(has_vectors)
            .address(write(&work)?);
        kernel_stream(ctx)?.launch_blocks(&singular, count, &arguments)?;
        ctx.set_output(0, values);
        ctx.set_output(1, u);
        ctx.set_output(2, v);
        Ok(())
    })
}
