//! Convolutions over `f32` images, and their gradients with respect to the input, as matrix products whose left
//! matrix is read from the images in place, without copying patches. Neighbouring taps of a row of the filter form
//! one run of the inner dimension.

use super::band::{self, AccessPattern, Band, LineCopies};
use super::phase::{Image, Phase, Span, is_flat};
use crate::numeric::cpu_cache::rows_alias;
use crate::numeric::micro::{Destination, LeftMatrix, Prefetch, Registers, STEPS, StepRun, cut};
use crate::numeric::panel::{ColumnSource, PanelSource, Panels, RowSource};
use crate::numeric::product::Threads;
use device::Result;
use graph::ops::conv::ConvSizes;
use rayon::prelude::*;
use smallvec::SmallVec;
use std::ops::Range;

/// The approximate limit of a tile's pixels; tiles of small images may have more, see [`MIN_SMALL_IMAGES`].
const PIXELS: usize = 256;

/// The least number of small images in a tile if their border pixels have fewer taps inside the image than other
/// pixels. A block combines the pixels at the same border of several images, because one image has too few of them for
/// a block.
const MIN_SMALL_IMAGES: usize = 8;

/// A thread has at most 1 / `EVEN` more lines than the average of all threads.
const EVEN: usize = 16;

/// A plan that computes target images from source images with a filter: a convolution or its input gradient.
#[derive(Debug)]
pub(super) struct Stencil {
    sizes: ConvSizes,
    is_gradient: bool,
    /// The size of the target images.
    to: Image,
    /// Source channels of a group.
    depth: usize,
    /// Target channels of a group.
    width: usize,
    threads: Threads,
    plans: Vec<PhasePlan>,
}

/// The plan of a phase: the phase, the layout of the pixels it reads, and its groups of target pixels.
#[derive(Debug)]
struct PhasePlan {
    phase: Phase,
    band: Band,
    /// Rows and columns of target pixels, split by the taps inside the source image.
    spans: [Vec<Span>; 2],
}

impl Stencil {
    /// Plans the convolution; `None` for volumes, and if strides, dilations or paddings are excessively large.
    pub(super) fn forward(sizes: &ConvSizes) -> Option<Stencil> {
        let (from, to) = (Image::input(sizes), Image::output(sizes));
        let phases = vec![Phase::forward(sizes)];
        if is_flat(sizes) { Stencil::new(*sizes, false, from, to, phases, rows_alias) } else { None }
    }

    /// Plans the gradient with respect to the input; `None` for volumes, and if strides, dilations or paddings are
    /// excessively large.
    pub(super) fn backward(sizes: &ConvSizes) -> Option<Stencil> {
        let (from, to) = (Image::output(sizes), Image::input(sizes));
        let phases = Phase::backward(sizes);
        if is_flat(sizes) { Stencil::new(*sizes, true, from, to, phases, rows_alias) } else { None }
    }

    /// Plans the computation of images `to` from images `from`. `is_spaced` returns whether source pixels that lie the
    /// given number of bytes apart are stored with gaps.
    fn new(
        sizes: ConvSizes,
        is_gradient: bool,
        from: Image,
        to: Image,
        phases: Vec<Phase>,
        is_spaced: fn(usize) -> bool,
    ) -> Option<Stencil> {
        let (depth, width) = (from.channels / sizes.groups(), to.channels / sizes.groups());
        let plan = |phase: Phase| {
            let apart = from.channels.saturating_mul(phase.stride[1]).saturating_mul(size_of::<f32>());
            let band = Band::new(from, &phase, AccessPattern::Pixels { spaced: is_spaced(apart) }, depth);
            let all = |axis: usize| Span { pixels: 0..phase.count[axis], taps: 0..phase.taps[axis].len() };
            let spans = [(0, from.rows), (1, from.columns)];
            let spans = spans.map(
                |(axis, size)| {
                    if band.has_margins { vec![all(axis)] } else { phase.spans(axis, size) }
                },
            );
            band.is_bounded().then_some(PhasePlan { phase, band, spans })
        };
        Some(Stencil {
            sizes,
            is_gradient,
            to,
            depth,
            width,
            threads: threads(&sizes),
            plans: phases.into_iter().map(plan).collect::<Option<_>>()?,
        })
    }

