//! `f32` matrix products in register blocks. The right factor is packed in panels unless few rows use it; the left
//! factor is read in place, or from a copy if its rows fall into the same few sets of the cache.

use super::{Matrix, Threads};
use crate::numeric::cpu_cache;
use crate::numeric::cpu_cache::FLOATS_PER_LINE;
use crate::numeric::micro::{
    Destination, LeftMatrix, Prefetch, Registers, RightPanel, STEPS, StepRun, cut, extent,
};
use crate::numeric::panel::{ColumnSource, Panels, RowSource};
use device::Result;
use rayon::prelude::*;
use std::ops::Range;

/// The maximum number of rows of the left factor per sweep.
const ROWS: usize = 252;

/// The number of rows per sweep is a multiple of this number, so that all blocks of the widest panels are full.
const WHOLE_ROWS: usize = 12;

/// Rows per sweep if the right factor stays in the second-level cache: so few that they lie on few pages of the output.
const NEAR_ROWS: usize = 24;

/// The maximum number of rows of the left factor with which the right factor is read in place instead of being packed:
/// two blocks.
const FEW_ROWS: usize = 12;

/// The maximum number of columns of a product that may be computed as its transpose. The columns must also be fewer
/// than the lanes of a vector, so only AVX-512 reaches the maximum.
const FEW_COLUMNS: usize = 12;

/// Returns whether the product is better computed as its transpose: the columns are so few that lanes of the vectors
/// would be unused, and the left factor is already laid out like a right factor, or is quick to transpose.
pub(super) fn should_transpose(columns: usize, rows: usize, left_is_transposed: bool) -> bool {
    let registers = Registers::get();
    let is_narrow = columns <= FEW_COLUMNS.min(registers.lanes - 1) && rows.is_multiple_of(registers.lanes);
    is_narrow && (left_is_transposed || rows <= registers.columns)
}

/// Computes `out = a * b`, or `out += a * b`. Sizes are not 0.
///
/// # Errors
/// `ResourceExhausted` if the memory for the panels cannot be allocated.
pub(super) fn product(
    out: &mut [f32],
    stride: usize,
    a: &Matrix<'_, f32>,
    b: &Matrix<'_, f32>,
    accumulate: bool,
    threads: Threads,
) -> Result<()> {
    if threads == Threads::One && should_transpose(b.columns, a.rows, a.row_stride == 1) {
        return product_by_transpose(out, stride, a, b, accumulate);
    }
    let blocked = BlockedProduct::new(stride, a, accumulate);
    match threads {
        Threads::One if blocked.is_read_in_place(b) => {
            blocked.read_in_place(out, b);
            Ok(())
        }
        Threads::One if a.rows <= rows_at_a_time() => blocked.pack_and_use(out, b),
        Threads::One | Threads::All => {
            blocked.with_panels(out, &packed(b, threads)?, threads);
            Ok(())
        }
    }
}

/// Computes the transpose of the product, and then transposes the result into `out`.
///
/// # Errors
/// `ResourceExhausted` if the memory for the panels cannot be allocated.
fn product_by_transpose(
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
    let blocked = BlockedProduct::new(rows, &left, accumulate);
    if right.column_stride == 1 {
        blocked.read_in_place(&mut lines, &right);
    } else {
        blocked.pack_and_use(&mut lines, &right)?;
    }
    for (i, out) in out.chunks_mut(stride).take(rows).enumerate() {
        out.iter_mut().zip(lines.chunks_exact(rows)).for_each(|(to, line)| *to = line[i]);
    }
    Ok(())
}

/// Computes `out = a * b` with a right factor that [`packed`] returned. Sizes are not 0.
pub(super) fn product_with(
    out: &mut [f32],
    stride: usize,
    a: &Matrix<'_, f32>,
    b: &Panels,
    threads: Threads,
) {
    BlockedProduct::new(stride, a, false).with_panels(out, b, threads);
}

