//! Which input pixels an output pixel of a convolution over images is made of, and of its gradient an input pixel:
//! both are sums over taps of the filter.

use graph::ops::conv::ConvSizes;
use graph::ops::window::Window;

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

/// A tap of the filter that a pixel sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tap {
    /// Row and column of the pixel under it, from where the seeing pixel is; it may lie outside the image.
    pub(super) offset: [isize; 2],
    /// Its number in the filter.
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
    /// By offset.
    pub(super) taps: Vec<Tap>,
}

impl Phase {
    pub(super) fn forward(sizes: &ConvSizes) -> Phase {
        let axes = [&sizes.rows, &sizes.columns];
        let offset = |w: &Window, tap: usize| Some((tap * w.dilation) as isize - w.pad_before as isize);
        Phase {
            first: [0, 0],
            every: [1, 1],
            count: axes.map(|w| w.output),
            stride: axes.map(|w| w.stride),
            taps: taps(axes, [0, 0], |w, _, tap| offset(w, tap)),
        }
    }

    /// Output pixel `o` saw through tap `t` input pixel `o * stride + t * dilation - pad`.
    pub(super) fn backward(sizes: &ConvSizes) -> Vec<Phase> {
        let axes = [&sizes.rows, &sizes.columns];
        let seen = |w: &Window, input: usize, tap: usize| {
            let place = (input + w.pad_before) as isize - (tap * w.dilation) as isize;
            let stride = w.stride as isize;
            (place.rem_euclid(stride) == 0).then(|| place.div_euclid(stride))
        };
        let rows = 0..axes[0].stride.min(axes[0].input);
        let firsts = rows.flat_map(|y| (0..axes[1].stride.min(axes[1].input)).map(move |x| [y, x]));
        let phase = |first: [usize; 2]| Phase {
            first,
            every: axes.map(|w| w.stride),
            count: [0, 1].map(|i| (axes[i].input - first[i]).div_ceil(axes[i].stride)),
            stride: [1, 1],
            taps: taps(axes, first, seen),
        };
        firsts.map(phase).collect()
    }

    /// The least and the greatest offset of taps. There is one at least.
    pub(super) fn reach(&self) -> [[isize; 2]; 2] {
        let of = |least: bool, axis: usize| {
            let offsets = self.taps.iter().map(|tap| tap.offset[axis]);
            (if least { offsets.min() } else { offsets.max() }).unwrap_or(0)
        };
        [[of(true, 0), of(true, 1)], [of(false, 0), of(false, 1)]]
    }

    /// Which of the pixels' rows are among rows `rows` of the image.
    pub(super) fn rows_within(&self, rows: std::ops::Range<usize>) -> std::ops::Range<usize> {
        let number =
            |row: usize| row.saturating_sub(self.first[0]).div_ceil(self.every[0]).min(self.count[0]);
        number(rows.start)..number(rows.end)
    }
}

/// The taps for which `offset(axis, first, tap)` is defined on both axes.
fn taps(
    axes: [&Window; 2],
    first: [usize; 2],
    offset: impl Fn(&Window, usize, usize) -> Option<isize>,
) -> Vec<Tap> {
    let mut taps = Vec::new();
    for i in 0..axes[0].filter {
        let Some(y) = offset(axes[0], first[0], i) else { continue };
        for j in 0..axes[1].filter {
            let Some(x) = offset(axes[1], first[1], j) else { continue };
            taps.push(Tap { offset: [y, x], number: i * axes[1].filter + j });
        }
    }
    taps.sort_by_key(|tap| tap.offset);
    taps
}
