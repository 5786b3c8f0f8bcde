//! Ops that permute and repeat elements.

use super::complex;
use super::copy::{Mover, make_box_copy};
use super::support::{COPIED, allocate, function, launch, read, type_name, write};
use crate::engine::Arguments;
use device::kernel::{Kernel, KernelDef, KernelInit};
use device::{DeviceTensor, Result};
use graph::DType;
use graph::ops::transpose::BlockAttrs;
use kernels::numeric::dispatch::COMPLEX;
use kernels::numeric::strided::Layout;
use kernels::plan::transpose::{blocks, reverse_axes, reverse_where, tile, transpose};

const WITH_INT32: &[DType] = kernels::numeric::dispatch::PLAIN;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["perm"],
        ..KernelDef::enqueuing("Transpose", &[("T", WITH_INT32)], |init| make_box_copy(init, transpose))
    },
    KernelDef {
        host_memory: &["perm"],
        ..KernelDef::enqueuing("ConjugateTranspose", &[("T", COMPLEX)], conjugate_transpose)
    },
    KernelDef {
        host_memory: &["multiples"],
        ..KernelDef::enqueuing("Tile", &[("T", COPIED)], |init| make_box_copy(init, tile))
    },
    KernelDef {
        host_memory: &["axis"],
        ..KernelDef::enqueuing("ReverseV2", &[("T", COPIED)], |init| make_box_copy(init, reverse_axes))
    },
    KernelDef {
        host_memory: &["dims"],
        ..KernelDef::enqueuing("Reverse", &[("T", COPIED)], |init| make_box_copy(init, reverse_where))
    },
    KernelDef::enqueuing("SpaceToDepth", &[("T", COPIED)], |init| {
        let attrs = BlockAttrs::of(init.node)?;
        make_box_copy(init, move |ctx| blocks(ctx, attrs, true))
    }),
    KernelDef::enqueuing("DepthToSpace", &[("T", COPIED)], |init| {
        let attrs = BlockAttrs::of(init.node)?;
        make_box_copy(init, move |ctx| blocks(ctx, attrs, false))
    }),
];

/// Makes the kernel of `ConjugateTranspose`.
fn conjugate_transpose(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let name = type_name(dtype)?;
    let conjugate = function(init, &complex::SOURCE, format!("map<Conj, {name}, {name}>"))?;
    let mover = Mover::new(init, dtype)?;
    Kernel::sync(move |ctx| {
        let (taken, x) = (transpose(ctx)?, ctx.device_input(0)?);
        let (turned, n) = (allocate(ctx, dtype, x.shape.clone())?, x.shape.num_elements());
        let arguments = Arguments::new().address(read(x)?).address(write(&turned)?).count(n).real(0.0);
        launch(ctx, &conjugate, n, arguments)?;
        let out = if taken.is_whole(n) {
            DeviceTensor { shape: taken.shape, ..turned }
        } else {
            let out = allocate(ctx, dtype, taken.shape)?;
            mover.copy(ctx, &taken.dims, (&turned, &taken.from), (&out, &Layout::packed(&taken.dims)))?;
            out
        };
        ctx.set_output(0, out);
        Ok(())
    })
}
