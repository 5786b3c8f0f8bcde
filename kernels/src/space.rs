//! Moves blocks of space into the batch and back, and extracts patches of images and volumes. The kernels copy
//! elements of any dtype.

use crate::numeric::dispatch::INDEX;
use crate::numeric::threads::for_rows;
use bytemuck::Pod;
use device::kernel::{Kernel, KernelContext, KernelDef};
use device::{Error, Result};
use graph::ops::space::{Blocks, Patches};
use graph::ops::window::{Padding, Window};
use graph::{DType, Node, Shape, Tensor};

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
    KernelDef::of("ExtractImagePatches", &[], |i| extracting(Extraction::of_images(i.node)?)),
    KernelDef::of("ExtractVolumePatches", &[], |i| extracting(Extraction::of_volumes(i.node)?)),
];

/// The patches to extract. An image is treated as a volume of one plane.
#[derive(Debug)]
pub struct Extraction {
    patches: Patches<3>,
    is_of_images: bool,
}

/// The patches of one input.
#[derive(Debug)]
pub struct Extracted {
    /// The windows over planes, rows and columns.
    pub windows: [Window; 3],
    pub channels: usize,
    /// The output's shape.
    pub shape: Shape,
}

impl Extraction {
    pub fn of_images(node: &Node) -> Result<Extraction> {
        let Patches { ksizes, strides, rates, padding, centred } = Patches::of_images(node)?;
        let [ksizes, strides, rates] = [ksizes, strides, rates].map(|[rows, columns]| [1, rows, columns]);
        Ok(Extraction { patches: Patches { ksizes, strides, rates, padding, centred }, is_of_images: true })
    }

    pub fn of_volumes(node: &Node) -> Result<Extraction> {
        Ok(Extraction { patches: Patches::of_volumes(node)?, is_of_images: false })
    }

    pub fn of(&self, input: &Shape) -> Result<Extracted> {
        let Extraction { patches, is_of_images } = self;
        let [n, d, h, w, channels] = match *input.dims() {
            [n, h, w, c] if *is_of_images => [n, 1, h, w, c],
            [n, d, h, w, c] if !is_of_images => [n, d, h, w, c],
            _ => device::invalid!("input must be {}-dimensional: {input}", if *is_of_images { 4 } else { 5 }),
        };
        let centre = |window: Window| {
            if patches.centred && patches.padding == Padding::Same { window.centred() } else { window }
        };
        let windows = [patches.window(d, 0)?, patches.window(h, 1)?, patches.window(w, 2)?].map(centre);
        let [planes, rows, columns] = windows.map(|window| window.output);
        let len = patches.len()?.checked_mul(channels);
        let len = len.ok_or_else(|| Error::invalid("a patch's size overflows"))?;
        let shape = [n, planes, rows, columns, len];
        let shape = if *is_of_images { Shape::new(&[n, rows, columns, len])? } else { Shape::new(&shape)? };
        Ok(Extracted { windows, channels, shape })
    }
}

fn extracting(extraction: Extraction) -> Result<Kernel> {
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

/// Returns the blocks to move between space and batch, and the output's shape. `block` is the size of square blocks,
/// if it is an attribute and not an input.
pub fn plan(ctx: &KernelContext<'_>, block: Option<i64>, to_batch: bool) -> Result<(Blocks, Shape)> {
    let x = ctx.shape(0)?;
    let name = if to_batch { "paddings" } else { "crops" };
    let blocks = match block {
        Some(b) => {
            if x.rank() != 4 {
                device::invalid!("input rank should be 4 instead of {}", x.rank());
            }
            Blocks::new(&Tensor::from_slice(&[b, b], Shape::new(&[2])?)?, ctx.input(1)?, name)?
        }
        None => Blocks::new(ctx.input(1)?, ctx.input(2)?, name)?,
    };
    let moved = blocks.sizes.len() + 1;
    if x.rank() < moved {
        device::invalid!("input rank should be >= {moved} instead of {}", x.rank());
    }
    let dims: Vec<Option<usize>> = x.iter().map(|&d| Some(d)).collect();
    let (space, depth) = (&dims[1..moved], &dims[moved..]);
    let sizes = if to_batch { blocks.to_batch(dims[0], space)? } else { blocks.to_space(dims[0], space)? };
    let shape: Vec<usize> = sizes.iter().chain(depth).flatten().copied().collect();
    Ok((blocks, Shape::new(&shape)?))
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

/// The layout of both sides of a move: the wide side has the whole space, the narrow side has a batch of the parts of
/// blocks.
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
    /// `None` if it was padding or was cropped.
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
fn extract(input: &Tensor, Extracted { windows, channels: c, shape }: Extracted) -> Result<Tensor> {
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
