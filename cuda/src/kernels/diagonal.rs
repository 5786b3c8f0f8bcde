//! Diagonals of batches of matrices: extracting them, setting them, and building matrices from them.

use super::copy::{Filler, zeros};
use super::slice_copy::{SliceCopier, Slices};
use super::support::{COPIED, allocate};
use super::variable::make_unique;
use device::Result;
use device::kernel::{Kernel, KernelDef, KernelInit};
use kernels::plan::diagonal::{DiagonalOp, Diagonals, OpVersion};

const SIZES: &[&str] = &["k", "num_rows", "num_cols"];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("MatrixDiag", &[("T", COPIED)], |i| make(i, OpVersion::First, DiagonalOp::Diag)),
    KernelDef::of("BatchMatrixDiag", &[("T", COPIED)], |i| make(i, OpVersion::First, DiagonalOp::Diag)),
    KernelDef {
        host_memory: SIZES,
        ..KernelDef::of("MatrixDiagV2", &[("T", COPIED)], |i| make(i, OpVersion::Second, DiagonalOp::Diag))
    },
    KernelDef {
        host_memory: SIZES,
        ..KernelDef::of("MatrixDiagV3", &[("T", COPIED)], |i| make(i, OpVersion::Third, DiagonalOp::Diag))
    },
    KernelDef::of("MatrixDiagPart", &[("T", COPIED)], |i| make(i, OpVersion::First, DiagonalOp::Part)),
    KernelDef::of("BatchMatrixDiagPart", &[("T", COPIED)], |i| make(i, OpVersion::First, DiagonalOp::Part)),
    KernelDef {
        host_memory: &["k"],
        ..KernelDef::of("MatrixDiagPartV2", &[("T", COPIED)], |i| {
            make(i, OpVersion::Second, DiagonalOp::Part)
        })
    },
    KernelDef {
        host_memory: &["k"],
        ..KernelDef::of("MatrixDiagPartV3", &[("T", COPIED)], |i| make(i, OpVersion::Third, DiagonalOp::Part))
    },
    KernelDef::of("MatrixSetDiag", &[("T", COPIED)], |i| make(i, OpVersion::First, DiagonalOp::Set)),
    KernelDef::of("BatchMatrixSetDiag", &[("T", COPIED)], |i| make(i, OpVersion::First, DiagonalOp::Set)),
    KernelDef {
        host_memory: &["k"],
        ..KernelDef::of("MatrixSetDiagV2", &[("T", COPIED)], |i| make(i, OpVersion::Second, DiagonalOp::Set))
    },
    KernelDef {
        host_memory: &["k"],
        ..KernelDef::of("MatrixSetDiagV3", &[("T", COPIED)], |i| make(i, OpVersion::Third, DiagonalOp::Set))
    },
];

/// Makes the kernel of one operation on diagonals (`work`) in one version of the op (`form`).
fn make(init: &KernelInit<'_>, form: OpVersion, work: DiagonalOp) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let diagonals = Diagonals::new(init, form, work)?;
    let (placer, filler) = (SliceCopier::new(init, dtype)?, Filler::new(init, dtype)?);
    Kernel::sync(move |ctx| {
        let plan = diagonals.plan(ctx)?;
        let (out, from) = match (work, plan.padding) {
            (DiagonalOp::Set, _) => {
                let mut out = ctx.take_device_input(0)?;
                make_unique(ctx, &mut out)?;
                (out, ctx.device_input(1)?)
            }
            (_, None) => (zeros(ctx, dtype, plan.shape)?, ctx.device_input(0)?),
            (_, Some(padding)) => {
                let out = allocate(ctx, dtype, plan.shape)?;
                filler.fill(ctx, ctx.device_input(padding)?, &out)?;
                (out, ctx.device_input(0)?)
            }
        };
        let (matrix, packed) = (plan.matrix, plan.packed);
        let batches =
            from.shape.num_elements().checked_div(if work == DiagonalOp::Part { matrix } else { packed });
        let batches = batches.unwrap_or(0);
        if work == DiagonalOp::Part {
            let slices = Slices { inner: 1, batches, steps: [matrix, packed] };
            placer.place(ctx, from, &out, &plan.places, &slices)?;
        } else {
            let places: Vec<(usize, usize)> = plan.places.iter().map(|&(to, from)| (from, to)).collect();
            placer.place(ctx, from, &out, &places, &Slices { inner: 1, batches, steps: [packed, matrix] })?;
        }
        ctx.set_output(0, out);
        Ok(())
    })
}
