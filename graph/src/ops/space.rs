//! Ops that move blocks of space into the batch and back, and that extract patches of images and volumes.

use super::window::{Padding, ReadAttr, Window};
use super::{Gradient, OpDef};
use crate::attr::AttrValue;
use crate::builder::{Forward, Scope};
use crate::error::{Code, Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};
use crate::tensor::Tensor;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "SpaceToBatchND",
        inputs: &["input: T", "block_shape: Tblock_shape", "paddings: Tpaddings"],
        outputs: &["output: T"],
        attrs: &["T: type", "Tblock_shape: {int32, int64} = int32", "Tpaddings: {int32, int64} = int32"],
        infer: |infer| {
            let (blocks, margins) = (infer.value(1), infer.value(2));
            infer_blocks(infer, blocks, margins, true)
        },
        gradient: Gradient::Defined(|s, f, dy| blocks_back(s, f, dy, "BatchToSpaceND")),
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchToSpaceND",
        inputs: &["input: T", "block_shape: Tblock_shape", "crops: Tcrops"],
        outputs: &["output: T"],
        attrs: &["T: type", "Tblock_shape: {int32, int64} = int32", "Tcrops: {int32, int64} = int32"],
        infer: |infer| {
            let (blocks, margins) = (infer.value(1), infer.value(2));
            infer_blocks(infer, blocks, margins, false)
        },
        gradient: Gradient::Defined(|s, f, dy| blocks_back(s, f, dy, "SpaceToBatchND")),
        ..OpDef::NEW
    },
    OpDef {
        name: "SpaceToBatch",
        inputs: &["input: T", "paddings: Tpaddings"],
        outputs: &["output: T"],
        attrs: &["T: type", "Tpaddings: {int32, int64} = int32", "block_size: int >= 2"],
        infer: |infer| {
            let (blocks, margins) = (Some(square(infer)?), infer.value(1));
            infer.input_of_rank(0, 4)?;
            infer_blocks(infer, blocks, margins, true)
        },
        gradient: Gradient::Defined(|s, f, dy| squares_back(s, f, dy, "BatchToSpace")),
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchToSpace",
        inputs: &["input: T", "crops: Tidx"],
        outputs: &["output: T"],
        attrs: &["T: type", "block_size: int >= 2", "Tidx: {int32, int64} = int32"],
        infer: |infer| {
            let (blocks, margins) = (Some(square(infer)?), infer.value(1));
            infer.input_of_rank(0, 4)?;
            infer_blocks(infer, blocks, margins, false)
        },
        gradient: Gradient::Defined(|s, f, dy| squares_back(s, f, dy, "SpaceToBatch")),
        ..OpDef::NEW
    },
    OpDef {
        name: "ExtractImagePatches",
        inputs: &["images: T"],
        outputs: &["patches: T"],
        attrs: &[
            "ksizes: list(int) >= 4",
            "strides: list(int) >= 4",
            "rates: list(int) >= 4",
            "T: {bfloat16, half, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, \
             complex64, complex128, bool}",
            "padding: {'SAME', 'VALID'}",
        ],
        infer: |infer| infer_patches::<2>(infer, &Patches::of_images(infer)?),
        ..OpDef::NEW
    },
    OpDef {
        name: "ExtractVolumePatches",
        inputs: &["input: T"],
        outputs: &["patches: T"],
        attrs: &[
            "ksizes: list(int) >= 5",
            "strides: list(int) >= 5",
            "T: realnumbertype",
            "padding: {'SAME', 'VALID'}",
        ],
        infer: |infer| infer_patches::<3>(infer, &Patches::of_volumes(infer)?),
        ..OpDef::NEW
    },
];

/// Returns the block shape `[size, size]` of an op with the attribute `block_size`, in the form of the input
/// `block_shape` of the general op.
fn square(node: &impl ReadAttr) -> Result<Tensor> {
    let size: i64 = node.read_attr("block_size")?;
    Tensor::from_slice(&[size, size], crate::Shape::new(&[2])?)
}

/// The parameters of an op that moves blocks of space into the batch or back: for each spatial axis, the block size and
/// the numbers of elements padded or cropped before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    pub sizes: Vec<usize>,
    pub margins: Vec<[usize; 2]>,
}

impl Blocks {
    /// Parses the inputs `block_shape` and `paddings` or `crops`.
    ///
    /// # Errors
    /// `InvalidArgument` if the inputs do not fit each other, or are out of range.
    pub fn new(blocks: &Tensor, margins: &Tensor, name: &str) -> Result<Blocks> {
        let &[count] = blocks.shape().dims() else {
            crate::invalid!("block_shape rank should be 1, got shape {}", blocks.shape());
        };
        if margins.shape().dims() != [count, 2] {
            crate::invalid!("{name} should have shape [{count}, 2] instead of {}", margins.shape());
        }
        let size = |what: &str, least: i64, v: i64| {
            let in_range = (least..=i64::from(i32::MAX)).contains(&v);
            let size = usize::try_from(v).ok().filter(|_| in_range);
            size.ok_or_else(|| Error::invalid(format!("{what} must be at least {least}, got {v}")))
        };
        let sizes = blocks.to_i64s()?.into_iter().map(|b| size("block_shape", 1, b));
        let margins = margins.to_i64s()?;
        let margins = margins.chunks_exact(2).map(|m| Ok([size(name, 0, m[0])?, size(name, 0, m[1])?]));
        Ok(Blocks { sizes: sizes.collect::<Result<_>>()?, margins: margins.collect::<Result<_>>()? })
    }

