//! The gradient of a convolution over `f32` images with respect to its filter: the transposed matrix of patches
//! times the incoming gradient `dy`. Patches are not copied; the images are read in place.

use super::band::{self, AccessPattern, Band, BandLines, LineCopies};
use super::phase::{Image, Phase, Tap, is_flat};
use super::stencil::threads;
use crate::numeric::cpu_cache;
use crate::numeric::cpu_cache::FLOATS_PER_LINE;
use crate::numeric::micro::{Destination, LeftMatrix, PrefetchQueue, Registers, RightPanel, StepRun, cut};
use crate::numeric::panel::{Panels, RowSource, StreamedRows};
use crate::numeric::product::Threads;
use device::Result;
use graph::ops::conv::ConvSizes;
use graph::{DType, Shape, Tensor};
use rayon::prelude::*;
use std::ops::Range;

/// Approximate number of output pixels per sweep; a sweep adds the products of its pixels to the gradient. They are so
/// many that writing the gradient costs little, and so few that no sum gets long.
const PIXELS: usize = 400;

/// Number of parts into which the images are split if each thread computes the whole gradient of some of the parts.
const PARTS: usize = 16;

/// Elements of the parts' gradients that are added up at a time, so that they stay in the first-level cache.
const SUMMED: usize = 4096;

/// Maximum number of rows of the filter for which `dy` is read in place instead of being packed into panels; the rows
/// of `dy` must also be at most [`NEAR_ELEMENTS`] long.
const FEW_ROWS: usize = 32;
/// Maximum number of elements in a row of `dy` that is read in place: neighbouring rows must be close together in
/// memory.
const NEAR_ELEMENTS: usize = 128;

/// Maximum number of channels per pixel for which the processor's own prefetcher follows the reads from one pixel to
/// the next.
const PREFETCHED_CHANNELS: usize = 64;

/// Memory is prefetched only if the gradient fills at most 1 / `CACHE_FRACTION` of the second-level cache.
const CACHE_FRACTION: usize = 3;

/// A plan for the gradient of a convolution with respect to its filter.
#[derive(Debug)]
pub(super) struct FilterGradient<'a> {
    sizes: &'a ConvSizes,
    phase: Phase,
    band: Band,
}

/// The output pixels that contribute to a tap's gradient; other pixels would read outside the image through the tap.
#[derive(Debug)]
struct TapView {
    tap: [Tap; 2],
    /// The rows and the columns of the contributing output pixels.
    inside: [Range<usize>; 2],
}

/// Rows of the filter matrix to which the same output pixels contribute.
#[derive(Debug)]
struct RowGroup {
    /// The index of the [`TapView`] that the taps of all rows share.
    view: usize,
    /// For each row, the position of its source element, relative to the source pixel under the view's first tap.
    positions: Vec<usize>,
    /// The index of each row's first element in the gradient.
    rows: Vec<usize>,
}

