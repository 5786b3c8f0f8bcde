//! Concatenating, stacking, splitting and unstacking tensors along an axis.

use crate::numeric::dispatch::INDEX;
use crate::numeric::moved::{MOVED, Moved, moved};
use crate::numeric::strided::{Layout, copy, pack};
use device::invalid;
use device::kernel::{Kernel, KernelContext, KernelDef};
use device::{Error, Result};
use graph::shape::resolve_axis;
use graph::{DType, Shape, Tensor};
use smallvec::SmallVec;
use std::ops::Range;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("ConcatV2", &[("T", MOVED), ("Tidx", INDEX)], |init| {
        moved!(init.output_type(0), E => Kernel::sync(|ctx| {
            let count = ctx.num_inputs() - 1;
            concat::<E>(ctx, 0..count, count)
        }))
    }),
    KernelDef::of("Concat", &[("T", MOVED)], |init| {
        moved!(init.output_type(0), E => Kernel::sync(|ctx| {
            let count = ctx.num_inputs();
            concat::<E>(ctx, 1..count, 0)
        }))
    }),
    KernelDef::of("ConcatOffset", &[("shape_type", INDEX)], |init| {
        let dtype = init.output_type(0);
        Kernel::sync(move |ctx| concat_offset(ctx, dtype))
    }),
    KernelDef::of("Pack", &[("T", MOVED)], |init| {
        let axis: i64 = init.attr("axis")?;
        moved!(init.output_type(0), E => Kernel::sync(move |ctx| stack::<E>(ctx, axis)))
    }),
    KernelDef::of("Unpack", &[("T", MOVED)], |init| {
        let axis: i64 = init.attr("axis")?;
        moved!(init.input_type(0), E => Kernel::sync(move |ctx| cut::<E>(ctx, &unstacked(ctx, axis)?)))
    }),
    KernelDef::of(
        "Split",
        &[("T", MOVED)],
        |init| moved!(init.input_type(1), E => Kernel::sync(|ctx| cut::<E>(ctx, &split(ctx)?))),
    ),
    KernelDef::of(
        "SplitV",
        &[("T", MOVED), ("Tlen", &[DType::Int8, DType::Int32, DType::Int64])],
        |init| moved!(init.input_type(0), E => Kernel::sync(|ctx| cut::<E>(ctx, &split_v(ctx)?))),
    ),
];

/// Joins inputs row by row: each of the `prefix` rows of the result is one row of every input, and input `i`
/// contributes `rows[i]` elements to each row.
fn join<E: Moved>(
    ctx: &KernelContext<'_>,
    inputs: Range<usize>,
    shape: Shape,
    prefix: usize,
    rows: &[usize],
) -> Result<Tensor> {
    let dtype = ctx.input(inputs.start)?.dtype();
    let total: usize = rows.iter().sum();
    E::build(dtype, shape, |out| {
        let mut offset = 0;
        for (i, &row) in inputs.zip(rows) {
            let dims = [prefix, row];
            let to = Layout { offset, strides: [total as isize, 1].as_slice().into() };
            copy(&dims, E::view(ctx.input(i)?)?, &Layout::packed(&dims), out, &to)?;
            offset += row as isize;
        }
        Ok(())
    })
}

/// The layout of a concatenation: each of the `prefix` rows of the result is one row of every input, and `rows`
/// holds the elements that each input contributes to a row.
#[derive(Debug)]
pub struct Joined {
    pub shape: Shape,
    pub prefix: usize,
    pub rows: SmallVec<[usize; 8]>,
}

/// Returns the layout of `values`, inputs that are concatenated along the axis in input `axis`.
pub fn concatenated(ctx: &KernelContext<'_>, values: Range<usize>, axis: usize) -> Result<Joined> {
    let axis_input = ctx.input(axis)?;
    // Old clients send the axis as a vector of one element.
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
    Ok(Joined { shape: Shape::new(&dims)?, prefix: first[..at].iter().product(), rows })
}

fn concat<E: Moved>(ctx: &mut KernelContext<'_>, values: Range<usize>, axis: usize) -> Result<()> {
    let Joined { shape, prefix, rows } = concatenated(ctx, values.clone(), axis)?;
    // An input that alone makes up the result is passed on.
    if let Some(n) = rows.iter().position(|&r| r > 0)
        && rows[n + 1..].iter().all(|&r| r == 0)
    {
        let out = ctx.take_input(values.start + n)?;
        ctx.set_output(0, out);
        return Ok(());
    }
    let out = join::<E>(ctx, values, shape, prefix, &rows)?;
    ctx.set_output(0, out);
    Ok(())
}

/// `ConcatOffset`: outputs the offset of each input within their concatenation.
fn concat_offset(ctx: &mut KernelContext<'_>, dtype: DType) -> Result<()> {
    let (&[axis], 0) = (ctx.input(0)?.to_i64s()?.as_slice(), ctx.input(0)?.shape().rank()) else {
        invalid!("Concat dim tensor should be a scalar integer, but got shape {}", ctx.input(0)?.shape());
    };
    let first = ctx.input(1)?.to_i64s()?;
    let rank = first.len();
    let Some(at) = resolve_axis(axis, rank) else {
        invalid!("Concat dim is out of range: {axis} vs. {rank}");
    };
    let text = |sizes: &[i64]| sizes.iter().map(i64::to_string).collect::<Vec<_>>().join(" ");
    let mut offset = 0i64;
    for i in 1..ctx.num_inputs() {
        let sizes = ctx.input(i)?;
        if sizes.shape().rank() != 1 {
            invalid!("input {} should be a vector, but got shape {}", i - 1, sizes.shape());
        }
        let sizes = sizes.to_i64s()?;
        if sizes.len() != rank {
            invalid!("input {} should contain {rank} elements, but got {}", i - 1, sizes.len());
        }
        if (0..rank).any(|d| d != at && sizes[d] != first[d]) {
            invalid!(
                "All dimensions except {at} must match. Input {} has shape [{}] and doesn't match input 0 with shape [{}].",
                i - 1,
                text(&sizes),
                text(&first)
            );
        }
        let mut out = vec![0i64; rank];
        out[at] = offset;
        let out = match dtype {
            DType::Int64 => Tensor::vector(&out)?,
            _ => {
                let narrow: Result<Vec<i32>, _> = out.iter().map(|&v| i32::try_from(v)).collect();
                Tensor::vector(&narrow.map_err(|_| Error::invalid("offset does not fit int32"))?)?
            }
        };
        ctx.set_output(i - 1, out);
        // The sizes are untrusted numbers, not those of a tensor, so the sum may wrap.
        offset = offset.wrapping_add(sizes[at]);
    }
    Ok(())
}

