//! Products of `f32` matrices in blocks of registers: the right factor in panels unless few rows use it, the left one read in
//! place where what is read at a time does not fall into the same few sets of the cache, else from a copy.

use super::{Matrix, Threads};
use crate::error::Result;
use crate::kernels::cpu::cache::{self, FLOATS};
use crate::kernels::cpu::micro::{Ahead, Left, Place, Registers, Right, Run, STEPS, cut, extent};
use crate::kernels::cpu::panel::{Columns, Panels, Rows};
use rayon::prelude::*;
use std::ops::Range;

/// Rows at a time at most.
const ROWS: usize = 252;

/// Of so many rows at a time is a multiple, so that blocks of the widest panels are full.
const WHOLE_ROWS: usize = 12;

/// Rows at a time of a product whose right factor stays near: what is written lies in few pages.
const NEAR_ROWS: usize = 24;

/// Rows of the left factor up to which the right one is read where it is: two blocks.
const FEW_ROWS: usize = 12;

/// Columns up to which a product may be computed transposed, if they are fewer than a vector's lanes: with AVX-512.
const FEW_COLUMNS: usize = 12;

/// Whether the product is better computed transposed: so few columns would leave lanes of the vectors unused, and the left
/// factor lies as a right one does, or is quickly turned.
pub(super) fn is_turned(columns: usize, rows: usize, left_is_turned: bool) -> bool {
    let registers = Registers::get();
    let is_narrow = columns <= FEW_COLUMNS.min(registers.lanes - 1) && rows.is_multiple_of(registers.lanes);
    is_narrow && (left_is_turned || rows <= registers.columns)
}

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
    if threads == Threads::One && is_turned(b.columns, a.rows, a.row_stride == 1) {
        return turned(out, stride, a, b, accumulate);
    }
    let task = Task::new(stride, a, accumulate);
    match threads {
        Threads::One if task.is_read_in_place(b) => {
            task.in_place(out, b);
            Ok(())
        }
        Threads::One if a.rows <= rows_at_a_time() => task.at_once(out, b),
        Threads::One | Threads::All => {
            task.with_panels(out, &packed(b, threads)?, threads);
            Ok(())
        }
    }
}

