//! The sizes of the images and filters of the dilation ops.

use device::Result;
use device::kernel::KernelContext;
use graph::Shape;
use graph::ops::morphology::{Dilation, DilationAxis};

/// The sizes of the images and filters of a dilation.
#[derive(Debug)]
pub struct Sizes {
    batch: usize,
    pub rows: DilationAxis,
    pub columns: DilationAxis,
    pub depth: usize,
}

impl Sizes {
    /// Returns the sizes of the dilation of input 0, the images, with input 1, the filter.
    pub fn of(ctx: &KernelContext<'_>, dilation: &Dilation) -> Result<Sizes> {
        let (input, filter) = (ctx.shape(0)?, ctx.shape(1)?);
        let &[batch, rows, columns, depth] = input.dims() else {
            device::invalid!("input must be 4-dimensional: {input}");
        };
        let &[filter_rows, filter_columns, filter_depth] = filter.dims() else {
            device::invalid!("filter must be 3-dimensional: {filter}");
        };
        if depth != filter_depth {
            device::invalid!("input and filter must have the same depth: {depth} vs {filter_depth}");
        }
        let (rows, columns) =
            (dilation.axis(0, rows, filter_rows)?, dilation.axis(1, columns, filter_columns)?);
        Ok(Sizes { batch, rows, columns, depth })
    }

    /// Returns the shape of the dilated images.
    pub fn output(&self) -> Result<Shape> {
        Ok(Shape::new(&[self.batch, self.rows.output, self.columns.output, self.depth])?)
    }

    /// Checks that input 2, `out_backprop`, has the output's shape.
    pub fn check_out_backprop(&self, ctx: &KernelContext<'_>) -> Result<()> {
        let (arrived, output) = (ctx.shape(2)?, self.output()?);
        if *arrived != output {
            device::invalid!("out_backprop has incompatible size: {arrived}, not {output}");
        }
        Ok(())
    }
}