/// Returns the layout of all inputs stacked along a new axis.
pub fn stacked(ctx: &KernelContext<'_>, axis: i64) -> Result<Joined> {
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
    Ok(Joined { shape: Shape::new(&dims)?, prefix, rows: SmallVec::from_elem(row, count) })
}

fn stack<E: Moved>(ctx: &mut KernelContext<'_>, axis: i64) -> Result<()> {
    let Joined { shape, prefix, rows } = stacked(ctx, axis)?;
    let out = match ctx.num_inputs() {
        1 => ctx.take_input(0)?.reshaped(shape)?,
        count => join::<E>(ctx, 0..count, shape, prefix, &rows)?,
    };
    ctx.set_output(0, out);
    Ok(())
}

/// A split of a tensor along an axis: output `n` takes `sizes[n]` indices of the axis.
#[derive(Debug)]
pub struct Cut {
    /// The number of the input that is split.
    pub input: usize,
    pub at: usize,
    pub sizes: SmallVec<[usize; 8]>,
    /// Set if the outputs lack the axis, which has size 1 in each part.
    pub(crate) drops_axis: bool,
}

impl Cut {
    /// Returns the shape of an output that takes `size` indices of the axis.
    pub fn shape(&self, whole: &Shape, size: usize) -> Result<Shape> {
        let mut dims: SmallVec<[usize; 6]> = whole.dims().into();
        match self.drops_axis {
            true => drop(dims.remove(self.at)),
            false => dims[self.at] = size,
        }
        Ok(Shape::new(&dims)?)
    }
}

/// Sets the outputs to the parts of a split.
fn cut<E: Moved>(ctx: &mut KernelContext<'_>, cut: &Cut) -> Result<()> {
    let input = ctx.take_input(cut.input)?;
    let shape = input.shape().clone();
    if let [size] = cut.sizes[..] {
        let out = input.reshaped(cut.shape(&shape, size)?)?;
        ctx.set_output(0, out);
        return Ok(());
    }
    let prefix: usize = shape[..cut.at].iter().product();
    let suffix: usize = shape[cut.at + 1..].iter().product();
    let total = shape[cut.at] * suffix;
    let mut offset = 0;
    for (n, &size) in cut.sizes.iter().enumerate() {
        let row = size * suffix;
        let from = Layout { offset, strides: [total as isize, 1].as_slice().into() };
        let out = E::build(input.dtype(), cut.shape(&shape, size)?, |out| {
            pack(&[prefix, row], E::view(&input)?, &from, out)
        })?;
        ctx.set_output(n, out);
        offset += row as isize;
    }
    Ok(())
}

/// Returns the split of `Unpack`.
pub fn unstacked(ctx: &KernelContext<'_>, axis: i64) -> Result<Cut> {
    let shape = ctx.shape(0)?;
    let (rank, num) = (shape.rank(), ctx.num_outputs());
    let Some(at) = resolve_axis(axis, rank) else {
        invalid!("axis = {axis} not in [{}, {rank})", -(rank as i64));
    };
    if shape[at] != num {
        invalid!("Input shape axis {at} must equal {num}, got shape {shape}");
    }
    Ok(Cut { input: 0, at, sizes: SmallVec::from_elem(1, num), drops_axis: true })
}

/// Returns the axis in input `axis`, along which input `value` is split.
fn split_axis(ctx: &KernelContext<'_>, value: usize, axis: usize) -> Result<usize> {
    let &[axis] = ctx.input(axis)?.to_i64s()?.as_slice() else {
        invalid!("split_dim_tensor must have exactly one element.");
    };
    let rank = ctx.shape(value)?.rank();
    resolve_axis(axis, rank).ok_or_else(|| {
        Error::invalid(format!("-input rank(-{rank}) <= split_dim < input rank ({rank}), but got {axis}"))
    })
}

/// Returns the split of `Split`, into equal parts.
pub fn split(ctx: &KernelContext<'_>) -> Result<Cut> {
    ctx.scalar(0, "split_dim")?;
    let at = split_axis(ctx, 1, 0)?;
    let (size, num) = (ctx.shape(1)?[at], ctx.num_outputs());
    if num == 0 || size % num != 0 {
        invalid!(
            "Number of ways to split should evenly divide the split dimension, but got split_dim {at} (size = {size}) and num_split {num}"
        );
    }
    Ok(Cut { input: 1, at, sizes: SmallVec::from_elem(size / num, num), drops_axis: false })
}

/// Returns the split of `SplitV`, into parts of the sizes in input 1, of which one may be -1.
pub fn split_v(ctx: &KernelContext<'_>) -> Result<Cut> {
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
    Ok(Cut { input: 0, at, sizes, drops_axis: false })
}
