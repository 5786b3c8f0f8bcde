//! The taps of the filter through which a pixel of a convolution over images, or of its gradient with respect to the
//! input, reads other pixels; the pixel is a sum over the taps. The pixels being computed are called target pixels, and
//! the image they read is the source image. Taps outside the source image contribute zeros and are left out.

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
    /// Returns the size of the convolution's input images.
    pub(super) fn input(sizes: &ConvSizes) -> Image {
        Image { rows: sizes.rows.input, columns: sizes.columns.input, channels: sizes.in_channels }
    }

    /// Returns the size of the convolution's output images.
    pub(super) fn output(sizes: &ConvSizes) -> Image {
        Image { rows: sizes.rows.output, columns: sizes.columns.output, channels: sizes.out_channels }
    }

    /// Returns the number of elements in a line of pixels.
    pub(super) fn line(&self) -> usize {
        self.columns * self.channels
    }
}

/// Returns whether the data are images, not volumes.
pub(super) fn is_flat(sizes: &ConvSizes) -> bool {
    let planes = &sizes.planes;
    [planes.input, planes.filter, planes.output] == [1; 3] && planes.pad_before == 0
}

/// A row or a column of the filter, with the source row or column that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tap {
    /// The source row or column under the tap minus the row or column of the target pixel; may lead outside the source
    /// image.
    pub(super) offset: isize,
    /// The index of the row or column in the filter.
    pub(super) number: usize,
}

/// Target pixels that use the same taps: all pixels of a convolution's output; in a gradient, pixels whose coordinates
/// have equal remainders modulo the strides. Each array field has one entry for rows and one for columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    /// The coordinates of the first target pixel.
    pub(super) first: [usize; 2],
    /// The distance from one target pixel to the next in the target image.
    pub(super) every: [usize; 2],
    /// The number of target pixels.
    pub(super) count: [usize; 2],
    /// The distance in the source image between the pixels that neighbouring target pixels read.
    pub(super) stride: [usize; 2],
    /// Rows and columns of the filter, by ascending offset.
    pub(super) taps: [Vec<Tap>; 2],
}

/// Neighbouring target pixels of an axis that use the same range of taps; taps outside the range lie outside the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) pixels: Range<usize>,
    pub(super) taps: Range<usize>,
}

impl Phase {
    /// Returns the single phase of a convolution.
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

    /// Returns the phases of the gradient with respect to the input. Through tap `t`, output pixel `o` read the input
    /// pixel `o * stride + t * dilation - pad`.
    pub(super) fn backward(sizes: &ConvSizes) -> Vec<Phase> {
        let axes = [&sizes.rows, &sizes.columns];
        let tap_at = |w: &Window, input: usize, number: usize| {
            let position = (input + w.pad_before) as isize - (number * w.dilation) as isize;
            let stride = w.stride as isize;
            (position.rem_euclid(stride) == 0).then(|| Tap { offset: position.div_euclid(stride), number })
        };
        // Taps later in the filter have smaller offsets, hence the reverse order.
        let taps =
            |w: &Window, first: usize| (0..w.filter).rev().filter_map(|t| tap_at(w, first, t)).collect();
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

    /// Returns the number of elements that a target pixel reads: `depth` elements through each tap.
    pub(super) fn steps(&self, depth: usize) -> usize {
        self.taps[0].len() * self.taps[1].len() * depth
    }

    /// Returns the least and the greatest offset of an axis' taps.
    pub(super) fn reach(&self, axis: usize) -> [isize; 2] {
        let taps = &self.taps[axis];
        [taps.first(), taps.last()].map(|tap| tap.map_or(0, |tap| tap.offset))
    }

    /// Splits the target pixels of an axis by the taps that lie inside the source image, which has `size` rows or
    /// columns.
    pub(super) fn spans(&self, axis: usize, size: usize) -> Vec<Span> {
        let taps = &self.taps[axis];
        let mut spans: Vec<Span> = Vec::new();
        for pixel in 0..self.count[axis] {
            let position = (pixel * self.stride[axis]) as isize;
            let before = |end: isize| taps.partition_point(|tap| position + tap.offset < end);
            let inside = before(0)..before(size as isize);
            match spans.last_mut() {
                Some(span) if span.taps == inside => span.pixels.end += 1,
                _ => spans.push(Span { pixels: pixel..pixel + 1, taps: inside }),
            }
        }
        spans
    }

    /// Returns the range of target pixels of an axis for which `tap` lies inside the source image, which has `size`
    /// rows or columns.
    pub(super) fn inside(&self, axis: usize, tap: Tap, size: usize) -> Range<usize> {
        let before = |end: isize| ((end - tap.offset).max(0) as usize).div_ceil(self.stride[axis]);
        let end = before(size as isize).min(self.count[axis]);
        before(0).min(end)..end
    }

    /// Returns the indices of the phase's rows that lie among the rows `rows` of the target image.
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

    /// Each target pixel belongs to one span. A tap is among the span's taps, and the pixel in the tap's `inside`
    /// range, if and only if the tap lies inside the image.
    #[test]
    fn pixels_are_split_by_the_taps_inside_the_image() {
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
            let taps_inside: Vec<Range<usize>> =
                spans.iter().flat_map(|span| span.pixels.clone().map(|_| span.taps.clone())).collect();
            assert_eq!(taps_inside.len(), count, "{offsets:?}");
            for (pixel, taps_inside) in taps_inside.into_iter().enumerate() {
                for (i, tap) in phase.taps[0].iter().enumerate() {
                    let position = (pixel * stride) as isize + tap.offset;
                    let is_inside = (0..size as isize).contains(&position);
                    assert_eq!(taps_inside.contains(&i), is_inside, "pixel {pixel} of {offsets:?}");
                    assert_eq!(phase.inside(0, *tap, size).contains(&pixel), is_inside, "{offsets:?}");
                }
            }
        }
    }
}