/// Returns the number of rows per sweep: [`STEPS`] elements of each row of the left factor fill half the second-level
/// cache.
fn rows_at_a_time() -> usize {
    let rows = cpu_cache::second_level() / 2 / (STEPS * size_of::<f32>());
    (rows / WHOLE_ROWS * WHOLE_ROWS).clamp(WHOLE_ROWS, ROWS)
}

/// Returns the number of columns packed at a time if panels are used only once: [`STEPS`] elements of each column of
/// the right factor fill a quarter of the second-level cache.
fn columns_at_a_time() -> usize {
    (cpu_cache::second_level() / 4 / (STEPS * size_of::<f32>())).max(Registers::get().columns)
}

/// Returns whether a right factor of this size stays in the second-level cache while all rows use it.
fn fits_second_level_cache(rows: usize, columns: usize) -> bool {
    rows.saturating_mul(columns).saturating_mul(size_of::<f32>()) <= cpu_cache::second_level() / 2
}

/// Packs the whole right factor in panels.
///
/// # Errors
/// `ResourceExhausted` if the memory cannot be allocated.
pub(super) fn packed(b: &Matrix<'_, f32>, threads: Threads) -> Result<Panels> {
    let mut panels = Panels::new();
    fill(&mut panels, b, 0..b.rows, 0..b.columns, threads)?;
    Ok(panels)
}

/// Packs the rows `steps` and the columns `columns` of `b` into `panels`.
fn fill(
    panels: &mut Panels,
    b: &Matrix<'_, f32>,
    steps: Range<usize>,
    columns: Range<usize>,
    threads: Threads,
) -> Result<()> {
    let data = &b.data[steps.start * b.row_stride + columns.start * b.column_stride..];
    if b.column_stride == 1 {
        panels.fill(steps.len(), columns.len(), threads, &RowSource { data, stride: b.row_stride })
    } else {
        panels.fill(steps.len(), columns.len(), threads, &ColumnSource { data, stride: b.column_stride })
    }
}

/// A product computed in register blocks: the left factor, and the distance `stride` between the output's rows.
struct BlockedProduct<'a> {
    stride: usize,
    a: &'a Matrix<'a, f32>,
    accumulate: bool,
}

