//! Dynamic partition and stitch of rows. The partition numbers and indices are in host memory, because output
//! shapes depend on them.

use super::copy::zeros;
use super::host::same_as_cpu;
use super::slice_copy::{SliceCopier, Slices};
use super::support::{COPIED, allocate};
use device::Result;
use device::kernel::{ALL_ARGUMENTS, Kernel, KernelDef, KernelInit};
use kernels::numeric::dispatch::ANY;
use kernels::plan::partition::{RowPartitions, StitchPlan, row_partitions, rows_shape, stitch_plan};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["partitions"],
        ..KernelDef::of("DynamicPartition", &[("T", COPIED)], partition)
    },
    KernelDef { host_memory: &["indices"], ..KernelDef::of("DynamicStitch", &[("T", COPIED)], stitch) },
    KernelDef {
        host_memory: &["indices"],
        ..KernelDef::of("ParallelDynamicStitch", &[("T", COPIED)], stitch)
    },
    // `Where` runs on the host, because the size of its output depends on the elements.
    same_as_cpu("Where", &[("T", ANY)], ALL_ARGUMENTS),
];

/// Makes the kernel of `DynamicPartition`.
fn partition(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.input_type(0);
    let placer = SliceCopier::new(init, dtype)?;
    Kernel::sync(move |ctx| {
        let RowPartitions { members, inner } = row_partitions(ctx)?;
        let data = ctx.take_device_input(0)?;
        let slices = Slices { inner: inner.iter().product(), batches: 1, steps: [0; 2] };
        for (n, rows) in members.iter().enumerate() {
            let out = allocate(ctx, dtype, rows_shape(rows.len(), &inner)?)?;
            let places: Vec<(usize, usize)> = rows.iter().enumerate().map(|(to, &from)| (from, to)).collect();
            placer.place(ctx, &data, &out, &places, &slices)?;
            ctx.set_output(n, out);
        }
        Ok(())
    })
}

/// Makes the kernel of `DynamicStitch`.
fn stitch(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let placer = SliceCopier::new(init, dtype)?;
    Kernel::sync(move |ctx| {
        let (count, StitchPlan { shape, row, rows }) = (ctx.num_inputs() / 2, stitch_plan(ctx)?);
        let out = match rows.iter().all(Option::is_some) {
            true => allocate(ctx, dtype, shape)?,
            false => zeros(ctx, dtype, shape)?,
        };
        let mut places = vec![Vec::new(); count];
        for (to, from) in rows.iter().enumerate() {
            if let Some((input, from)) = *from {
                places[input].push((from, to));
            }
        }
        let slices = Slices { inner: row, batches: 1, steps: [0; 2] };
        for (i, places) in places.iter().enumerate() {
            placer.place(ctx, ctx.device_input(count + i)?, &out, places, &slices)?;
        }
        ctx.set_output(0, out);
        Ok(())
    })
}
