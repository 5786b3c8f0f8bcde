//! Layouts of concatenated and stacked tensors, and of the parts into which tensors are split.

use device::kernel::KernelContext;
use device::{Error, Result, invalid};
use graph::shape::resolve_axis;
use graph::{DType, Shape};
use smallvec::SmallVec;
use std::ops::Range;

/// The layout of a concatenation: each of the `prefix` rows of the result is one row of every input, and `rows` holds
/// the number of elements that each input contributes to a row.
#[derive(Debug)]
pub struct ConcatLayout {
    pub shape: Shape,
    pub prefix: usize,
    pub rows: SmallVec<[usize; 8]>,
}

/// Returns the layout of `values`, inputs that are concatenated along the axis in input `axis`.
pub fn concat_layout(ctx: &KernelContext<'_>, values: Range<usize>, axis: usize) -> Result<ConcatLayout> {
    let axis_input = ctx.input(axis)?;
    // Old clients pass the axis as a vector of one element.
    let (&[axis], 0 | 1) = (axis_input.to_i64s()?.as_slice(), axis_input.shape().rank()) else {
        invalid!(
            "ConcatOp : Concat dim tensor should be a scalar integer, but got shape {}",
            axis_input.shape()
        );
    };
    let first = ctx.shape(values.start)?;
    let rank = first.rank();
    if rank == 0 {
        invalid!("ConcatOp : Can't concatenate scalars (use tf.stack instead)");
    }
    let Some(at) = resolve_axis(axis, rank) else {
        invalid!(
            "ConcatOp : Expected concatenating dimensions in the range [-{rank}, {rank}), but got {axis}"
        );
    };
    let suffix: usize = first[at + 1..].iter().product();
    let mut size = 0usize;
    let mut rows: SmallVec<[usize; 8]> = SmallVec::new();
    for (n, i) in values.enumerate() {
        let shape = ctx.shape(i)?;
        if shape.rank() != rank {
            invalid!(
                "ConcatOp : Ranks of all input tensors should match: shape[0] = {first} vs. shape[{n}] = {shape}"
            );
        }
        if let Some(d) = (0..rank).find(|&d| d != at && shape[d] != first[d]) {
            invalid!(
                "ConcatOp : Dimension {d} in both shapes must be equal: shape[0] = {first} vs. shape[{n}] = {shape}"
            );
        }
        size = size
            .checked_add(shape[at])
            .ok_or_else(|| Error::invalid("ConcatOp : the result is too large"))?;
        rows.push(shape[at] * suffix);
    }
    let mut dims: SmallVec<[usize; 6]> = first.dims().into();
    dims[at] = size;
    Ok(ConcatLayout { shape: Shape::new(&dims)?, prefix: first[..at].iter().product(), rows })
}

/// Returns the layout of all inputs stacked along a new axis.
pub fn stack_layout(ctx: &KernelContext<'_>, axis: i64) -> Result<ConcatLayout> {
    let first = ctx.shape(0)?;
    let (rank, count) = (first.rank() + 1, ctx.num_inputs());
    let Some(at) = resolve_axis(axis, rank) else {
        invalid!("axis = {axis} not in [-{rank}, {rank})");
    };
    for i in 1..count {
        let shape = ctx.shape(i)?;
        if shape != first {
            invalid!(
                "Shapes of all inputs must match: values[0].shape = {first} != values[{i}].shape = {shape}"
            );
        }
    }
    let mut dims: SmallVec<[usize; 6]> = first.dims().into();
    dims.insert(at, count);
    let (prefix, row) = (first[..at].iter().product(), first[at..].iter().product());
    Ok(ConcatLayout { shape: Shape::new(&dims)?, prefix, rows: SmallVec::from_elem(row, count) })
}

/// A split of a tensor along an axis: output `n` takes `sizes[n]` indices of the axis.
#[derive(Debug)]
pub struct SplitPlan {
    /// The index of the input that is split.
    pub input: usize,
    pub at: usize,
    pub sizes: SmallVec<[usize; 8]>,
    /// Set if the outputs lack the split axis; each output then takes one index of it.
    pub(crate) drops_axis: bool,
}

