//! Layouts of transposed, repeated, reversed and regrouped tensors.

use crate::numeric::strided::{InputBox, Layout, permuted};
use device::kernel::KernelContext;
use device::{Error, Result, invalid};
use graph::ops::transpose::{BlockAttrs, permutation};
use graph::shape::resolve_axis;
use graph::{Shape, Tensor};
use smallvec::SmallVec;

/// Returns the box of input 0 that `Transpose` outputs; input 1 is the permutation of the axes.
pub fn transpose(ctx: &KernelContext<'_>) -> Result<InputBox> {
    transposed(ctx.shape(0)?, ctx.input(1)?)
}

pub(crate) fn transposed(input: &Shape, perm: &Tensor) -> Result<InputBox> {
    if perm.shape().rank() != 1 {
        invalid!("perm must be rank 1, got shape {}", perm.shape());
    }
    let perm = permutation(&perm.to_i64s()?, input.rank())?;
    let dims: SmallVec<[usize; 6]> = perm.iter().map(|&axis| input[axis]).collect();
    let shape = Shape::new(&dims)?;
    let moving = || perm.iter().filter(|&&axis| input[axis] != 1);
    if moving().zip(moving().skip(1)).all(|(a, b)| a < b) {
        return Ok(InputBox::whole(shape));
    }
    Ok(InputBox { shape, dims, from: permuted(input, &perm) })
}

/// Returns the box of input 0 that `Tile` outputs; input 1 is the number of repetitions along each axis.
pub fn tile(ctx: &KernelContext<'_>) -> Result<InputBox> {
    let (input, multiples) = (ctx.shape(0)?, ctx.input(1)?);
    let rank = input.rank();
    if multiples.shape().rank() != 1 || multiples.num_elements() != rank {
        invalid!(
            "Expected multiples argument to be a vector of length {rank} but got length {}",
            multiples.num_elements()
        );
    }
    let packed = Layout::packed(input);
    let mut dims: SmallVec<[usize; 6]> = SmallVec::new();
    let mut boxed: SmallVec<[usize; 6]> = SmallVec::new();
    let mut from = Layout { offset: 0, strides: SmallVec::new() };
    for (i, &multiple) in multiples.to_i64s()?.iter().enumerate() {
        let times = usize::try_from(multiple)
            .map_err(|_| Error::invalid(format!("Expected multiples[{i}] >= 0, but got {multiple}")))?;
        let size = input[i];
        dims.push(
            size.checked_mul(times)
                .ok_or_else(|| Error::invalid(format!("{size} repeated {times} times is too large")))?,
        );
        boxed.extend([times, size]);
        from.strides.extend([0, packed.strides[i]]);
    }
    Ok(InputBox { shape: Shape::new(&dims)?, dims: boxed, from })
}

/// The maximum rank of a tensor that can be reversed, like in TensorFlow.
const MOST_REVERSED: usize = 8;

/// Returns the box of input 0 that `ReverseV2` outputs; input 1 has the axes to reverse.
pub fn reverse_axes(ctx: &KernelContext<'_>) -> Result<InputBox> {
    let rank = ctx.shape(0)?.rank();
    if rank > MOST_REVERSED {
        return Err(Error::unimplemented(format!(
            "reverse has no kernel for tensors of rank > {MOST_REVERSED}"
        )));
    }
    let mut reversed = vec![false; rank];
    // The axes are not checked if the tensor is empty, because there is nothing to reverse.
    if rank == 0 || ctx.shape(0)?.num_elements() == 0 {
        return reversed_along(ctx.shape(0)?, &reversed);
    }
    if ctx.input(1)?.shape().rank() != 1 {
        invalid!("'dims' must be 1-dimension, not {}", ctx.input(1)?.shape().rank());
    }
    for (i, &axis) in ctx.input(1)?.to_i64s()?.iter().enumerate() {
        let Some(at) = resolve_axis(axis, rank) else {
            invalid!("'axis'[{i}] = {axis} is out of valid range [0, {}", rank as i64 - 1);
        };
        if std::mem::replace(&mut reversed[at], true) {
            invalid!("axis {at} specified more than once.");
        }
    }
    reversed_along(ctx.shape(0)?, &reversed)
}

