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

/// The sizes of a convolution of images with channels last.
pub(crate) struct Geometry {
    batch: usize,
    height: usize,
    width: usize,
    depth: usize,
    rows: Window,
    columns: Window,
    filter_width: usize,
    filter_depth: usize,
    /// True if each channel has filters of its own.
    is_depthwise: bool,
}

impl Geometry {
    /// Returns the sizes for images and filters of these shapes, with strides and dilations along rows and columns.
    ///
    /// # Errors
    /// `InvalidArgument` for shapes that do not fit.
    pub(crate) fn new(
        images: &Shape,
        filter: &Shape,
        [strides, dilations]: [[usize; 2]; 2],
        padding: Padding,
        is_depthwise: bool,
    ) -> Result<Geometry> {
        let &[batch, height, width, depth] = images.dims() else {
            invalid!("input must be rank 4 but is rank {}", images.rank());
        };
        let &[filter_height, filter_width, filter_inputs, filter_depth] = filter.dims() else {
            invalid!("filter must be rank 4 but is rank {}", filter.rank());
        };
        if depth != filter_inputs {
            invalid!("input and filter must have the same depth: {depth} vs {filter_inputs}");
        }
        let rows = Window::new(height, filter_height, strides[0], dilations[0], padding, 0)?;
        let columns = Window::new(width, filter_width, strides[1], dilations[1], padding, 1)?;
        Ok(Geometry { batch, height, width, depth, rows, columns, filter_width, filter_depth, is_depthwise })
    }

    /// Returns the number of channels of the output.
    pub(crate) fn channels(&self) -> usize {
        if self.is_depthwise { self.depth * self.filter_depth } else { self.filter_depth }
    }

    pub(crate) fn output_shape(&self) -> Result<Shape> {
        if self.is_depthwise && self.depth.checked_mul(self.filter_depth).is_none() {
            invalid!("the output has too many channels: {} times {}", self.depth, self.filter_depth);
        }
        Ok(Shape::new(&[self.batch, self.rows.output, self.columns.output, self.channels()])?)
    }

    /// Calls `finish` for each pixel of the output: with its number, the sums of its channels, which wrap around, and its
    /// elements of `out`. Pixels around an image have the value `border`. `out` must not be empty.
    pub(crate) fn for_each_pixel<T: Send>(
        &self,
        pixels: &[i32],
        weights: &[i32],
        border: i32,
        out: &mut [T],
        finish: impl Fn(usize, &[i32], &mut [T]) + Sync,
    ) {
        // The depth of a filter without elements may be any number.
        let depth = if weights.is_empty() { 0 } else { self.depth };
        let (channels, outside) = (self.channels(), vec![border; depth]);
        let line = self.columns.output * channels;
        for_rows(out, line, |first, lines| {
            let mut sums = vec![0i32; channels];
            for (i, out) in lines.chunks_exact_mut(line).enumerate() {
                let (image, row) = ((first + i) / self.rows.output, (first + i) % self.rows.output);
                for (column, out) in out.chunks_exact_mut(channels).enumerate() {
                    sums.fill(0);
                    let filters = weights.chunks_exact((depth * self.filter_depth).max(1));
                    for (tap, weights) in filters.enumerate() {
                        let (down, across) = (tap / self.filter_width, tap % self.filter_width);
                        let pixel = match (self.rows.at(row, down), self.columns.at(column, across)) {
                            (Some(y), Some(x)) => {
                                &pixels[((image * self.height + y) * self.width + x) * self.depth..]
                                    [..self.depth]
                            }
                            _ => &outside,
                        };
                        for (channel, (&value, weights)) in
                            pixel.iter().zip(weights.chunks_exact(self.filter_depth)).enumerate()
                        {
                            let from = if self.is_depthwise { channel * self.filter_depth } else { 0 };
                            for (sum, &weight) in sums[from..].iter_mut().zip(weights) {
                                *sum = sum.wrapping_add(value.wrapping_mul(weight));
                            }
                        }
                    }
                    finish((first + i) * self.columns.output + column, &sums, out);
                }
            }
        });
    }
}

pub(super) fn forward(ctx: &mut KernelContext<'_>, windows: Windows) -> Result<()> {
    let input = Quantized::<u8>::input(ctx, 0, 2, "input")?;
    let filter = Quantized::<u8>::input(ctx, 1, 4, "filter")?;
    let Windows { stride, padding } = windows;
    let (images, filters) = (input.tensor.shape(), filter.tensor.shape());
    let geometry = Geometry::new(images, filters, [[stride; 2], [1; 2]], padding, false)?;
    let shape = geometry.output_shape()?;
    if input.levels.is_empty() || filter.levels.is_empty() || shape.num_elements() == 0 {
        invalid!("Invalid input: Shapes dimension cannot be 0.");
    }
    let range = product_range::<u8, u8>(input.range, filter.range);
    let border = border(input.range.unclamped::<u8>(0.0));
    let (pixels, weights) = (centred(input.levels, input.range), centred(filter.levels, filter.range));
    let out = build(shape, |out: &mut [i32]| {
        geometry.for_each_pixel(&pixels, &weights, border, out, |_, sums, out| out.copy_from_slice(sums));
        Ok(())
    })?;
    ctx.set_output(0, out);
    range.set_outputs(ctx, 1);
    Ok(())
}