impl FilterGradient<'_> {
    /// Plans the gradient; `None` for volumes, and if strides, dilations or paddings are excessively large.
    pub(super) fn new(sizes: &ConvSizes) -> Option<FilterGradient<'_>> {
        // Channels are stored in slices if pixels would otherwise share few sets of the cache: with strides, or if sets
        // have few ways; and for a 1x1 filter, which reads each pixel once, from memory, best in storage order.
        let is_read_once =
            sizes.rows.filter * sizes.columns.filter == 1 && sizes.in_channels > PREFETCHED_CHANNELS;
        FilterGradient::with_layout(
            sizes,
            sizes.columns.stride > 1 || !cpu_cache::has_many_ways() || is_read_once,
        )
    }

    /// Plans the gradient with channels stored in slices (`crowded`) or as in the image.
    fn with_layout(sizes: &ConvSizes, crowded: bool) -> Option<FilterGradient<'_>> {
        let phase = Phase::forward(sizes);
        let band = Band::new(
            Image::input(sizes),
            &phase,
            AccessPattern::Channels { crowded },
            sizes.filter_channels,
        );
        (is_flat(sizes) && band.is_bounded()).then_some(FilterGradient { sizes, phase, band })
    }

    /// Writes the gradient to `dw`, from the images `input` and the incoming gradient `dy`. The sum of each element has
    /// the same order of additions for any number of threads.
    pub(super) fn write(&self, input: &[f32], dy: &[f32], dw: &mut [f32]) -> Result<()> {
        let lines = self.sizes.batch * self.sizes.rows.output;
        if threads(self.sizes) == Threads::One {
            return self.write_part(input, dy, 0, 0..lines, dw);
        }
        // If threads split the filter's rows, each thread reads all images; if threads split the images, their
        // gradients must be added up. The cheaper split is chosen.
        if dw.len().saturating_mul(PARTS) > input.len() + dy.len() {
            let rows = (dw.len() / self.sizes.out_channels).div_ceil(rayon::current_num_threads());
            let part = |(i, dw): (usize, &mut [f32])| self.write_part(input, dy, i * rows, 0..lines, dw);
            return dw.par_chunks_mut(rows * self.sizes.out_channels).enumerate().try_for_each(part);
        }
        let (each, len) = (lines.div_ceil(PARTS), dw.len());
        let mut parts = Tensor::unspecified(DType::Float, Shape::new(&[lines.div_ceil(each), len])?)?;
        let part = |(i, part): (usize, &mut [f32])| {
            self.write_part(input, dy, 0, i * each..lines.min((i + 1) * each), part)
        };
        parts.values_mut::<f32>()?.par_chunks_exact_mut(len).enumerate().try_for_each(part)?;
        let parts = parts.values::<f32>()?;
        dw.par_chunks_mut(SUMMED).enumerate().for_each(|(i, dw)| {
            for (number, part) in parts.chunks_exact(len).enumerate() {
                let part = &part[i * SUMMED..][..dw.len()];
                match number {
                    0 => dw.copy_from_slice(part),
                    _ => dw.iter_mut().zip(part).for_each(|(to, from)| *to += from),
                }
            }
        });
        Ok(())
    }

    /// Writes to `dw` the gradient of the filter's rows from `first` on, summed over the output pixels of the lines
    /// `all_lines`.
    fn write_part(
        &self,
        input: &[f32],
        dy: &[f32],
        first: usize,
        all_lines: Range<usize>,
        dw: &mut [f32],
    ) -> Result<()> {
        let (sizes, image) = (self.sizes, Image::output(self.sizes));
        let (groups, outputs) = (sizes.groups(), image.channels / sizes.groups());
        let apart = self.band.lines_apart().max(1);
        let most = (band::most_elements() / apart).min(PIXELS / image.columns).max(1);
        let count = dw.len() / image.channels;
        let are_rows_channels = sizes.rows.filter * sizes.columns.filter * groups == 1;
        let channels = if are_rows_channels { first..first + count } else { 0..sizes.in_channels };
        let (views, rows) = self.rows(first..first + count);
        let is_in_place = self.is_read_in_place(count, outputs);
        let registers = Registers::get();
        let (mut copies, mut bands, mut panels) = (LineCopies::default(), Vec::new(), Panels::new());
        let mut runs_of = vec![Vec::new(); views.len()];
        let swept_rows = count * outputs.div_ceil(registers.columns) * groups;
        for lines in cut(all_lines.len(), most) {
            let is_first = lines.start == 0;
            let lines = all_lines.start + lines.start..all_lines.start + lines.end;
            let mut queue = self.prefetch_queue(input, dy, lines.end, lines.len(), swept_rows);
            let dy = &dy[lines.start * image.line()..lines.end * image.line()];
            self.locate_bands(input, &lines, &channels, &mut copies, &mut bands);
            views.iter().zip(&mut runs_of).for_each(|(view, runs)| self.find_runs(view, &bands, runs));
            let data = if self.band.is_copied { copies.data() } else { input };
            for filter_group in 0..groups {
                let data = &data[self.band.channel(filter_group * sizes.filter_channels)..];
                let dy = &dy[filter_group * outputs..];
                let mut add = |first: usize, width: usize, right: &RightPanel<'_>| {
                    for group in &rows {
                        let (runs, prefetch) = (&runs_of[group.view], queue.next(group.rows.len()));
                        if runs.is_empty() && !is_first {
                            continue;
                        }
                        let (rows, step) = (&group.positions, self.band.step());
                        let left = LeftMatrix { data, rows, runs, step, prefetch };
                        let data = &mut dw[filter_group * outputs + first..];
                        let mut destination = Destination { data, rows: &group.rows, width, add: !is_first };
                        registers.sweep(&left, right, &mut destination);
                    }
                };
                if is_in_place {
                    for columns in registers.panels(outputs) {
                        let right = RightPanel { data: &dy[columns.start..], step: image.channels };
                        add(columns.start, columns.len(), &right);
                    }
                    continue;
                }
                let source = StreamedRows(RowSource { data: dy, stride: image.channels });
                panels.fill(lines.len() * image.columns, outputs, Threads::One, &source)?;
                panels.iter().for_each(|panel| add(panel.first, panel.width, &panel.from(0)));
            }
        }
        Ok(())
    }

    /// Returns the memory that the next `count` lines of output pixels, from `first` on, will read; sweeps over `rows`
    /// rows prefetch it, because usually the same thread computes the next lines too. Empty if prefetching would push
    /// the gradient out of the cache, or if lines are so short that prefetching costs as much as it saves.
    fn prefetch_queue<'i>(
        &self,
        input: &'i [f32],
        dy: &'i [f32],
        first: usize,
        count: usize,
        rows: usize,
    ) -> PrefetchQueue<'i> {
        let ConvSizes { batch, filter_channels, out_channels, .. } = *self.sizes;
        let gradient_len =
            self.sizes.rows.filter * self.sizes.columns.filter * filter_channels * out_channels;
        let is_large = gradient_len * size_of::<f32>() > cpu_cache::second_level() / CACHE_FRACTION;
        if is_large || self.sizes.columns.output < FLOATS_PER_LINE {
            return PrefetchQueue::default();
        }
        let lines = batch * self.sizes.rows.output;
        let end = lines.min(first + count);
        PrefetchQueue::new(
            [input, dy].map(|data| &data[first * data.len() / lines..end * data.len() / lines]),
            rows,
        )
    }

    /// Returns whether `dy` is read in place instead of being packed into panels; `outputs` is the number of output
    /// channels of a group.
    fn is_read_in_place(&self, rows: usize, outputs: usize) -> bool {
        let registers = Registers::get();
        let is_panel = outputs <= registers.columns && outputs == self.sizes.out_channels;
        let is_used_once = rows <= FEW_ROWS && self.sizes.out_channels <= NEAR_ELEMENTS;
        outputs.is_multiple_of(registers.lanes) && (is_panel || is_used_once)
    }

    /// Returns groups of the filter's rows `within`, and the views of their taps. Rows whose channels are stored
    /// together follow each other, even if their taps differ, so that the elements they read stay in the cache.
    fn rows(&self, within: Range<usize>) -> (Vec<TapView>, Vec<RowGroup>) {
        let FilterGradient { sizes, phase, band } = self;
        let ([rows, columns], image) = (&phase.taps, Image::input(sizes));
        let inside = |[row, column]: [Tap; 2]| {
            if band.has_margins {
                return phase.count.map(|count| 0..count);
            }
            [phase.inside(0, row, image.rows), phase.inside(1, column, image.columns)]
        };
        let taps: Vec<[Tap; 2]> =
            rows.iter().flat_map(|row| columns.iter().map(move |column| [*row, *column])).collect();
        let views: Vec<&[[Tap; 2]]> = taps.chunk_by(|a, b| inside(*a) == inside(*b)).collect();
        let mut all: Vec<RowGroup> = Vec::new();
        for channels in band.slices(sizes.filter_channels) {
            for (view, group) in views.iter().enumerate() {
                let tap = group[0];
                let elements = group.iter().flat_map(|[row, column]| {
                    let place = band.distance([row.offset - tap[0].offset, column.offset - tap[1].offset]);
                    let number = (row.number * sizes.columns.filter + column.number) * sizes.filter_channels;
                    channels.clone().map(move |c| (number + c, place + band.channel(c)))
                });
                let elements = elements.filter(|(number, _)| within.contains(number));
                let (rows, positions) =
                    elements.map(|(number, at)| ((number - within.start) * sizes.out_channels, at)).unzip();
                all.push(RowGroup { view, positions, rows });
            }
        }
        (views.iter().map(|group| TapView { tap: group[0], inside: inside(group[0]) }).collect(), all)
    }

    /// Sets `bands` to the source lines that the lines `lines` of output pixels read, image by image.
    fn locate_bands(
        &self,
        input: &[f32],
        lines: &Range<usize>,
        channels: &Range<usize>,
        copies: &mut LineCopies,
        bands: &mut Vec<ImageBand>,
    ) {
        copies.clear();
        bands.clear();
        let height = self.sizes.rows.output;
        for number in lines.start / height..lines.end.div_ceil(height) {
            let top = number * height;
            let rows = lines.start.saturating_sub(top)..(lines.end - top).min(height);
            let first = top + rows.start - lines.start;
            let lines = self.band.locate(input, number, rows.clone(), channels, copies);
            bands.push(ImageBand { first, rows, lines });
        }
    }

    /// Collects the runs of source pixels under the view's taps, in the lines of all bands.
    fn find_runs(&self, view: &TapView, bands: &[ImageBand], runs: &mut Vec<StepRun>) {
        runs.clear();
        let ([rows, columns], width) = (&view.inside, self.sizes.columns.output);
        let offset = view.tap.map(|tap| tap.offset);
        for ImageBand { first, rows: all, lines } in bands {
            for row in rows.start.max(all.start)..rows.end.min(all.end) {
                if columns.is_empty() {
                    continue;
                }
                let start = self.band.pixel_start(*lines, [row, columns.start], offset);
                let first = (first + row - all.start) * width + columns.start;
                runs.push(StepRun { start, first, len: columns.len() });
            }
        }
    }
}

