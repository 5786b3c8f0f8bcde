//! What a few lines of pixels see of the other image, in a form in which no tap falls outside: the image itself, or a
//! copy of some of its lines with zeros around them.

use super::phase::{Image, Phase};
use crate::kernels::cpu::cache::{self, ALIASES, FLOATS};
use crate::kernels::cpu::micro::Run;

/// How the pixels that a phase sees lie in memory.
#[derive(Clone, Debug)]
pub(super) struct Band {
    image: Image,
    /// Row and column of the pixel at the beginning, from where the first seeing pixel is.
    origin: [isize; 2],
    /// Rows that one row of seeing pixels sees.
    height: usize,
    /// Pixels of a line, and elements from one to the next.
    columns: usize,
    pixel: usize,
    /// Channels that lie together: of a line first these of all pixels, then the next. All of them, or a multiple of it.
    slice: usize,
    /// How far apart seeing pixels are, and how far what one of them sees reaches: what lies between is not copied.
    stride: [usize; 2],
    width: usize,
    pub(super) is_copied: bool,
}

/// What is read of the pixels that are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// The channels of several pixels, one after the other.
    Pixels,
    /// Several channels of a pixel, one pixel after the other.
    Channels,
}

/// Elements of a band for one row, at most.
const LARGEST: usize = 4 << 20;

/// Elements of the bands that a thread reads again and again, about: with what else it reads, they stay in its second-level
/// cache.
pub(super) fn most_elements() -> usize {
    (cache::second_level() / size_of::<f32>() / 4 * 3).min(192 << 10)
}

impl Band {
    /// `channels` of each pixel are read by each of the groups.
    pub(super) fn new(image: Image, phase: &Phase, reads: Reads, channels: usize) -> Band {
        let [low, high] = phase.reach();
        let last = [0, 1].map(|i| ((phase.count[i].max(1) - 1) * phase.stride[i]) as isize);
        let size = [image.rows, image.columns];
        let is_inside = [0, 1].iter().all(|&i| low[i] >= 0 && last[i] + high[i] < size[i] as isize);
        let aliases = reads == Reads::Pixels
            && (image.channels.wrapping_mul(phase.stride[1]) * size_of::<f32>()).is_multiple_of(ALIASES);
        let is_sliced =
            reads == Reads::Channels && image.channels > FLOATS && channels.is_multiple_of(FLOATS);
        let is_copied = !is_inside || aliases || is_sliced;
        Band {
            image,
            origin: low,
            height: (high[0] - low[0]) as usize + 1,
            columns: if is_copied { (last[1] + high[1] - low[1]) as usize + 1 } else { image.columns },
            pixel: match (aliases, is_sliced) {
                (true, _) => image.channels + FLOATS,
                (_, true) => FLOATS,
                _ => image.channels,
            },
            slice: if is_sliced { FLOATS } else { image.channels },
            stride: phase.stride,
            width: (high[1] - low[1]) as usize + 1,
            is_copied,
        }
    }

    /// Whether a band for one row of seeing pixels is of a reasonable size: strides, dilations and paddings may be
    /// anything.
    pub(super) fn is_bounded(&self) -> bool {
        let slices = self.image.channels.div_ceil(self.slice);
        let line = self.columns.saturating_mul(self.pixel).saturating_mul(slices);
        !self.is_copied || line.saturating_mul(self.height) <= LARGEST
    }

    /// Elements of a line.
    pub(super) fn line(&self) -> usize {
        self.columns * self.pixel * self.image.channels.div_ceil(self.slice)
    }

    /// Elements from what a row of seeing pixels sees to what the next does.
    pub(super) fn lines_apart(&self) -> usize {
        self.stride[0] * self.line()
    }

    /// Lines of a band for `rows` rows of seeing pixels.
    fn lines(&self, rows: usize) -> usize {
        (rows.max(1) - 1) * self.stride[0] + self.height
    }

    /// How far apart the columns' neighbours are.
    pub(super) fn step(&self) -> usize {
        self.stride[1] * self.pixel
    }

    /// Where a tap's pixel begins, from where a band's does.
    fn place(&self, [y, x]: [isize; 2]) -> usize {
        let [row, column] = [(y - self.origin[0]) as usize, (x - self.origin[1]) as usize];
        row * self.line() + column * self.pixel
    }

