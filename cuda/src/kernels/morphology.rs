//! Dilation of greyscale images and its gradients, which are summed in no fixed order.

use super::cast;
use super::copy::zeros;
use super::support::{allocate, function, launch, read, type_name, wide, write};
use crate::engine::{Arguments, Source};
use device::Result;
use device::kernel::{Kernel, KernelDef, KernelInit};
use graph::ops::morphology::{Dilation, DilationAxis};
use kernels::numeric::dispatch::FLOATS;
use kernels::plan::morphology::Sizes;

static SOURCE: Source = Source { file: "morphology.cu", text: include_str!("morphology.cu") };

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("Dilation2D", &[("T", FLOATS)], dilate),
    KernelDef::enqueuing("Dilation2DBackpropInput", &[("T", FLOATS)], |init| gradient(init, "OfInput", 0)),
    KernelDef::enqueuing("Dilation2DBackpropFilter", &[("T", FLOATS)], |init| gradient(init, "OfFilter", 1)),
];

/// Returns the fields of the `Sizes` structure of `morphology.cu`, in the order of declaration.
fn words(sizes: &Sizes) -> impl Iterator<Item = i64> + use<> {
    let axis = |axis: DilationAxis| {
        let DilationAxis { input, filter, output, stride, rate, pad_before } = axis;
        [input as i64, filter as i64, output as i64, stride, rate.into(), pad_before]
    };
    [sizes.rows, sizes.columns].into_iter().flat_map(axis).chain([sizes.depth as i64])
}

/// Makes the kernel of `Dilation2D`.
fn dilate(init: &KernelInit<'_>) -> Result<Kernel> {
    let (dilation, dtype) = (Dilation::of(init.node)?, init.output_type(0));
    let dilate = function(init, &SOURCE, format!("dilate<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let sizes = Sizes::of(ctx, &dilation)?;
        let y = allocate(ctx, dtype, sizes.output()?)?;
        let n = y.shape.num_elements();
        let inputs =
            Arguments::new().address(read(ctx.device_input(0)?)?).address(read(ctx.device_input(1)?)?);
        launch(ctx, &dilate, n, inputs.address(write(&y)?).count(n).structure(words(&sizes)))?;
        ctx.set_output(0, y);
        Ok(())
    })
}

/// Makes the kernel of the gradient of a dilation with respect to input `by`; `of` is `OfInput` or `OfFilter`,
/// the structure of `morphology.cu` for that input.
fn gradient(init: &KernelInit<'_>, of: &str, by: usize) -> Result<Kernel> {
    let (dilation, dtype) = (Dilation::of(init.node)?, init.output_type(0));
    let gradient = function(init, &SOURCE, format!("dilation_gradient<{of}, {}>", type_name(dtype)?))?;
    let narrowed = cast::function(init, wide(dtype), dtype)?;
    Kernel::sync(move |ctx| {
        let sizes = Sizes::of(ctx, &dilation)?;
        sizes.check_out_backprop(ctx)?;
        let sums = zeros(ctx, wide(dtype), ctx.shape(by)?.clone())?;
        let count = sums.shape.num_elements();
        // If the input is empty, none of its elements can get a gradient, so no kernel is enqueued.
        let n = if count == 0 { 0 } else { ctx.shape(2)?.num_elements() };
        let mut arguments = Arguments::new();
        for i in 0..3 {
            arguments = arguments.address(read(ctx.device_input(i)?)?);
        }
        launch(ctx, &gradient, n, arguments.address(write(&sums)?).count(n).structure(words(&sizes)))?;
        let out = if wide(dtype) == dtype {
            sums
        } else {
            let out = allocate(ctx, dtype, sums.shape.clone())?;
            let arguments = Arguments::new().address(read(&sums)?).address(write(&out)?).count(count);
            launch(ctx, &narrowed, count, arguments)?;
            out
        };
        ctx.set_output(0, out);
        Ok(())
    })
}
