//! QuantizedConv2D: convolutions of images of 8-bit values, in 32 bits.

use super::level::build;
use super::product::centred;
use super::range::{Quantized, product_range};
use crate::numeric::threads::for_rows;
use device::kernel::{KernelContext, KernelInit};
use device::{Result, invalid};
use graph::Shape;
use graph::ops::window::{Padding, Window};

/// The stride, equal along rows and columns, and the padding of a convolution.
#[derive(Clone, Copy)]
pub(super) struct Windows {
    stride: usize,
    padding: Padding,
}

impl Windows {
    pub(super) fn of(init: &KernelInit<'_>) -> Result<Windows> {
        let (strides, dilations): (Vec<i64>, Vec<i64>) = (init.attr("strides")?, init.attr("dilations")?);
        let &[over_batch, rows, columns, over_depth] = strides.as_slice() else {
            invalid!("Sliding window strides field must specify 4 dimensions");
        };
        if rows != columns {
            invalid!(
                "Current implementation only supports equal length strides in the row and column dimensions."
            );
        }
        if over_batch != 1 || over_depth != 1 {
            invalid!(
                "Current implementation does not yet support strides in the batch and depth dimensions."
            );
        }
        if dilations.len() != 4 {
            invalid!("Dilation rates field must specify 4 dimensions");
        }
        if dilations[1..3] != [1, 1] {
            invalid!(
                "Current implementation only supports dilated rate as 1 in the row and column dimensions."
            );
        }
        if dilations != [1; 4] {
            invalid!(
                "Current implementation does not yet support dilations in the batch and depth dimensions."
            );
        }
        let Some(stride) = usize::try_from(rows).ok().filter(|&stride| stride > 0) else {
            invalid!("Stride must be > 0, but got {rows}");
        };
        let is_same = init.attr::<String>("padding")? == "SAME";
        Ok(Windows { stride, padding: if is_same { Padding::Same } else { Padding::Valid } })
    }
}

/// Returns the value, relative to the level of zero, of the pixels around an image. The level of zero has 8 bits there,
/// and what it loses by that counts; around an image without negative numbers the value is zero.
fn border(zero: i64) -> i32 {
    if zero < 0 { 0 } else { ((zero & 0xff) - zero) as i32 }
}

pub(super) fn forward(ctx: &mut KernelContext<'_>, windows: Windows) -> Result<()> {
    let input = Quantized::<u8>::input(ctx, 0, 2, "input")?;
    let filter = Quantized::<u8>::input(ctx, 1, 4, "filter")?;
    let &[batch, height, width, depth] = input.tensor.shape().dims() else {
        invalid!("input must be rank 4 but is rank {}", input.tensor.shape().rank());
    };
    let &[filter_height, filter_width, filter_depth, out_depth] = filter.tensor.shape().dims() else {
        invalid!("filter must be rank 4 but is rank {}", filter.tensor.shape().rank());
    };
    if depth != filter_depth {
        invalid!("input and filter must have the same depth: {depth} vs {filter_depth}");
    }
    let Windows { stride, padding } = windows;
    let rows = Window::new(height, filter_height, stride, 1, padding, 0)?;
    let columns = Window::new(width, filter_width, stride, 1, padding, 1)?;
    let shape = Shape::new(&[batch, rows.output, columns.output, out_depth])?;
    if input.levels.is_empty() || filter.levels.is_empty() || shape.num_elements() == 0 {
        invalid!("Invalid input: Shapes dimension cannot be 0.");
    }
    let range = product_range::<u8, u8>(input.range, filter.range);
    let border = border(input.range.unclamped::<u8>(0.0));
    let (pixels, weights) = (centred(input.levels, input.range), centred(filter.levels, filter.range));
    let outside = vec![border; depth];
    let out = build(shape, |out: &mut [i32]| {
        let line = columns.output * out_depth;
        for_rows(out, line, |first, lines| {
            for (i, out) in lines.chunks_exact_mut(line).enumerate() {
                let (image, row) = ((first + i) / rows.output, (first + i) % rows.output);
                for (column, sums) in out.chunks_exact_mut(out_depth).enumerate() {
                    sums.fill(0);
                    for (tap, weights) in weights.chunks_exact(depth * out_depth).enumerate() {
                        let at = (rows.at(row, tap / filter_width), columns.at(column, tap % filter_width));
                        let pixel = match at {
                            (Some(y), Some(x)) => {
                                &pixels[((image * height + y) * width + x) * depth..][..depth]
                            }
                            _ => &outside,
                        };
                        for (&value, weights) in pixel.iter().zip(weights.chunks_exact(out_depth)) {
                            for (sum, &weight) in sums.iter_mut().zip(weights) {
                                *sum = sum.wrapping_add(value.wrapping_mul(weight));
                            }
                        }
                    }
                }
            }
        });
        Ok(())
    })?;
    ctx.set_output(0, out);
    range.set_outputs(ctx, 1);
    Ok(())
}
