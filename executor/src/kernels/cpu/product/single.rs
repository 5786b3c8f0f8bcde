//! Products of `f32` matrices in blocks of registers: the right factor in panels, the left one read in place where
//! its rows do not fall into the same few sets of the cache, else from a copy.

use super::{Matrix, Threads};
use crate::error::Result;
use crate::kernels::cpu::micro::{Left, Place, Registers, Run};
use crate::kernels::cpu::panel::{Columns, Panels, Rows};
use rayon::prelude::*;

/// Steps of the inner dimension at a time: a panel's part stays in the second-level cache, and no sum is long.
const STEPS: usize = 512;

/// Rows at a time: with the steps, what of the left factor stays in the second-level cache.
const ROWS: usize = 224;

/// Elements between lines of a copy, so that they do not fall into the same sets.
const APART: usize = 16;

/// Bytes between lines, or a multiple of it, that make them fall into few sets.
const ALIASES: usize = 2048;

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
    let mut panels = Panels::new();
    if b.column_stride == 1 {
        panels.fill(b.rows, b.columns, threads, &Rows { data: b.data, stride: b.row_stride })?;
    } else {
        panels.fill(b.rows, b.columns, threads, &Columns { data: b.data, stride: b.column_stride })?;
    }
    let work = |first: usize, out: &mut [f32]| rows(out, stride, a, first, &panels, accumulate);
    match threads {
        Threads::One => {
            out.chunks_mut(ROWS * stride).enumerate().for_each(|(i, out)| work(i * ROWS, out));
        }
        Threads::All => {
            let whole = Registers::get().rows;
            let each = a.rows.div_ceil(rayon::current_num_threads());
            let each = if each > 4 * whole { each.next_multiple_of(whole) } else { each };
            let count = each.min(ROWS);
            out.par_chunks_mut(count * stride).enumerate().for_each(|(i, out)| work(i * count, out));
        }
    }
    Ok(())
}

/// The rows from `first` on that begin in `out`.
fn rows(out: &mut [f32], stride: usize, a: &Matrix<'_, f32>, first: usize, panels: &Panels, accumulate: bool) {
    let count = out.len().div_ceil(stride).min(a.rows.saturating_sub(first));
    let places: Vec<usize> = (0..count).map(|i| i * stride).collect();
    let mut copy = Vec::new();
    let parts = a.columns.div_ceil(STEPS);
    let steps = a.columns.div_ceil(parts);
    let is_copied = a.row_stride.max(a.column_stride) * size_of::<f32>() % ALIASES == 0;
    for step in (0..a.columns).step_by(steps) {
        let len = steps.min(a.columns - step);
        let from = &a.data[first * a.row_stride + step * a.column_stride..];
        let (data, row, column) = if !is_copied {
            (from, a.row_stride, a.column_stride)
        } else if a.column_stride == 1 {
            copy_lines(from, a.row_stride, count, len, &mut copy);
            (copy.as_slice(), len + APART, 1)
        } else {
            copy_lines(from, a.column_stride, len, count, &mut copy);
            (copy.as_slice(), 1, count + APART)
        };
        let left_rows: Vec<usize> = (0..count).map(|i| i * row).collect();
        let left = Left { data, rows: &left_rows, runs: &[Run { start: 0, len }], step: column };
        for panel in panels.iter() {
            let add = accumulate || step > 0;
            let mut place = Place { data: &mut out[panel.first..], rows: &places, width: panel.width, add };
            Registers::get().sweep(&left, &panel.from(step), &mut place);
        }
    }
}

/// Copies `count` lines of `len` elements that begin `stride` apart.
fn copy_lines(from: &[f32], stride: usize, count: usize, len: usize, copy: &mut Vec<f32>) {
    copy.resize(count * (len + APART), 0.0);
    for (to, from) in copy.chunks_exact_mut(len + APART).zip(from.chunks(stride)) {
        to[..len].copy_from_slice(&from[..len]);
    }
}
