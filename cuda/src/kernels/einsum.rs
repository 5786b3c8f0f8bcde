//! Einsum: each operand is permuted, and summed over the axes that only it has; then the operands are
//! multiplied as matrices, and the result is permuted.

use super::copy::{Mover, zeros};
use super::reduce::Reduction;
use super::support::{allocate, kernel_stream, read, write};
use crate::engine::driver::Product;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{DeviceTensor, Result};
use graph::Shape;
use kernels::numeric::dispatch::FRACTIONS;
use kernels::numeric::strided::Layout;
use kernels::plan::einsum::{Axes, EinsumPlan, OperandAxes, equation};
use smallvec::SmallVec;

pub(super) const KERNELS: &[KernelDef] = &[KernelDef::enqueuing("Einsum", &[("T", FRACTIONS)], einsum)];

fn einsum(init: &KernelInit<'_>) -> Result<Kernel> {
    let (equation, dtype) = (equation(init)?, init.output_type(0));
    let kernels = EinsumKernels { mover: Mover::new(init, dtype)?, sum: Reduction::new(init, "Sum", dtype)? };
    Kernel::sync(move |ctx| {
        let plan = {
            let shapes =
                (0..ctx.num_inputs()).map(|i| ctx.shape(i)).collect::<Result<SmallVec<[&Shape; 2]>>>()?;
            EinsumPlan::new(&equation, &shapes)?
        };
        let out = kernels.run(ctx, &plan)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The kernels of an einsum, except the matrix product.
struct EinsumKernels {
    mover: Mover,
    sum: Reduction,
}

impl EinsumKernels {
    /// Computes the einsum of the node's inputs.
    fn run(&self, ctx: &mut KernelContext<'_>, plan: &EinsumPlan) -> Result<DeviceTensor> {
        let dtype = ctx.device_input(0)?.dtype;
        if plan.results() == 0 || plan.product.is_some_and(|[_, _, k, _]| k == 0) {
            return zeros(ctx, dtype, plan.shape.clone());
        }
        let results = match plan.product {
            None => self.operand(ctx, 0, &plan.operands[0])?,
            Some(sizes) => {
                let a = self.operand(ctx, 0, &plan.operands[0])?;
                let b = self.operand(ctx, 1, &plan.operands[1])?;
                products(ctx, &a, &b, sizes)?
            }
        };
        let dims: SmallVec<[usize; 6]> = plan.to.iter().map(|axis| axis.0).collect();
        if is_packed(&plan.to) && plan.shape.num_elements() == plan.results() {
            return Ok(DeviceTensor { shape: plan.shape.clone(), ..results });
        }
        // If the output has repeated indices, only elements on the diagonal are written, so all other elements
        // are set to zero.
        let out = match plan.shape.num_elements() == plan.results() {
            true => allocate(ctx, dtype, plan.shape.clone())?,
            false => zeros(ctx, dtype, plan.shape.clone())?,
        };
        self.mover.copy(ctx, &dims, (&results, &Layout::packed(&dims)), (&out, &layout(&plan.to)))?;
        Ok(out)
    }

    /// Returns an operand of the matrix product: input `i`, permuted and summed over the axes that only it has.
    fn operand(&self, ctx: &KernelContext<'_>, i: usize, operand: &OperandAxes) -> Result<DeviceTensor> {
        let x = ctx.device_input(i)?;
        let dims: SmallVec<[usize; 6]> = operand.kept.iter().map(|axis| axis.0).collect();
        let shape = Shape::new(&[dims.iter().product()])?;
        if operand.summed.is_empty()
            && is_packed(&operand.kept)
            && shape.num_elements() == x.shape.num_elements()
        {
            return Ok(DeviceTensor { shape, ..x.clone() });
        }
        let out = allocate(ctx, x.dtype, shape)?;
        if operand.summed.is_empty() {
            self.mover.copy(ctx, &dims, (x, &layout(&operand.kept)), (&out, &Layout::packed(&dims)))?;
        } else {
            self.sum.reduce_axes(ctx, x, &out, &operand.kept, &operand.summed)?;
        }
        Ok(out)
    }
}

/// Returns whether a tensor with these axes, in this order, is contiguous in memory.
fn is_packed(axes: &Axes) -> bool {
    let mut step = 1;
    axes.iter().rev().filter(|axis| axis.0 != 1).all(|&(size, own)| {
        let is_next = own == step;
        step *= size;
        is_next
    })
}

/// Returns the layout of a tensor with these axes.
fn layout(axes: &Axes) -> Layout {
    Layout { offset: 0, strides: axes.iter().map(|axis| axis.1 as isize).collect() }
}

/// Enqueues the products of `count` pairs of matrices.
fn products(
    ctx: &KernelContext<'_>,
    a: &DeviceTensor,
    b: &DeviceTensor,
    [count, m, k, n]: [usize; 4],
) -> Result<DeviceTensor> {
    let out = allocate(ctx, a.dtype, Shape::new(&[count * m * n])?)?;
    let stream = kernel_stream(ctx)?;
    let product = Product {
        dtype: a.dtype,
        m,
        n,
        k,
        flips: [false; 2],
        conjugates: false,
        a: read(a)?,
        b: read(b)?,
        c: write(&out)?,
        count,
        steps: [m * k, k * n, m * n],
        tf32: stream.tf32(),
        epilogue: None,
    };
    stream.call(|driver, stream| driver.product(&product, stream))?;
    Ok(out)
}
