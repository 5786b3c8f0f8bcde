//! Convolutions over images of `f32`, and their gradients by the input, as products whose left matrix is read where the
//! images are: no patches are made. Neighbouring taps of a row of the filter are one run of the inner dimension.

use super::band::{self, Band, Copies, Reads};
use super::phase::{Image, Phase, Span, is_flat};
use crate::error::Result;
use crate::kernels::cpu::cache::rows_alias;
use crate::kernels::cpu::micro::{Ahead, Left, Place, Registers, Run, STEPS, cut};
use crate::kernels::cpu::panel::{Columns, Panels, Rows, Source};
use crate::kernels::cpu::product::Threads;
use graph::ops::conv::ConvSizes;
use rayon::prelude::*;
use smallvec::SmallVec;
use std::ops::Range;

/// Pixels of a tile, at most about that many; more of small images, see [`ABREAST`].
const PIXELS: usize = 256;

/// Small images of a tile, if their pixels at a border see less than others: these are computed together with those at the same
/// border of the other images, as those of one image are too few for a block.
const ABREAST: usize = 8;

/// No thread has more than its share of tiles by more than a part of this many.
const EVEN: usize = 16;

/// Images made of others by a filter.
#[derive(Debug)]
pub(super) struct Stencil {
    sizes: ConvSizes,
    is_gradient: bool,
    to: Image,
    /// Channels of a group.
    depth: usize,
    width: usize,
    threads: Threads,
    parts: Vec<Part>,
}

/// One phase, and how what it sees lies.
#[derive(Debug)]
struct Part {
    phase: Phase,
    band: Band,
    /// Rows and columns of pixels by what they see.
    spans: [Vec<Span>; 2],
}

impl Stencil {
    /// `None` for volumes, and where strides, dilations or paddings are out of all proportion.
    pub(super) fn forward(sizes: &ConvSizes) -> Option<Stencil> {
        let (from, to) = (Image::input(sizes), Image::output(sizes));
        let phases = vec![Phase::forward(sizes)];
        if is_flat(sizes) { Stencil::new(*sizes, false, from, to, phases, rows_alias) } else { None }
    }

    /// The gradient by the input; `None` as above.
    pub(super) fn backward(sizes: &ConvSizes) -> Option<Stencil> {
        let (from, to) = (Image::output(sizes), Image::input(sizes));
        let phases = Phase::backward(sizes);
        if is_flat(sizes) { Stencil::new(*sizes, true, from, to, phases, rows_alias) } else { None }
    }

    /// `is_spaced` says whether pixels are, which are so many bytes apart.
    fn new(
        sizes: ConvSizes,
        is_gradient: bool,
        from: Image,
        to: Image,
        phases: Vec<Phase>,
        is_spaced: fn(usize) -> bool,
    ) -> Option<Stencil> {
        let (depth, width) = (from.channels / sizes.groups(), to.channels / sizes.groups());
        let part = |phase: Phase| {
            let apart = from.channels.saturating_mul(phase.stride[1]).saturating_mul(size_of::<f32>());
            let band = Band::new(from, &phase, Reads::Pixels { spaced: is_spaced(apart) }, depth);
            let all = |axis: usize| Span { pixels: 0..phase.count[axis], taps: 0..phase.taps[axis].len() };
            let spans = [(0, from.rows), (1, from.columns)];
            let spans = spans.map(
                |(axis, size)| {
                    if band.has_margins { vec![all(axis)] } else { phase.spans(axis, size) }
                },
            );
            band.is_bounded().then_some(Part { phase, band, spans })
        };
        Some(Stencil {
            sizes,
            is_gradient,
            to,
            depth,
            width,
            threads: threads(&sizes),
            parts: phases.into_iter().map(part).collect::<Option<_>>()?,
        })
    }

