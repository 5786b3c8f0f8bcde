//! Patches: the part of an image that a filter covers at one output pixel, as a row of a matrix.

use crate::numeric::scalar::Number;
use graph::ops::conv::ConvSizes;

/// Returns the image, plane, row and column of an output pixel; pixels are numbered through the batch.
pub(super) fn coordinates(sizes: &ConvSizes, pixel: usize) -> [usize; 4] {
    let (planes, rows, columns) = (sizes.planes.output, sizes.rows.output, sizes.columns.output);
    let line = pixel / columns;
    [line / (rows * planes), line / rows % planes, line % rows, pixel % columns]
}

/// Returns the number of elements that a patch has in the channels of one group.
pub(super) fn patch_len(sizes: &ConvSizes) -> usize {
    sizes.planes.filter * sizes.rows.filter * sizes.columns.filter * sizes.filter_channels
}

/// Calls `visit(patch range, input range)` for the parts of the patch at output pixel `pixel` that lie inside the
/// image; a patch has only the channels of `group`.
fn for_each_part(
    sizes: &ConvSizes,
    group: usize,
    pixel: usize,
    mut visit: impl FnMut(std::ops::Range<usize>, std::ops::Range<usize>),
) {
    let [image, plane, row, column] = coordinates(sizes, pixel);
    let (planes, rows, columns) = (&sizes.planes, &sizes.rows, &sizes.columns);
    let (channels, depth) = (sizes.filter_channels, sizes.in_channels);
    // With adjacent taps and a single group, a row of the filter covers a contiguous part of the image.
    let whole_rows = columns.dilation == 1 && channels == depth;
    let inside = columns.range(column);
    let first_tap = (inside.start + columns.pad_before).saturating_sub(column * columns.stride);
    let lines = (0..planes.filter * rows.filter).filter_map(|i| {
        let z = planes.at(plane, i / rows.filter)?;
        let y = rows.at(row, i % rows.filter)?;
        Some((i * columns.filter, ((image * planes.input + z) * rows.input + y) * columns.input))
    });
    for (taps, line) in lines {
        if whole_rows {
            if !inside.is_empty() {
                let (to, from) = ((taps + first_tap) * channels, (line + inside.start) * depth);
                let len = inside.len() * channels;
                visit(to..to + len, from..from + len);
            }
            continue;
        }
        for j in 0..columns.filter {
            let Some(x) = columns.at(column, j) else { continue };
            let (to, from) = ((taps + j) * channels, (line + x) * depth + group * channels);
            visit(to..to + channels, from..from + channels);
        }
    }
}

/// Writes the patches of the output pixels from `first` on, one patch per row of `patches`.
pub(super) fn gather<T: Number>(
    sizes: &ConvSizes,
    group: usize,
    input: &[T],
    first: usize,
    patches: &mut [T],
) {
    for (i, patch) in patches.chunks_exact_mut(patch_len(sizes)).enumerate() {
        let mut written = 0;
        for_each_part(sizes, group, first + i, |to, from| {
            patch[written..to.start].fill(T::ZERO);
            written = to.end;
            patch[to].copy_from_slice(&input[from]);
        });
        patch[written..].fill(T::ZERO);
    }
}

/// Adds each patch, of the output pixels from `first` on, to the input pixels that it covers. `output` starts with
/// image number `image`.
pub(super) fn scatter<T: Number>(
    sizes: &ConvSizes,
    group: usize,
    patches: &[T],
    first: usize,
    output: &mut [T],
    image: usize,
) {
    let pixels = sizes.planes.input * sizes.rows.input * sizes.columns.input;
    let start = image * pixels * sizes.in_channels;
    for (i, patch) in patches.chunks_exact(patch_len(sizes)).enumerate() {
        for_each_part(sizes, group, first + i, |patch_range, to| {
            let to = &mut output[to.start - start..to.end - start];
            to.iter_mut().zip(&patch[patch_range]).for_each(|(o, &v)| *o = o.plus(v));
        });
    }
}
