//! The gradient of a convolution over images of `f32` by its filter: patches, transposed, times what arrived. The
//! patches are read where the images are.

use super::band::{self, Band, Copies, Reads};
use super::phase::{Image, Phase, is_flat};
use super::stencil::threads;
use crate::error::Result;
use crate::kernels::cpu::micro::{Left, Place, Registers, Right, Run};
use crate::kernels::cpu::panel::{Panels, Rows, Streamed};
use crate::kernels::cpu::product::Threads;
use graph::ops::conv::ConvSizes;
use graph::{DType, Shape, Tensor};
use rayon::prelude::*;
use std::ops::Range;

/// Pixels at a time, about: so many that what is written after them costs little, so few that no sum is long.
const PIXELS: usize = 320;

/// Parts that the images are cut into, where threads take some of them each.
const PARTS: usize = 16;

/// What arrived is laid out for products, unless so few rows of the filter use it, and its own rows are so near each other.
const FEW: usize = 32;
const NEAR: usize = 128;

/// How the gradient is computed.
#[derive(Debug)]
pub(super) struct FilterGradient<'a> {
    sizes: &'a ConvSizes,
    band: Band,
    /// Where each element of a patch is, from where the patch begins.
    places: Vec<usize>,
}

impl FilterGradient<'_> {
    /// `None` for volumes, and where strides, dilations or paddings are out of all proportion.
    pub(super) fn new(sizes: &ConvSizes) -> Option<FilterGradient<'_>> {
        let phase = Phase::forward(sizes);
        let band = Band::new(Image::input(sizes), &phase, Reads::Channels, sizes.filter_channels);
        let places = band.places(&phase, sizes.filter_channels);
        (is_flat(sizes) && band.is_bounded()).then_some(FilterGradient { sizes, band, places })
    }

    /// Adds to `dw` what `dy` says of images `input`. Each element is summed in the same order, however many threads there
    /// are.
    pub(super) fn add(&self, input: &[f32], dy: &[f32], dw: &mut [f32]) -> Result<()> {
        let lines = self.sizes.batch * self.sizes.rows.output;
        if threads(self.sizes) == Threads::One {
            return self.add_part(input, dy, 0, 0..lines, dw);
        }
        // Who computes some rows of the filter reads all images; who computes all rows of some images adds once more.
        if dw.len().saturating_mul(PARTS) > input.len() + dy.len() {
            let rows = self.places.len().div_ceil(rayon::current_num_threads());
            let part = |(i, dw): (usize, &mut [f32])| self.add_part(input, dy, i * rows, 0..lines, dw);
            return dw.par_chunks_mut(rows * self.sizes.out_channels).enumerate().try_for_each(part);
        }
        let each = lines.div_ceil(PARTS);
        let part = |i: usize| {
            let mut part = Tensor::zeros(DType::Float, Shape::new(&[dw.len()])?)?;
            self.add_part(input, dy, 0, i * each..lines.min((i + 1) * each), part.values_mut()?)?;
            Ok(part)
        };
        let parts = (0..lines.div_ceil(each)).into_par_iter().map(part).collect::<Result<Vec<Tensor>>>()?;
        for part in parts {
            dw.iter_mut().zip(part.values::<f32>()?).for_each(|(to, from)| *to += from);
        }
        Ok(())
    }

    /// Adds to the rows of the filter from `first` on what these lines of output pixels say.
    fn add_part(
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
        let lines = (band::most_elements() / seen).min(PIXELS / image.columns).max(1);
        let (places, rows) = self.rows(first, dw.len() / image.channels);
        let is_used_once = places.len() <= FEW && image.channels <= NEAR;
        let registers = Registers::get();
        let (mut copies, mut runs, mut panels) = (Copies::default(), Vec::new(), Panels::new());
        for line in all_lines.clone().step_by(lines) {
            let lines = line..(line + lines).min(all_lines.end);
            let pixels = lines.len() * image.columns;
            let dy = &dy[lines.start * image.line()..lines.end * image.line()];
            copies.clear();
            runs.clear();
            self.find_lines(input, lines, &mut copies, &mut runs);
            let data = if self.band.is_copied { copies.data() } else { input };
            for group in 0..groups {
                let data = &data[self.band.channel(group * sizes.filter_channels)..];
                let left = Left { data, rows: &places, runs: &runs, step: self.band.step() };
                let dy = &dy[group * outputs..];
                let mut add = |first: usize, width: usize, right: &Right<'_>| {
                    let data = &mut dw[group * outputs + first..];
                    registers.sweep(&left, right, &mut Place { data, rows: &rows, width, add: true });
                };
                if is_used_once && outputs.is_multiple_of(registers.lanes) {
                    for columns in registers.panels(outputs) {
                        let right = Right { data: &dy[columns.start..], step: image.channels };
                        add(columns.start, columns.len(), &right);
                    }
                    continue;
                }
                let source = Streamed(Rows { data: dy, stride: image.channels });
                panels.fill(pixels, outputs, Threads::One, &source)?;
                panels.iter().for_each(|panel| add(panel.first, panel.width, &panel.from(0)));
            }
        }
        Ok(())
    }

    /// Where some elements of a patch are, and their rows of the filter: those of channels that lie together follow each
    /// other, whatever their taps, so that what they read is in the cache.
    fn rows(&self, first: usize, count: usize) -> (Vec<usize>, Vec<usize>) {
        let mut rows: Vec<usize> = (0..count).collect();
        rows.sort_by_key(|row| self.band.slice_of((first + row) % self.sizes.filter_channels));
        let places = rows.iter().map(|row| self.places[first + row]).collect();
        (places, rows.iter().map(|row| row * self.sizes.out_channels).collect())
    }

    /// Notes where what the lines of pixels see begins.
    fn find_lines(&self, input: &[f32], lines: Range<usize>, copies: &mut Copies, runs: &mut Vec<Run>) {
        let image = Image::output(self.sizes);
        let len = image.columns;
        for number in lines.start / image.rows..lines.end.div_ceil(image.rows) {
            let top = number * image.rows;
            let rows = lines.start.saturating_sub(top)..(lines.end - top).min(image.rows);
            self.band.take(input, number, rows, copies, |_, start| runs.push(Run { start, len }));
        }
    }
}