    /// The filter as the products need it: for each phase and group.
    pub(super) fn pack(&self, filter: &[f32]) -> Result<Vec<Panels>> {
        let groups = self.sizes.groups();
        let each = self.parts.iter().flat_map(|part| (0..groups).map(move |group| (part, group)));
        let pack = |(part, group): (&Part, usize)| {
            let mut panels = Panels::new();
            let source = Filter { stencil: self, filter, phase: &part.phase, group };
            panels.fill(part.phase.steps(self.depth), self.width, self.threads, &source)?;
            Ok(panels)
        };
        each.map(pack).collect()
    }

    /// Computes `out` from `input`.
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
                out.chunks_mut(tile).enumerate().for_each(|part| work(&mut scratch, part));
            }
            Threads::All => out.par_chunks_mut(tile).enumerate().for_each_init(Scratch::default, work),
        }
    }

    /// Lines of a tile, of about [`PIXELS`], so that what they see is in the cache: whole images, if they are small.
    fn lines(&self, threads: usize) -> usize {
        let seen = self.parts.iter().map(|part| part.band.lines_apart() / part.phase.every[0]);
        let most = band::most_elements() / seen.max().unwrap_or(1).max(1);
        let (height, pixels) = (self.to.rows, self.to.rows * self.to.columns);
        if pixels <= PIXELS && height <= most {
            let abreast = if self.are_borders_apart() { ABREAST } else { 1 };
            let usual = PIXELS.div_ceil(pixels).max(abreast).min(most / height);
            let images = share(self.sizes.batch, usual, threads);
            if is_even(self.sizes.batch, images, threads) {
                return images * height;
            }
        }
        let every = self.parts.first().map_or(1, |part| part.phase.every[0]);
        let usual = most.min(PIXELS / self.to.columns) / every;
        share((self.sizes.batch * height).div_ceil(every), usual, threads) * every
    }

    /// Whether there are pixels at a border that see less than others.
    fn are_borders_apart(&self) -> bool {
        self.parts.iter().any(|part| part.spans.iter().any(|spans| spans.len() > 1))
    }

    /// The lines from `first_line` on, which number through the batch.
    fn tile(
        &self,
        input: &[f32],
        filter: &[Panels],
        first_line: usize,
        out: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let groups = self.sizes.groups();
        for (part, filter) in self.parts.iter().zip(filter.chunks_exact(groups)) {
            self.find_pixels(part, input, first_line, out.len() / self.to.line(), scratch);
            let Scratch { copies, from, to, alike, runs } = scratch;
            let data = if part.band.is_copied { copies.data() } else { input };
            for Alike { pixels, .. } in alike.extract_if(.., |alike| alike.steps.is_empty()) {
                to[pixels].iter().for_each(|&at| out[at..at + self.to.channels].fill(0.0));
            }
            // The first panel of 1x1 filters meets each pixel once.
            let is_met_once = !part.band.is_copied && part.phase.steps(1) == 1;
            for (group, panels) in filter.iter().enumerate() {
                let data = &data[group * self.depth..];
                for panel in panels.iter() {
                    let ahead = if is_met_once && panel.first == 0 { Ahead::Rows } else { Ahead::Nothing };
                    for steps in cut(panels.steps(), STEPS) {
                        for Alike { pixels, taps, steps: all } in &*alike {
                            part.find_runs(taps, self.depth, &steps, runs);
                            if runs.is_empty() {
                                continue;
                            }
                            let left = Left { data, rows: &from[pixels.clone()], runs, step: 1, ahead };
                            let mut place = Place {
                                data: &mut out[group * self.width + panel.first..],
                                rows: &to[pixels.clone()],
                                width: panel.width,
                                add: steps.start > all.start,
                            };
                            Registers::get().sweep(&left, &panel.from(0), &mut place);
                        }
                    }
                }
            }
        }
    }

    /// Notes where the pixels of a phase on these lines are, and where what they see begins.
    fn find_pixels(
        &self,
        part: &Part,
        input: &[f32],
        first_line: usize,
        lines: usize,
        scratch: &mut Scratch,
    ) {
        let Part { phase, band, spans } = part;
        let Scratch { copies, from, to, alike, .. } = scratch;
        copies.clear();
        from.clear();
        to.clear();
        alike.clear();
        let (height, end) = (self.to.rows, first_line + lines);
        let channels = 0..self.sizes.groups() * self.depth;
        let images = first_line / height..end.div_ceil(height);
        let images: SmallVec<[_; 16]> = images
            .filter_map(|image| {
                let top = image * height;
                let rows = phase.rows_within(first_line.saturating_sub(top)..(end - top).min(height));
                let is_any = !rows.is_empty();
                is_any.then(|| (top, rows.clone(), band.take(input, image, rows, &channels, copies)))
            })
            .collect();
        for row_span in &spans[0] {
            for column_span in &spans[1] {
                let (first, taps) = (from.len(), [&row_span.taps, &column_span.taps]);
                let offset = [0, 1].map(|i| phase.taps[i].get(taps[i].start).map_or(0, |tap| tap.offset));
                let columns = &column_span.pixels;
                for (top, rows, seen) in &images {
                    let rows = rows.start.max(row_span.pixels.start)..rows.end.min(row_span.pixels.end);
                    for row in rows {
                        let line = top + phase.first[0] + row * phase.every[0] - first_line;
                        let place = line * self.to.columns + phase.first[1];
                        let at = |column: usize| (place + column * phase.every[1]) * self.to.channels;
                        to.extend(columns.clone().map(at));
                        if taps.iter().all(|taps| !taps.is_empty()) {
                            let start = band.place(*seen, [row, columns.start], offset);
                            from.extend((0..columns.len()).map(|i| start + i * band.step()));
                        } else {
                            from.resize(to.len(), 0);
                        }
                    }
                }
                if first < from.len() {
                    let steps = part.steps(taps, self.depth);
                    alike.push(Alike { pixels: first..from.len(), taps: taps.map(Range::clone), steps });
                }
            }
        }
    }
}

