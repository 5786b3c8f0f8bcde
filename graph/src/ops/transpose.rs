//! Reordering and repetition of elements: transpose, tile, reverse, blocks of space and depth.

use super::constant::same;
use super::shape::first_only;
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope};
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::node::Node;
use crate::shape::{PartialShape, resolve_axis};

/// The op table fields of ops that convert axes, or values for axes, from one layout of images to another.
const DATA_FORMAT: OpDef = OpDef {
    inputs: &["x: T"],
    outputs: &["y: T"],
    attrs: &["T: {int32, int64} = int32", "src_format: string = 'NHWC'", "dst_format: string = 'NCHW'"],
    infer: same,
    gradient: Gradient::Leaf,
    ..OpDef::NEW
};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Transpose",
        inputs: &["x: T", "perm: Tperm"],
        outputs: &["y: T"],
        attrs: &["T: type", "Tperm: {int32, int64} = int32"],
        infer: transpose,
        gradient: Gradient::Defined(|scope, f, dz| transpose_back(scope, f, dz, "Transpose")),
        ..OpDef::NEW
    },
    OpDef {
        name: "ConjugateTranspose",
        inputs: &["x: T", "perm: Tperm"],
        outputs: &["y: T"],
        attrs: &["T: type", "Tperm: {int32, int64} = int32"],
        infer: transpose,
        gradient: Gradient::Defined(|scope, f, dz| transpose_back(scope, f, dz, "ConjugateTranspose")),
        ..OpDef::NEW
    },
    OpDef {
        name: "InvertPermutation",
        inputs: &["x: T"],
        outputs: &["y: T"],
        attrs: &["T: {int32, int64} = int32"],
        infer: |infer| {
            let shape = infer.input_of_rank(0, 1)?;
            infer.set(0, shape);
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "Tile",
        inputs: &["input: T", "multiples: Tmultiples"],
        outputs: &["output: T"],
        attrs: &["T: type", "Tmultiples: {int32, int64} = int32"],
        infer: tile,
        gradient: Gradient::Defined(tile_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "TileGrad",
        inputs: &["input: T", "multiples: int32"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        infer: super::unknown_shapes,
        ..OpDef::NEW
    },
    OpDef { name: "DataFormatDimMap", ..DATA_FORMAT },
    OpDef { name: "DataFormatVecPermute", ..DATA_FORMAT },
    OpDef {
        name: "ReverseV2",
        inputs: &["tensor: T", "axis: Tidx"],
        outputs: &["output: T"],
        attrs: &[
            "Tidx: {int32, int64} = int32",
            "T: {uint8, int8, uint16, int16, int32, uint32, int64, uint64, bool, bfloat16, half, float, double, complex64, complex128, string}",
        ],
        infer: same,
        gradient: Gradient::Defined(|scope, forward, dz| {
            let back = |dz| scope.op("ReverseV2").input(dz).input(forward.input(1)).output();
            Ok(vec![dz[0].map(back), None])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "Reverse",
        inputs: &["tensor: T", "dims: bool"],
        outputs: &["output: T"],
        attrs: &[
            "T: {uint8, int8, uint16, int16, uint32, int32, uint64, int64, bool, bfloat16, half, float, double, complex64, complex128, string}",
        ],
        infer: |infer| {
            infer.input_of_rank(1, 1)?;
            same(infer)
        },
        gradient: Gradient::Defined(|scope, forward, dz| {
            let back = |dz| scope.op("Reverse").input(dz).input(forward.input(1)).output();
            Ok(vec![dz[0].map(back), None])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "SpaceToDepth",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: type", "block_size: int >= 2", "data_format: {'NHWC', 'NCHW', 'NCHW_VECT_C'} = 'NHWC'"],
        infer: |infer| blocks(infer, true),
        gradient: Gradient::Defined(|scope, f, dz| blocks_back(scope, f, dz, "DepthToSpace")),
        ..OpDef::NEW
    },
    OpDef {
        name: "DepthToSpace",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: type", "block_size: int >= 2", "data_format: {'NHWC', 'NCHW', 'NCHW_VECT_C'} = 'NHWC'"],
        infer: |infer| blocks(infer, false),
        gradient: Gradient::Defined(|scope, f, dz| blocks_back(scope, f, dz, "SpaceToDepth")),
        ..OpDef::NEW
    },
];

/// Parses a permutation of the axes of a tensor; negative axes count from the back.
///
/// # Errors
/// `InvalidArgument` if `perm` is not a permutation.
pub fn permutation(perm: &[i64], rank: usize) -> Result<Vec<usize>> {
    if perm.len() != rank {
        crate::invalid!(
            "transpose expects a vector of size {rank}. But input(1) is a vector of size {}",
            perm.len()
        );
    }
    let mut seen = vec![false; rank];
    let mut axes = Vec::with_capacity(rank);
    for &axis in perm {
        let at = resolve_axis(axis, rank)
            .ok_or_else(|| Error::invalid(format!("{axis} is out of range [0 .. {rank})")))?;
        seen[at] = true;
        axes.push(at);
    }
    match seen.iter().position(|s| !s) {
        None => Ok(axes),
        Some(missing) => {
            let given: Vec<String> = perm.iter().map(i64::to_string).collect();
            crate::invalid!("{missing} is missing from {{{}}}.", given.join(","))
        }
    }
}

fn transpose(infer: &mut Infer<'_>) -> Result<()> {
    let input = infer.input(0);
    let Some(rank) = input.rank().or(infer.input_of_rank(1, 1)?.dim(0)) else { return Ok(()) };
    let input = input.with_rank(rank)?;
    let shape = match infer.value(1) {
        Some(perm) => {
            let axes = permutation(&perm.to_i64s()?, rank)?;
            PartialShape::of_dims(axes.into_iter().map(|a| input.dim(a)))
        }
        None => PartialShape::of_rank(rank),
    };
    infer.set(0, shape);
    Ok(())
}

fn transpose_back(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
    op: &str,
) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(first_only(forward, None)) };
    let perm = forward.input(1);
    let inverse = match scope.value(perm) {
        Some(perm) => {
            let perm = perm.to_i64s()?;
            let mut inverse = vec![0i32; perm.len()];
            for (i, axis) in permutation(&perm, perm.len())?.into_iter().enumerate() {
                inverse[axis] = i as i32;
            }
            scope.constant_vector(&inverse)
        }
        None => scope.op("InvertPermutation").input(perm).output(),
    };
    Ok(first_only(forward, Some(scope.op(op).input(dz).input(inverse).output())))
}

fn tile(infer: &mut Infer<'_>) -> Result<()> {
    let input = infer.input(0);
    let multiples = infer.value_as_shape(1)?;
    let Some(rank) = input.rank().or(multiples.rank()) else { return Ok(()) };
    let (input, multiples) = (input.with_rank(rank)?, multiples.with_rank(rank)?);
    let mut out = Vec::with_capacity(rank);
    for i in 0..rank {
        out.push(match input.dim(i).zip(multiples.dim(i)) {
            Some((dim, times)) => Some(
                dim.checked_mul(times)
                    .ok_or_else(|| Error::invalid(format!("{dim} repeated {times} times is too large")))?,
            ),
            None => None,
        });
    }
    infer.set(0, PartialShape::of_dims(out));
    Ok(())
}

/// Gradient of Tile: each axis of `dz` is split into two axes, repeat and element, and summed over the repeat axis.
fn tile_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(first_only(forward, None)) };
    let multiples = forward.input(1);
    let dtype = scope.dtype(multiples);
    let input = scope.shape_of_as(forward.input(0), dtype);
    let pairs = scope.pack(&[multiples, input], 1);
    let split = scope.reshape(pairs, &[-1]);
    let (start, step) = (scope.constant(0i32), scope.constant(2i32));
    let axes = scope.range(start, scope.size_of(split), step);
    let dz = scope.op("Reshape").input(dz).input(split).output();
    let summed = scope.op("Sum").input(dz).input(axes).output();
    Ok(first_only(forward, Some(scope.op("Reshape").input(summed).input(input).output())))
}

/// The attributes of `SpaceToDepth` and `DepthToSpace` on four-dimensional data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockAttrs {
    pub block: usize,
    pub channels_last: bool,
}

impl BlockAttrs {
    /// Reads the attributes of a node.
    ///
    /// # Errors
    /// `InvalidArgument` for layouts of quantized vectors, like in TensorFlow, which has no kernel for them.
    pub fn of(node: &Node) -> Result<BlockAttrs> {
        let block = node.attr::<i64>("block_size")?;
        let channels_last = match node.attr::<String>("data_format")?.as_str() {
            "NHWC" => true,
            "NCHW" => false,
            other => {
                crate::invalid!("{} has no kernel for data_format {other}", node.op.name());
            }
        };
        let block = usize::try_from(block).ok().filter(|&b| b >= 2);
        let block = block.ok_or_else(|| Error::invalid("Block size should be > 1"))?;
        Ok(BlockAttrs { block, channels_last })
    }

    /// Returns the axes of height, width and channels.
    pub fn axes(&self) -> [usize; 3] {
        if self.channels_last { [1, 2, 3] } else { [2, 3, 1] }
    }
}

fn blocks(infer: &mut Infer<'_>, to_depth: bool) -> Result<()> {
    let attrs = match BlockAttrs::of(infer.node()) {
        Ok(attrs) => attrs,
        Err(error) if error.code() == crate::Code::Unimplemented => return Ok(()),
        Err(error) => return Err(error),
    };
    let input = infer.input_of_rank(0, 4)?;
    let [h, w, c] = attrs.axes();
    let b = attrs.block;
    let square = b.checked_mul(b).ok_or_else(|| Error::invalid(format!("block_size {b} is too large")))?;
    let times = |d: Option<usize>, by: usize| d.and_then(|d| d.checked_mul(by));
    let over = |d: Option<usize>, by: usize| match d {
        Some(d) if d % by != 0 => {
            Err(Error::invalid(format!("Dimension size must be evenly divisible by {by} but is {d}")))
        }
        d => Ok(d.map(|d| d / by)),
    };
    let mut out = [input.dim(0); 4];
    if to_depth {
        (out[h], out[w], out[c]) =
            (over(input.dim(h), b)?, over(input.dim(w), b)?, times(input.dim(c), square));
    } else {
        (out[h], out[w], out[c]) =
            (times(input.dim(h), b), times(input.dim(w), b), over(input.dim(c), square)?);
    }
    infer.set(0, out);
    Ok(())
}

fn blocks_back(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
    op: &str,
) -> Result<Vec<Option<Output>>> {
    let (block, format) = (forward.attr::<i64>("block_size")?, forward.attr::<String>("data_format")?);
    let back =
        |dz| scope.op(op).input(dz).attr("block_size", block).attr("data_format", format.as_str()).output();
    Ok(vec![dz[0].map(back)])
}
