//! A product with what follows it. What the library does while it writes the product is a part of that call, and rounds
//! with it; the rest are kernels of their own, in the product's memory.

use crate::engine::engine_of;
use crate::kernels::matmul::{Flips, Then, multiply};
use device::Result;
use device::kernel::{Kernel, KernelInit};
use kernels::fused::{Link, follow, fused_ops};
use kernels::matmul::single;

pub(super) fn make(init: &KernelInit<'_>) -> Result<Kernel> {
    let flips = Flips::transposed(init.attr("transpose_a")?, init.attr("transpose_b")?);
    let ops = fused_ops(init, FACTORS)?;
    let (then, in_call) = in_call(&ops);
    // A device that cannot be opened says so when the graph is registered.
    engine_of(&**init.device)?;
    Kernel::sync(move |ctx| {
        let (out, has_all) = multiply(ctx, flips, single, then)?;
        ctx.set_output(0, out);
        match (has_all, then.and_then(|then| then.bias)) {
            (false, _) => follow(ctx, &ops, FACTORS),
            (true, bias) => follow(ctx, &ops[in_call..], bias.map_or(FACTORS, |bias| bias + 1)),
        }
    })
}

/// Inputs of the product itself.
const FACTORS: usize = 2;

/// What of the ops a library may do in the product's call, and how many of them that is: a bias, a `Relu`, or both in
/// this order.
fn in_call(ops: &[Link]) -> (Option<Then>, usize) {
    let is = |at: usize, op: &str| ops.get(at).is_some_and(|link| link.node.op.name() == op);
    let bias = is(0, "BiasAdd").then_some(FACTORS);
    let relu = is(usize::from(bias.is_some()), "Relu");
    let count = usize::from(bias.is_some()) + usize::from(relu);
    ((count > 0).then_some(Then { bias, relu }), count)
}