impl Part {
    /// From the first step to behind the last that these rows and columns of the filter take. There is none without taps.
    fn steps(&self, [rows, columns]: [&Range<usize>; 2], depth: usize) -> Range<usize> {
        if rows.is_empty() || columns.is_empty() {
            return 0..0;
        }
        let step = |row: usize, column: usize| (row * self.phase.taps[1].len() + column) * depth;
        step(rows.start, columns.start)..step(rows.end - 1, columns.end)
    }

    /// What is seen through these rows and columns of the filter, from the first of them on, as far as it is among `steps`.
    fn find_runs(
        &self,
        [rows, columns]: &[Range<usize>; 2],
        depth: usize,
        steps: &Range<usize>,
        runs: &mut Vec<Run>,
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
                let place = self.band.distance(distance) + start - first;
                match runs.last_mut() {
                    Some(run) if run.start + run.len == place && run.first + run.len == start => {
                        run.len += end - start;
                    }
                    _ => runs.push(Run { start: place, first: start, len: end - start }),
                }
            }
        }
    }
}

/// What a thread keeps between tiles.
#[derive(Debug, Default)]
struct Scratch {
    /// The band, where it is a copy.
    copies: Copies,
    /// For each pixel, where what it sees begins, and where its channels do.
    from: Vec<usize>,
    to: Vec<usize>,
    alike: Vec<Alike>,
    runs: Vec<Run>,
}

/// Pixels that see through the same rows and columns of the filter.
#[derive(Debug)]
struct Alike {
    pixels: Range<usize>,
    taps: [Range<usize>; 2],
    /// From their first step to behind their last.
    steps: Range<usize>,
}

/// How many of `all` a tile has, at most so many: the most that threads have about the same of, or else as many as leave the busiest
/// of them the least.
fn share(all: usize, most: usize, threads: usize) -> usize {
    // Of tiles that are as few, the smallest: the last one is not much smaller.
    let each = || (1..=most.min(all)).rev().map(|each| all.div_ceil(all.div_ceil(each)));
    let even = each().find(|&each| is_even(all, each, threads));
    even.or_else(|| each().min_by_key(|&each| of_busiest(all, each, threads))).unwrap_or(1)
}

