//! Reordering and repeating elements.

use super::moved::taking;
use super::support::MOVED;
use crate::kernel::KernelDef;
use crate::kernels::cpu::transpose::{blocks, reverse_axes, reverse_where, tile, transpose};
use graph::DType;
use graph::ops::transpose::BlockAttrs;

const WITH_INT32: &[DType] = crate::kernels::cpu::dispatch::PLAIN;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["perm"],
        ..KernelDef::enqueuing("Transpose", &[("T", WITH_INT32)], |init| taking(init, transpose))
    },
    KernelDef {
        host_memory: &["multiples"],
        ..KernelDef::enqueuing("Tile", &[("T", MOVED)], |init| taking(init, tile))
    },
    KernelDef {
        host_memory: &["axis"],
        ..KernelDef::enqueuing("ReverseV2", &[("T", MOVED)], |init| taking(init, reverse_axes))
    },
    KernelDef {
        host_memory: &["dims"],
        ..KernelDef::enqueuing("Reverse", &[("T", MOVED)], |init| taking(init, reverse_where))
    },
    KernelDef::enqueuing("SpaceToDepth", &[("T", MOVED)], |init| {
        let attrs = BlockAttrs::of(init.node)?;
        taking(init, move |ctx| blocks(ctx, attrs, true))
    }),
    KernelDef::enqueuing("DepthToSpace", &[("T", MOVED)], |init| {
        let attrs = BlockAttrs::of(init.node)?;
        taking(init, move |ctx| blocks(ctx, attrs, false))
    }),
];
