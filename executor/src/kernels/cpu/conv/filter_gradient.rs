//! The gradient of a convolution over images of `f32` by its filter: patches, transposed, times what arrived. The
//! patches are read where the images are.

use super::band::{Band, Copies};
use super::phase::{Image, Phase, is_flat};
use super::stencil::threads;
use crate::error::Result;
use crate::kernels::cpu::micro::{Left, Place, Registers, Right, Run};
use crate::kernels::cpu::panel::{Panels, Rows};
use crate::kernels::cpu::product::Threads;
use graph::ops::conv::ConvSizes;
use rayon::prelude::*;

/// Pixels at a time, about: so many that what is written after them costs little, so few that no sum is long.
const PIXELS: usize = 320;

/// Elements of a tile's band, at most about that many.
const BAND: usize = 192 << 10;

/// Rows of at most so many elements are read where they are; longer ones are packed, as they lie pages apart.
const NEAR: usize = 128;

/// How the gradient is computed.
#[derive(Debug)]
pub(super) struct FilterGradient<'a> {
    sizes: &'a ConvSizes,
    phase: Phase,
    band: Band,
    /// Where each element of a patch is, from where the patch begins.
    places: Vec<usize>,
}

impl FilterGradient<'_> {
    /// `None` for volumes, and where strides, dilations or paddings are out of all proportion.
    pub(super) fn new(sizes: &ConvSizes) -> Option<FilterGradient<'_>> {
        let phase = Phase::forward(sizes);
        let band = Band::new(Image::input(sizes), &phase, false);
        let runs = band.runs(&phase, sizes.filter_channels);
        let places = runs.iter().flat_map(|run| run.start..run.start + run.len).collect();
        (is_flat(sizes) && band.is_bounded()).then_some(FilterGradient { sizes, phase, band, places })
    }

    /// Adds to `dw` what `dy` says of images `input`.
    pub(super) fn add(&self, input: &[f32], dy: &[f32], dw: &mut [f32]) -> Result<()> {
        match threads(self.sizes) {
            Threads::One => self.add_rows(input, dy, 0, dw),
            Threads::All => {
                let rows = self.places.len().div_ceil(rayon::current_num_threads());
                let rows_of = |(i, dw): (usize, &mut [f32])| self.add_rows(input, dy, i * rows, dw);
                dw.par_chunks_mut(rows * self.sizes.out_channels).enumerate().try_for_each(rows_of)
            }
        }
    }

    /// The rows of the filter from `first` on.
    fn add_rows(&self, input: &[f32], dy: &[f32], first: usize, dw: &mut [f32]) -> Result<()> {
        let (sizes, image) = (self.sizes, Image::output(self.sizes));
        let seen = (self.band.line() * self.phase.stride[0]).max(1);
        let lines = (BAND / seen).min(PIXELS / image.columns).max(1);
        let all_lines = sizes.batch * image.rows;
        let places = &self.places[first..][..dw.len() / image.channels];
        let rows: Vec<usize> = (0..places.len()).map(|i| i * image.channels).collect();
        let (mut copies, mut runs, mut panels) = (Copies::default(), Vec::new(), Panels::new());
        for line in (0..all_lines).step_by(lines) {
            let lines = line..(line + lines).min(all_lines);
            let dy = &dy[lines.start * image.line()..lines.end * image.line()];
            copies.clear();
            runs.clear();
            self.find_lines(input, lines, &mut copies, &mut runs);
            let data = if self.band.is_copied { copies.data() } else { input };
            let mut add = |group: usize, column: usize, width: usize, right: &Right<'_>| {
                let left = Left {
                    data: &data[group * sizes.filter_channels..],
                    rows: places,
                    runs: &runs,
                    step: self.band.step(&self.phase),
                };
                let mut place = Place { data: &mut dw[column..], rows: &rows, width, add: true };
                Registers::get().sweep(&left, right, &mut place);
            };
            let outputs = image.channels / sizes.groups();
            let registers = Registers::get();
            for group in 0..sizes.groups() {
                let start = group * outputs;
                if image.channels <= NEAR && outputs.is_multiple_of(registers.lanes) {
                    for columns in registers.panels(outputs) {
                        let column = start + columns.start;
                        add(
                            group,
                            column,
                            columns.len(),
                            &Right { data: &dy[column..], step: image.channels },
                        );
                    }
                    continue;
                }
                let source = Rows { data: &dy[start..], stride: image.channels };
                panels.fill(dy.len() / image.channels, outputs, Threads::One, &source)?;
                panels.iter().for_each(|panel| add(group, start + panel.first, panel.width, &panel.from(0)));
            }
        }
        Ok(())
    }

    /// Notes where what the lines of pixels see begins.
    fn find_lines(
        &self,
        input: &[f32],
        lines: std::ops::Range<usize>,
        copies: &mut Copies,
        runs: &mut Vec<Run>,
    ) {
        let image = Image::output(self.sizes);
        let len = image.columns;
        for number in lines.start / image.rows..lines.end.div_ceil(image.rows) {
            let top = number * image.rows;
            let rows = lines.start.saturating_sub(top)..(lines.end - top).min(image.rows);
            self.band
                .take(&self.phase, input, number, rows, copies, |_, start| runs.push(Run { start, len }));
        }
    }
}