/// Returns the box of input 0 that `Reverse` outputs; input 1 has, for each axis, whether the axis is reversed.
pub fn reverse_where(ctx: &KernelContext<'_>) -> Result<InputBox> {
    let (rank, dims) = (ctx.shape(0)?.rank(), ctx.input(1)?);
    match ctx.shape(0)?.first() {
        // A scalar has nothing to reverse.
        None => return reversed_along(ctx.shape(0)?, &[]),
        Some(0) => invalid!("Invalid input first dimension. Found 0."),
        Some(_) => {}
    }
    if dims.shape().rank() != 1 || dims.num_elements() != rank {
        invalid!(
            "'dims' must have the same number of values as 'input' has dimensions. 'input' has {rank}'dims' has {} values",
            dims.num_elements()
        );
    }
    let reversed: Vec<bool> = dims.values::<graph::Bool8>()?.iter().map(|b| b.get()).collect();
    reversed_along(ctx.shape(0)?, &reversed)
}

fn reversed_along(shape: &Shape, reversed: &[bool]) -> Result<InputBox> {
    let mut taken = InputBox::whole(shape.clone());
    let Layout { offset, strides } = &mut taken.from;
    for (i, _) in reversed.iter().enumerate().filter(|(i, r)| **r && shape[*i] > 1) {
        *offset += strides[i] * (shape[i] as isize - 1);
        strides[i] = -strides[i];
    }
    Ok(taken)
}

/// Returns the box of input 0 that `SpaceToDepth` or `DepthToSpace` outputs. In the images with more rows and columns,
/// each image axis consists of the block and the position in the block; in the images with more channels, the depth
/// axis consists of the row in the block, the column in the block and the channel.
pub fn blocks(ctx: &KernelContext<'_>, attrs: BlockAttrs, to_depth: bool) -> Result<InputBox> {
    let shape = ctx.shape(0)?;
    if shape.rank() != 4 {
        invalid!("Input rank should be: 4 instead of: {}", shape.rank());
    }
    let ([h, w, c], b) = (attrs.axes(), attrs.block);
    let square = b.checked_mul(b).ok_or_else(|| Error::invalid(format!("block_size {b} is too large")))?;
    let mut dims = [shape[0]; 4];
    let times = |size: usize, by: usize| {
        size.checked_mul(by).ok_or_else(|| Error::invalid(format!("block_size {b} is too large")))
    };
    if to_depth {
        if shape[h] % b != 0 || shape[w] % b != 0 {
            invalid!(
                "Image width {} and height {} should be divisible by block_size: {b}",
                shape[w],
                shape[h]
            );
        }
        (dims[h], dims[w], dims[c]) = (shape[h] / b, shape[w] / b, times(shape[c], square)?);
    } else {
        if shape[c] % square != 0 {
            invalid!("Input depth dimension {} should be divisible by: {square}", shape[c]);
        }
        (dims[h], dims[w], dims[c]) = (times(shape[h], b)?, times(shape[w], b)?, shape[c] / square);
    }
    let dims = Shape::new(&dims)?;
    if dims.num_elements() == 0 {
        return Ok(InputBox::whole(dims));
    }
    let packed = Layout::packed(shape);
    let (sh, sw, sc) = (packed.strides[h], packed.strides[w], packed.strides[c]);
    let side = b as isize;
    // The parts of each axis of the output, outermost first: the size of the part, and its stride in the input.
    let mut parts: [SmallVec<[(usize, isize); 3]>; 4] = Default::default();
    parts[0].push((shape[0], packed.strides[0]));
    if to_depth {
        parts[h].push((dims[h], sh * side));
        parts[w].push((dims[w], sw * side));
        parts[c].extend([(b, sh), (b, sw), (shape[c], sc)]);
    } else {
        let channels = dims[c] as isize;
        parts[h].extend([(shape[h], sh), (b, side * channels * sc)]);
        parts[w].extend([(shape[w], sw), (b, channels * sc)]);
        parts[c].push((dims[c], sc));
    }
    let boxed: SmallVec<[usize; 6]> = parts.iter().flatten().map(|p| p.0).collect();
    let from = Layout { offset: 0, strides: parts.iter().flatten().map(|p| p.1).collect() };
    Ok(InputBox { shape: dims, dims: boxed, from })
}