    /// Packs the filter for the products: one set of panels for each phase and group.
    pub(super) fn pack(&self, filter: &[f32]) -> Result<Vec<Panels>> {
        let groups = self.sizes.groups();
        let each = self.plans.iter().flat_map(|plan| (0..groups).map(move |group| (plan, group)));
        let pack = |(plan, group): (&PhasePlan, usize)| {
            let mut panels = Panels::new();
            let source = Filter { stencil: self, filter, phase: &plan.phase, group };
            panels.fill(plan.phase.steps(self.depth), self.width, self.threads, &source)?;
            Ok(panels)
        };
        each.map(pack).collect()
    }

    /// Computes the target images `out` from the source images `input`.
    pub(super) fn run(&self, input: &[f32], filter: &[Panels], out: &mut [f32]) {
        let lines = self.lines(match self.threads {
            Threads::One => 1,
            Threads::All => rayon::current_num_threads(),
        });
        let work = |scratch: &mut Scratch, (i, out): (usize, &mut [f32])| {
            self.tile(input, filter, i * lines, out, scratch);
        };
        let tile = lines * self.to.line();
        match self.threads {
            Threads::One => {
                let mut scratch = Scratch::default();
                out.chunks_mut(tile).enumerate().for_each(|plan| work(&mut scratch, plan));
            }
            Threads::All => out.par_chunks_mut(tile).enumerate().for_each_init(Scratch::default, work),
        }
    }

    /// Returns the number of lines of a tile: about [`PIXELS`] pixels, so that the source lines that they read stay in
    /// the cache. Tiles of small images hold whole images.
    fn lines(&self, threads: usize) -> usize {
        let apart = self.plans.iter().map(|plan| plan.band.lines_apart() / plan.phase.every[0]);
        let most = band::most_elements() / apart.max().unwrap_or(1).max(1);
        let (height, pixels) = (self.to.rows, self.to.rows * self.to.columns);
        if pixels <= PIXELS && height <= most {
            let least_images = if self.has_partial_borders() { MIN_SMALL_IMAGES } else { 1 };
            let usual = PIXELS.div_ceil(pixels).max(least_images).min(most / height);
            let images = tile_share(self.sizes.batch, usual, threads);
            if is_even(self.sizes.batch, images, threads) {
                return images * height;
            }
        }
        let every = self.plans.first().map_or(1, |plan| plan.phase.every[0]);
        let usual = most.min(PIXELS / self.to.columns) / every;
        tile_share((self.sizes.batch * height).div_ceil(every), usual, threads) * every
    }

    /// Returns whether there are border pixels with fewer taps inside the image than other pixels have.
    fn has_partial_borders(&self) -> bool {
        self.plans.iter().any(|plan| plan.spans.iter().any(|spans| spans.len() > 1))
    }

