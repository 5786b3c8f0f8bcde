//! Matrices of `f32` laid out for [`super::micro`]: cut into panels at most as wide as a block of registers, each of which
//! is read from its beginning to its end.

use super::micro::{Registers, Right};
use super::product::Threads;
use super::simd::{Vector, vectorized};
use crate::error::Result;
use graph::Buffer;
use rayon::prelude::*;
use std::ops::Range;

/// Columns of a matrix, in panels.
#[derive(Debug)]
pub(super) struct Panels {
    memory: Buffer,
    steps: usize,
    columns: usize,
}

impl Panels {
    /// Panels of nothing yet.
    pub(super) fn new() -> Panels {
        Panels { memory: Buffer::default(), steps: 0, columns: 0 }
    }

    /// Takes up a matrix of `steps` rows, in the memory of the one before if it is large enough.
    ///
    /// # Errors
    /// `ResourceExhausted` if there is no memory.
    pub(super) fn fill(
        &mut self,
        steps: usize,
        columns: usize,
        threads: Threads,
        source: &(impl Source + Sync),
    ) -> Result<()> {
        let registers = Registers::get();
        (self.steps, self.columns) = (steps, columns);
        let len = steps * registers.whole_vectors(columns);
        if len == 0 {
            return Ok(());
        }
        if self.memory.len() < len * size_of::<f32>() {
            self.memory = Buffer::unspecified(len * size_of::<f32>())?;
        }
        let mut rest = &mut bytemuck::cast_slice_mut(self.memory.as_mut_slice())[..len];
        let parts = registers.panels(columns).map(|columns| {
            let step = registers.whole_vectors(columns.len());
            let (panel, others) = std::mem::take(&mut rest).split_at_mut(steps * step);
            rest = others;
            (columns, step, panel)
        });
        let work = |(columns, step, panel): (Range<usize>, usize, &mut [f32])| {
            source.panel(columns.start, columns.len(), step, panel);
        };
        match threads {
            Threads::One => parts.for_each(work),
            Threads::All => parts.collect::<Vec<_>>().into_par_iter().for_each(work),
        }
        Ok(())
    }

    /// Rows of the matrix.
    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Panel<'_>> {
        let registers = Registers::get();
        let data: &[f32] = bytemuck::cast_slice(self.memory.as_slice());
        registers.panels(self.columns).map(move |columns| {
            let (first, width) = (columns.start, columns.len());
            let step = registers.whole_vectors(width);
            Panel { first, width, step, data: &data[first * self.steps..][..self.steps * step] }
        })
    }
}

/// Columns `first..first + width`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panel<'a> {
    pub(super) first: usize,
    pub(super) width: usize,
    step: usize,
    data: &'a [f32],
}

impl<'a> Panel<'a> {
    /// The rows from `step` on.
    pub(super) fn from(&self, step: usize) -> Right<'a> {
        Right { data: &self.data[step * self.step..], step: self.step }
    }
}

/// Where panels are copied from.
pub(super) trait Source {
    /// Writes columns `first..first + width` of each row, `step` apart.
    fn panel(&self, first: usize, width: usize, step: usize, panel: &mut [f32]);
}

/// Rows that lie `stride` apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<'a> {
    pub(super) data: &'a [f32],
    pub(super) stride: usize,
}

impl Source for Rows<'_> {
    fn panel(&self, first: usize, width: usize, step: usize, panel: &mut [f32]) {
        for (t, row) in panel.chunks_exact_mut(step).enumerate() {
            row[..width].copy_from_slice(&self.data[t * self.stride + first..][..width]);
            row[width..].fill(0.0);
        }
    }
}

/// Columns that lie `stride` apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns<'a> {
    pub(super) data: &'a [f32],
    pub(super) stride: usize,
}

impl Source for Columns<'_> {
    fn panel(&self, first: usize, width: usize, step: usize, panel: &mut [f32]) {
        let from = &self.data[first * self.stride..];
        vectorized(Turn { from, stride: self.stride, width, step, rows: panel });
    }
}

/// Writes `width` runs of elements, `stride` apart, as the columns of rows of `step`; further columns are zero.
struct Turn<'a> {
    from: &'a [f32],
    stride: usize,
    width: usize,
    step: usize,
    rows: &'a mut [f32],
}

/// Rows and columns that are turned in registers.
const SIDE: usize = 8;

impl Vector for Turn<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Turn { from, stride, width, step, rows } = self;
        let count = rows.len() / step;
        let (whole_columns, whole_rows) = (width / SIDE * SIDE, count / SIDE * SIDE);
        for t in (0..whole_rows).step_by(SIDE) {
            for j in (0..whole_columns).step_by(SIDE) {
                let square: [[f32; SIDE]; SIDE] = std::array::from_fn(|i| {
                    let run = &from[(j + i) * stride + t..][..SIDE];
                    std::array::from_fn(|k| run[k])
                });
                for k in 0..SIDE {
                    let row: [f32; SIDE] = std::array::from_fn(|i| square[i][k]);
                    rows[(t + k) * step + j..][..SIDE].copy_from_slice(&row);
                }
            }
        }
        for (t, row) in rows.chunks_exact_mut(step).enumerate() {
            let first = if t < whole_rows { whole_columns } else { 0 };
            for (j, to) in row[..width].iter_mut().enumerate().skip(first) {
                *to = from[j * stride + t];
            }
            row[width..].fill(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Source for Nothing {
        fn panel(&self, _first: usize, _width: usize, _step: usize, _panel: &mut [f32]) {
            panic!("there is nothing to copy");
        }
    }

    #[test]
    fn of_a_matrix_without_elements_nothing_is_copied() -> Result<()> {
        for (steps, columns) in [(0, 40), (3, 0), (0, 0)] {
            for threads in [Threads::One, Threads::All] {
                let mut panels = Panels::new();
                panels.fill(steps, columns, threads, &Nothing)?;
                assert_eq!((panels.steps(), panels.columns()), (steps, columns));
            }
        }
        Ok(())
    }
}
