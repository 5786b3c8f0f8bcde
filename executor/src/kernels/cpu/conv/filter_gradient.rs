//! The gradient of a convolution over images of `f32` by its filter: patches, transposed, times what arrived. The
//! patches are read where the images are.

use super::band::{self, Band, Copies, Lines, Reads};
use super::phase::{Image, Phase, Tap, is_flat};
use super::stencil::threads;
use crate::error::Result;
use crate::kernels::cpu::cache::{self, FLOATS};
use crate::kernels::cpu::micro::{Later, Left, Place, Registers, Right, Run, cut};
use crate::kernels::cpu::panel::{Panels, Rows, Streamed};
use crate::kernels::cpu::product::Threads;
use graph::ops::conv::ConvSizes;
use graph::{DType, Shape, Tensor};
use rayon::prelude::*;
use std::ops::Range;

/// Pixels at a time, about: so many that what is written after them costs little, so few that no sum is long.
const PIXELS: usize = 400;

/// Parts that the images are cut into, where threads take some of them each.
const PARTS: usize = 16;

/// Elements of the parts' sum at a time: they stay in the first cache.
const SUMMED: usize = 4096;

/// What arrived is laid out for products, unless so few rows of the filter use it, and its own rows are so near each other.
const FEW: usize = 32;
const NEAR: usize = 128;

/// Channels of pixels that follow each other so closely that the processor fetches one behind the other.
const FETCHED: usize = 64;

/// There is room for what is needed later where the gradient fills at most one of so many parts of the second-level cache.
const PARTS_OF_CACHE: usize = 3;

/// How the gradient is computed.
#[derive(Debug)]
pub(super) struct FilterGradient<'a> {
    sizes: &'a ConvSizes,
    phase: Phase,
    band: Band,
}

/// Output pixels that count for a tap: through it the others see what is outside the image.
#[derive(Debug)]
struct View {
    tap: [Tap; 2],
    /// Of which rows and columns.
    inside: [Range<usize>; 2],
}

/// Rows of the filter, as a matrix, for which the same pixels count.
#[derive(Debug)]
struct Alike {
    /// The number of the view of their taps, of which the first stands for all.
    view: usize,
    /// Where each element is, from where the first tap's pixel begins; and its row of the filter.
    places: Vec<usize>,
    rows: Vec<usize>,
}