impl SplitPlan {
    /// Returns the shape of an output that takes `size` indices of the axis of a tensor of shape `whole`.
    pub fn shape(&self, whole: &Shape, size: usize) -> Result<Shape> {
        let mut dims: SmallVec<[usize; 6]> = whole.dims().into();
        match self.drops_axis {
            true => drop(dims.remove(self.at)),
            false => dims[self.at] = size,
        }
        Ok(Shape::new(&dims)?)
    }
}

/// Returns the split of input 0 by `Unpack` along `axis`.
pub fn split_plan(ctx: &KernelContext<'_>, axis: i64) -> Result<SplitPlan> {
    let shape = ctx.shape(0)?;
    let (rank, num) = (shape.rank(), ctx.num_outputs());
    let Some(at) = resolve_axis(axis, rank) else {
        invalid!("axis = {axis} not in [{}, {rank})", -(rank as i64));
    };
    if shape[at] != num {
        invalid!("Input shape axis {at} must equal {num}, got shape {shape}");
    }
    Ok(SplitPlan { input: 0, at, sizes: SmallVec::from_elem(1, num), drops_axis: true })
}

/// Returns the axis, given by input `axis`, along which input `value` is split.
fn split_axis(ctx: &KernelContext<'_>, value: usize, axis: usize) -> Result<usize> {
    let &[axis] = ctx.input(axis)?.to_i64s()?.as_slice() else {
        invalid!("split_dim_tensor must have exactly one element.");
    };
    let rank = ctx.shape(value)?.rank();
    resolve_axis(axis, rank).ok_or_else(|| {
        Error::invalid(format!("-input rank(-{rank}) <= split_dim < input rank ({rank}), but got {axis}"))
    })
}

/// Returns the plan of `Split`, which splits input 1 into equal parts.
pub fn split(ctx: &KernelContext<'_>) -> Result<SplitPlan> {
    ctx.scalar(0, "split_dim")?;
    let at = split_axis(ctx, 1, 0)?;
    let (size, num) = (ctx.shape(1)?[at], ctx.num_outputs());
    if num == 0 || size % num != 0 {
        invalid!(
            "Number of ways to split should evenly divide the split dimension, but got split_dim {at} (size = {size}) and num_split {num}"
        );
    }
    Ok(SplitPlan { input: 1, at, sizes: SmallVec::from_elem(size / num, num), drops_axis: false })
}

/// Returns the plan of `SplitV`, which splits input 0 into parts of the sizes in input 1, one of which may be -1.
pub fn split_v(ctx: &KernelContext<'_>) -> Result<SplitPlan> {
    let at = split_axis(ctx, 0, 2)?;
    let requested = ctx.input(1)?;
    let num = ctx.num_outputs();
    if requested.shape().rank() != 1 || requested.num_elements() != num {
        invalid!(
            "size of the split_tensor must be 1-D and have the same elements as outputs got {} -D and {} elements",
            requested.shape().rank(),
            requested.num_elements()
        );
    }
    let requested = match requested.dtype() {
        DType::Int8 => requested.values::<i8>()?.iter().map(|&s| s.into()).collect(),
        _ => requested.to_i64s()?,
    };
    let size = ctx.shape(0)?[at];
    if let [single] = requested[..]
        && single != size as i64
    {
        invalid!(
            "If there is only one output, it must have the same size as the input. Input size: {size} output size: {single}"
        );
    }
    let mut open = None;
    let mut determined = 0usize;
    let mut sizes: SmallVec<[usize; 8]> = SmallVec::new();
    for (i, &s) in requested.iter().enumerate() {
        if s == -1 {
            if open.replace(i).is_some() {
                invalid!("There can only be one -1 in the input.");
            }
            sizes.push(0);
            continue;
        }
        let s = usize::try_from(s)
            .map_err(|_| Error::invalid(format!("Split size at index {i} must be >= 0. Got: {s}")))?;
        determined = determined.saturating_add(s);
        sizes.push(s);
    }
    if determined > size || (open.is_none() && determined != size) {
        invalid!(
            "Determined shape must either match input shape along split_dim exactly if fully specified, or be less than the size of the input along split_dim if not fully specified.  Got: {determined}"
        );
    }
    if let Some(open) = open {
        sizes[open] = size - determined;
    }
    Ok(SplitPlan { input: 0, at, sizes, drops_axis: false })
}