    /// Returns the number of elements of a block.
    pub fn len(&self) -> Result<usize> {
        let len = self.sizes.iter().try_fold(1usize, |n, &s| n.checked_mul(s));
        len.filter(|&n| n <= i64::MAX as usize).ok_or_else(|| Error::invalid("block_shape overflows"))
    }

    /// Returns whether no axis is blocked.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// Returns the batch and spatial sizes after blocks have been moved into the batch.
    pub fn to_batch(&self, batch: Dim, space: &[Dim]) -> Result<Vec<Dim>> {
        let len = self.len()?;
        let grown = |b: usize| b.checked_mul(len).ok_or_else(|| Error::invalid("the batch's size overflows"));
        let mut out = vec![batch.map(grown).transpose()?];
        for ((size, block), [before, after]) in space.iter().zip(&self.sizes).zip(&self.margins) {
            let Some(size) = size else {
                out.push(None);
                continue;
            };
            let padded = size + before + after;
            if !padded.is_multiple_of(*block) {
                crate::invalid!(
                    "padded_shape[{}]={padded} is not divisible by block_shape[{0}]={block}",
                    out.len() - 1
                );
            }
            out.push(Some(padded / block));
        }
        Ok(out)
    }

    /// Returns the batch and spatial sizes after blocks have been moved from the batch into space.
    pub fn to_space(&self, batch: Dim, space: &[Dim]) -> Result<Vec<Dim>> {
        let len = self.len()?;
        if let Some(batch) = batch
            && !batch.is_multiple_of(len)
        {
            crate::invalid!(
                "Input batch dimension ({batch}) is not divisible by product of block sizes ({len})"
            );
        }
        let mut out = vec![batch.map(|b| b / len)];
        for ((size, block), [before, after]) in space.iter().zip(&self.sizes).zip(&self.margins) {
            let Some(size) = size else {
                out.push(None);
                continue;
            };
            let whole =
                size.checked_mul(*block).ok_or_else(|| Error::invalid("the space's size overflows"))?;
            let Some(cropped) = whole.checked_sub(before + after) else {
                crate::invalid!(
                    "cropped_shape[{}]={} must be non-negative",
                    out.len() - 1,
                    whole as i64 - (before + after) as i64
                );
            };
            out.push(Some(cropped));
        }
        Ok(out)
    }
}

fn infer_blocks(
    infer: &mut Infer<'_>,
    blocks: Option<Tensor>,
    margins: Option<Tensor>,
    to_batch: bool,
) -> Result<()> {
    let x = infer.input(0);
    let Some(dims) = x.dims() else { return Ok(()) };
    let count = blocks.as_ref().and_then(|b| b.shape().first().copied()).or(infer.input(1).dim(0));
    let unknown = |infer: &mut Infer<'_>| {
        let kept = count.map_or(dims.len(), |c| (c + 1).min(dims.len()));
        let open = dims.iter().enumerate().map(|(i, d)| if i < kept { None } else { *d });
        infer.set(0, PartialShape::of_dims(open));
    };
    let (Some(blocks), Some(margins)) = (blocks, margins) else {
        unknown(infer);
        return Ok(());
    };
    let blocks = Blocks::new(&blocks, &margins, if to_batch { "paddings" } else { "crops" })?;
    let moved = blocks.sizes.len() + 1;
    if dims.len() < moved {
        crate::invalid!("Shape must be at least rank {moved} but is rank {}", dims.len());
    }
    let space = &dims[1..moved];
    let mut out =
        if to_batch { blocks.to_batch(dims[0], space)? } else { blocks.to_space(dims[0], space)? };
    out.extend_from_slice(&dims[moved..]);
    infer.set(0, PartialShape::of_dims(out));
    Ok(())
}

fn blocks_back(s: &Scope, f: &Forward, dy: &[Option<Output>], op: &str) -> Result<Vec<Option<Output>>> {
    let Some(dy) = dy[0] else { return Ok(vec![None; 3]) };
    Ok(vec![Some(s.op(op).input(dy).input(f.input(1)).input(f.input(2)).output()), None, None])
}

