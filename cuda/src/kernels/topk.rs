//! The largest elements along the last axis.

use super::support::{NUMBERS, allocate, function, kernel_stream, read, type_name, write};
use crate::engine::{Arguments, Source};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::{DType, Shape};
use kernels::numeric::dispatch::INDEX;
use kernels::plan::topk::{prediction_sizes, top_shape};

static SOURCE: Source = Source { file: "topk.cu", text: include_str!("topk.cu") };

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["k"],
        ..KernelDef::enqueuing("TopKV2", &[("T", NUMBERS), ("index_type", INDEX)], |init| {
            top(init, |ctx| {
                let k = ctx.input(1)?;
                if k.shape().rank() != 0 {
                    device::invalid!("k must be scalar, got shape {}", k.shape());
                }
                Ok(k.to_i64s()?[0])
            })
        })
    },
    KernelDef::enqueuing("TopK", &[("T", NUMBERS)], |init| {
        let k: i64 = init.attr("k")?;
        top(init, move |_| Ok(k))
    }),
    KernelDef {
        host_memory: &["k"],
        ..KernelDef::enqueuing("InTopKV2", &[("T", INDEX)], |init| {
            in_top(init, |ctx| Ok(ctx.scalar(2, "k")?.to_i64s()?[0]))
        })
    },
    KernelDef::enqueuing("InTopK", &[("T", INDEX)], |init| {
        let k: i64 = init.attr("k")?;
        in_top(init, move |_| Ok(k))
    }),
];

/// Makes the kernel of `TopK`, which always sorts its result in descending order.
fn top(
    init: &KernelInit<'_>,
    k: impl Fn(&KernelContext<'_>) -> Result<i64> + Send + Sync + 'static,
) -> Result<Kernel> {
    let (dtype, index) = (init.output_type(0), init.output_type(1));
    let top = function(init, &SOURCE, format!("top<{}, {}>", type_name(dtype)?, type_name(index)?))?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let (columns, shape) = top_shape(&x.shape, k(ctx)?)?;
        let k = shape[shape.rank() - 1];
        let (values, indices) = (allocate(ctx, dtype, shape.clone())?, allocate(ctx, index, shape)?);
        if values.shape.num_elements() > 0 {
            let rows = x.shape.num_elements() / columns;
            let arguments = Arguments::new()
                .address(read(x)?)
                .address(write(&values)?)
                .address(write(&indices)?)
                .count(rows)
                .count(columns)
                .count(k);
            kernel_stream(ctx)?.launch_blocks(&top, rows, &arguments)?;
        }
        ctx.set_output(0, values);
        ctx.set_output(1, indices);
        Ok(())
    })
}

/// Makes the kernel of `InTopK`.
fn in_top(
    init: &KernelInit<'_>,
    k: impl Fn(&KernelContext<'_>) -> Result<i64> + Send + Sync + 'static,
) -> Result<Kernel> {
    let in_top = function(init, &SOURCE, format!("in_top<{}>", type_name(init.input_type(1))?))?;
    Kernel::sync(move |ctx| {
        let [rows, classes] = prediction_sizes(ctx)?;
        let k = k(ctx)?;
        let (x, targets) = (ctx.device_input(0)?, ctx.device_input(1)?);
        let out = allocate(ctx, DType::Bool, Shape::new(&[rows])?)?;
        let arguments = Arguments::new()
            .address(read(x)?)
            .address(read(targets)?)
            .address(write(&out)?)
            .count(rows)
            .count(classes)
            .integer(k);
        kernel_stream(ctx)?.launch_blocks(&in_top, rows, &arguments)?;
        ctx.set_output(0, out);
        Ok(())
    })
}
