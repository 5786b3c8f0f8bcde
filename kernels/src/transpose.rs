//! Reordering and repeating of elements: transpose, tile, reverse, space to depth and back.

use super::complex::conjugate;
use super::slice::{box_output_fn, take_fn};
use crate::numeric::copied::COPIED;
use crate::numeric::dispatch::INDEX;
use crate::numeric::strided::box_kernel;
use crate::plan::transpose::{blocks, reverse_axes, reverse_where, tile, transpose, transposed};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Result, invalid};
use graph::ops::transpose::BlockAttrs;
use graph::{DType, Tensor};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Transpose", &[("T", COPIED), ("Tperm", INDEX)], |init| box_kernel(init, transpose)),
    KernelDef::of("ConjugateTranspose", &[("T", COPIED), ("Tperm", INDEX)], |init| {
        if init.input_type(0).is_complex() {
            let take = take_fn(init.input_type(0))?;
            return Kernel::sync(move |ctx| {
                let mut x = ctx.take_input(0)?;
                conjugate(&mut x)?;
                let out = take(&x, transposed(x.shape(), ctx.input(1)?)?)?;
                ctx.set_output(0, out);
                Ok(())
            });
        }
        box_kernel(init, transpose)
    }),
    KernelDef::of("InvertPermutation", &[("T", INDEX)], |_| Kernel::sync(invert_permutation)),
    KernelDef::of("Tile", &[("T", COPIED), ("Tmultiples", INDEX)], |init| box_kernel(init, tile)),
    KernelDef::of("ReverseV2", &[("T", COPIED), ("Tidx", INDEX)], |init| box_kernel(init, reverse_axes)),
    KernelDef::of("Reverse", &[("T", COPIED)], |init| box_kernel(init, reverse_where)),
    KernelDef::of("SpaceToDepth", &[("T", COPIED)], |init| move_blocks(init, true)),
    KernelDef::of("DepthToSpace", &[("T", COPIED)], |init| move_blocks(init, false)),
];

fn invert_permutation(ctx: &mut KernelContext<'_>) -> Result<()> {
    let input = ctx.input(0)?;
    if input.shape().rank() != 1 {
        invalid!("invert_permutation expects a 1D vector.");
    }
    let perm = input.to_i64s()?;
    let mut inverse = vec![-1i64; perm.len()];
    for (i, &p) in perm.iter().enumerate() {
        let Some(place) = usize::try_from(p).ok().and_then(|p| inverse.get_mut(p)) else {
            invalid!("{p} is not between 0 and {}", perm.len());
        };
        if *place != -1 {
            invalid!("{p} is duplicated in the input.");
        }
        *place = i as i64;
    }
    let out = match input.dtype() {
        DType::Int64 => Tensor::vector(&inverse)?,
        _ => Tensor::vector(&inverse.iter().map(|&i| i as i32).collect::<Vec<_>>())?,
    };
    ctx.set_output(0, out);
    Ok(())
}

fn move_blocks(init: &KernelInit<'_>, to_depth: bool) -> Result<Kernel> {
    let attrs = BlockAttrs::of(init.node)?;
    let set_output = box_output_fn(init.input_type(0))?;
    Kernel::sync(move |ctx| {
        let taken = blocks(ctx, attrs, to_depth)?;
        set_output(ctx, taken)
    })
}
