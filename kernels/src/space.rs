//! Moves blocks of pixels from the spatial axes to the batch axis and back, and extracts patches of images and volumes.
//! The kernels copy elements of any dtype.

use crate::numeric::dispatch::INDEX;
use crate::numeric::threads::for_rows;
use crate::plan::space::{PatchExtraction, PatchPlan, plan};
use bytemuck::Pod;
use device::kernel::{Kernel, KernelContext, KernelDef};
use device::{Error, Result};
use graph::ops::space::Blocks;
use graph::{DType, Tensor};

const ND: &[(&str, &[DType])] = &[("Tblock_shape", INDEX)];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["block_shape", "paddings"],
        ..KernelDef::of("SpaceToBatchND", ND, |_| Kernel::sync(|ctx| move_blocks(ctx, None, true)))
    },
    KernelDef {
        host_memory: &["block_shape", "crops"],
        ..KernelDef::of("BatchToSpaceND", ND, |_| Kernel::sync(|ctx| move_blocks(ctx, None, false)))
    },
    KernelDef {
        host_memory: &["paddings"],
        ..KernelDef::of("SpaceToBatch", &[], |i| {
            let block: i64 = i.attr("block_size")?;
            Kernel::sync(move |ctx| move_blocks(ctx, Some(block), true))
        })
    },
    KernelDef {
        host_memory: &["crops"],
        ..KernelDef::of("BatchToSpace", &[], |i| {
            let block: i64 = i.attr("block_size")?;
            Kernel::sync(move |ctx| move_blocks(ctx, Some(block), false))
        })
    },
    KernelDef::of("ExtractImagePatches", &[], |i| extracting(PatchExtraction::of_images(i.node)?)),
    KernelDef::of("ExtractVolumePatches", &[], |i| extracting(PatchExtraction::of_volumes(i.node)?)),
];

