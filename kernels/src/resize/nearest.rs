//! ResizeNearestNeighbor: each output pixel is a copy of the nearest input pixel.

use crate::numeric::scalar::Semiring;
use crate::numeric::threads::{PARALLEL, for_chunks, for_rows, rows_at_a_time};
use crate::plan::resize::{Grid, Sizes, back_sizes, nearest};
use device::Result;
use device::kernel::KernelContext;
use graph::{Shape, Tensor};

/// Outputs, for each output pixel, a copy of the nearest input pixel; pixels of all dtypes are copied as bytes.
pub(super) fn forward(ctx: &mut KernelContext<'_>, grid: Grid) -> Result<()> {
    let sizes = Sizes::forward(ctx)?;
    let input = ctx.input(0)?;
    let mut out = ctx.allocate(input.dtype(), sizes.output_shape()?)?;
    let elements = out.num_elements();
    if let Some(element) = out.num_bytes().checked_div(elements) {
        let rows = nearest(grid, sizes.input[0], sizes.output[0]);
        let columns = nearest(grid, sizes.input[1], sizes.output[1]);
        let pixel = sizes.channels * element;
        let (line_in, line_out) = (sizes.input[1] * pixel, sizes.output[1] * pixel);
        let all = out.num_bytes();
        let chunk = if elements < PARALLEL { all } else { rows_at_a_time(sizes.output_line()) * line_out };
        let values = input.bytes()?;
        for_chunks(out.bytes_mut()?, chunk, |start, lines| {
            for (i, out) in lines.chunks_exact_mut(line_out).enumerate() {
                let line = start / line_out + i;
                let (image, row) = (line / sizes.output[0], rows[line % sizes.output[0]]);
                let line = &values[(image * sizes.input[0] + row) * line_in..][..line_in];
                for (out, &column) in out.chunks_exact_mut(pixel).zip(&columns) {
                    out.copy_from_slice(&line[column * pixel..][..pixel]);
                }
            }
        });
    }
    ctx.set_output(0, out);
    Ok(())
}

/// The sizes of the images, and, for each row and column of the resized images, the row or column of the original
/// images to which its gradient is added.
pub(super) struct Targets {
    sizes: Sizes,
    rows: Vec<usize>,
    columns: Vec<usize>,
}

/// A function that adds the gradient of resized images to the gradient of the original images.
type Add = fn(&Targets, &Tensor, &mut Tensor) -> Result<()>;

pub(super) fn backward(ctx: &mut KernelContext<'_>, grid: Grid, add: Add) -> Result<()> {
    let sizes = back_sizes(ctx)?;
    let grads = ctx.input(0)?;
    let [rows, columns] = [0, 1].map(|axis| nearest(grid, sizes.input[axis], sizes.output[axis]));
    let shape = Shape::new(&[sizes.batch, sizes.input[0], sizes.input[1], sizes.channels])?;
    let mut out = Tensor::zeros(grads.dtype(), shape)?;
    if out.num_elements() > 0 && grads.num_elements() > 0 {
        add(&Targets { sizes, rows, columns }, grads, &mut out)?;
    }
    ctx.set_output(0, out);
    Ok(())
}

/// Adds `grads`, the gradient of the resized images, to `out`, the gradient of the original images.
pub(super) fn add<T: Semiring>(targets: &Targets, grads: &Tensor, out: &mut Tensor) -> Result<()> {
    let Targets { sizes, rows, columns } = targets;
    let (channels, line_in, line_out) = (sizes.channels, sizes.input_line(), sizes.output_line());
    let (image_in, image_out) = (sizes.input[0] * line_in, sizes.output[0] * line_out);
    let values = grads.values::<T>()?;
    for_rows(out.values_mut::<T>()?, image_in, |first, images| {
        for (i, out) in images.chunks_exact_mut(image_in).enumerate() {
            let grads = &values[(first + i) * image_out..][..image_out];
            for (&row, grads) in rows.iter().zip(grads.chunks_exact(line_out)) {
                let out = &mut out[row * line_in..][..line_in];
                for (&column, grad) in columns.iter().zip(grads.chunks_exact(channels)) {
                    let out = &mut out[column * channels..][..channels];
                    out.iter_mut().zip(grad).for_each(|(o, &g)| *o = o.plus(g));
                }
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use device::Result;
    use graph::{DType, Shape, Tensor};

    #[test]
    fn an_empty_gradient_gives_an_image_of_zeros() -> Result<()> {
        let grads = Tensor::zeros(DType::Float, Shape::new(&[1, 2, 0, 1])?)?;
        let size = Tensor::try_from([2, 3])?;
        let out = run_op("ResizeNearestNeighborGrad", &[grads, size], &[("T", DType::Float.into())])?;
        assert_eq!(out, [Tensor::zeros(DType::Float, Shape::new(&[1, 2, 3, 1])?)?]);
        Ok(())
    }
}
