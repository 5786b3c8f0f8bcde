//! Rolling and reversing along axes, and cross products.

use super::support::{Axes, COPIED, allocate, copied_type_name, function, launch, read, type_name, write};
use crate::engine::{Arguments, Source};
use device::Result;
use device::kernel::{Kernel, KernelDef, KernelInit};
use kernels::numeric::dispatch::{INDEX, REALS};
use kernels::plan::sequence::{check_cross, sequences, shifts};

static SOURCE: Source = Source { file: "sequence.cu", text: include_str!("sequence.cu") };

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("ReverseSequence", &[("T", COPIED), ("Tlen", INDEX)], reverse_sequence),
    KernelDef {
        host_memory: &["shift", "axis"],
        ..KernelDef::enqueuing("Roll", &[("T", COPIED), ("Tshift", INDEX), ("Taxis", INDEX)], roll)
    },
    KernelDef::enqueuing("Cross", &[("T", REALS)], cross),
];

/// Makes the kernel of `Roll`.
fn roll(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let roll = function(init, &SOURCE, format!("roll<{}>", copied_type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let shifts = shifts(ctx)?;
        let x = ctx.device_input(0)?;
        // Axes are not merged even if they are contiguous in memory, because each axis has its own shift.
        let axes = Axes::apart(x.shape.iter().zip(&shifts).map(|(&size, &by)| (size, [by as isize])))?;
        let (out, n) = (allocate(ctx, dtype, x.shape.clone())?, x.shape.num_elements());
        let arguments = Arguments::new().address(read(x)?).address(write(&out)?).count(n);
        launch(ctx, &roll, n, arguments.structure(axes.words()))?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes the kernel of `ReverseSequence`.
fn reverse_sequence(init: &KernelInit<'_>) -> Result<Kernel> {
    let (batch, sequence): (i64, i64) = (init.attr("batch_dim")?, init.attr("seq_dim")?);
    let (dtype, length) = (init.output_type(0), init.input_type(1));
    let name = format!("reverse_sequence<{}, {}>", copied_type_name(dtype)?, type_name(length)?);
    let reverse = function(init, &SOURCE, name)?;
    Kernel::sync(move |ctx| {
        let (x, lengths) = (ctx.device_input(0)?, ctx.device_input(1)?);
        let (batch, sequence) = sequences(&x.shape, &lengths.shape, batch, sequence)?;
        let (strides, n) = (x.shape.strides(), x.shape.num_elements());
        let out = allocate(ctx, dtype, x.shape.clone())?;
        let arguments = Arguments::new()
            .address(read(x)?)
            .address(read(lengths)?)
            .address(write(&out)?)
            .count(n)
            .count(strides[batch])
            .count(x.shape[batch])
            .count(strides[sequence])
            .count(x.shape[sequence]);
        launch(ctx, &reverse, n, arguments)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes the kernel of `Cross`.
fn cross(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let cross = function(init, &SOURCE, format!("cross<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        check_cross(ctx)?;
        let (a, b) = (ctx.device_input(0)?, ctx.device_input(1)?);
        let (out, n) = (allocate(ctx, dtype, a.shape.clone())?, a.shape.num_elements());
        let arguments = Arguments::new().address(read(a)?).address(read(b)?).address(write(&out)?).count(n);
        launch(ctx, &cross, n, arguments)?;
        ctx.set_output(0, out);
        Ok(())
    })
}
