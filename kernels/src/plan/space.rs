//! Blocks that are moved between the space and batch axes, and patches of images and volumes.

use device::kernel::KernelContext;
use device::{Error, Result};
use graph::ops::space::{Blocks, Patches};
use graph::ops::window::{Padding, Window};
use graph::{Node, Shape, Tensor};

/// The attributes of an op that extracts patches. An image is treated as a volume of one plane.
#[derive(Debug)]
pub struct PatchExtraction {
    patches: Patches<3>,
    is_of_images: bool,
}

/// The windows and the output shape of a patch extraction for a given input shape.
#[derive(Debug)]
pub struct PatchPlan {
    /// The windows over planes, rows and columns.
    pub windows: [Window; 3],
    pub channels: usize,
    /// The output's shape.
    pub shape: Shape,
}

impl PatchExtraction {
    /// Reads the attributes of `ExtractImagePatches`.
    pub fn of_images(node: &Node) -> Result<PatchExtraction> {
        let Patches { ksizes, strides, rates, padding, centred } = Patches::of_images(node)?;
        let [ksizes, strides, rates] = [ksizes, strides, rates].map(|[rows, columns]| [1, rows, columns]);
        Ok(PatchExtraction {
            patches: Patches { ksizes, strides, rates, padding, centred },
            is_of_images: true,
        })
    }

    /// Reads the attributes of `ExtractVolumePatches`.
    pub fn of_volumes(node: &Node) -> Result<PatchExtraction> {
        Ok(PatchExtraction { patches: Patches::of_volumes(node)?, is_of_images: false })
    }

    /// Returns the plan for an input of shape `input`.
    pub fn of(&self, input: &Shape) -> Result<PatchPlan> {
        let PatchExtraction { patches, is_of_images } = self;
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
        Ok(PatchPlan { windows, channels, shape })
    }
}

/// Returns the blocks to move between space and batch, and the output's shape. `block` is the side of square blocks if
/// an attribute gives it; otherwise input 1 gives the sizes of the blocks.
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
