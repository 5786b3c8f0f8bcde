//! Layouts of slices that are read or assigned.

use crate::numeric::strided::{InputBox, Layout};
use device::kernel::KernelContext;
use device::{Result, invalid};
use graph::Shape;
use graph::ops::slice::{SlicePlan, StridedSliceAttrs};
use smallvec::SmallVec;

/// Returns the box of input 0 that `Slice` outputs; inputs 1 and 2 are the begin and the size along each axis.
pub fn slice(ctx: &KernelContext<'_>) -> Result<InputBox> {
    let (shape, begin, size) = (ctx.shape(0)?, ctx.input(1)?, ctx.input(2)?);
    let rank = shape.rank();
    if begin.shape().dims() != [rank] || size.shape().dims() != [rank] {
        invalid!(
            "Expected begin and size arguments to be 1-D tensors of size {rank}, but got shapes {} and {} instead.",
            begin.shape(),
            size.shape()
        );
    }
    let (begin, size) = (begin.to_i64s()?, size.to_i64s()?);
    let mut from = Layout::packed(shape);
    let mut dims: SmallVec<[usize; 6]> = SmallVec::with_capacity(rank);
    for i in 0..rank {
        let dim = shape[i] as i64;
        if begin[i] < 0 || begin[i] > dim {
            invalid!("Expected begin[{i}] in [0, {dim}], but got {}", begin[i]);
        }
        let rest = dim - begin[i];
        let taken = if size[i] == -1 { rest } else { size[i] };
        if taken < 0 || taken > rest {
            invalid!("Expected size[{i}] in [0, {rest}], but got {taken}");
        }
        dims.push(taken as usize);
        from.offset += begin[i] as isize * from.strides[i];
    }
    Ok(InputBox { shape: Shape::new(&dims)?, dims, from })
}

/// Returns the plan of a strided slice of a tensor of shape `shape`; inputs `at`, `at + 1` and `at + 2` are its begins,
/// ends and strides.
pub fn plan(
    ctx: &KernelContext<'_>,
    attrs: StridedSliceAttrs,
    at: usize,
    shape: &[usize],
) -> Result<SlicePlan> {
    let (begin, end, strides) = (ctx.input(at)?, ctx.input(at + 1)?, ctx.input(at + 2)?);
    if [begin, end, strides].iter().any(|t| t.shape().rank() != 1) {
        invalid!(
            "Expected begin, end, and strides to be 1D equal size tensors, but got shapes {}, {}, and {} instead.",
            begin.shape(),
            end.shape(),
            strides.shape()
        );
    }
    Ok(attrs.plan(shape, &begin.to_i64s()?, &end.to_i64s()?, &strides.to_i64s()?)?)
}

/// Returns the dimensions and the layout of the elements that the slice takes from a tensor of shape `shape`.
pub fn layout(plan: &SlicePlan, shape: &[usize]) -> (SmallVec<[usize; 6]>, Layout) {
    let mut layout = Layout::packed(shape);
    let mut dims: SmallVec<[usize; 6]> = SmallVec::with_capacity(shape.len());
    for (i, axis) in plan.axes.iter().enumerate() {
        dims.push(axis.size);
        layout.offset = layout.offset.wrapping_add((axis.begin as isize).wrapping_mul(layout.strides[i]));
        // The stride along an axis of one element is set to 0, because the client's stride has no effect there and may
        // be huge.
        layout.strides[i] = if axis.size > 1 { layout.strides[i] * axis.stride as isize } else { 0 };
    }
    (dims, layout)
}

/// Returns the box of input 0 that `StridedSlice` outputs.
pub fn strided_slice(ctx: &KernelContext<'_>, attrs: StridedSliceAttrs) -> Result<InputBox> {
    let shape = ctx.shape(0)?;
    let plan = plan(ctx, attrs, 1, shape)?;
    let (dims, from) = layout(&plan, shape);
    Ok(InputBox { shape: Shape::new(&plan.shape)?, dims, from })
}

/// The layouts of a copy of input 4 into a slice of a tensor.
#[derive(Debug)]
pub struct SliceAssignment {
    pub dims: SmallVec<[usize; 6]>,
    pub from: Layout,
    pub to: Layout,
}

/// Returns the layouts of the copy of input 4 into a slice of a tensor of shape `shape`, broadcast along axes of size
/// 1; `None` if the slice is empty.
pub fn slice_assignment(
    ctx: &KernelContext<'_>,
    attrs: StridedSliceAttrs,
    shape: &Shape,
) -> Result<Option<SliceAssignment>> {
    let plan = plan(ctx, attrs, 1, shape)?;
    let (_, box_layout) = layout(&plan, shape);
    // There is nothing to copy into an empty slice.
    if plan.shape.contains(&0) {
        return Ok(None);
    }
    let given = ctx.shape(4)?;
    // The axes of the value correspond to the axes of the slice, counted from the last axis; surplus leading axes of
    // size 1 are dropped.
    let extra = given.rank().saturating_sub(plan.shape.len());
    let extra = given.iter().take(extra).take_while(|&&d| d == 1).count();
    let given = Shape::new(&given[extra..])?;
    let missing = plan.shape.len().checked_sub(given.rank());
    let fits = missing.is_some_and(|missing| {
        plan.shape[missing..].iter().zip(given.iter()).all(|(&to, &from)| from == to || from == 1)
    });
    let (Some(missing), true) = (missing, fits) else {
        invalid!(
            "Expected updates of shape {} to broadcast to the slice's shape {}",
            given,
            Shape::new(&plan.shape)?
        );
    };
    let packed = Layout::packed(&given);
    let from = plan.shape.iter().enumerate().map(|(axis, _)| match axis.checked_sub(missing) {
        Some(i) if given[i] != 1 => packed.strides[i],
        _ => 0,
    });
    let to = plan.sources.iter().map(|source| source.map_or(0, |i| box_layout.strides[i]));
    Ok(Some(SliceAssignment {
        dims: plan.shape.iter().copied().collect(),
        from: Layout { offset: 0, strides: from.collect() },
        to: Layout { offset: box_layout.offset, strides: to.collect() },
    }))
}
