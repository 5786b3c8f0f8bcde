//! Shapes and layouts of diagonals and bands of matrices.

use crate::numeric::strided::{InputBox, Layout};
use device::kernel::KernelContext;
use device::{Result, invalid};
use graph::Shape;

/// Returns the shape of the `Diag` of input 0: the dimensions of input 0, twice.
pub fn with_diagonal(ctx: &KernelContext<'_>) -> Result<Shape> {
    let input = ctx.shape(0)?;
    if input.rank() == 0 {
        invalid!("Input must be at least rank 1, got 0");
    }
    Ok(Shape::new(&input.repeat(2))?)
}

/// Returns the layout of the diagonal of a square matrix with `n` rows.
pub fn along_diagonal(n: usize) -> Layout {
    Layout { offset: 0, strides: [n as isize + 1].as_slice().into() }
}

/// Returns the diagonal of input 0 as a strided box of its elements.
pub fn diag_part(ctx: &KernelContext<'_>) -> Result<InputBox> {
    let input = ctx.shape(0)?;
    let rank = input.rank();
    if rank % 2 != 0 {
        invalid!("The rank of the tensor should be even and positive, got shape {input}");
    }
    let (first, second) = input.split_at(rank / 2);
    if let Some(i) = (0..rank / 2).find(|&i| first[i] != second[i]) {
        invalid!("Invalid shape {input}: dimensions {i} and {} do not match.", i + rank / 2);
    }
    let shape = Shape::new(first)?;
    let n = shape.num_elements();
    Ok(InputBox { shape, dims: [n].as_slice().into(), from: along_diagonal(n) })
}

/// Returns the rows and columns of the matrices in input 0, and the number of diagonals kept below and above the
/// main diagonal.
pub fn band(ctx: &KernelContext<'_>) -> Result<([usize; 2], [i64; 2])> {
    let input = ctx.shape(0)?;
    let &[.., rows, columns] = input.dims() else {
        invalid!("input must be at least 2-dim, received shape: {input}");
    };
    let bound = |i: usize, name: &str, unit: &str, most: usize| -> Result<i64> {
        let value = ctx.scalar(i, &format!("num_{name}"))?.to_i64s()?[0];
        if value > most as i64 {
            invalid!(
                "num_{name} must be negative or less or equal to number of {unit} ({most}) got: {value}"
            );
        }
        Ok(if value < 0 { i64::MAX } else { value })
    };
    Ok(([rows, columns], [bound(1, "lower", "rows", rows)?, bound(2, "upper", "columns", columns)?]))
}
