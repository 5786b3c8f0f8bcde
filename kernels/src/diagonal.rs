//! Kernels that extract, set or create the diagonals of batches of matrices.

use crate::numeric::copied::{CopiedElement, copied};
use crate::numeric::dispatch::ANY;
use crate::plan::diagonal::{DiagonalOp, DiagonalPlan, Diagonals, OpVersion};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
use graph::{DType, Tensor};

const TYPES: &[(&str, &[DType])] = &[("T", ANY)];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("MatrixDiag", TYPES, |i| make(i, OpVersion::First, DiagonalOp::Diag)),
    KernelDef::of("MatrixDiagV2", TYPES, |i| make(i, OpVersion::Second, DiagonalOp::Diag)),
    KernelDef::of("MatrixDiagV3", TYPES, |i| make(i, OpVersion::Third, DiagonalOp::Diag)),
    KernelDef::of("BatchMatrixDiag", TYPES, |i| make(i, OpVersion::First, DiagonalOp::Diag)),
    KernelDef::of("MatrixDiagPart", TYPES, |i| make(i, OpVersion::First, DiagonalOp::Part)),
    KernelDef::of("MatrixDiagPartV2", TYPES, |i| make(i, OpVersion::Second, DiagonalOp::Part)),
    KernelDef::of("MatrixDiagPartV3", TYPES, |i| make(i, OpVersion::Third, DiagonalOp::Part)),
    KernelDef::of("BatchMatrixDiagPart", TYPES, |i| make(i, OpVersion::First, DiagonalOp::Part)),
    KernelDef::of("MatrixSetDiag", TYPES, |i| make(i, OpVersion::First, DiagonalOp::Set)),
    KernelDef::of("MatrixSetDiagV2", TYPES, |i| make(i, OpVersion::Second, DiagonalOp::Set)),
    KernelDef::of("MatrixSetDiagV3", TYPES, |i| make(i, OpVersion::Third, DiagonalOp::Set)),
    KernelDef::of("BatchMatrixSetDiag", TYPES, |i| make(i, OpVersion::First, DiagonalOp::Set)),
];

/// A function that computes an op by its plan; see [`DiagonalPlan::run`].
type RunFn = fn(&DiagonalPlan, &KernelContext<'_>, DiagonalOp) -> Result<Tensor>;

impl DiagonalPlan {
    fn run<E: CopiedElement>(&self, ctx: &KernelContext<'_>, work: DiagonalOp) -> Result<Tensor> {
        let (input, matrix, packed) = (ctx.input(0)?, self.matrix.max(1), self.packed.max(1));
        E::build(input.dtype(), self.shape.clone(), |out| {
            match work {
                DiagonalOp::Set => out.clone_from_slice(E::view(input)?),
                DiagonalOp::Diag | DiagonalOp::Part => out.fill(self.padding::<E>(ctx)?),
            }
            match work {
                DiagonalOp::Part => {
                    for (out, from) in out.chunks_exact_mut(packed).zip(E::view(input)?.chunks_exact(matrix))
                    {
                        self.places.iter().for_each(|&(at, to)| out[to].clone_from(&from[at]));
                    }
                }
                DiagonalOp::Diag | DiagonalOp::Set => {
                    let diagonals = E::view(ctx.input(usize::from(work == DiagonalOp::Set))?)?;
                    for (out, from) in out.chunks_exact_mut(matrix).zip(diagonals.chunks_exact(packed)) {
                        self.places.iter().for_each(|&(to, at)| out[to].clone_from(&from[at]));
                    }
                }
            }
            Ok(())
        })
    }

    fn padding<E: CopiedElement>(&self, ctx: &KernelContext<'_>) -> Result<E> {
        let Some(at) = self.padding else { return Ok(E::zero()) };
        E::view(ctx.input(at)?)?.first().cloned().ok_or_else(|| Error::internal("the padding input is empty"))
    }
}

fn make(init: &KernelInit<'_>, form: OpVersion, work: DiagonalOp) -> Result<Kernel> {
    let diagonals = Diagonals::new(init, form, work)?;
    let run = copied!(init.output_type(0), E => Ok(DiagonalPlan::run::<E> as RunFn))?;
    Kernel::sync(move |ctx| {
        let plan = diagonals.plan(ctx)?;
        let out = run(&plan, ctx, work)?;
        ctx.set_output(0, out);
        Ok(())
    })
}
