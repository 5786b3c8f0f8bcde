//! What a few lines of pixels see of the other image: the image itself, or a copy of some of its lines where it does not lie
//! in memory as it is best read.

use super::phase::{Image, Phase};
use crate::kernels::cpu::cache::{self, FLOATS};
use std::ops::Range;

/// How the pixels that a phase sees lie in memory.
#[derive(Clone, Debug)]
pub(super) struct Band {
    image: Image,
    /// The least and the greatest offset of what is seen, of rows and of columns.
    reach: [[isize; 2]; 2],
    /// Whether there are zeros around the image as far as it is seen. Then no tap is left out.
    pub(super) has_margins: bool,
    /// Pixels of a line, and elements from one to the next.
    columns: usize,
    pixel: usize,
    /// Channels that lie together: of a line first these of all pixels, then the next. All of them, or a multiple of it.
    slice: usize,
    /// How far apart is what neighbours see: what lies between is not copied.
    stride: [usize; 2],
    pub(super) is_copied: bool,
}

/// What is read of the pixels that are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// The channels of several pixels, one after the other; `spaced`, as pixels would fall into the same sets of the cache.
    Pixels { spaced: bool },
    /// Several channels of a pixel, one pixel after the other; `crowded`, as their lines would leave most of the cache unused.
    Channels { crowded: bool },
}

/// Where the lines of an image are that some pixels see.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines {
    start: usize,
    /// The row of the first one, which may be outside.
    top: isize,
}

/// Elements of a band for one row, at most.
const LARGEST: usize = 4 << 20;

/// Elements of the bands that a thread reads again and again, about: with what else it reads, they stay in its second-level
/// cache.
pub(super) fn most_elements() -> usize {
    (cache::second_level() / size_of::<f32>() / 4 * 3).min(192 << 10)
}

impl Band {
    /// `channels` of each pixel are read by each of the groups. Where they are few, what lies outside the image is read as
    /// zeros: it costs less than to tell which pixels see it.
    pub(super) fn new(image: Image, phase: &Phase, reads: Reads, channels: usize) -> Band {
        let reach = [0, 1].map(|axis| phase.reach(axis));
        let last = [0, 1].map(|axis| ((phase.count[axis].max(1) - 1) * phase.stride[axis]) as isize);
        let is_inside =
            |axis: usize, size: usize| reach[axis][0] >= 0 && last[axis] + reach[axis][1] < size as isize;
        let is_spaced = reads == Reads::Pixels { spaced: true };
        let (are_channels, is_crowded) = match reads {
            Reads::Channels { crowded } => (true, crowded),
            Reads::Pixels { .. } => (false, false),
        };
        let are_lines = channels.is_multiple_of(FLOATS) && image.channels > FLOATS;
        let is_sliced = is_crowded && are_lines;
        let is_padded = channels < FLOATS || (are_channels && !are_lines);
        let has_margins = is_padded && !(is_inside(0, image.rows) && is_inside(1, image.columns));
        Band {
            image,
            reach,
            has_margins,
            columns: if has_margins {
                (last[1] + reach[1][1] - reach[1][0]) as usize + 1
            } else {
                image.columns
            },
            pixel: match (is_spaced, is_sliced) {
                (true, _) if !has_margins => image.channels + FLOATS,
                (_, true) => FLOATS,
                _ => image.channels,
            },
            slice: if is_sliced { FLOATS } else { image.channels },
            stride: phase.stride,
            is_copied: is_spaced || is_sliced || has_margins,
        }
    }

    /// Whether a band for one row of seeing pixels is of a reasonable size: strides, dilations and paddings may be
    /// anything.
    pub(super) fn is_bounded(&self) -> bool {
        let height = (self.reach[0][1] - self.reach[0][0]) as usize + 1;
        let height = if self.has_margins { height } else { height.min(self.image.rows) };
        let slices = self.image.channels.div_ceil(self.slice);
        let line = self.columns.saturating_mul(self.pixel).saturating_mul(slices);
        !self.is_copied || line.saturating_mul(height) <= LARGEST
    }

    /// Elements of a line.
    fn line(&self) -> usize {
        self.columns * self.pixel * self.image.channels.div_ceil(self.slice)
    }

    /// Elements from what a row of seeing pixels sees to what the next does.
    pub(super) fn lines_apart(&self) -> usize {
        self.stride[0] * self.line()
    }