    /// Computes the `out.len()` elements of the target images from line `first_line` on; lines are numbered through the
    /// batch.
    fn tile(
        &self,
        input: &[f32],
        filter: &[Panels],
        first_line: usize,
        out: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let groups = self.sizes.groups();
        for (plan, filter) in self.plans.iter().zip(filter.chunks_exact(groups)) {
            self.find_pixels(plan, input, first_line, out.len() / self.to.line(), scratch);
            let Scratch { copies, from, to, pixel_groups, runs } = scratch;
            let data = if plan.band.is_copied { copies.data() } else { input };
            for PixelGroup { pixels, .. } in pixel_groups.extract_if(.., |group| group.steps.is_empty()) {
                to[pixels].iter().for_each(|&at| out[at..at + self.to.channels].fill(0.0));
            }
            // With a 1x1 filter, the product with the first panel reads each pixel for the first time, so the pixels
            // are prefetched; the products with later panels find the pixels in the cache.
            let is_read_once = !plan.band.is_copied && plan.phase.steps(1) == 1;
            for (group, panels) in filter.iter().enumerate() {
                let data = &data[group * self.depth..];
                for panel in panels.iter() {
                    let prefetch =
                        if is_read_once && panel.first == 0 { Prefetch::Rows } else { Prefetch::Nothing };
                    for steps in cut(panels.steps(), STEPS) {
                        for PixelGroup { pixels, taps, steps: all } in &*pixel_groups {
                            plan.find_runs(taps, self.depth, &steps, runs);
                            if runs.is_empty() {
                                continue;
                            }
                            let left =
                                LeftMatrix { data, rows: &from[pixels.clone()], runs, step: 1, prefetch };
                            let mut destination = Destination {
                                data: &mut out[group * self.width + panel.first..],
                                rows: &to[pixels.clone()],
                                width: panel.width,
                                add: steps.start > all.start,
                            };
                            Registers::get().sweep(&left, &panel.from(0), &mut destination);
                        }
                    }
                }
            }
        }
    }

    /// Records the positions of the phase's target pixels on `lines` lines from `first_line` on, and of the first
    /// source pixel that each target pixel reads.
    fn find_pixels(
        &self,
        plan: &PhasePlan,
        input: &[f32],
        first_line: usize,
        lines: usize,
        scratch: &mut Scratch,
    ) {
        let PhasePlan { phase, band, spans } = plan;
        let Scratch { copies, from, to, pixel_groups, .. } = scratch;
        copies.clear();
        from.clear();
        to.clear();
        pixel_groups.clear();
        let (height, end) = (self.to.rows, first_line + lines);
        let channels = 0..self.sizes.groups() * self.depth;
        let images = first_line / height..end.div_ceil(height);
        let images: SmallVec<[_; 16]> = images
            .filter_map(|image| {
                let top = image * height;
                let rows = phase.rows_within(first_line.saturating_sub(top)..(end - top).min(height));
                let is_any = !rows.is_empty();
                is_any.then(|| (top, rows.clone(), band.locate(input, image, rows, &channels, copies)))
            })
            .collect();
        for row_span in &spans[0] {
            for column_span in &spans[1] {
                let (first, taps) = (from.len(), [&row_span.taps, &column_span.taps]);
                let offset = [0, 1].map(|i| phase.taps[i].get(taps[i].start).map_or(0, |tap| tap.offset));
                let columns = &column_span.pixels;
                for (top, rows, lines) in &images {
                    let rows = rows.start.max(row_span.pixels.start)..rows.end.min(row_span.pixels.end);
                    for row in rows {
                        let line = top + phase.first[0] + row * phase.every[0] - first_line;
                        let first_pixel = line * self.to.columns + phase.first[1];
                        let at = |column: usize| (first_pixel + column * phase.every[1]) * self.to.channels;
                        to.extend(columns.clone().map(at));
                        if taps.iter().all(|taps| !taps.is_empty()) {
                            let start = band.pixel_start(*lines, [row, columns.start], offset);
                            from.extend((0..columns.len()).map(|i| start + i * band.step()));
                        } else {
                            from.resize(to.len(), 0);
                        }
                    }
                }
                if first < from.len() {
                    let steps = plan.steps(taps, self.depth);
                    pixel_groups.push(PixelGroup {
                        pixels: first..from.len(),
                        taps: taps.map(Range::clone),
                        steps,
                    });
                }
            }
        }
    }
}

impl PhasePlan {
    /// Returns the range of steps of the inner dimension for the taps in the given rows and columns of the filter;
    /// empty if there is no tap.
    fn steps(&self, [rows, columns]: [&Range<usize>; 2], depth: usize) -> Range<usize> {
        if rows.is_empty() || columns.is_empty() {
            return 0..0;
        }
        let step = |row: usize, column: usize| (row * self.phase.taps[1].len() + column) * depth;
        step(rows.start, columns.start)..step(rows.end - 1, columns.end)
    }