impl FilterGradient<'_> {
    /// `None` for volumes, and where strides, dilations or paddings are out of all proportion.
    pub(super) fn new(sizes: &ConvSizes) -> Option<FilterGradient<'_>> {
        // Lines of pixels that are far apart fall into few sets of the cache: with strides always, else if sets have few ways.
        // And what is met once comes from memory, which is best read in the order in which it lies.
        let is_met_once = sizes.rows.filter * sizes.columns.filter == 1 && sizes.in_channels > FETCHED;
        FilterGradient::reading(sizes, sizes.columns.stride > 1 || !cache::has_many_ways() || is_met_once)
    }

    fn reading(sizes: &ConvSizes, crowded: bool) -> Option<FilterGradient<'_>> {
        let phase = Phase::forward(sizes);
        let band = Band::new(Image::input(sizes), &phase, Reads::Channels { crowded }, sizes.filter_channels);
        (is_flat(sizes) && band.is_bounded()).then_some(FilterGradient { sizes, phase, band })
    }

    /// Writes to `dw` what `dy` says of images `input`. Each element is summed in the same order, however many threads there
    /// are.
    pub(super) fn write(&self, input: &[f32], dy: &[f32], dw: &mut [f32]) -> Result<()> {
        let lines = self.sizes.batch * self.sizes.rows.output;
        if threads(self.sizes) == Threads::One {
            return self.write_part(input, dy, 0, 0..lines, dw);
        }
        // Who computes some rows of the filter reads all images; who computes all rows of some images adds once more.
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

    /// Writes to the rows of the filter from `first` on what these lines of output pixels say.
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
        let seen = self.band.lines_apart().max(1);
        let most = (band::most_elements() / seen).min(PIXELS / image.columns).max(1);
        let count = dw.len() / image.channels;
        let are_rows_channels = sizes.rows.filter * sizes.columns.filter * groups == 1;
        let channels = if are_rows_channels { first..first + count } else { 0..sizes.in_channels };
        let (views, rows) = self.rows(first..first + count);
        let is_in_place = self.is_read_in_place(count, outputs);
        let registers = Registers::get();
        let (mut copies, mut seen, mut panels) = (Copies::default(), Vec::new(), Panels::new());
        let mut runs_of = vec![Vec::new(); views.len()];
        let swept = count * outputs.div_ceil(registers.columns) * groups;
        for lines in cut(all_lines.len(), most) {
            let is_first = lines.start == 0;
            let lines = all_lines.start + lines.start..all_lines.start + lines.end;
            let mut later = self.later(input, dy, lines.end, lines.len(), swept);
            let dy = &dy[lines.start * image.line()..lines.end * image.line()];
            self.take(input, &lines, &channels, &mut copies, &mut seen);
            views.iter().zip(&mut runs_of).for_each(|(view, runs)| self.find_runs(view, &seen, runs));
            let data = if self.band.is_copied { copies.data() } else { input };
            for group in 0..groups {
                let data = &data[self.band.channel(group * sizes.filter_channels)..];
                let dy = &dy[group * outputs..];
                let mut add = |first: usize, width: usize, right: &Right<'_>| {
                    for alike in &rows {
                        let (runs, ahead) = (&runs_of[alike.view], later.next(alike.rows.len()));
                        if runs.is_empty() && !is_first {
                            continue;
                        }
                        let (rows, step) = (&alike.places, self.band.step());
                        let left = Left { data, rows, runs, step, ahead };
                        let data = &mut dw[group * outputs + first..];
                        let mut place = Place { data, rows: &alike.rows, width, add: !is_first };
                        registers.sweep(&left, right, &mut place);
                    }
                };
                if is_in_place {
                    for columns in registers.panels(outputs) {
                        let right = Right { data: &dy[columns.start..], step: image.channels };
                        add(columns.start, columns.len(), &right);
                    }
                    continue;
                }
                let source = Streamed(Rows { data: dy, stride: image.channels });
                panels.fill(lines.len() * image.columns, outputs, Threads::One, &source)?;
                panels.iter().for_each(|panel| add(panel.first, panel.width, &panel.from(0)));
            }
        }
        Ok(())
    }

    /// About what `count` lines of output pixels from `first` on need, for sweeps over so many rows to ask for: most often it is
    /// this thread that will read it. Nothing if it would push the gradient out of the cache, or if lines are so short
    /// that to ask in each costs what it gains.
    fn later<'i>(
        &self,
        input: &'i [f32],
        dy: &'i [f32],
        first: usize,
        count: usize,
        rows: usize,
    ) -> Later<'i> {
        let ConvSizes { batch, filter_channels, out_channels, .. } = *self.sizes;
        let gradient = self.sizes.rows.filter * self.sizes.columns.filter * filter_channels * out_channels;
        let is_large = gradient * size_of::<f32>() > cache::second_level() / PARTS_OF_CACHE;
        if is_large || self.sizes.columns.output < FLOATS {
            return Later::default();
        }
        let lines = batch * self.sizes.rows.output;
        let end = lines.min(first + count);
        Later::new([input, dy].map(|data| &data[first * data.len() / lines..end * data.len() / lines]), rows)
    }

    /// Whether what arrived is read where it is, instead of in panels.
    fn is_read_in_place(&self, rows: usize, outputs: usize) -> bool {
        let registers = Registers::get();
        let is_panel = outputs <= registers.columns && outputs == self.sizes.out_channels;
        let is_used_once = rows <= FEW && self.sizes.out_channels <= NEAR;
        outputs.is_multiple_of(registers.lanes) && (is_panel || is_used_once)
    }

    /// These rows of the filter: those of channels that lie together follow each other, whatever their taps, so that what they
    /// read is in the cache. And what their taps see.
    fn rows(&self, within: Range<usize>) -> (Vec<View>, Vec<Alike>) {
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
        let mut all: Vec<Alike> = Vec::new();
        for channels in band.slices(sizes.filter_channels) {
            for (view, alike) in views.iter().enumerate() {
                let tap = alike[0];
                let elements = alike.iter().flat_map(|[row, column]| {
                    let place = band.distance([row.offset - tap[0].offset, column.offset - tap[1].offset]);
                    let number = (row.number * sizes.columns.filter + column.number) * sizes.filter_channels;
                    channels.clone().map(move |c| (number + c, place + band.channel(c)))
                });
                let elements = elements.filter(|(number, _)| within.contains(number));
                let (rows, places) =
                    elements.map(|(number, at)| ((number - within.start) * sizes.out_channels, at)).unzip();
                all.push(Alike { view, places, rows });
            }
        }
        (views.iter().map(|alike| View { tap: alike[0], inside: inside(alike[0]) }).collect(), all)
    }

    /// Finds what these lines of output pixels see, image by image.
    fn take(
        &self,
        input: &[f32],
        lines: &Range<usize>,
        channels: &Range<usize>,
        copies: &mut Copies,
        seen: &mut Vec<Seen>,
    ) {
        copies.clear();
        seen.clear();
        let height = self.sizes.rows.output;
        for number in lines.start / height..lines.end.div_ceil(height) {
            let top = number * height;
            let rows = lines.start.saturating_sub(top)..(lines.end - top).min(height);
            let first = top + rows.start - lines.start;
            let lines = self.band.take(input, number, rows.clone(), channels, copies);
            seen.push(Seen { first, rows, lines });
        }
    }

    /// The pixels that count for some taps.
    fn find_runs(&self, view: &View, seen: &[Seen], runs: &mut Vec<Run>) {
        runs.clear();
        let ([rows, columns], width) = (&view.inside, self.sizes.columns.output);
        let offset = view.tap.map(|tap| tap.offset);
        for Seen { first, rows: all, lines } in seen {
            for row in rows.start.max(all.start)..rows.end.min(all.end) {
                if columns.is_empty() {
                    continue;
                }
                let start = self.band.place(*lines, [row, columns.start], offset);
                let first = (first + row - all.start) * width + columns.start;
                runs.push(Run { start, first, len: columns.len() });
            }
        }
    }
}

/// What some rows of output pixels of an image see.
#[derive(Debug)]
struct Seen {
    /// The number of the first one's line, among those that are looked at.
    first: usize,
    rows: Range<usize>,
    lines: Lines,
}

#[cfg(test)]
mod tests {
    use super::super::testing::{noise, sizes};
    use super::*;

    /// The same bits, whether channels are read where they are or from slices, and whoever computes which rows of the filter.
    #[test]
    fn channels_in_slices() -> Result<()> {
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
                let gradient = FilterGradient::reading(&sizes, crowded);
                let gradient = gradient.ok_or_else(|| crate::Error::internal("out of proportion"))?;
                assert_eq!(gradient.band.is_copied, crowded);
                let mut dw = vec![f32::NAN; filter.iter().product()];
                gradient.write(&noise(input.iter().product()), &dy, &mut dw)?;
                Ok::<_, crate::Error>(dw)
            };
            let whole = run(true)?;
            assert_eq!(whole, run(false)?, "{input:?} {filter:?}");

            let lines = 0..sizes.batch * sizes.rows.output;
            let gradient = FilterGradient::reading(&sizes, true);
            let gradient = gradient.ok_or_else(|| crate::Error::internal("out of proportion"))?;
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