/// The product by way of its transpose.
///
/// # Errors
/// `ResourceExhausted` if there is no memory for panels.
fn turned(
    out: &mut [f32],
    stride: usize,
    a: &Matrix<'_, f32>,
    b: &Matrix<'_, f32>,
    accumulate: bool,
) -> Result<()> {
    let (rows, columns) = (a.rows, b.columns);
    let mut lines = vec![0f32; columns * rows];
    if accumulate {
        for (i, out) in out.chunks(stride).take(rows).enumerate() {
            out.iter().zip(lines.chunks_exact_mut(rows)).for_each(|(from, line)| line[i] = *from);
        }
    }
    let (left, right) = (b.transposed(), a.transposed());
    let task = Task::new(rows, &left, accumulate);
    if right.column_stride == 1 {
        task.in_place(&mut lines, &right);
    } else {
        task.at_once(&mut lines, &right)?;
    }
    for (i, out) in out.chunks_mut(stride).take(rows).enumerate() {
        out.iter_mut().zip(lines.chunks_exact(rows)).for_each(|(to, line)| *to = line[i]);
    }
    Ok(())
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

/// Rows at a time: with the steps, what of the left factor fills half the second-level cache.
fn rows_at_a_time() -> usize {
    let rows = cache::second_level() / 2 / (STEPS * size_of::<f32>());
    (rows / WHOLE_ROWS * WHOLE_ROWS).clamp(WHOLE_ROWS, ROWS)
}

/// Columns at a time, where panels are used at once: with the steps, they fill a quarter of the second-level cache.
fn columns_at_a_time() -> usize {
    (cache::second_level() / 4 / (STEPS * size_of::<f32>())).max(Registers::get().columns)
}

/// Whether such a right factor stays in the second-level cache while all rows meet it.
fn stays_near(rows: usize, columns: usize) -> bool {
    rows.saturating_mul(columns).saturating_mul(size_of::<f32>()) <= cache::second_level() / 2
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
}

impl<'a> Task<'a> {
    fn new(stride: usize, a: &'a Matrix<'a, f32>, accumulate: bool) -> Task<'a> {
        Task { stride, a, accumulate }
    }

    /// Whether [`Task::in_place`] computes the product, and fewer rows use the right factor than would pay for panels.
    fn is_read_in_place(&self, b: &Matrix<'_, f32>) -> bool {
        let is_whole = b.columns.is_multiple_of(Registers::get().lanes);
        self.a.rows <= FEW_ROWS && b.column_stride == 1 && is_whole
    }

    /// The whole product on this thread, of a right factor of whole vectors that is read where it is.
    fn in_place(&self, out: &mut [f32], b: &Matrix<'_, f32>) {
        let registers = Registers::get();
        let places: Vec<usize> = (0..self.a.rows).map(|i| i * self.stride).collect();
        let mut copy = Vec::new();
        for steps in cut(self.a.columns, STEPS) {
            let (step, add) = (steps.start, self.accumulate || steps.start > 0);
            let factor = Factor::new(self.a, 0, self.a.rows, steps, &mut copy);
            for columns in registers.panels(b.columns) {
                let (data, width) = (&b.data[step * b.row_stride + columns.start..], columns.len());
                let mut place = Place { data: &mut out[columns.start..], rows: &places, width, add };
                factor.sweep(&Right { data, step: b.row_stride }, &mut place);
            }
        }
    }

    /// The whole product on this thread: panels are packed and used at once, as there are no more rows to use them.
    fn at_once(&self, out: &mut [f32], b: &Matrix<'_, f32>) -> Result<()> {
        let (mut panels, mut copy) = (Panels::new(), Vec::new());
        let each =
            Registers::get().whole_vectors(b.columns.div_ceil(b.columns.div_ceil(columns_at_a_time())));
        let places: Vec<usize> = (0..self.a.rows).map(|i| i * self.stride).collect();
        // The first panels are the largest: later ones find their memory.
        for steps in cut(self.a.columns, STEPS) {
            let factor = Factor::new(self.a, 0, self.a.rows, steps.clone(), &mut copy);
            for column in (0..b.columns).step_by(each) {
                let columns = column..(column + each).min(b.columns);
                fill(&mut panels, b, steps.clone(), columns, Threads::One)?;
                let add = self.accumulate || steps.start > 0;
                for panel in panels.iter() {
                    let data = &mut out[column + panel.first..];
                    let mut place = Place { data, rows: &places, width: panel.width, add };
                    factor.sweep(&panel.from(0), &mut place);
                }
            }
        }
        Ok(())
    }

    /// The whole product, by rows.
    fn with_panels(&self, out: &mut [f32], panels: &Panels, threads: Threads) {
        let out = &mut out[..extent(self.a.rows, self.stride) + panels.columns()];
        // One panel after the other writes to the same rows.
        let is_near =
            panels.columns() > Registers::get().columns && stays_near(panels.steps(), panels.columns());
        let most = if is_near { NEAR_ROWS } else { rows_at_a_time() };
        if threads == Threads::One {
            return out
                .chunks_mut(most * self.stride)
                .enumerate()
                .for_each(|(i, out)| self.rows(out, i * most, panels));
        }
        let parts = self.a.rows.div_ceil(most).next_multiple_of(rayon::current_num_threads());
        let each = self.a.rows.div_ceil(parts);
        out.par_chunks_mut(each * self.stride)
            .enumerate()
            .for_each(|(i, out)| self.rows(out, i * each, panels));
    }

    /// The rows from `first` on that begin in `out`.
    fn rows(&self, out: &mut [f32], first: usize, panels: &Panels) {
        let count = out.len().div_ceil(self.stride);
        let places: Vec<usize> = (0..count).map(|i| i * self.stride).collect();
        let mut copy = Vec::new();
        for steps in cut(self.a.columns, STEPS) {
            let (step, add) = (steps.start, self.accumulate || steps.start > 0);
            let factor = Factor::new(self.a, first, count, steps, &mut copy);
            for panel in panels.iter() {
                let data = &mut out[panel.first..];
                let mut place = Place { data, rows: &places, width: panel.width, add };
                factor.sweep(&panel.from(step), &mut place);
            }
        }
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
        let from = &a.data[first * a.row_stride + steps.start * a.column_stride..];
        let len = steps.len();
        // Of a few neighbouring rows each step is another line, which the next rows need again.
        let is_copied = if a.column_stride == 1 {
            cache::rows_alias(a.row_stride * size_of::<f32>())
        } else {
            cache::aliases(a.row_stride.max(a.column_stride) * size_of::<f32>())
        };
        let (data, row, step) = if !is_copied {
            (from, a.row_stride, a.column_stride)
        } else if a.column_stride == 1 {
            copy_lines(from, a.row_stride, count, len, copy);
            (copy.as_slice(), len + FLOATS, 1)
        } else {
            copy_lines(from, a.column_stride, len, count, copy);
            (copy.as_slice(), 1, count + FLOATS)
        };
        Factor {
            data,
            rows: (0..count).map(|i| i * row).collect(),
            run: Run { start: 0, first: 0, len },
            step,
        }
    }

    fn sweep(&self, right: &Right<'_>, place: &mut Place<'_>) {
        let left = Left {
            data: self.data,
            rows: &self.rows,
            runs: &[self.run],
            step: self.step,
            ahead: Ahead::Nothing,
        };
        Registers::get().sweep(&left, right, place);
    }
}

/// Copies `count` lines of `len` elements that begin `stride` apart.
fn copy_lines(from: &[f32], stride: usize, count: usize, len: usize, copy: &mut Vec<f32>) {
    copy.resize(count * (len + FLOATS), 0.0);
    for (to, from) in copy.chunks_exact_mut(len + FLOATS).zip(from.chunks(stride)) {
        to[..len].copy_from_slice(&from[..len]);
    }
}