fn extracting(extraction: PatchExtraction) -> Result<Kernel> {
    Kernel::sync(move |ctx| {
        let input = ctx.input(0)?;
        let out = extract(input, extraction.of(input.shape())?)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Evaluates an expression with `$W` bound to an unsigned integer type as wide as the elements.
macro_rules! by_width {
    ($dtype:expr, $W:ident => $body:expr) => {
        match $dtype.size() {
            Some(1) => {
                type $W = u8;
                $body
            }
            Some(2) => {
                type $W = u16;
                $body
            }
            Some(4) => {
                type $W = u32;
                $body
            }
            Some(8) => {
                type $W = u64;
                $body
            }
            Some(16) => {
                type $W = u128;
                $body
            }
            _ => return Err(Error::unimplemented(format!("no kernel for elements of type {}", $dtype))),
        }
    };
}

fn move_blocks(ctx: &mut KernelContext<'_>, block: Option<i64>, to_batch: bool) -> Result<()> {
    let (blocks, shape) = plan(ctx, block, to_batch)?;
    let x = ctx.input(0)?;
    let mut out = Tensor::zeros(x.dtype(), shape)?;
    if x.num_elements() > 0 && out.num_elements() > 0 {
        let (wide, narrow) = if to_batch { (x.shape(), out.shape()) } else { (out.shape(), x.shape()) };
        let layout = Layout::new(&blocks, wide.dims(), narrow.dims());
        by_width!(x.dtype(), W => copy_blocks::<W>(&layout, x, &mut out, to_batch)?);
    }
    ctx.set_output(0, out);
    Ok(())
}

/// The layouts between which elements are moved: the wide side holds whole images, the narrow side holds a batch of
/// smaller images that take one pixel of each block.
struct Layout<'a> {
    blocks: &'a Blocks,
    /// The spatial sizes of the wide side and of the narrow side.
    wide: Vec<usize>,
    narrow: Vec<usize>,
    /// The number of images on the wide side.
    batch: usize,
    /// The number of contiguous elements that are moved together.
    depth: usize,
}

impl<'a> Layout<'a> {
    fn new(blocks: &'a Blocks, wide: &[usize], narrow: &[usize]) -> Layout<'a> {
        let moved = blocks.sizes.len() + 1;
        Layout {
            blocks,
            wide: wide[1..moved].to_vec(),
            narrow: narrow[1..moved].to_vec(),
            batch: wide[0],
            depth: wide[moved..].iter().product(),
        }
    }

    /// Returns the row of the wide side that corresponds to row `row` of the narrow side; a row is `depth` elements.
    /// `None` if the narrow row is padding, or if its wide row is cropped.
    fn wide_row(&self, mut row: usize) -> Option<usize> {
        let mut place = [0; 16];
        let axes = self.narrow.len();
        let place = place.get_mut(..axes)?;
        for i in (0..axes).rev() {
            place[i] = row % self.narrow[i];
            row /= self.narrow[i];
        }
        let (image, mut part) = (row % self.batch, row / self.batch);
        for i in (0..axes).rev() {
            let block = self.blocks.sizes[i];
            place[i] = (place[i] * block + part % block).checked_sub(self.blocks.margins[i][0])?;
            part /= block;
        }
        let mut at = image;
        for (&p, &size) in place.iter().zip(&self.wide) {
            if p >= size {
                return None;
            }
            at = at * size + p;
        }
        Some(at)
    }
}

fn copy_blocks<W: Pod + Send + Sync>(
    layout: &Layout<'_>,
    x: &Tensor,
    out: &mut Tensor,
    to_batch: bool,
) -> Result<()> {
    let depth = layout.depth;
    if layout.narrow.len() > 16 {
        return Err(Error::unimplemented("blocks over more than 16 axes"));
    }
    let (from, to) = (elements::<W>(x.bytes()?), elements_mut::<W>(out.bytes_mut()?));
    if to_batch {
        for_rows(to, depth, |first, to| {
            for (i, to) in to.chunks_exact_mut(depth).enumerate() {
                if let Some(at) = layout.wide_row(first + i) {
                    to.copy_from_slice(&from[at * depth..][..depth]);
                }
            }
        });
    } else {
        for (i, from) in from.chunks_exact(depth).enumerate() {
            if let Some(at) = layout.wide_row(i) {
                to[at * depth..][..depth].copy_from_slice(from);
            }
        }
    }
    Ok(())
}

fn elements<W: Pod>(bytes: &[u8]) -> &[W] {
    bytemuck::cast_slice(bytes)
}

fn elements_mut<W: Pod>(bytes: &mut [u8]) -> &mut [W] {
    bytemuck::cast_slice_mut(bytes)
}

/// Extracts each patch as the channels of an output pixel, ordered by plane, row and column of the patch, then by the
/// input's channel.
fn extract(input: &Tensor, PatchPlan { windows, channels: c, shape }: PatchPlan) -> Result<Tensor> {
    let [planes, rows, columns] = &windows;
    let (d, h, w) = (planes.input, rows.input, columns.input);
    let len = shape.last().copied().unwrap_or(0);
    let mut out = Tensor::zeros(input.dtype(), shape)?;
    if out.num_elements() == 0 {
        return Ok(out);
    }
    by_width!(input.dtype(), W => {
        let from = elements::<W>(input.bytes()?);
        for_rows(elements_mut::<W>(out.bytes_mut()?), len, |first, out| {
            for (i, patch) in out.chunks_exact_mut(len).enumerate() {
                let pixel = first + i;
                let (line, column) = (pixel / columns.output, pixel % columns.output);
                let (row, line) = (line % rows.output, line / rows.output);
                let (plane, image) = (line % planes.output, line / planes.output);
                let taps = (0..planes.filter).flat_map(|z| (0..rows.filter).map(move |y| (z, y)));
                for ((z, y), patch) in taps.zip(patch.chunks_exact_mut(columns.filter * c)) {
                    let (Some(z), Some(y)) = (planes.at(plane, z), rows.at(row, y)) else { continue };
                    let line = ((image * d + z) * h + y) * w;
                    for (x, to) in patch.chunks_exact_mut(c).enumerate() {
                        if let Some(x) = columns.at(column, x) {
                            to.copy_from_slice(&from[(line + x) * c..][..c]);
                        }
                    }
                }
            }
        });
    });
    Ok(out)
}
