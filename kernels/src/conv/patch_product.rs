//! Convolutions as products of a matrix of patches and the filter, for as many patches at a time as fit the cache.
//! With a 1x1 filter the image itself is the matrix of patches.

use super::patch::{gather, patch_len, scatter};
use crate::numeric::product::{Matrix, Threads, product};
use crate::numeric::scalar::Number;
use device::{Error, Result};
use graph::ops::conv::ConvSizes;
use rayon::prelude::*;

/// Number of elements of the patches that are gathered at a time: about the number of `f32` that a core's second-level
/// cache holds.
const PATCH_ELEMENTS: usize = 256 << 10;

/// A plan that computes a convolution as products of matrices of patches with the filter.
pub(super) struct PatchProduct {
    sizes: ConvSizes,
    /// Number of pixels of one output image.
    image_pixels: usize,
    /// Number of pixels of all output images.
    pixels: usize,
    /// Number of elements of a patch in the channels of one group.
    patch: usize,
    /// Number of output channels of a group.
    outputs: usize,
    /// Set if the input itself is the matrix of patches.
    direct: bool,
    threads: Threads,
    /// Number of pixels whose patches are gathered at a time.
    tile: usize,
}

impl PatchProduct {
    /// Plans a convolution of the given sizes.
    pub(super) fn new(sizes: ConvSizes) -> Result<PatchProduct> {
        let image_pixels = checked_product(&[sizes.planes.output, sizes.rows.output, sizes.columns.output])?;
        let pixels = checked_product(&[image_pixels, sizes.batch])?;
        let patch = patch_len(&sizes);
        let is_identity = |w: &graph::ops::window::Window| {
            w.filter == 1 && w.stride == 1 && w.pad_before == 0 && w.output == w.input
        };
        let direct = is_identity(&sizes.planes) && is_identity(&sizes.rows) && is_identity(&sizes.columns);
        let threads = Threads::for_work(patch.saturating_mul(pixels).saturating_mul(sizes.out_channels));
        let mut tile = (PATCH_ELEMENTS / patch).clamp(64, 4096);
        if threads == Threads::All {
            // The tiles are small enough that each thread gets several, so that no thread idles for long at the end.
            tile = tile.min(pixels.div_ceil(4 * rayon::current_num_threads()));
        }
        Ok(PatchProduct {
            sizes,
            image_pixels,
            pixels,
            patch,
            outputs: sizes.out_channels / sizes.groups(),
            direct,
            threads,
            tile: tile.clamp(1, pixels.max(1)),
        })
    }

