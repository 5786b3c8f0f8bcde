//! Contrast, hue and saturation of images, and conversion between RGB and HSV.

use super::support::{allocate, function, kernel_stream, launch, read, type_name, write};
use crate::engine::{Arguments, Source};
use device::Result;
use device::kernel::{Kernel, KernelDef, KernelInit};
use graph::{Code, DType};
use kernels::numeric::dispatch::FLOATS;
use kernels::plan::color::{check_colours, check_images};

static SOURCE: Source = Source { file: "color.cu", text: include_str!("color.cu") };

const ADJUSTED: &[(&str, &[DType])] = &[("T", &[DType::Float, DType::Half])];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["contrast_factor"],
        ..KernelDef::enqueuing("AdjustContrastv2", ADJUSTED, contrast)
    },
    KernelDef {
        host_memory: &["delta"],
        ..KernelDef::enqueuing("AdjustHue", ADJUSTED, |i| pixels(i, "delta"))
    },
    KernelDef {
        host_memory: &["scale"],
        ..KernelDef::enqueuing("AdjustSaturation", ADJUSTED, |i| pixels(i, "scale"))
    },
    KernelDef::enqueuing("RGBToHSV", &[("T", FLOATS)], |init| pixels(init, "")),
    KernelDef::enqueuing("HSVToRGB", &[("T", FLOATS)], |init| pixels(init, "")),
];

/// Makes a kernel that changes each pixel; `amount` is the name of the scalar input that determines the size of
/// the change, or empty if the op has no such input.
fn pixels(init: &KernelInit<'_>, amount: &'static str) -> Result<Kernel> {
    let (op, dtype) = (init.node.op.name(), init.output_type(0));
    let change = function(init, &SOURCE, format!("pixels<{op}, {}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let by = if amount.is_empty() {
            check_colours(&x.shape, Code::FailedPrecondition)?;
            0.0
        } else {
            check_images(&x.shape)?;
            let by = ctx.scalar(1, amount)?.item::<f32>()?;
            check_colours(&x.shape, Code::InvalidArgument)?;
            by
        };
        let y = allocate(ctx, dtype, x.shape.clone())?;
        let n = x.shape.num_elements() / 3;
        let arguments = Arguments::new().address(read(x)?).address(write(&y)?).count(n).real(f64::from(by));
        launch(ctx, &change, n, arguments)?;
        ctx.set_output(0, y);
        Ok(())
    })
}

/// Makes the kernel of `AdjustContrastv2`.
fn contrast(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let change = function(init, &SOURCE, format!("contrast<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        check_images(&x.shape)?;
        let factor = ctx.scalar(1, "contrast_factor")?.item::<f32>()?;
        let y = allocate(ctx, dtype, x.shape.clone())?;
        if x.shape.num_elements() > 0 {
            let [.., rows, columns, channels] = *x.shape.dims() else { return Ok(()) };
            let size = rows * columns;
            let n = x.shape.num_elements() / size;
            let arguments = Arguments::new()
                .address(read(x)?)
                .address(write(&y)?)
                .count(n)
                .count(size)
                .count(channels)
                .real(f64::from(factor));
            kernel_stream(ctx)?.launch_blocks(&change, n, &arguments)?;
        }
        ctx.set_output(0, y);
        Ok(())
    })
}
