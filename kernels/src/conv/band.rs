//! Bands: the lines of the source image that a few lines of target pixels read. A band is the image itself, or a copy
//! of the lines if reading the image in place would be slow.

use super::phase::{Image, Phase};
use crate::numeric::cpu_cache;
use crate::numeric::cpu_cache::FLOATS_PER_LINE;
use std::ops::Range;

/// The memory layout of the source pixels that a [`Phase`] reads.
#[derive(Clone, Debug)]
pub(super) struct Band {
    image: Image,
    /// The least and the greatest offset of the filter's taps from the target pixel in source pixels, for rows and for
    /// columns.
    reach: [[isize; 2]; 2],
    /// Set if the band has zeros around the image, so that every tap reads a pixel of the band.
    pub(super) has_margins: bool,
    /// Number of pixels per line.
    columns: usize,
    /// The number of elements from the start of a pixel to the start of the next pixel.
    pixel: usize,
    /// The number of channels in a slice: a line stores the first slice of each pixel, then the second slice of each
    /// pixel, and so on. It is the number of all channels, or a divisor of it.
    slice: usize,
    /// The distance in source rows, and in source columns, from the pixel that one target pixel reads to the pixel that
    /// the next target pixel reads. If the distance exceeds the reach of the filter's taps, no target pixel reads some
    /// of the source rows or columns; a copied band has places for them, with unspecified values.
    stride: [usize; 2],
    /// Set if the band is a copy of lines of the image, not the image itself.
    pub(super) is_copied: bool,
}

/// The order in which a loop reads the source pixels, and the gaps that it requires between them in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessPattern {
    /// The loop reads one channel of several pixels at a time. `spaced`: gaps separate the pixels, because adjacent
    /// pixels would fall into the same sets of the cache.
    Pixels { spaced: bool },
    /// The loop reads several channels of one pixel at a time. `crowded`: channels are stored in slices, because whole
    /// pixels would leave most of the cache unused.
    Channels { crowded: bool },
}

/// The memory in which the lines of a band begin, and the image row of the first line.
#[derive(Clone, Copy, Debug)]
pub(super) struct BandLines {
    /// The index of the first element of the band's first line.
    start: usize,
    /// The image row of the first line; negative for a line above the image.
    top: isize,
}

/// The maximum number of elements of a band for one row of target pixels.
const LARGEST: usize = 4 << 20;

/// Returns the approximate number of elements of the bands that a thread reads repeatedly: so many that they stay in
/// the second-level cache together with the thread's other data.
pub(super) fn most_elements() -> usize {
    (cpu_cache::second_level() / size_of::<f32>() / 4 * 3).min(192 << 10)
}

