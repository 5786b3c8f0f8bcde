//! Convolutions over images of `f32`, and their gradients by the input, as products whose left matrix is read where the
//! images are: no patches are made. Neighbouring taps of a row of the filter are one run of the inner dimension.

use super::band::{self, Band, Copies, Reads};
use super::phase::{Image, Phase, Tap, is_flat};
use crate::error::Result;
use crate::kernels::cpu::micro::{Left, Place, Registers, Run};
use crate::kernels::cpu::panel::{Columns, Panels, Rows, Source};
use crate::kernels::cpu::product::Threads;
use graph::ops::conv::ConvSizes;
use rayon::prelude::*;

/// Steps of the inner dimension at a time: so many that what is written after them costs little, so few that no sum is long.
const STEPS: usize = 320;

/// Pixels of a tile, at most about that many.
const PIXELS: usize = 256;

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
    /// Runs of at most [`STEPS`] steps, each list with its first step.
    blocks: Vec<(usize, Vec<Run>)>,
}

impl Stencil {
    /// `None` for volumes, and where strides, dilations or paddings are out of all proportion.
    pub(super) fn forward(sizes: &ConvSizes) -> Option<Stencil> {
        let (from, to) = (Image::input(sizes), Image::output(sizes));
        if is_flat(sizes) { Stencil::new(*sizes, false, from, to, vec![Phase::forward(sizes)]) } else { None }
    }

    /// The gradient by the input; `None` as above.
    pub(super) fn backward(sizes: &ConvSizes) -> Option<Stencil> {
        let (from, to) = (Image::output(sizes), Image::input(sizes));
        if is_flat(sizes) { Stencil::new(*sizes, true, from, to, Phase::backward(sizes)) } else { None }
    }

    fn new(
        sizes: ConvSizes,
        is_gradient: bool,
        from: Image,
        to: Image,
        phases: Vec<Phase>,
    ) -> Option<Stencil> {
        let (depth, width) = (from.channels / sizes.groups(), to.channels / sizes.groups());
        let part = |phase: Phase| {
            let band = Band::new(from, &phase, Reads::Pixels, depth);
            let blocks = blocks(&band.runs(&phase, depth));
            band.is_bounded().then_some(Part { phase, band, blocks })
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
            let taps = &part.phase.taps;
            let mut panels = Panels::new();
            let source = Filter { stencil: self, filter, taps, group };
            panels.fill(taps.len() * self.depth, self.width, self.threads, &source)?;
            Ok(panels)
        };
        each.map(pack).collect()
    }

    /// Computes `out` from `input`.
    pub(super) fn run(&self, input: &[f32], filter: &[Panels], out: &mut [f32]) {
        let lines = self.lines();
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

    /// Lines of a tile.
    fn lines(&self) -> usize {
        let seen = self.parts.iter().map(|part| part.band.lines_apart() / part.phase.every[0]);
        let seen = seen.max().unwrap_or(1).max(1);
        let mut lines = (band::most_elements() / seen).min(PIXELS / self.to.columns);
        if self.threads == Threads::All {
            // Enough tiles that no thread idles for long at the end.
            lines = lines.min((self.sizes.batch * self.to.rows).div_ceil(4 * rayon::current_num_threads()));
        }
        let every = self.parts.first().map_or(1, |part| part.phase.every[0]);
        lines.max(1).next_multiple_of(every)
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
            if part.phase.taps.is_empty() {
                scratch.to.iter().for_each(|&at| out[at..at + self.to.channels].fill(0.0));
                continue;
            }
            let data = if part.band.is_copied { scratch.copies.data() } else { input };
            for (group, panels) in filter.iter().enumerate() {
                for panel in panels.iter() {
                    for (step, runs) in &part.blocks {
                        let left =
                            Left { data: &data[group * self.depth..], rows: &scratch.from, runs, step: 1 };
                        let place = &mut out[group * self.width + panel.first..];
                        let mut place =
                            Place { data: place, rows: &scratch.to, width: panel.width, add: *step > 0 };
                        Registers::get().sweep(&left, &panel.from(*step), &mut place);
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
        let Part { phase, band, .. } = part;
        let Scratch { copies, from, to } = scratch;
        copies.clear();
        from.clear();
        to.clear();
        let (height, end) = (self.to.rows, first_line + lines);
        let step = band.step();
        for image in first_line / height..end.div_ceil(height) {
            let top = image * height;
            let rows = phase.rows_within(first_line.saturating_sub(top)..(end - top).min(height));
            let mut visit = |row: usize, seen: usize| {
                let line = top + phase.first[0] + row * phase.every[0] - first_line;
                let place = line * self.to.columns + phase.first[1];
                from.extend((0..phase.count[1]).map(|i| seen + i * step));
                to.extend((0..phase.count[1]).map(|i| (place + i * phase.every[1]) * self.to.channels));
            };
            if phase.taps.is_empty() {
                rows.for_each(|row| visit(row, 0));
            } else if !rows.is_empty() {
                band.take(input, image, rows, copies, visit);
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
}

pub(super) fn threads(sizes: &ConvSizes) -> Threads {
    let filter = sizes.rows.filter * sizes.columns.filter * sizes.filter_channels * sizes.out_channels;
    let pixels = sizes.batch * sizes.rows.output * sizes.columns.output;
    Threads::for_work(filter.saturating_mul(pixels))
}

/// Cuts runs into lists of about equally many steps, at most [`STEPS`].
fn blocks(runs: &[Run]) -> Vec<(usize, Vec<Run>)> {
    let steps: usize = runs.iter().map(|run| run.len).sum();
    let limit = steps.div_ceil(steps.div_ceil(STEPS).max(1));
    let mut blocks: Vec<(usize, Vec<Run>)> = Vec::new();
    let mut done = 0;
    for &Run { mut start, mut len } in runs {
        while len > 0 {
            if done % limit == 0 {
                blocks.push((done, Vec::new()));
            }
            let taken = len.min(limit - done % limit);
            if let Some((_, block)) = blocks.last_mut() {
                block.push(Run { start, len: taken });
            }
            (start, len, done) = (start + taken, len - taken, done + taken);
        }
    }
    blocks
}

/// A group's filter: a row for each channel that is seen through each tap, a column for each that is made.
struct Filter<'a> {
    stencil: &'a Stencil,
    filter: &'a [f32],
    taps: &'a [Tap],
    group: usize,
}

impl Source for Filter<'_> {
    fn panel(&self, first: usize, width: usize, step: usize, panel: &mut [f32]) {
        let Stencil { sizes, depth, is_gradient, .. } = self.stencil;
        let stride = sizes.out_channels;
        for (tap, rows) in self.taps.iter().zip(panel.chunks_exact_mut(depth * step)) {
            let outputs = self.group * stride / sizes.groups();
            let data = &self.filter[tap.number * sizes.filter_channels * stride + outputs..];
            if *is_gradient {
                Columns { data, stride }.panel(first, width, step, rows);
            } else {
                Rows { data, stride }.panel(first, width, step, rows);
            }
        }
    }
}