    /// Where a channel is, from where its pixel begins.
    pub(super) fn channel(&self, channel: usize) -> usize {
        channel / self.slice * self.slice * self.columns + channel % self.slice
    }

    /// The number of a channel's slice.
    pub(super) fn slice_of(&self, channel: usize) -> usize {
        channel / self.slice
    }

    /// What a pixel sees through the taps, `depth` channels of each; neighbours are one run.
    pub(super) fn runs(&self, phase: &Phase, depth: usize) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for tap in &phase.taps {
            let start = self.place(tap.offset);
            match runs.last_mut() {
                Some(run) if run.start + run.len == start => run.len += depth,
                _ => runs.push(Run { start, len: depth }),
            }
        }
        runs
    }

    /// Where each element of what a pixel sees is: of each tap, `depth` channels.
    pub(super) fn places(&self, phase: &Phase, depth: usize) -> Vec<usize> {
        let taps = phase.taps.iter().map(|tap| self.place(tap.offset));
        taps.flat_map(|start| (0..depth).map(move |channel| start + self.channel(channel))).collect()
    }

    /// Calls `visit(row, place)` with where what the first pixel of each of these rows of image `number` sees begins:
    /// in `images`, or in the copy that is added to `copies`.
    pub(super) fn take(
        &self,
        images: &[f32],
        number: usize,
        rows: std::ops::Range<usize>,
        copies: &mut Copies,
        mut visit: impl FnMut(usize, usize),
    ) {
        let stride = self.stride[0];
        let top = (rows.start * stride) as isize + self.origin[0];
        let start = if self.is_copied {
            let (start, lines) = copies.add(self.lines(rows.len()) * self.line());
            for (i, line) in lines.chunks_exact_mut(self.line()).enumerate() {
                if i % stride < self.height {
                    self.copy_line(images, number, top + i as isize, line);
                }
            }
            start
        } else {
            // The band is inside: neither is negative.
            let place =
                (number * self.image.rows + top as usize) * self.image.columns + self.origin[1] as usize;
            place * self.pixel
        };
        for (i, row) in rows.enumerate() {
            visit(row, start + i * stride * self.line());
        }
    }

    /// Writes row `row` of an image, which may be outside it, with what is around it.
    fn copy_line(&self, images: &[f32], number: usize, row: isize, line: &mut [f32]) {
        let depth = self.image.channels;
        let row = usize::try_from(row).ok().filter(|&row| row < self.image.rows);
        let from = row.map_or(&[][..], |row| {
            let skipped = self.origin[1].max(0) as usize * depth;
            let start = (number * self.image.rows + row) * self.image.line();
            images[start..start + self.image.line()].get(skipped..).unwrap_or_default()
        });
        let before = ((-self.origin[1]).max(0) as usize).min(self.columns);
        let pixels = (from.len() / depth).min(self.columns - before);
        for slice in line.chunks_exact_mut(self.columns * self.pixel) {
            slice[..before * self.pixel].fill(0.0);
            slice[(before + pixels) * self.pixel..].fill(0.0);
        }
        if self.pixel == depth {
            line[before * depth..][..pixels * depth].copy_from_slice(&from[..pixels * depth]);
            return;
        }
        let seen = (before..before + pixels).zip(from.chunks_exact(depth));
        for (column, pixel) in seen.filter(|(column, _)| column % self.stride[1] < self.width) {
            let slices = line.chunks_exact_mut(self.columns * self.pixel);
            for (to, from) in slices.zip(pixel.chunks(self.slice)) {
                let to = &mut to[column * self.pixel..];
                match <&[f32; FLOATS]>::try_from(from) {
                    Ok(from) => to[..FLOATS].copy_from_slice(from),
                    Err(_) => to[..from.len()].copy_from_slice(from),
                }
            }
        }
    }
}

/// Memory for bands, one behind the other.
#[derive(Debug, Default)]
pub(super) struct Copies {
    data: Vec<f32>,
    used: usize,
}

impl Copies {
    pub(super) fn data(&self) -> &[f32] {
        &self.data
    }

    pub(super) fn clear(&mut self) {
        self.used = 0;
    }

    /// The next `len` elements, of whatever value, and where they begin.
    fn add(&mut self, len: usize) -> (usize, &mut [f32]) {
        let start = self.used;
        self.used += len;
        if self.data.len() < self.used {
            self.data.resize(self.used, 0.0);
        }
        (start, &mut self.data[start..self.used])
    }
}
