//! Products of `f32` matrices in blocks of registers: the right factor in panels, the left one read in place where
//! its rows do not fall into the same few sets of the cache, else from a copy.

use super::{Matrix, Threads};
use crate::error::Result;
use crate::kernels::cpu::cache::{ALIASES, FLOATS};
use crate::kernels::cpu::micro::{Left, Place, Registers, Run};
use crate::kernels::cpu::panel::{Columns, Panel, Panels, Rows};
use rayon::prelude::*;
use std::ops::Range;

/// Steps of the inner dimension at a time: so many that what is written after them costs little, so few that no sum is long.
const STEPS: usize = 320;

/// Rows at a time: with the steps, what of the left factor stays in the second-level cache.
const ROWS: usize = 252;

/// Columns at a time at most, where panels are used at once: they stay in the second-level cache.
const COLUMNS: usize = 192;

/// `out = a * b`, or `out += a * b`. Sizes are not 0.
///
/// # Errors
/// `ResourceExhausted` if there is no memory for the panels.
pub(super) fn product(
    out: &mut [f32],
    stride: usize,
    a: &Matrix<'_, f32>,
    b: &Matrix<'_, f32>,
    accumulate: bool,
    threads: Threads,
) -> Result<()> {
    let task = Task::new(stride, a, accumulate);
    match threads {
        Threads::One => task.alone(out, b),
        Threads::All => {
            task.with_panels(out, &packed(b, threads)?, threads);
            Ok(())
        }
    }
}

/// `out = a * b`, of a right factor that [`packed`] has laid out. Sizes are not 0.
pub(super) fn product_with(
    out: &mut [f32],
    stride: usize,
    a: &Matrix<'_, f32>,
    b: &Panels,
    threads: Threads,
) {
    Task::new(stride, a, false).with_panels(out, b, threads);
}

/// The whole right factor in panels.
///
/// # Errors
/// `ResourceExhausted` if there is no memory for them.
pub(super) fn packed(b: &Matrix<'_, f32>, threads: Threads) -> Result<Panels> {
    let mut panels = Panels::new();
    fill(&mut panels, b, 0..b.rows, 0..b.columns, threads)?;
    Ok(panels)
}

/// Packs the rows `steps` and these columns of `b`.
fn fill(
    panels: &mut Panels,
    b: &Matrix<'_, f32>,
    steps: Range<usize>,
    columns: Range<usize>,
    threads: Threads,
) -> Result<()> {
    let data = &b.data[steps.start * b.row_stride + columns.start * b.column_stride..];
    if b.column_stride == 1 {
        panels.fill(steps.len(), columns.len(), threads, &Rows { data, stride: b.row_stride })
    } else {
        panels.fill(steps.len(), columns.len(), threads, &Columns { data, stride: b.column_stride })
    }
}

struct Task<'a> {
    stride: usize,
    a: &'a Matrix<'a, f32>,
    accumulate: bool,
    /// Steps of the inner dimension at a time.
    steps: usize,
}

