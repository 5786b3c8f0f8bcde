//! A matrix product fused with the element-wise ops after it. A bias and `Relu` that the library supports are
//! part of the library call, and the result is rounded once; other ops run as kernels of their own, in the
//! memory of the product.

use crate::engine::engine_of;
use crate::kernels::matmul::{EpilogueInputs, Flips, multiply};
use device::Result;
use device::kernel::{Kernel, KernelInit};
use kernels::plan::fused::{FusedOp, fused_ops, run_ops};
use kernels::plan::matmul::single;

/// Makes the kernel of a fused product.
pub(super) fn make(init: &KernelInit<'_>) -> Result<Kernel> {
    let flips = Flips::transposed(init.attr("transpose_a")?, init.attr("transpose_b")?);
    let ops = fused_ops(init, FACTORS)?;
    let (inputs, in_call) = in_call(&ops);
    // Opening the GPU here makes an error appear when the graph is registered, not in a step.
    engine_of(init.device)?;
    Kernel::sync(move |ctx| {
        let (out, has_all) = multiply(ctx, flips, single, inputs)?;
        ctx.set_output(0, out);
        match (has_all, inputs.and_then(|inputs| inputs.bias)) {
            (false, _) => run_ops(ctx, &ops, FACTORS),
            (true, bias) => run_ops(ctx, &ops[in_call..], bias.map_or(FACTORS, |bias| bias + 1)),
        }
    })
}

/// Number of inputs of the matrix product, which come before the inputs of the ops after it.
const FACTORS: usize = 2;

/// Returns the part of the ops that a library may compute in the product's call (a bias, a `Relu`, or a bias
/// and then a `Relu`), and the number of ops in that part.
fn in_call(ops: &[FusedOp]) -> (Option<EpilogueInputs>, usize) {
    let is = |at: usize, op: &str| ops.get(at).is_some_and(|fused| fused.node.op.name() == op);
    let bias = is(0, "BiasAdd").then_some(FACTORS);
    let relu = is(usize::from(bias.is_some()), "Relu");
    let count = usize::from(bias.is_some()) + usize::from(relu);
    ((count > 0).then_some(EpilogueInputs { bias, relu }), count)
}
