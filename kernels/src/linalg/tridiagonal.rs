//! Products and systems of tridiagonal matrices, which are given by their diagonals.

use super::matrix::{Entry, read, write};
use device::kernel::KernelContext;
use device::{Result, invalid};
use graph::Shape;

/// Fails unless `shape` has the rank of `wanted` and its sizes.
fn expect(name: &str, shape: &Shape, wanted: &[usize]) -> Result<()> {
    if shape[..] != *wanted {
        invalid!("{name} must have the shape {}, not {shape}", Shape::new(wanted)?);
    }
    Ok(())
}

/// `TridiagonalMatMul`: multiplies tridiagonal matrices by the matrices in input 3. Inputs 0 to 2 hold the diagonal
/// above the main diagonal, the main diagonal, and the diagonal below it.
pub(super) fn multiply<F: Entry>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let rhs = ctx.input(3)?;
    let (dtype, shape) = (rhs.dtype(), rhs.shape().clone());
    let [outer @ .., rows, columns] = shape.dims() else {
        invalid!("Input must have rank >= 2, but got {}", shape.rank());
    };
    let (rows, columns) = (*rows, *columns);
    let wanted = [outer, &[1, rows]].concat();
    for (i, name) in ["superdiag", "maindiag", "subdiag"].into_iter().enumerate() {
        expect(name, ctx.input(i)?.shape(), &wanted)?;
    }
    let [above, main, below] =
        [read::<F>(ctx.input(0)?)?, read::<F>(ctx.input(1)?)?, read::<F>(ctx.input(2)?)?];
    let values: Vec<F> = read(rhs)?;
    let mut out = Vec::with_capacity(values.len());
    for batch in 0..outer.iter().product::<usize>() {
        for row in 0..rows {
            let at = batch * rows + row;
            for column in 0..columns {
                let value = |row: usize| values[(batch * rows + row) * columns + column];
                let mut sum = main[at].times(value(row));
                if row + 1 < rows {
                    sum = sum.plus(above[at].times(value(row + 1)));
                }
                if row > 0 {
                    sum = sum.plus(below[at].times(value(row - 1)));
                }
                out.push(sum);
            }
        }
    }
    let out = write(dtype, shape, &out)?;
    ctx.set_output(0, out);
    Ok(())
}

/// `TridiagonalSolve`: solves systems whose matrices are given by three rows: the diagonal above the main diagonal, the
/// main diagonal, and the diagonal below, whose first entry is not used.
pub(super) fn solve<F: Entry>(ctx: &mut KernelContext<'_>, has_pivots: bool) -> Result<()> {
    let (diagonals, rhs) = (ctx.input(0)?, ctx.input(1)?);
    let (dtype, shape) = (rhs.dtype(), rhs.shape().clone());
    let [outer @ .., rows, columns] = shape.dims() else {
        invalid!("Expected rhs to have at least 2 dimensions, but it has the shape {shape}");
    };
    let (rows, columns) = (*rows, *columns);
    expect("diagonals", diagonals.shape(), &[outer, &[3, rows]].concat())?;
    let (entries, mut values): (Vec<F>, Vec<F>) = (read(diagonals)?, read(rhs)?);
    if rows > 0 && columns > 0 {
        let systems = entries.chunks_exact(3 * rows).zip(values.chunks_exact_mut(rows * columns));
        for (diagonals, values) in systems {
            if !eliminate(diagonals, values, columns, has_pivots) {
                invalid!("Input matrix is not invertible.");
            }
        }
    }
    let out = write(dtype, shape, &values)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Solves a system in place. Returns whether all pivots differ from zero.
fn eliminate<F: Entry>(diagonals: &[F], values: &mut [F], columns: usize, has_pivots: bool) -> bool {
    let rows = diagonals.len() / 3;
    // The entries of each row from the main diagonal on; exchanging rows adds a third entry.
    let mut upper: Vec<[F; 3]> = Vec::with_capacity(rows);
    let entry = |diagonal: usize, row: usize| diagonals[diagonal * rows + row];
    for row in 0..rows {
        let above = if row + 1 < rows { entry(0, row) } else { F::ZERO };
        upper.push([entry(1, row), above, F::ZERO]);
    }
    for row in 0..rows {
        if row + 1 < rows {
            let mut below = entry(2, row + 1);
            if has_pivots && below.modulus() > upper[row][0].modulus() {
                let next = upper[row + 1];
                let old = std::mem::replace(&mut upper[row], [below, next[0], next[1]]);
                upper[row + 1] = [old[1], old[2], F::ZERO];
                below = old[0];
                let (first, second) = values.split_at_mut((row + 1) * columns);
                first[row * columns..].swap_with_slice(&mut second[..columns]);
            }
            if upper[row][0] == F::ZERO {
                return false;
            }
            let factor = below.over(upper[row][0]);
            for i in 0..2 {
                upper[row + 1][i] = upper[row + 1][i].minus(factor.times(upper[row][i + 1]));
            }
            for column in 0..columns {
                let value =
                    values[(row + 1) * columns + column].minus(factor.times(values[row * columns + column]));
                values[(row + 1) * columns + column] = value;
            }
        } else if upper[row][0] == F::ZERO {
            return false;
        }
    }
    for row in (0..rows).rev() {
        for column in 0..columns {
            let mut value = values[row * columns + column];
            for i in 1..3 {
                if row + i < rows {
                    value = value.minus(upper[row][i].times(values[(row + i) * columns + column]));
                }
            }
            values[row * columns + column] = value.over(upper[row][0]);
        }
    }
    true
}