fn squares_back(s: &Scope, f: &Forward, dy: &[Option<Output>], op: &str) -> Result<Vec<Option<Output>>> {
    let Some(dy) = dy[0] else { return Ok(vec![None; 2]) };
    let call = s.op(op).input(dy).input(f.input(1)).attr("block_size", f.attr::<AttrValue>("block_size")?);
    Ok(vec![Some(call.output()), None])
}

/// The patches that an op extracts from data with `N` spatial axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patches<const N: usize> {
    pub ksizes: [usize; N],
    pub strides: [usize; N],
    /// The distance between neighbouring elements of a patch.
    pub rates: [usize; N],
    pub padding: Padding,
    /// True if windows that do not cover an axis with SAME padding leave uncovered elements on both sides instead of
    /// only at the end.
    pub centred: bool,
}

impl Patches<2> {
    /// Parses the attributes of a node that extracts patches of images.
    pub fn of_images(node: &impl ReadAttr) -> Result<Patches<2>> {
        Ok(Patches {
            ksizes: spatial(node, "ksizes")?,
            strides: spatial(node, "strides")?,
            rates: spatial(node, "rates")?,
            padding: Padding::parse(
                &node.read_attr::<String>("padding")?,
                &[],
                super::window::DataFormat::Nhwc,
            )?,
            centred: false,
        })
    }
}

impl Patches<3> {
    /// Parses the attributes of a node that extracts patches of volumes.
    pub fn of_volumes(node: &impl ReadAttr) -> Result<Patches<3>> {
        Ok(Patches {
            ksizes: spatial(node, "ksizes")?,
            strides: spatial(node, "strides")?,
            rates: [1; 3],
            padding: Padding::parse(
                &node.read_attr::<String>("padding")?,
                &[],
                super::window::DataFormat::Nhwc,
            )?,
            centred: true,
        })
    }
}

impl<const N: usize> Patches<N> {
    /// Returns the window along spatial axis `axis`.
    pub fn window(&self, size: usize, axis: usize) -> Result<Window> {
        Window::new(size, self.ksizes[axis], self.strides[axis], self.rates[axis], self.padding, 0)
    }

    /// Returns the number of elements of a patch in one channel.
    pub fn len(&self) -> Result<usize> {
        let len = self.ksizes.iter().try_fold(1usize, |n, &k| n.checked_mul(k));
        len.ok_or_else(|| Error::invalid("ksizes overflow"))
    }

    /// Returns `false`, because a patch always has elements.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// Returns the values of an attribute for the spatial axes; its values for batch and channels must be 1.
fn spatial<const N: usize>(node: &impl ReadAttr, name: &str) -> Result<[usize; N]> {
    let values: Vec<i64> = node.read_attr(name)?;
    if values.len() != N + 2 {
        crate::invalid!("{name} must have {} values, got {values:?}", N + 2);
    }
    if values[0] != 1 || values[N + 1] != 1 {
        return Err(Error::unimplemented(format!("Only support {name} across space.")));
    }
    let mut out = [0; N];
    for (o, &v) in out.iter_mut().zip(&values[1..]) {
        let size = usize::try_from(v).ok().filter(|&v| v > 0 && v <= i32::MAX as usize);
        let wrong = || Error::Invalid { code: Code::OutOfRange, message: format!("{name} is out of range.") };
        *o = size.ok_or_else(wrong)?;
    }
    Ok(out)
}

fn infer_patches<const N: usize>(infer: &mut Infer<'_>, patches: &Patches<N>) -> Result<()> {
    let x = infer.input_of_rank(0, N + 2)?;
    let mut dims = vec![x.dim(0)];
    for axis in 0..N {
        dims.push(
            x.dim(axis + 1).map(|size| Ok::<_, Error>(patches.window(size, axis)?.output)).transpose()?,
        );
    }
    let len = patches.len()?;
    dims.push(x.dim(N + 1).and_then(|c| c.checked_mul(len)));
    infer.set(0, PartialShape::of_dims(dims));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    #[test]
    fn block_sizes_divide_the_padded_space() -> Result<()> {
        let vector = |v: &[i32], dims: &[usize]| Tensor::from_slice(v, Shape::new(dims)?);
        let blocks = Blocks::new(&vector(&[2, 3], &[2])?, &vector(&[1, 0, 0, 2], &[2, 2])?, "paddings")?;
        assert_eq!(blocks.to_batch(Some(2), &[Some(3), Some(4)])?, [Some(12), Some(2), Some(2)]);
        assert_eq!(blocks.to_space(Some(12), &[Some(2), None])?, [Some(2), Some(3), None]);
        assert!(blocks.to_batch(Some(2), &[Some(4), Some(4)]).is_err());
        assert!(blocks.to_space(Some(11), &[Some(2), Some(2)]).is_err());
        assert!(Blocks::new(&vector(&[0], &[1])?, &vector(&[0, 0], &[1, 2])?, "crops").is_err());
        assert!(Blocks::new(&vector(&[2], &[1])?, &vector(&[0, -1], &[1, 2])?, "crops").is_err());
        Ok(())
    }
}
