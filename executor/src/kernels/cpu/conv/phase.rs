//! Which input pixels an output pixel of a convolution over images is made of, and of its gradient an input pixel:
//! both are sums over taps of the filter. What lies outside an image is nothing but zeros: taps over it are left out.

use graph::ops::conv::ConvSizes;
use graph::ops::window::Window;
use std::ops::Range;

/// The rows, columns and channels of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Image {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) channels: usize,
}

impl Image {
    pub(super) fn input(sizes: &ConvSizes) -> Image {
        Image { rows: sizes.rows.input, columns: sizes.columns.input, channels: sizes.in_channels }
    }

    pub(super) fn output(sizes: &ConvSizes) -> Image {
        Image { rows: sizes.rows.output, columns: sizes.columns.output, channels: sizes.out_channels }
    }

    /// Elements of a line of pixels.
    pub(super) fn line(&self) -> usize {
        self.columns * self.channels
    }
}

/// Whether the data are images.
pub(super) fn is_flat(sizes: &ConvSizes) -> bool {
    let planes = &sizes.planes;
    [planes.input, planes.filter, planes.output] == [1; 3] && planes.pad_before == 0
}

/// A row or a column of the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tap {
    /// The row or column of the pixel under it, from where the seeing pixel is; it may lie outside the image.
    pub(super) offset: isize,
    pub(super) number: usize,
}

/// Pixels that see the other image through the same taps: all of a convolution's output; of its gradient, those of one
/// remainder by the strides. Each pair is of rows and columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    /// The first pixel, how far it is to the next, and how many there are.
    pub(super) first: [usize; 2],
    pub(super) every: [usize; 2],
    pub(super) count: [usize; 2],
    /// How far apart is what neighbours see.
    pub(super) stride: [usize; 2],
    /// Rows and columns of the filter, by offset.
    pub(super) taps: [Vec<Tap>; 2],
}

/// Neighbours on an axis that see the same taps' pixels, the others of which are outside the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) pixels: Range<usize>,
    pub(super) taps: Range<usize>,
}

impl Phase {
    pub(super) fn forward(sizes: &ConvSizes) -> Phase {
        let axes = [&sizes.rows, &sizes.columns];
        let tap = |w: &Window, number: usize| Tap {
            offset: (number * w.dilation) as isize - w.pad_before as isize,
            number,
        };
        Phase {
            first: [0, 0],
            every: [1, 1],
            count: axes.map(|w| w.output),
            stride: axes.map(|w| w.stride),
            taps: axes.map(|w| (0..w.filter).map(|number| tap(w, number)).collect()),
        }
    }

    /// Output pixel `o` saw through tap `t` input pixel `o * stride + t * dilation - pad`.
    pub(super) fn backward(sizes: &ConvSizes) -> Vec<Phase> {
        let axes = [&sizes.rows, &sizes.columns];
        let seen = |w: &Window, input: usize, number: usize| {
            let place = (input + w.pad_before) as isize - (number * w.dilation) as isize;
            let stride = w.stride as isize;
            (place.rem_euclid(stride) == 0).then(|| Tap { offset: place.div_euclid(stride), number })
        };
        // Later rows and columns of the filter were seen from before.
        let taps = |w: &Window, first: usize| (0..w.filter).rev().filter_map(|t| seen(w, first, t)).collect();
        let rows = 0..axes[0].stride.min(axes[0].input);
        let firsts = rows.flat_map(|y| (0..axes[1].stride.min(axes[1].input)).map(move |x| [y, x]));
        let phase = |first: [usize; 2]| Phase {
            first,
            every: axes.map(|w| w.stride),
            count: [0, 1].map(|i| (axes[i].input - first[i]).div_ceil(axes[i].stride)),
            stride: [1, 1],
            taps: [0, 1].map(|i| taps(axes[i], first[i])),
        };
        firsts.map(phase).collect()
    }

    /// Elements that a pixel sees, `depth` through each tap.
    pub(super) fn steps(&self, depth: usize) -> usize {
        self.taps[0].len() * self.taps[1].len() * depth
    }

    /// The least and the greatest offset of an axis' taps.
    pub(super) fn reach(&self, axis: usize) -> [isize; 2] {
        let taps = &self.taps[axis];
        [taps.first(), taps.last()].map(|tap| tap.map_or(0, |tap| tap.offset))
    }

    /// Cuts the pixels of an axis by what they see of the other image, which is of this size.
    pub(super) fn spans(&self, axis: usize, size: usize) -> Vec<Span> {
        let taps = &self.taps[axis];
        let mut spans: Vec<Span> = Vec::new();
        for pixel in 0..self.count[axis] {
            let place = (pixel * self.stride[axis]) as isize;
            let before = |end: isize| taps.partition_point(|tap| place + tap.offset < end);
            let seen = before(0)..before(size as isize);
            match spans.last_mut() {
                Some(span) if span.taps == seen => span.pixels.end += 1,
                _ => spans.push(Span { pixels: pixel..pixel + 1, taps: seen }),
            }
        }
        spans
    }

    /// The pixels of an axis for which what is under a tap lies in the other image, which is of this size.
    pub(super) fn inside(&self, axis: usize, tap: Tap, size: usize) -> Range<usize> {
        let before = |end: isize| ((end - tap.offset).max(0) as usize).div_ceil(self.stride[axis]);
        let end = before(size as isize).min(self.count[axis]);
        before(0).min(end)..end
    }

    /// Which of the pixels' rows are among rows `rows` of the image.
    pub(super) fn rows_within(&self, rows: Range<usize>) -> Range<usize> {
        let number =
            |row: usize| row.saturating_sub(self.first[0]).div_ceil(self.every[0]).min(self.count[0]);
        number(rows.start)..number(rows.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(offsets: &[isize], stride: usize, count: usize) -> Phase {
        let taps: Vec<Tap> = offsets.iter().map(|&offset| Tap { offset, number: 0 }).collect();
        let taps = [taps.clone(), taps];
        Phase { first: [0; 2], every: [1; 2], count: [count; 2], stride: [stride; 2], taps }
    }

    /// A pixel is in one span, which has the taps under which the image is, and in the insides of these taps.
    #[test]
    fn pixels_are_cut_by_what_they_see() {
        let size = 6;
        for (offsets, stride, count) in [
            (&[0][..], 1, 6),
            (&[-2, -1, 0, 1, 2], 1, 6),
            (&[-1, 0, 1], 2, 3),
            (&[-9, -3, 3, 9], 1, 8),
            (&[-20], 3, 4),
            (&[20, 21], 3, 4),
            (&[], 1, 2),
        ] {
            let phase = phase(offsets, stride, count);
            let spans = phase.spans(0, size);
            let seen: Vec<Range<usize>> =
                spans.iter().flat_map(|span| span.pixels.clone().map(|_| span.taps.clone())).collect();
            assert_eq!(seen.len(), count, "{offsets:?}");
            for (pixel, seen) in seen.into_iter().enumerate() {
                for (i, tap) in phase.taps[0].iter().enumerate() {
                    let place = (pixel * stride) as isize + tap.offset;
                    let is_inside = (0..size as isize).contains(&place);
                    assert_eq!(seen.contains(&i), is_inside, "pixel {pixel} of {offsets:?}");
                    assert_eq!(phase.inside(0, *tap, size).contains(&pixel), is_inside, "{offsets:?}");
                }
            }
        }
    }
}
