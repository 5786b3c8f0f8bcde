//! ResizeNearestNeighbor.

use crate::numeric::scalar::Semiring;
use crate::numeric::threads::for_rows;
use crate::plan::resize::{Grid, Sizes, back_sizes, nearest};
use device::Result;
use device::kernel::KernelContext;
use graph::{Element, Shape, Tensor};

pub(super) fn forward<T: Element>(ctx: &mut KernelContext<'_>, grid: Grid) -> Result<()> {
    let sizes = Sizes::forward(ctx)?;
    let mut out = ctx.allocate(T::DTYPE, sizes.output_shape()?)?;
    if out.num_elements() > 0 {
        let rows = nearest(grid, sizes.input[0], sizes.output[0]);
        let columns = nearest(grid, sizes.input[1], sizes.output[1]);
        let (values, channels) = (ctx.input(0)?.values::<T>()?, sizes.channels);
        for_rows(out.values_mut::<T>()?, sizes.output_line(), |first, lines| {
            for (i, out) in lines.chunks_exact_mut(sizes.output_line()).enumerate() {
                let (image, row) = ((first + i) / sizes.output[0], rows[(first + i) % sizes.output[0]]);
                let line =
                    &values[(image * sizes.input[0] + row) * sizes.input_line()..][..sizes.input_line()];
                for (out, &column) in out.chunks_exact_mut(channels).zip(&columns) {
                    out.copy_from_slice(&line[column * channels..][..channels]);
                }
            }
        });
    }
    ctx.set_output(0, out);
    Ok(())
}

pub(super) fn backward<T: Semiring>(ctx: &mut KernelContext<'_>, grid: Grid) -> Result<()> {
    let Sizes { batch, input: [image_rows, image_columns], output: [rows, columns], channels } =
        back_sizes(ctx)?;
    let grads = ctx.input(0)?;
    let (to_rows, to_columns) = (nearest(grid, image_rows, rows), nearest(grid, image_columns, columns));
    let mut out = Tensor::zeros(T::DTYPE, Shape::new(&[batch, image_rows, image_columns, channels])?)?;
    if out.num_elements() > 0 && grads.num_elements() > 0 {
        let values = grads.values::<T>()?;
        let line = image_columns * channels;
        for_rows(out.values_mut::<T>()?, image_rows * line, |first, images| {
            for (i, out) in images.chunks_exact_mut(image_rows * line).enumerate() {
                let grads = &values[(first + i) * rows * columns * channels..][..rows * columns * channels];
                for (&row, grads) in to_rows.iter().zip(grads.chunks_exact(columns * channels)) {
                    let out = &mut out[row * line..][..line];
                    for (&column, grad) in to_columns.iter().zip(grads.chunks_exact(channels)) {
                        let out = &mut out[column * channels..][..channels];
                        out.iter_mut().zip(grad).for_each(|(o, &g)| *o = o.plus(g));
                    }
                }
            }
        });
    }
    ctx.set_output(0, out);
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