impl<'a> BlockedProduct<'a> {
    fn new(stride: usize, a: &'a Matrix<'a, f32>, accumulate: bool) -> BlockedProduct<'a> {
        BlockedProduct { stride, a, accumulate }
    }

    /// Returns whether [`BlockedProduct::read_in_place`] should compute the product: the left factor has so few rows
    /// that packing the right factor into panels would cost more than it saves.
    fn is_read_in_place(&self, b: &Matrix<'_, f32>) -> bool {
        let is_whole = b.columns.is_multiple_of(Registers::get().lanes);
        self.a.rows <= FEW_ROWS && b.column_stride == 1 && is_whole
    }

    /// Computes the whole product on the calling thread without packing the right factor. The factor's width must be a
    /// whole number of vectors.
    fn read_in_place(&self, out: &mut [f32], b: &Matrix<'_, f32>) {
        let registers = Registers::get();
        let places: Vec<usize> = (0..self.a.rows).map(|i| i * self.stride).collect();
        let mut copy = Vec::new();
        for steps in cut(self.a.columns, STEPS) {
            let (step, add) = (steps.start, self.accumulate || steps.start > 0);
            let factor = Factor::new(self.a, 0, self.a.rows, steps, &mut copy);
            for columns in registers.panels(b.columns) {
                let (data, width) = (&b.data[step * b.row_stride + columns.start..], columns.len());
                let mut destination =
                    Destination { data: &mut out[columns.start..], rows: &places, width, add };
                factor.sweep(&RightPanel { data, step: b.row_stride }, &mut destination);
            }
        }
    }

    /// Computes the whole product on the calling thread; each panel of the right factor is packed just before its only
    /// use.
    fn pack_and_use(&self, out: &mut [f32], b: &Matrix<'_, f32>) -> Result<()> {
        let (mut panels, mut copy) = (Panels::new(), Vec::new());
        let each =
            Registers::get().whole_vectors(b.columns.div_ceil(b.columns.div_ceil(columns_at_a_time())));
        let places: Vec<usize> = (0..self.a.rows).map(|i| i * self.stride).collect();
        // The first panels are the largest, so later panels need no more memory.
        for steps in cut(self.a.columns, STEPS) {
            let factor = Factor::new(self.a, 0, self.a.rows, steps.clone(), &mut copy);
            for column in (0..b.columns).step_by(each) {
                let columns = column..(column + each).min(b.columns);
                fill(&mut panels, b, steps.clone(), columns, Threads::One)?;
                let add = self.accumulate || steps.start > 0;
                for panel in panels.iter() {
                    let data = &mut out[column + panel.first..];
                    let mut destination = Destination { data, rows: &places, width: panel.width, add };
                    factor.sweep(&panel.from(0), &mut destination);
                }
            }
        }
        Ok(())
    }

    /// Computes the whole product with packed panels, in groups of rows.
    fn with_panels(&self, out: &mut [f32], panels: &Panels, threads: Threads) {
        let out = &mut out[..extent(self.a.rows, self.stride) + panels.columns()];
        // Each panel writes to all rows of a group. If the panels stay in the second-level cache, the groups are small,
        // so that their rows lie on few pages.
        let is_near = panels.columns() > Registers::get().columns
            && fits_second_level_cache(panels.steps(), panels.columns());
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

    /// Computes the rows of the product that `out` contains, beginning with row `first`.
    fn rows(&self, out: &mut [f32], first: usize, panels: &Panels) {
        let count = out.len().div_ceil(self.stride);
        let places: Vec<usize> = (0..count).map(|i| i * self.stride).collect();
        let mut copy = Vec::new();
        for steps in cut(self.a.columns, STEPS) {
            let (step, add) = (steps.start, self.accumulate || steps.start > 0);
            let factor = Factor::new(self.a, first, count, steps, &mut copy);
            for panel in panels.iter() {
                let data = &mut out[panel.first..];
                let mut destination = Destination { data, rows: &places, width: panel.width, add };
                factor.sweep(&panel.from(step), &mut destination);
            }
        }
    }
}

/// The rows and steps of the left factor that a sweep uses, read in place or from a copy.
struct Factor<'a> {
    data: &'a [f32],
    rows: Vec<usize>,
    run: StepRun,
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
        // A transposed matrix is copied in more cases: each step of a few neighbouring rows is in another cache line,
        // which the next rows read again.
        let is_copied = if a.column_stride == 1 {
            cpu_cache::rows_alias(a.row_stride * size_of::<f32>())
        } else {
            cpu_cache::aliases(a.row_stride.max(a.column_stride) * size_of::<f32>())
        };
        let (data, row, step) = if !is_copied {
            (from, a.row_stride, a.column_stride)
        } else if a.column_stride == 1 {
            copy_lines(from, a.row_stride, count, len, copy);
            (copy.as_slice(), len + FLOATS_PER_LINE, 1)
        } else {
            copy_lines(from, a.column_stride, len, count, copy);
            (copy.as_slice(), 1, count + FLOATS_PER_LINE)
        };
        Factor {
            data,
            rows: (0..count).map(|i| i * row).collect(),
            run: StepRun { start: 0, first: 0, len },
            step,
        }
    }

    fn sweep(&self, right: &RightPanel<'_>, destination: &mut Destination<'_>) {
        let left = LeftMatrix {
            data: self.data,
            rows: &self.rows,
            runs: &[self.run],
            step: self.step,
            prefetch: Prefetch::Nothing,
        };
        Registers::get().sweep(&left, right, destination);
    }
}

/// Copies `count` lines of `len` elements, whose starts are `stride` apart, to lines that do not fall into the same
/// sets of the cache.
fn copy_lines(from: &[f32], stride: usize, count: usize, len: usize, copy: &mut Vec<f32>) {
    copy.resize(count * (len + FLOATS_PER_LINE), 0.0);
    for (to, from) in copy.chunks_exact_mut(len + FLOATS_PER_LINE).zip(from.chunks(stride)) {
        to[..len].copy_from_slice(&from[..len]);
    }
}