impl Band {
    /// Chooses the layout. Each of the filter's groups reads `channels` channels of every pixel. If they are few, zeros
    /// are stored around the image: reading zeros costs less than finding the target pixels with taps outside the
    /// image.
    pub(super) fn new(image: Image, phase: &Phase, reads: AccessPattern, channels: usize) -> Band {
        let reach = [0, 1].map(|axis| phase.reach(axis));
        let last = [0, 1].map(|axis| ((phase.count[axis].max(1) - 1) * phase.stride[axis]) as isize);
        let is_inside =
            |axis: usize, size: usize| reach[axis][0] >= 0 && last[axis] + reach[axis][1] < size as isize;
        let is_spaced = reads == AccessPattern::Pixels { spaced: true };
        let (are_channels, is_crowded) = match reads {
            AccessPattern::Channels { crowded } => (true, crowded),
            AccessPattern::Pixels { .. } => (false, false),
        };
        let are_lines = channels.is_multiple_of(FLOATS_PER_LINE) && image.channels > FLOATS_PER_LINE;
        let is_sliced = is_crowded && are_lines;
        let is_padded = channels < FLOATS_PER_LINE || (are_channels && !are_lines);
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
                (true, _) if !has_margins => image.channels + FLOATS_PER_LINE,
                (_, true) => FLOATS_PER_LINE,
                _ => image.channels,
            },
            slice: if is_sliced { FLOATS_PER_LINE } else { image.channels },
            stride: phase.stride,
            is_copied: is_spaced || is_sliced || has_margins,
        }
    }

    /// Returns whether the band for one row of target pixels is the image itself, or a copy of at most [`LARGEST`]
    /// elements; large strides, dilations or paddings may require more.
    pub(super) fn is_bounded(&self) -> bool {
        let height = (self.reach[0][1] - self.reach[0][0]) as usize + 1;
        let height = if self.has_margins { height } else { height.min(self.image.rows) };
        let slices = self.image.channels.div_ceil(self.slice);
        let line = self.columns.saturating_mul(self.pixel).saturating_mul(slices);
        !self.is_copied || line.saturating_mul(height) <= LARGEST
    }

    /// Returns the number of elements of a line of the band, which is one row of source pixels with the gaps and
    /// margins that the band stores.
    fn line(&self) -> usize {
        self.columns * self.pixel * self.image.channels.div_ceil(self.slice)
    }

    /// Returns the distance in elements between the starts of the lines that two neighbouring rows of target pixels
    /// read.
    pub(super) fn lines_apart(&self) -> usize {
        self.stride[0] * self.line()
    }

    /// Returns the distance in elements between the starts of the source pixels that two neighbouring target pixels of
    /// a line read.
    pub(super) fn step(&self) -> usize {
        self.stride[1] * self.pixel
    }

    /// Returns the distance in elements between the starts of the source pixels under two taps that lie `rows` source
    /// rows and `columns` source columns apart.
    pub(super) fn distance(&self, [rows, columns]: [isize; 2]) -> usize {
        (rows * self.line() as isize + columns * self.pixel as isize) as usize
    }

    /// Returns the offset in elements of a channel from the start of its pixel.
    pub(super) fn channel(&self, channel: usize) -> usize {
        channel / self.slice * self.slice * self.columns + channel % self.slice
    }

    /// Returns the ranges of channels that are stored contiguously.
    pub(super) fn slices(&self, channels: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let each = self.slice;
        (0..channels).step_by(each.max(1)).map(move |first| first..channels.min(first + each))
    }

    /// Locates the lines of image `number` that the target pixels in `rows` read: in `images`, or in a copy, which is
    /// appended to `copies`. Only the slices that contain `channels` are copied.
    pub(super) fn locate(
        &self,
        images: &[f32],
        number: usize,
        rows: Range<usize>,
        channels: &Range<usize>,
        copies: &mut LineCopies,
    ) -> BandLines {
        if !self.is_copied {
            return BandLines { start: number * self.image.rows * self.image.line(), top: 0 };
        }
        let ([low, high], height) = (self.reach[0], self.image.rows as isize);
        let source_row = |row: usize, offset: isize| {
            let row = (row * self.stride[0]) as isize + offset;
            if self.has_margins { row } else { row.clamp(0, height) }
        };
        let (top, end) = (source_row(rows.start, low), source_row(rows.end.max(1) - 1, high + 1));
        let (start, lines) = copies.add((end - top).max(0) as usize * self.line());
        for (row, line) in (top..).zip(lines.chunks_exact_mut(self.line())) {
            if !(0..height).contains(&row) {
                line.fill(0.0);
            } else if self.is_read(0, row) {
                self.copy_line(images, number * self.image.rows + row as usize, channels, line);
            }
        }
        BandLines { start, top }
    }

    /// Returns whether any target pixel reads a row or column of the image.
    fn is_read(&self, axis: usize, position: isize) -> bool {
        let [low, high] = self.reach[axis];
        (position - low).rem_euclid(self.stride[axis] as isize) <= high - low
    }

    /// Returns the image column of a line's first pixel.
    fn left(&self) -> isize {
        if self.has_margins { self.reach[1][0] } else { 0 }
    }

    /// Returns the index of the first element of the source pixel at an offset from a target pixel; the source pixel
    /// must lie inside the image.
    pub(super) fn pixel_start(&self, lines: BandLines, pixel: [usize; 2], offset: [isize; 2]) -> usize {
        let [row, column] = [0, 1].map(|i| (pixel[i] * self.stride[i]) as isize + offset[i]);
        lines.start + self.distance([row - lines.top, column - self.left()])
    }

    /// Copies a line of the image to `line`, with zeros at both ends if the band has margins.
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
        let pixels = from.chunks_exact(depth).enumerate();
        let are_all_read = self.stride[1] as isize <= self.reach[1][1] - self.reach[1][0] + 1;
        for (column, pixel) in pixels.filter(|(column, _)| are_all_read || self.is_read(1, *column as isize))
        {
            let slices = line.chunks_exact_mut(span);
            for (to, from) in slices.zip(pixel[channels.clone()].chunks(self.slice)) {
                let to = &mut to[column * self.pixel..];
                match <&[f32; FLOATS_PER_LINE]>::try_from(from) {
                    Ok(from) => to[..FLOATS_PER_LINE].copy_from_slice(from),
                    Err(_) => to[..from.len()].copy_from_slice(from),
                }
            }
        }
    }
}

/// Memory for the copied lines of several bands.
#[derive(Debug, Default)]
pub(super) struct LineCopies {
    data: Vec<f32>,
    used: usize,
}

impl LineCopies {
    /// Returns the elements of all copied lines.
    pub(super) fn data(&self) -> &[f32] {
        &self.data
    }

    /// Discards the copies, but keeps their memory for other copies.
    pub(super) fn clear(&mut self) {
        self.used = 0;
    }

    /// Appends `len` elements of unspecified values. Returns the index of the first.
    fn add(&mut self, len: usize) -> (usize, &mut [f32]) {
        let start = self.used;
        self.used += len;
        if self.data.len() < self.used {
            self.data.resize(self.used, 0.0);
        }
        (start, &mut self.data[start..self.used])
    }
}