fn of_busiest(all: usize, each: usize, threads: usize) -> usize {
    all.div_ceil(each).div_ceil(threads) * each
}

fn is_even(all: usize, each: usize, threads: usize) -> bool {
    threads == 1 || of_busiest(all, each, threads) * threads <= all + all / EVEN
}

pub(super) fn threads(sizes: &ConvSizes) -> Threads {
    let filter = sizes.rows.filter * sizes.columns.filter * sizes.filter_channels * sizes.out_channels;
    let pixels = sizes.batch * sizes.rows.output * sizes.columns.output;
    Threads::for_work(filter.saturating_mul(pixels))
}

/// A group's filter: a row for each channel that is seen through each tap, a column for each that is made.
struct Filter<'a> {
    stencil: &'a Stencil,
    filter: &'a [f32],
    phase: &'a Phase,
    group: usize,
}

impl Source for Filter<'_> {
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
                Columns { data, stride }.panel(first, width, step, rows);
            } else {
                Rows { data, stride }.panel(first, width, step, rows);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{noise, sizes};
    use super::*;

    /// The same bits, whether pixels are read where they are or with gaps between them.
    #[test]
    fn pixels_with_gaps() -> Result<()> {
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
                let made = Stencil::new(sizes, is_gradient, images[i], images[1 - i], phases, is_spaced);
                let stencil = made.ok_or_else(|| crate::Error::internal("out of proportion"))?;
                let mut out = vec![f32::NAN; len[1 - i]];
                stencil.run(&noise(len[i]), &stencil.pack(&w)?, &mut out);
                Ok::<_, crate::Error>(out)
            };
            for is_gradient in [false, true] {
                assert_eq!(run(is_gradient, |_| true)?, run(is_gradient, |_| false)?, "{input:?} {filter:?}");
            }
        }
        Ok(())
    }

    /// Each has at most a sixteenth more than its part, or as little as if each line were a tile.
    #[test]
    fn no_thread_idles_for_long() -> Result<()> {
        for (side, filter) in [(14, 1), (14, 5), (7, 3), (30, 3)] {
            for batch in 1..70 {
                let sizes = sizes([batch, side, side, 16], [filter, filter, 16, 8], 1)?;
                let stencil = Stencil::forward(&sizes).ok_or_else(|| crate::Error::internal("it is none"))?;
                for threads in 1..=16 {
                    let (lines, all) = (stencil.lines(threads), batch * side);
                    let is_little = of_busiest(all, lines, threads) <= all.div_ceil(threads);
                    let text = format!("{batch} of {side}, {threads} threads: {lines} lines");
                    assert!(is_even(all, lines, threads) || is_little, "{text}");
                }
            }
        }
        Ok(())
    }

    /// The same bits, however many threads share the images.
    #[test]
    fn threads_share_small_images() -> Result<()> {
        let sizes = sizes([9, 7, 7, 64], [3, 3, 64, 128], 1)?;
        let (images, filter) = (noise(9 * 7 * 7 * 64), noise(3 * 3 * 64 * 128));
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let pool = pool.map_err(|e| crate::Error::internal(e.to_string()))?;
            pool.install(|| {
                let stencil = Stencil::forward(&sizes).ok_or_else(|| crate::Error::internal("it is none"))?;
                assert_eq!(stencil.threads, Threads::All);
                let mut out = vec![f32::NAN; 9 * 7 * 7 * 128];
                stencil.run(&images, &stencil.pack(&filter)?, &mut out);
                Ok::<_, crate::Error>(out)
            })
        };
        let alone = run(1)?;
        for threads in [2, 3, 16] {
            assert_eq!(run(threads)?, alone, "{threads} threads");
        }
        Ok(())
    }
}
