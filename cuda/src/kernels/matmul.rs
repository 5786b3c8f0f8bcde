//! Matrix products, single and in batches.

use super::copy::zeros;
use super::support::{allocate, kernel_stream, read, write};
use crate::engine::driver::{Address, Epilogue, Product};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{DeviceTensor, Result};
use graph::{Code, Shape};
use kernels::numeric::dispatch::FRACTIONS;
use kernels::plan::matmul::{Batches, broadcast_batches, same_batches, single};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("MatMul", &[("T", FRACTIONS)], |init| {
        make(init, Flips::transposed(init.attr("transpose_a")?, init.attr("transpose_b")?), single)
    }),
    KernelDef::enqueuing("BatchMatMul", &[("T", FRACTIONS)], |init| make(init, adjoint(init)?, same_batches)),
    KernelDef::enqueuing("BatchMatMulV2", &[("T", FRACTIONS)], |init| {
        make(init, adjoint(init)?, broadcast_batches)
    }),
];

/// The factors of a matrix product that are stored transposed, and a flag by which transposed factors are conjugated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flips {
    which: [bool; 2],
    conjugates: bool,
}

impl Flips {
    /// Returns flips without conjugation: the first factor is transposed if `a` is set, the second if `b` is
    /// set.
    pub(super) fn transposed(a: bool, b: bool) -> Flips {
        Flips { which: [a, b], conjugates: false }
    }
}

/// Returns flips that transpose and conjugate the first factor if the node's attribute `adj_x` is set, and the
/// second if `adj_y` is set.
fn adjoint(init: &KernelInit<'_>) -> Result<Flips> {
    Ok(Flips { which: [init.attr("adj_x")?, init.attr("adj_y")?], conjugates: true })
}

/// Makes a kernel of matrix products.
fn make(init: &KernelInit<'_>, flips: Flips, batches: Batches) -> Result<Kernel> {
    // Opening the GPU here makes an error appear when the graph is registered, not in a step.
    crate::engine::engine_of(init.device)?;
    Kernel::sync(move |ctx| {
        let (out, _) = multiply(ctx, flips, batches, None)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The ops after a product that a library may compute in the call of the product.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpilogueInputs {
    /// Index of the input that is added to each row of the product, if any.
    pub(super) bias: Option<usize>,
    /// True if a `Relu` follows the product and the bias.
    pub(super) relu: bool,
}

/// Returns the product of inputs 0 and 1, and whether the library has applied the epilogue; if not, no op of
/// the epilogue is applied.
pub(super) fn multiply(
    ctx: &KernelContext<'_>,
    flips: Flips,
    batches: Batches,
    inputs: Option<EpilogueInputs>,
) -> Result<(DeviceTensor, bool)> {
    let Flips { which: flips, conjugates } = flips;
    let (x, y) = (ctx.device_input(0)?, ctx.device_input(1)?);
    let plan = batches(&x.shape, &y.shape)?;
    let size = |shape: &Shape, flip: bool| {
        let [.., rows, columns] = *shape.dims() else { return [0, 0] };
        if flip { [columns, rows] } else { [rows, columns] }
    };
    let ([m, k], [inner, n]) = (size(&x.shape, flips[0]), size(&y.shape, flips[1]));
    if k != inner {
        device::invalid!("Matrix size-incompatible: In[0]: {}, In[1]: {}", x.shape, y.shape);
    }
    let mut dims = plan.shape().dims().to_vec();
    dims.extend([m, n]);
    let shape = Shape::new(&dims)?;
    if k == 0 || shape.num_elements() == 0 {
        return Ok((zeros(ctx, x.dtype, shape)?, false));
    }
    let out = allocate(ctx, x.dtype, shape)?;
    let stream = kernel_stream(ctx)?;
    let (a, b, c) = (read(x)?, read(y)?, write(&out)?);
    let bytes = x.dtype.size().unwrap_or(0);
    // Each library call computes the products along the innermost batch axis, along which both factors have a
    // constant stride.
    let axes: Vec<(usize, [usize; 2])> = plan.axes().collect();
    let (inner, outer) = match axes.split_last() {
        Some((&inner, outer)) => (inner, outer),
        None => ((1, [0, 0]), &[][..]),
    };
    let mut epilogue = match inputs {
        Some(inputs) => epilogue(ctx, inputs, n)?,
        None => None,
    };
    let runs: usize = outer.iter().map(|axis| axis.0).product();
    for run in 0..runs {
        let (mut rest, mut at) = (run, [0, 0]);
        for &(size, steps) in outer.iter().rev() {
            at = [0, 1].map(|t| at[t] + rest % size * steps[t]);
            rest /= size;
        }
        let product = Product {
            dtype: x.dtype,
            m,
            n,
            k,
            flips,
            conjugates,
            a: Address(a.0 + (at[0] * m * k * bytes) as u64),
            b: Address(b.0 + (at[1] * k * n * bytes) as u64),
            c: Address(c.0 + (run * inner.0 * m * n * bytes) as u64),
            count: inner.0,
            steps: [inner.1[0] * m * k, inner.1[1] * k * n, m * n],
            tf32: stream.tf32(),
            epilogue,
        };
        stream.call(|driver, stream| match driver.product(&product, stream) {
            Err(error) if epilogue.is_some() && error.code() == Code::Unimplemented => {
                epilogue = None;
                driver.product(&Product { epilogue: None, ..product }, stream)
            }
            done => done,
        })?;
    }
    Ok((out, epilogue.is_some()))
}

/// Returns the epilogue with the bias's address; `None` if the bias has a wrong size, because the kernel of
/// `BiasAdd` then reports the error.
fn epilogue(ctx: &KernelContext<'_>, inputs: EpilogueInputs, columns: usize) -> Result<Option<Epilogue>> {
    let bias = match inputs.bias {
        None => None,
        Some(i) => {
            let bias = ctx.device_input(i)?;
            if bias.shape.dims() != [columns] {
                return Ok(None);
            }
            Some(read(bias)?)
        }
    };
    Ok(Some(Epilogue { bias, relu: inputs.relu }))
}