    /// Collects the runs of source elements for the taps in the given rows and columns of the filter, limited to
    /// `steps`. Positions are relative to the pixel under the first tap.
    fn find_runs(
        &self,
        [rows, columns]: &[Range<usize>; 2],
        depth: usize,
        steps: &Range<usize>,
        runs: &mut Vec<StepRun>,
    ) {
        runs.clear();
        let taps = &self.phase.taps;
        for row in rows.clone() {
            for column in columns.clone() {
                let first = (row * taps[1].len() + column) * depth;
                let (start, end) = (first.max(steps.start), (first + depth).min(steps.end));
                if start >= end {
                    continue;
                }
                let offset =
                    |axis: usize, i: usize, first: usize| taps[axis][i].offset - taps[axis][first].offset;
                let distance = [offset(0, row, rows.start), offset(1, column, columns.start)];
                let start_in_band = self.band.distance(distance) + start - first;
                match runs.last_mut() {
                    Some(run) if run.start + run.len == start_in_band && run.first + run.len == start => {
                        run.len += end - start;
                    }
                    _ => runs.push(StepRun { start: start_in_band, first: start, len: end - start }),
                }
            }
        }
    }
}

/// Buffers that a thread reuses from tile to tile.
#[derive(Debug, Default)]
struct Scratch {
    /// The copied lines of the bands.
    copies: LineCopies,
    /// For each target pixel, the index of the first element of the first source pixel it reads.
    from: Vec<usize>,
    /// For each target pixel, the index of its first channel in the output.
    to: Vec<usize>,
    pixel_groups: Vec<PixelGroup>,
    runs: Vec<StepRun>,
}

/// Target pixels that use the same rows and columns of the filter.
#[derive(Debug)]
struct PixelGroup {
    pixels: Range<usize>,
    taps: [Range<usize>; 2],
    /// The steps of the inner dimension for the group's taps.
    steps: Range<usize>,
}

/// Returns the number of lines or images in a tile, at most `most`, to divide `all` among threads: the largest number
/// that gives all threads about equal work, or else the number that leaves the busiest thread the least work.
fn tile_share(all: usize, most: usize, threads: usize) -> usize {
    // If several tile sizes give the same number of tiles, the smallest is used, so that the last tile is nearly full.
    let each = || (1..=most.min(all)).rev().map(|each| all.div_ceil(all.div_ceil(each)));
    let even = each().find(|&each| is_even(all, each, threads));
    even.or_else(|| each().min_by_key(|&each| busiest_work(all, each, threads))).unwrap_or(1)
}

/// Returns the number of lines or images that the busiest thread computes if `all` are divided into tiles of `each`.
fn busiest_work(all: usize, each: usize, threads: usize) -> usize {
    all.div_ceil(each).div_ceil(threads) * each
}

/// Returns whether no thread's work exceeds its equal share by more than 1 / `EVEN` if `all` lines or images are
/// divided into tiles of `each`.
fn is_even(all: usize, each: usize, threads: usize) -> bool {
    threads == 1 || busiest_work(all, each, threads) * threads <= all + all / EVEN
}

/// Returns whether a convolution of these sizes should use one thread or all threads.
pub(super) fn threads(sizes: &ConvSizes) -> Threads {
    let filter = sizes.rows.filter * sizes.columns.filter * sizes.filter_channels * sizes.out_channels;
    let pixels = sizes.batch * sizes.rows.output * sizes.columns.output;
    Threads::for_work(filter.saturating_mul(pixels))
}

/// The filter of a group as the source of packed panels: a row per source channel and tap, a column per target
/// channel.
struct Filter<'a> {
    stencil: &'a Stencil,
    filter: &'a [f32],
    phase: &'a Phase,
    group: usize,
}

