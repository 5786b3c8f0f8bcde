//! Systems of equations with triangular matrices of a few diagonals.

use super::matrix::{Entry, read};
use super::set_matrices;
use crate::numeric::broadcast::Plan;
use crate::numeric::scratch::check_scratch;
use crate::plan::linalg::matrices;
use device::kernel::KernelContext;
use device::{Result, invalid};
use graph::Shape;

/// A triangular matrix, given by its diagonals. In a lower one, the main diagonal is first, and the entries of a row are
/// at its number; in an upper one, the main diagonal is last.
struct Banded<'a, F> {
    diagonals: &'a [F],
    bands: usize,
    rows: usize,
    lower: bool,
}

impl<F: Entry> Banded<'_, F> {
    /// Returns the entry in a row and a column, whose diagonal the matrix has.
    fn at(&self, row: usize, column: usize) -> F {
        let band = if self.lower { row - column } else { self.bands - 1 - (column - row) };
        self.diagonals[band * self.rows + row]
    }

    /// Solves the system of the matrix, or of its adjoint, for `columns` right-hand sides, in place.
    fn solve(&self, adjoint: bool, x: &mut [F], columns: usize) {
        let forward = self.lower != adjoint;
        let entry = |row: usize, column: usize| {
            if adjoint { self.at(column, row).conjugated() } else { self.at(row, column) }
        };
        for step in 0..self.rows {
            let row = if forward { step } else { self.rows - 1 - step };
            let known = if forward {
                row.saturating_sub(self.bands - 1)..row
            } else {
                row + 1..(row + self.bands).min(self.rows)
            };
            for other in known {
                let factor = entry(row, other);
                for j in 0..columns {
                    x[row * columns + j] = x[row * columns + j].minus(factor.times(x[other * columns + j]));
                }
            }
            let pivot = entry(row, row);
            x[row * columns..][..columns].iter_mut().for_each(|x| *x = x.over(pivot));
        }
    }
}

/// `BandedTriangularSolve`.
pub(super) fn solve<F: Entry>(ctx: &mut KernelContext<'_>, lower: bool, adjoint: bool) -> Result<()> {
    let (a, b) = (ctx.input(0)?, ctx.input(1)?);
    for (i, input) in [a, b].into_iter().enumerate() {
        if input.shape().rank() < 2 {
            invalid!("In[{i}] ndims must be >= 2: {}", input.shape().rank());
        }
        if input.num_elements() == 0 {
            invalid!("In[{i}] must not be an empty tensor of shape {}", input.shape());
        }
    }
    let ((a_batch, [bands, rows]), (b_batch, [b_rows, columns])) =
        (matrices(a.shape())?, matrices(b.shape())?);
    if rows != b_rows {
        invalid!("In[0] mismatch In[1] shape: {rows} vs. {b_rows}: {} {}", a.shape(), b.shape());
    }
    let Some(plan) = Plan::fit(&Shape::new(a_batch)?, &Shape::new(b_batch)?)? else {
        invalid!("In[0] and In[1] must have compatible batch dimensions: {} vs. {}", a.shape(), b.shape());
    };
    let (diagonals, sides): (Vec<F>, Vec<F>) = (read(a)?, read(b)?);
    let main = if lower { 0 } else { bands - 1 };
    let size = bands * rows;
    let is_regular = |pivot: &F| pivot.modulus() > 0.0;
    if !diagonals.chunks(size).all(|of| of[main * rows..][..rows].iter().all(is_regular)) {
        invalid!("Input matrix is not invertible.");
    }
    check_scratch::<F>(plan.shape().num_elements().saturating_mul(rows * columns))?;
    let repeats = plan.repeats();
    let mut values: Vec<F> = Vec::new();
    plan.walk(0, plan.shape().num_elements(), |_, len, [i, j]| {
        for k in 0..len {
            let (i, j) = (if repeats[0] { i } else { i + k }, if repeats[1] { j } else { j + k });
            let first = values.len();
            values.extend_from_slice(&sides[j * rows * columns..][..rows * columns]);
            let matrix = Banded { diagonals: &diagonals[i * size..][..size], bands, rows, lower };
            matrix.solve(adjoint, &mut values[first..], columns);
        }
    });
    let shape = Shape::new(&[&plan.shape()[..], &[rows, columns]].concat())?;
    let dtype = a.dtype();
    set_matrices(ctx, 0, dtype, shape, &values)
}