/// The band that some rows of output pixels of one image read.
#[derive(Debug)]
struct ImageBand {
    /// The index of the first row's line among all lines of output pixels in the sweep.
    first: usize,
    rows: Range<usize>,
    lines: BandLines,
}

#[cfg(test)]
mod tests {
    use super::super::testing::{noise, sizes};
    use super::*;

    /// The gradient has the same bits whether channels are read in place or from slices, and for any split of the
    /// filter's rows.
    #[test]
    fn channel_slices_and_row_splits_do_not_change_the_result() -> Result<()> {
        for (input, filter, stride) in [
            ([3, 5, 6, 48], [3, 3, 48, 20], 1),
            ([2, 7, 5, 32], [3, 2, 32, 70], 2),
            ([2, 6, 6, 64], [3, 3, 32, 6], 1),
            ([1, 9, 9, 32], [1, 1, 32, 5], 3),
            ([2, 6, 7, 80], [1, 1, 80, 9], 1),
            ([1, 24, 40, 32], [1, 1, 32, 70], 1),
        ] {
            let sizes = sizes(input, filter, stride)?;
            let dy = noise(sizes.batch * sizes.rows.output * Image::output(&sizes).line());
            let run = |crowded: bool| {
                let gradient = FilterGradient::with_layout(&sizes, crowded);
                let gradient = gradient.ok_or_else(|| device::Error::internal("out of proportion"))?;
                assert_eq!(gradient.band.is_copied, crowded);
                let mut dw = vec![f32::NAN; filter.iter().product()];
                gradient.write(&noise(input.iter().product()), &dy, &mut dw)?;
                Ok::<_, device::Error>(dw)
            };
            let whole = run(true)?;
            assert_eq!(whole, run(false)?, "{input:?} {filter:?}");

            let lines = 0..sizes.batch * sizes.rows.output;
            let gradient = FilterGradient::with_layout(&sizes, true);
            let gradient = gradient.ok_or_else(|| device::Error::internal("out of proportion"))?;
            let rows = whole.len() / sizes.out_channels;
            for rows in cut(rows, rows.div_ceil(3)) {
                let mut part = vec![f32::NAN; rows.len() * sizes.out_channels];
                gradient.write_part(
                    &noise(input.iter().product()),
                    &dy,
                    rows.start,
                    lines.clone(),
                    &mut part,
                )?;
                assert_eq!(part, whole[rows.start * sizes.out_channels..][..part.len()], "{rows:?}");
            }
        }
        Ok(())
    }
}