impl<'a> Task<'a> {
    fn new(stride: usize, a: &'a Matrix<'a, f32>, accumulate: bool) -> Task<'a> {
        let parts = a.columns.div_ceil(STEPS);
        Task { stride, a, accumulate, steps: a.columns.div_ceil(parts) }
    }

    /// The whole product on this thread: panels are packed and used at once.
    fn alone(&self, out: &mut [f32], b: &Matrix<'_, f32>) -> Result<()> {
        let (mut panels, mut copy) = (Panels::new(), Vec::new());
        let each = Registers::get().whole_vectors(b.columns.div_ceil(b.columns.div_ceil(COLUMNS)));
        // The first panels are the largest: later ones find their memory.
        for (i, out) in out.chunks_mut(ROWS * self.stride).enumerate() {
            let count = self.count(out, i * ROWS);
            let places: Vec<usize> = (0..count).map(|i| i * self.stride).collect();
            for step in (0..self.a.columns).step_by(self.steps) {
                let steps = step..(step + self.steps).min(self.a.columns);
                let factor = Factor::new(self.a, i * ROWS, count, steps.clone(), &mut copy);
                for column in (0..b.columns).step_by(each) {
                    let columns = column..(column + each).min(b.columns);
                    fill(&mut panels, b, steps.clone(), columns, Threads::One)?;
                    let add = self.accumulate || step > 0;
                    panels.iter().for_each(|p| factor.sweep(&p, 0, &mut out[column..], &places, add));
                }
            }
        }
        Ok(())
    }

    /// The whole product, by rows.
    fn with_panels(&self, out: &mut [f32], panels: &Panels, threads: Threads) {
        if threads == Threads::One {
            return out
                .chunks_mut(ROWS * self.stride)
                .enumerate()
                .for_each(|(i, out)| self.rows(out, i * ROWS, panels));
        }
        let parts = self.a.rows.div_ceil(ROWS).next_multiple_of(rayon::current_num_threads());
        let each = self.a.rows.div_ceil(parts);
        out.par_chunks_mut(each * self.stride)
            .enumerate()
            .for_each(|(i, out)| self.rows(out, i * each, panels));
    }

    /// The rows from `first` on that begin in `out`.
    fn rows(&self, out: &mut [f32], first: usize, panels: &Panels) {
        let count = self.count(out, first);
        let places: Vec<usize> = (0..count).map(|i| i * self.stride).collect();
        let mut copy = Vec::new();
        for step in (0..self.a.columns).step_by(self.steps) {
            let steps = step..(step + self.steps).min(self.a.columns);
            let factor = Factor::new(self.a, first, count, steps, &mut copy);
            let add = self.accumulate || step > 0;
            panels.iter().for_each(|p| factor.sweep(&p, step, out, &places, add));
        }
    }

    fn count(&self, out: &[f32], first: usize) -> usize {
        out.len().div_ceil(self.stride).min(self.a.rows.saturating_sub(first))
    }
}

/// Some rows and steps of the left factor.
struct Factor<'a> {
    data: &'a [f32],
    rows: Vec<usize>,
    run: Run,
    step: usize,
}

impl<'a> Factor<'a> {
    fn new(
        a: &Matrix<'a, f32>,
        first: usize,
        count: usize,
        steps: Range<usize>,
        copy: &'a mut Vec<f32>,
    ) -> Factor<'a> {
        let from = a.data.get(first * a.row_stride + steps.start * a.column_stride..).unwrap_or_default();
        let len = steps.len();
        let is_copied = (a.row_stride.max(a.column_stride) * size_of::<f32>()).is_multiple_of(ALIASES);
        let (data, row, step) = if !is_copied {
            (from, a.row_stride, a.column_stride)
        } else if a.column_stride == 1 {
            copy_lines(from, a.row_stride, count, len, copy);
            (copy.as_slice(), len + FLOATS, 1)
        } else {
            copy_lines(from, a.column_stride, len, count, copy);
            (copy.as_slice(), 1, count + FLOATS)
        };
        Factor { data, rows: (0..count).map(|i| i * row).collect(), run: Run { start: 0, len }, step }
    }

    /// Multiplies by a panel, from its row `step` on.
    fn sweep(&self, panel: &Panel<'_>, step: usize, out: &mut [f32], places: &[usize], add: bool) {
        let left = Left { data: self.data, rows: &self.rows, runs: &[self.run], step: self.step };
        let mut place = Place { data: &mut out[panel.first..], rows: places, width: panel.width, add };
        Registers::get().sweep(&left, &panel.from(step), &mut place);
    }
}

/// Copies `count` lines of `len` elements that begin `stride` apart.
fn copy_lines(from: &[f32], stride: usize, count: usize, len: usize, copy: &mut Vec<f32>) {
    copy.resize(count * (len + FLOATS), 0.0);
    for (to, from) in copy.chunks_exact_mut(len + FLOATS).zip(from.chunks(stride)) {
        to[..len].copy_from_slice(&from[..len]);
    }
}
