//! `DrawBoundingBoxes`: outlines of boxes drawn into images.

use crate::numeric::widen::from_wide;
use device::Result;
use device::kernel::KernelContext;
use graph::{Shape, Tensor};

/// The colours (red, green, blue, opacity) of successive boxes if the op has no input with colours.
const PALETTE: [[f32; 4]; 10] = [
    [1.0, 1.0, 0.0, 1.0],
    [0.0, 0.0, 1.0, 1.0],
    [1.0, 0.0, 0.0, 1.0],
    [0.0, 1.0, 0.0, 1.0],
    [0.5, 0.0, 0.5, 1.0],
    [0.5, 0.5, 0.0, 1.0],
    [0.5, 0.0, 0.0, 1.0],
    [0.0, 0.0, 0.5, 1.0],
    [0.0, 1.0, 1.0, 1.0],
    [1.0, 0.0, 1.0, 1.0],
];

/// Draws the boxes of input 1 into copies of the images; `with_colours`: input 2 holds the colours.
pub(super) fn draw(ctx: &mut KernelContext<'_>, with_colours: bool) -> Result<()> {
    let (images, boxes) = (ctx.input(0)?, ctx.input(1)?);
    let &[batch, height, width, depth] = images.shape().dims() else {
        device::invalid!("The rank of the images should be 4, got shape {}", images.shape());
    };
    let &[boxes_batch, count, 4] = boxes.shape().dims() else {
        device::invalid!("boxes should be of shape [batch, count, 4], got {}", boxes.shape());
    };
    if boxes_batch != batch {
        device::invalid!("The batch sizes should be the same, got {batch} and {boxes_batch}");
    }
    if !matches!(depth, 1 | 3 | 4) {
        device::invalid!("Channel depth should be either 1 (GRY), 3 (RGB), or 4 (RGBA)");
    }
    let mut palette: Vec<Vec<f32>> = PALETTE.iter().map(|c| c.to_vec()).collect();
    if depth == 1 {
        palette.iter_mut().for_each(|c| c[0] = 1.0);
    }
    if with_colours {
        palette = given_palette(ctx.input(2)?, depth)?.unwrap_or(palette);
    }
    let mut out = images.clone();
    let boxes = boxes.values::<f32>()?;
    if batch == 0 || height == 0 || width == 0 || count == 0 {
        ctx.set_output(0, out);
        return Ok(());
    }
    let (last_row, last_column) = (height as i64 - 1, width as i64 - 1);
    let colours = Tensor::from_slice(&palette.concat(), Shape::new(&[palette.len(), palette[0].len()])?)?;
    let colours = from_wide(colours, images.dtype())?;
    let pixel = images.num_bytes() / (batch * height * width);
    let colours: Vec<&[u8]> = colours.bytes()?.chunks_exact(colours.num_bytes() / palette.len()).collect();
    let pixels = out.bytes_mut()?.chunks_exact_mut(height * width * pixel);
    for (image, boxes) in pixels.zip(boxes.chunks_exact(count * 4)) {
        for (number, corners) in boxes.chunks_exact(4).enumerate() {
            let [top, bottom] = [corners[0], corners[2]].map(|v| (v * last_row as f32) as i64);
            let [left, right] = [corners[1], corners[3]].map(|v| (v * last_column as f32) as i64);
            let outside = top > last_row || bottom < 0 || left > last_column || right < 0;
            if top > bottom || left > right || outside {
                continue;
            }
            let (rows, columns) = (top.max(0)..=bottom.min(last_row), left.max(0)..=right.min(last_column));
            let colour = &colours[number % colours.len()][..pixel];
            let mut paint = |row: i64, column: i64| {
                let at = (row as usize * width + column as usize) * pixel;
                image[at..at + pixel].copy_from_slice(colour);
            };
            for row in [top, bottom].into_iter().filter(|r| rows.contains(r)) {
                columns.clone().for_each(|column| paint(row, column));
            }
            for column in [left, right].into_iter().filter(|c| columns.contains(c)) {
                rows.clone().for_each(|row| paint(row, column));
            }
        }
    }
    ctx.set_output(0, out);
    Ok(())
}

/// Returns the colours in input 2; `None` if input 2 is empty.
fn given_palette(colours: &Tensor, depth: usize) -> Result<Option<Vec<Vec<f32>>>> {
    let &[count, channels] = colours.shape().dims() else {
        device::invalid!("colors must be a 2-D matrix, got shape {}", colours.shape());
    };
    if channels < depth {
        device::invalid!(
            "colors must have equal or more channels than the image provided: {channels} vs {depth}"
        );
    }
    if count == 0 {
        return Ok(None);
    }
    Ok(Some(colours.values::<f32>()?.chunks_exact(channels).map(<[f32]>::to_vec).collect()))
}