    /// Returns the patches of `count` pixels from `first` on: the input itself, or a matrix gathered into
    /// `scratch`.
    fn patches<'a, W: Number>(
        &self,
        input: &'a [W],
        group: usize,
        first: usize,
        count: usize,
        scratch: &'a mut Vec<W>,
    ) -> Matrix<'a, W> {
        let (patch, depth) = (self.patch, self.sizes.in_channels);
        if self.direct {
            return Matrix::new(&input[first * depth + group * patch..], count, patch, depth);
        }
        scratch.resize(count * patch, W::ZERO);
        gather(&self.sizes, group, input, first, scratch);
        Matrix::new(scratch, count, patch, patch)
    }

    /// Returns a group's filter, with one column per output channel.
    fn filter<'a, W>(&self, filter: &'a [W], group: usize) -> Matrix<'a, W> {
        Matrix::new(&filter[group * self.outputs..], self.patch, self.outputs, self.sizes.out_channels)
    }

    /// Returns a group's channels of `count` output pixels from `first` on.
    fn output<'a, W>(&self, output: &'a [W], group: usize, first: usize, count: usize) -> Matrix<'a, W> {
        let channels = self.sizes.out_channels;
        Matrix::new(&output[first * channels + group * self.outputs..], count, self.outputs, channels)
    }

    /// Computes the convolution of `input` with `filter` into `out`.
    pub(super) fn forward<W: Number>(&self, input: &[W], filter: &[W], out: &mut [W]) {
        let channels = self.sizes.out_channels;
        for_each_tile(out, self.tile * channels, self.threads, |scratch, (i, out)| {
            let count = out.len() / channels;
            for group in 0..self.sizes.groups() {
                let patches = self.patches(input, group, i * self.tile, count, scratch);
                let out = &mut out[group * self.outputs..];
                product(out, channels, patches, self.filter(filter, group), false, Threads::One);
            }
        });
    }

    /// Adds the gradient with respect to the input to `dx`, which must be zero, given the incoming gradient `dy`.
    pub(super) fn input_gradient<W: Number>(&self, dy: &[W], filter: &[W], dx: &mut [W]) {
        let (sizes, depth) = (&self.sizes, self.sizes.in_channels);
        if self.direct {
            for_each_tile(dx, self.tile * depth, self.threads, |_, (i, dx)| {
                let count = dx.len() / depth;
                for group in 0..sizes.groups() {
                    let dy = self.output(dy, group, i * self.tile, count);
                    let filter = self.filter(filter, group).transposed();
                    product(&mut dx[group * self.patch..], depth, dy, filter, false, Threads::One);
                }
            });
            return;
        }
        // Patches overlap only within an image, so each thread computes whole images; if there are few images, the
        // threads share each product instead.
        let image = sizes.planes.input * sizes.rows.input * sizes.columns.input * depth;
        let many = sizes.batch >= rayon::current_num_threads();
        let (outside, inside) = match self.threads {
            Threads::All if many => (Threads::All, Threads::One),
            threads => (Threads::One, threads),
        };
        for_each_tile(dx, image, outside, |scratch, (n, dx)| {
            let end = (n + 1) * self.image_pixels;
            for first in (n * self.image_pixels..end).step_by(self.tile) {
                let count = self.tile.min(end - first);
                scratch.resize(count * self.patch, W::ZERO);
                for group in 0..sizes.groups() {
                    let dy = self.output(dy, group, first, count);
                    let filter = self.filter(filter, group).transposed();
                    product(scratch, self.patch, dy, filter, false, inside);
                    scatter(sizes, group, scratch, first, dx, n);
                }
            }
        });
    }

    /// Adds the gradient with respect to the filter to `dw`, given the input and the incoming gradient `dy`.
    pub(super) fn filter_gradient<W: Number>(&self, input: &[W], dy: &[W], dw: &mut [W]) {
        let tile = if self.direct {
            self.pixels
        } else {
            (PATCH_ELEMENTS / self.patch).clamp(64, self.pixels.max(64))
        };
        let mut scratch = Vec::new();
        for group in 0..self.sizes.groups() {
            for first in (0..self.pixels).step_by(tile) {
                let count = tile.min(self.pixels - first);
                let patches = self.patches(input, group, first, count, &mut scratch).transposed();
                let dy = self.output(dy, group, first, count);
                let dw = &mut dw[group * self.outputs..];
                product(dw, self.sizes.out_channels, patches, dy, true, self.threads);
            }
        }
    }
}

/// Returns the product of `sizes`.
///
/// # Errors
/// `InvalidArgument` if the product overflows.
fn checked_product(sizes: &[usize]) -> Result<usize> {
    let product = sizes.iter().try_fold(1usize, |n, &s| n.checked_mul(s));
    product.ok_or_else(|| Error::invalid(format!("sizes {sizes:?} overflow")))
}

/// Splits `out` into parts of `len` elements and calls `work(scratch, (index, part))` for each part; each thread reuses
/// its scratch buffer.
fn for_each_tile<W: Number>(
    out: &mut [W],
    len: usize,
    threads: Threads,
    work: impl Fn(&mut Vec<W>, (usize, &mut [W])) + Sync,
) {
    match threads {
        Threads::One => {
            let mut scratch = Vec::new();
            out.chunks_mut(len).enumerate().for_each(|part| work(&mut scratch, part));
        }
        Threads::All => for_each_tile_in_parallel(out, len, &work),
    }
}

/// A function that computes a tile, given a scratch buffer that the thread reuses, and the tile's index and elements.
type TileWork<'a, W> = dyn Fn(&mut Vec<W>, (usize, &mut [W])) + Sync + 'a;

/// Calls `work` for each tile like [`for_each_tile`], on several threads. `work` is a trait object so that rayon's loop
/// is compiled once per element type.
fn for_each_tile_in_parallel<W: Number>(out: &mut [W], len: usize, work: &TileWork<'_, W>) {
    out.par_chunks_mut(len).enumerate().for_each_init(Vec::new, |scratch, part| work(scratch, part));
}