impl PanelSource for Filter<'_> {
    fn panel(&self, first: usize, width: usize, step: usize, panel: &mut [f32]) {
        let Stencil { sizes, depth, is_gradient, .. } = self.stencil;
        let stride = sizes.out_channels;
        let outputs = self.group * stride / sizes.groups();
        let [rows, columns] = &self.phase.taps;
        let taps = rows.iter().flat_map(|row| columns.iter().map(move |column| (row.number, column.number)));
        for ((row, column), rows) in taps.zip(panel.chunks_exact_mut(depth * step)) {
            let number = row * sizes.columns.filter + column;
            let data = &self.filter[number * sizes.filter_channels * stride + outputs..];
            if *is_gradient {
                ColumnSource { data, stride }.panel(first, width, step, rows);
            } else {
                RowSource { data, stride }.panel(first, width, step, rows);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{noise, sizes};
    use super::*;

    /// The result has the same bits whether source pixels are read in place or with gaps between them.
    #[test]
    fn gaps_between_pixels_do_not_change_the_result() -> Result<()> {
        for (input, filter, stride) in [
            ([3, 5, 6, 20], [3, 3, 20, 8], 1),
            ([2, 7, 5, 16], [3, 2, 8, 6], 2),
            ([1, 9, 9, 32], [1, 1, 32, 5], 3),
            ([2, 4, 4, 3], [3, 3, 3, 9], 1),
        ] {
            let sizes = sizes(input, filter, stride)?;
            let w = noise(filter.iter().product());
            let images = [Image::input(&sizes), Image::output(&sizes)];
            let len = images.map(|image| sizes.batch * image.rows * image.line());
            let run = |is_gradient: bool, is_spaced: fn(usize) -> bool| {
                let i = usize::from(is_gradient);
                let phases = if is_gradient { Phase::backward(&sizes) } else { vec![Phase::forward(&sizes)] };
                let planned = Stencil::new(sizes, is_gradient, images[i], images[1 - i], phases, is_spaced);
                let stencil = planned.ok_or_else(|| device::Error::internal("out of proportion"))?;
                let mut out = vec![f32::NAN; len[1 - i]];
                stencil.run(&noise(len[i]), &stencil.pack(&w)?, &mut out);
                Ok::<_, device::Error>(out)
            };
            for is_gradient in [false, true] {
                assert_eq!(run(is_gradient, |_| true)?, run(is_gradient, |_| false)?, "{input:?} {filter:?}");
            }
        }
        Ok(())
    }

    /// Each thread has at most a sixteenth more work than its share, or as little as if each line were a tile.
    #[test]
    fn tiles_divide_the_work_evenly() -> Result<()> {
        for (side, filter) in [(14, 1), (14, 5), (7, 3), (30, 3)] {
            for batch in 1..70 {
                let sizes = sizes([batch, side, side, 16], [filter, filter, 16, 8], 1)?;
                let stencil =
                    Stencil::forward(&sizes).ok_or_else(|| device::Error::internal("it is none"))?;
                for threads in 1..=16 {
                    let (lines, all) = (stencil.lines(threads), batch * side);
                    let is_little = busiest_work(all, lines, threads) <= all.div_ceil(threads);
                    let text = format!("{batch} of {side}, {threads} threads: {lines} lines");
                    assert!(is_even(all, lines, threads) || is_little, "{text}");
                }
            }
        }
        Ok(())
    }

    /// The result has the same bits for any number of threads.
    #[test]
    fn thread_count_does_not_change_the_result() -> Result<()> {
        let sizes = sizes([9, 7, 7, 64], [3, 3, 64, 128], 1)?;
        let (images, filter) = (noise(9 * 7 * 7 * 64), noise(3 * 3 * 64 * 128));
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let pool = pool.map_err(|e| device::Error::internal(e.to_string()))?;
            pool.install(|| {
                let stencil =
                    Stencil::forward(&sizes).ok_or_else(|| device::Error::internal("it is none"))?;
                assert_eq!(stencil.threads, Threads::All);
                let mut out = vec![f32::NAN; 9 * 7 * 7 * 128];
                stencil.run(&images, &stencil.pack(&filter)?, &mut out);
                Ok::<_, device::Error>(out)
            })
        };
        let alone = run(1)?;
        for threads in [2, 3, 16] {
            assert_eq!(run(threads)?, alone, "{threads} threads");
        }
        Ok(())
    }
}