    /// How far apart is what neighbours on a line see.
    pub(super) fn step(&self) -> usize {
        self.stride[1] * self.pixel
    }

    /// How many rows of the filter and columns of it apart are two taps' pixels.
    pub(super) fn distance(&self, [rows, columns]: [isize; 2]) -> usize {
        (rows * self.line() as isize + columns * self.pixel as isize) as usize
    }

    /// Where a channel is, from where its pixel begins.
    pub(super) fn channel(&self, channel: usize) -> usize {
        channel / self.slice * self.slice * self.columns + channel % self.slice
    }

    /// The slices of channels that lie together.
    pub(super) fn slices(&self, channels: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let each = self.slice;
        (0..channels).step_by(each.max(1)).map(move |first| first..channels.min(first + each))
    }

    /// Finds what these rows of seeing pixels see of image `number`: in `images`, or in the copy that is added to `copies`.
    /// Other slices than those of `channels` are not copied.
    pub(super) fn take(
        &self,
        images: &[f32],
        number: usize,
        rows: Range<usize>,
        channels: &Range<usize>,
        copies: &mut Copies,
    ) -> Lines {
        if !self.is_copied {
            return Lines { start: number * self.image.rows * self.image.line(), top: 0 };
        }
        let ([low, high], height) = (self.reach[0], self.image.rows as isize);
        let seen = |row: usize, offset: isize| {
            let row = (row * self.stride[0]) as isize + offset;
            if self.has_margins { row } else { row.clamp(0, height) }
        };
        let (top, end) = (seen(rows.start, low), seen(rows.end.max(1) - 1, high + 1));
        let (start, lines) = copies.add((end - top).max(0) as usize * self.line());
        for (row, line) in (top..).zip(lines.chunks_exact_mut(self.line())) {
            if !(0..height).contains(&row) {
                line.fill(0.0);
            } else if self.is_seen(0, row) {
                self.copy_line(images, number * self.image.rows + row as usize, channels, line);
            }
        }
        Lines { start, top }
    }

    /// Whether some pixel sees a row or column.
    fn is_seen(&self, axis: usize, place: isize) -> bool {
        let [low, high] = self.reach[axis];
        (place - low).rem_euclid(self.stride[axis] as isize) <= high - low
    }

    /// The column of a line's first pixel.
    fn left(&self) -> isize {
        if self.has_margins { self.reach[1][0] } else { 0 }
    }

    /// Where the pixel begins that the pixel of a row and column sees with this offset, which is inside the image.
    pub(super) fn place(&self, lines: Lines, pixel: [usize; 2], offset: [isize; 2]) -> usize {
        let [row, column] = [0, 1].map(|i| (pixel[i] * self.stride[i]) as isize + offset[i]);
        lines.start + self.distance([row - lines.top, column - self.left()])
    }

    /// Writes a line of the images, with what is around it.
    fn copy_line(&self, images: &[f32], number: usize, channels: &Range<usize>, line: &mut [f32]) {
        let depth = self.image.channels;
        let from = &images[number * self.image.line()..][..self.image.line()];
        if self.has_margins {
            let from = from.get(self.left().max(0) as usize * depth..).unwrap_or_default();
            let before = ((-self.left()).max(0) as usize).min(self.columns);
            let pixels = (from.len() / depth).min(self.columns - before);
            let (left, rest) = line.split_at_mut(before * depth);
            let (inside, right) = rest.split_at_mut(pixels * depth);
            left.fill(0.0);
            inside.copy_from_slice(&from[..pixels * depth]);
            right.fill(0.0);
            return;
        }
        let slices = channels.start / self.slice..channels.end.div_ceil(self.slice);
        let channels = slices.start * self.slice..depth.min(slices.end * self.slice);
        let span = self.columns * self.pixel;
        let line = &mut line[slices.start * span..slices.end * span];
        let seen = from.chunks_exact(depth).enumerate();
        let are_all_seen = self.stride[1] as isize <= self.reach[1][1] - self.reach[1][0] + 1;
        for (column, pixel) in seen.filter(|(column, _)| are_all_seen || self.is_seen(1, *column as isize)) {
            let slices = line.chunks_exact_mut(span);
            for (to, from) in slices.zip(pixel[channels.clone()].chunks(self.slice)) {
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
