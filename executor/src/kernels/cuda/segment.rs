//! Sums over segments: the rows of one id.

use super::gather::ADDED;
use super::moved::zeros;
use super::scatter::Scatter;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, KernelDef, KernelInit};
use crate::kernels::cpu::dispatch::INDEX;
use graph::Shape;
use smallvec::SmallVec;

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    host_memory: &["num_segments"],
    ..KernelDef::enqueuing("UnsortedSegmentSum", &[("T", ADDED), ("Tindices", INDEX)], unsorted_sum)
}];

fn unsorted_sum(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let add = Scatter::new(init, "Add", dtype, init.input_type(1))?;
    Kernel::sync(move |ctx| {
        let (data, ids) = (ctx.device_input(0)?, ctx.device_input(1)?);
        let count = ctx.scalar(2, "num_segments")?.to_i64s()?[0];
        let count = usize::try_from(count)
            .map_err(|_| Error::invalid(format!("Input num_segments == {count} must not be negative.")))?;
        if !data.shape.starts_with(&ids.shape) {
            crate::invalid!(
                "data.shape = {} does not start with segment_ids.shape = {}",
                data.shape,
                ids.shape
            );
        }
        let mut dims: SmallVec<[usize; 6]> = data.shape[ids.shape.rank()..].into();
        dims.insert(0, count);
        let out = zeros(ctx, dtype, Shape::new(&dims)?)?;
        add.run(ctx, &out, ids, data)?;
        ctx.set_output(0, out);
        Ok(())
    })
}
