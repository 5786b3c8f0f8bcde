//! UniformQuantizedDot and UniformQuantizedDotHybrid: products of matrices. Sums are accumulated in floats.

use super::dynamic::Dynamic;
use super::scales::{Multiplier, Scales, Scaling};
use crate::quantized::level::{Level, build, levels};
use device::kernel::KernelContext;
use device::{Result, invalid};
use graph::{Shape, Tensor};

/// Returns the rows, the inner size and the columns of the product of the matrices in inputs 0 and 1.
fn sizes(ctx: &KernelContext<'_>) -> Result<[usize; 3]> {
    let (&[rows, inner], &[inner_too, columns]) = (ctx.shape(0)?.dims(), ctx.shape(1)?.dims()) else {
        invalid!("lhs and rhs must be matrices, not of shapes {} and {}", ctx.shape(0)?, ctx.shape(1)?);
    };
    if inner != inner_too {
        invalid!("lhs and rhs must have the same inner size, got {} and {}", ctx.shape(0)?, ctx.shape(1)?);
    }
    Ok([rows, inner, columns])
}

/// Returns the elements of a matrix of `columns` columns relative to the zero points of the columns.
fn centred(values: &[i8], columns: usize, scales: Scales<'_>) -> Vec<f32> {
    let centre = |(i, &v): (usize, &i8)| i32::from(v).wrapping_sub(scales.zero(i % columns)) as f32;
    values.iter().enumerate().map(centre).collect()
}

/// Returns the row of sums that are the product of a row and a matrix of `columns` columns.
fn row_product(row: &[f32], matrix: &[f32], columns: usize) -> Vec<f32> {
    let mut sums = vec![0f32; columns];
    for (&x, line) in row.iter().zip(matrix.chunks_exact(columns)) {
        sums.iter_mut().zip(line).for_each(|(sum, &y)| *sum += x * y);
    }
    sums
}

/// The conversions of sums of products to values of the result, one for each column or one for all.
pub(super) struct Output<'a> {
    multipliers: Vec<Multiplier>,
    scales: Scales<'a>,
    scaling: Scaling,
}

impl<'a> Output<'a> {
    pub(super) fn new(lhs: f32, rhs: Scales<'_>, scales: Scales<'a>, scaling: Scaling) -> Result<Output<'a>> {
        let factor = |i| f64::from(lhs) * f64::from(rhs.scale(i)) / f64::from(scales.scale(i));
        let count = rhs.scales.len().max(scales.scales.len());
        let multipliers = (0..count).map(|i| Multiplier::new(factor(i))).collect::<Result<Vec<_>>>()?;
        Ok(Output { multipliers, scales, scaling })
    }

    /// Returns the value of a sum in this column.
    pub(super) fn value(&self, sum: f32, column: usize) -> i32 {
        let multiplier = self.multipliers[if self.multipliers.len() == 1 { 0 } else { column }];
        let level = i32::clamped(multiplier.times(sum as i64)).wrapping_add(self.scales.zero(column));
        i32::wrapped(self.scaling.clamp(level.into()))
    }
}

pub(super) fn integer(ctx: &mut KernelContext<'_>, [left, right, out]: [Scaling; 3]) -> Result<()> {
    let [rows, inner, columns] = sizes(ctx)?;
    let shape = Shape::new(&[rows, columns])?;
    let of_x = left.inputs(ctx, 2, ctx.shape(0)?)?;
    let of_y = right.inputs(ctx, 4, ctx.shape(1)?)?;
    let of_out = out.inputs(ctx, 6, &shape)?;
    let output = Output::new(of_x.scale(0), of_y, of_out, out)?;
    let xs = centred(levels::<i8>(ctx.input(0)?)?, 1, of_x);
    let ys = centred(levels::<i8>(ctx.input(1)?)?, columns, of_y);
    let product = build(shape, |product: &mut [i32]| {
        for (row, values) in product.chunks_exact_mut(columns.max(1)).enumerate() {
            let sums = row_product(&xs[row * inner..][..inner], &ys, columns);
            for (column, (o, sum)) in values.iter_mut().zip(sums).enumerate() {
                *o = output.value(sum, column);
            }
        }
        Ok(())
    })?;
    ctx.set_output(0, product);
    Ok(())
}

/// Each row of the left factor, of floats, is quantized by itself.
pub(super) fn hybrid(ctx: &mut KernelContext<'_>, right: Scaling) -> Result<()> {
    let [rows, inner, columns] = sizes(ctx)?;
    let shape = Shape::new(&[rows, columns])?;
    // A single scale is also accepted with an axis.
    let right = if ctx.shape(2)?.rank() == 0 { Scaling { axis: None, ..right } } else { right };
    let of_y = right.inputs(ctx, 2, ctx.shape(1)?)?;
    let xs = ctx.input(0)?.values::<f32>()?;
    let ys = centred(levels::<i8>(ctx.input(1)?)?, columns, of_y);
    let mut product = Tensor::zeros(graph::DType::Float, shape)?;
    for (row, values) in product.values_mut::<f32>()?.chunks_exact_mut(columns.max(1)).enumerate() {
        let row = Dynamic::new(&xs[row * inner..][..inner]);
        let sums = row_product(&row.levels, &ys, columns);
        for (column, (o, sum)) in values.iter_mut().zip(sums).enumerate() {
            *o = sum * row.scale * of_y.scale(column);
        }
    }
    ctx.set_output(0, product);
    Ok(())
}
