//! What a few lines of pixels see of the other image, in a form in which no tap falls outside: the image itself, or a
//! copy of some of its lines with zeros around them.

use super::phase::{Image, Phase};
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
    pub(super) is_copied: bool,
}

/// Rows of a block that lie so many bytes apart, or a multiple of it, fall into the same few sets of the first cache.
const ALIASES: usize = 2048;

/// Elements of a band for one row, at most.
const LARGEST: usize = 4 << 20;

/// Elements that are put between pixels that would.
const APART: usize = 16;

impl Band {
    /// `reads_pixels` says that elements of several pixels are read at a time.
    pub(super) fn new(image: Image, phase: &Phase, reads_pixels: bool) -> Band {
        let [low, high] = phase.reach();
        let last = [0, 1].map(|i| ((phase.count[i].max(1) - 1) * phase.stride[i]) as isize);
        let size = [image.rows, image.columns];
        let is_inside = [0, 1].iter().all(|&i| low[i] >= 0 && last[i] + high[i] < size[i] as isize);
        let aliases = reads_pixels
            && (image.channels.wrapping_mul(phase.stride[1]) * size_of::<f32>()).is_multiple_of(ALIASES);
        let is_copied = !is_inside || aliases;
        Band {
            image,
            origin: low,
            height: (high[0] - low[0]) as usize + 1,
            columns: if is_copied { (last[1] + high[1] - low[1]) as usize + 1 } else { image.columns },
            pixel: if aliases { image.channels + APART } else { image.channels },
            is_copied,
        }
    }

    /// Whether a band for one row of seeing pixels is of a reasonable size: strides, dilations and paddings may be
    /// anything.
    pub(super) fn is_bounded(&self) -> bool {
        !self.is_copied || self.columns.saturating_mul(self.pixel).saturating_mul(self.height) <= LARGEST
    }

    /// Elements of a line.
    pub(super) fn line(&self) -> usize {
        self.columns * self.pixel
    }

    /// Lines of a band for `rows` rows of seeing pixels, `stride` apart.
    fn lines(&self, rows: usize, stride: usize) -> usize {
        (rows.max(1) - 1) * stride + self.height
    }

    /// How far apart the columns' neighbours are.
    pub(super) fn step(&self, phase: &Phase) -> usize {
        phase.stride[1] * self.pixel
    }

    /// Where a tap's pixel begins, from where a band's does.
    fn place(&self, [y, x]: [isize; 2]) -> usize {
        let [row, column] = [(y - self.origin[0]) as usize, (x - self.origin[1]) as usize];
        (row * self.columns + column) * self.pixel
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

    /// Calls `visit(row, place)` with where what the first pixel of each of these rows of image `number` sees begins:
    /// in `images`, or in the copy that is added to `copies`.
    pub(super) fn take(
        &self,
        phase: &Phase,
        images: &[f32],
        number: usize,
        rows: std::ops::Range<usize>,
        copies: &mut Copies,
        mut visit: impl FnMut(usize, usize),
    ) {
        let stride = phase.stride[0];
        let top = (rows.start * stride) as isize + self.origin[0];
        let start = if self.is_copied {
            let (start, lines) = copies.add(self.lines(rows.len(), stride) * self.line());
            for (i, line) in lines.chunks_exact_mut(self.line()).enumerate() {
                self.copy_line(images, number, top + i as isize, line);
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
        let (before, rest) = line.split_at_mut(before * self.pixel);
        let (inside, after) = rest.split_at_mut(pixels * self.pixel);
        before.fill(0.0);
        after.fill(0.0);
        if self.pixel == depth {
            inside.copy_from_slice(&from[..pixels * depth]);
        } else {
            for (to, from) in inside.chunks_exact_mut(self.pixel).zip(from.chunks_exact(depth)) {
                to[..depth].copy_from_slice(from);
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
