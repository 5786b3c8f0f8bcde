//! Depthwise convolutions and their gradients: each input channel has filters of its own.

use super::super::copy::zeros;
use super::super::reduce::{MIN_PER_PART, Reduction, part_count};
use super::super::support::{allocate, function, kernel_stream, launch, read, type_name, write};
use super::ConvShapes;
use crate::engine::driver::Direction;
use crate::engine::{Arguments, Source};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelInit};
use graph::Shape;
use graph::ops::conv::{Conv, ConvSizes};
use graph::ops::window::{DataFormat, Window};

static SOURCE: Source = Source { file: "conv.cu", text: include_str!("../conv.cu") };

/// Makes the kernel of a depthwise convolution, or of one of its gradients.
pub(super) fn make(init: &KernelInit<'_>, direction: Direction) -> Result<Kernel> {
    let (conv, dtype) = (Conv::of_gradient_of_images(init.node)?, init.output_type(0));
    let name = match direction {
        Direction::Forward => "depthwise",
        Direction::Input => "depthwise_input",
        Direction::Filter => "depthwise_filter",
    };
    let function = function(init, &SOURCE, format!("{name}<{}>", type_name(dtype)?))?;
    let sum = match direction {
        Direction::Filter => Some(Reduction::new(init, "Sum", dtype)?),
        _ => None,
    };
    Kernel::sync(move |ctx| {
        let shapes = ConvShapes::of(ctx, &conv, direction)?;
        let nothing = |ctx: &mut KernelContext<'_>, shape: &Shape| -> Result<()> {
            let out = zeros(ctx, dtype, shape.clone())?;
            ctx.set_output(0, out);
            Ok(())
        };
        if direction == Direction::Filter && shapes.filter.num_elements() == 0 {
            return nothing(ctx, &shapes.filter);
        }
        let sizes = conv.depthwise_sizes(&shapes.input, &shapes.filter)?;
        let output = shapes.output(ctx, &conv, &sizes)?;
        let result = shapes.result(&output);
        if shapes.is_empty(&output) {
            return nothing(ctx, result);
        }
        let (a, b) = match direction {
            Direction::Forward => (ctx.device_input(0)?, ctx.device_input(1)?),
            Direction::Input => (ctx.device_input(2)?, ctx.device_input(1)?),
            Direction::Filter => (ctx.device_input(0)?, ctx.device_input(2)?),
        };
        let out = allocate(ctx, dtype, result.clone())?;
        let n = out.shape.num_elements();
        let (words, inputs) = (words(&conv, &sizes), Arguments::new().address(read(a)?).address(read(b)?));
        match &sum {
            Some(sum) => {
                let [width, blocks, parts] = cut(&conv, &sizes);
                let sums = sum.memory(ctx, n, parts)?;
                let arguments = inputs.address(write(&sums)?).count(sizes.batch).count(width).count(parts);
                let taps = sizes.rows.filter * sizes.columns.filter;
                kernel_stream(ctx)?.launch_blocks(
                    &function,
                    taps * blocks * parts,
                    &arguments.structure(words),
                )?;
                sum.add_up(ctx, sums, &out, [sizes.batch, parts])?;
            }
            None => launch(ctx, &function, n, inputs.address(write(&out)?).count(n).structure(words))?,
        }
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Returns how the gradient of a filter is divided: channels per thread block, thread blocks for all channels
/// of a filter tap, and partial sums per element of the gradient.
fn cut(conv: &Conv, sizes: &ConvSizes) -> [usize; 3] {
    let width = match conv.format {
        DataFormat::Nhwc => sizes.out_channels.next_power_of_two().min(32),
        DataFormat::Nchw => 1,
    };
    let blocks = sizes.out_channels.div_ceil(width);
    let taps = sizes.rows.filter * sizes.columns.filter;
    let pixels = sizes.batch * sizes.rows.output * sizes.columns.output;
    [width, blocks, part_count(pixels, taps * blocks, MIN_PER_PART / width)]
}

/// Returns the fields of the `Depthwise` structure of `conv.cu`, in the order of declaration.
fn words(conv: &Conv, sizes: &ConvSizes) -> Vec<i64> {
    let of_axes = |of: fn(&Window) -> usize| [of(&sizes.rows), of(&sizes.columns)];
    let steps = |[h, w]: [usize; 2], c: usize| match conv.format {
        DataFormat::Nhwc => [h * w * c, w * c, c, 1],
        DataFormat::Nchw => [h * w * c, w, 1, h * w],
    };
    let (input, output) = (of_axes(|w| w.input), of_axes(|w| w.output));
    let multiplier = sizes.out_channels / sizes.in_channels.max(1);
    let words = [
        &[sizes.in_channels, multiplier][..],
        &input,
        &output,
        &of_axes(|w| w.filter),
        &of_axes(|w| w.stride),
        &of_axes(|w| w.dilation),
        &of_axes(|w| w.pad_before),
        &steps(input, sizes.in_channels),
        &steps(output, sizes.out_channels),
    ];
    words.concat().into_iter().map(|word| word as i64).collect()
}
