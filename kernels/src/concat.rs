//! Concatenating, stacking, splitting and unstacking tensors along an axis.

use super::slice::{TakeFn, take_fn};
use crate::numeric::copied::{COPIED, CopiedElement, copied};
use crate::numeric::dispatch::INDEX;
use crate::numeric::strided::{InputBox, Layout, copy};
use crate::plan::concat::{ConcatLayout, SplitPlan, concat_layout, split, split_plan, split_v, stack_layout};
use device::kernel::{Kernel, KernelContext, KernelDef};
use device::{Error, Result, invalid};
use graph::shape::resolve_axis;
use graph::{DType, PartialShape, Shape, Tensor};
use std::ops::Range;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("ConcatV2", &[("T", COPIED), ("Tidx", INDEX)], |init| {
        let join = join_fn(init.output_type(0))?;
        Kernel::sync(move |ctx| {
            let count = ctx.num_inputs() - 1;
            concat(ctx, 0..count, count, join)
        })
    }),
    KernelDef::of("Concat", &[("T", COPIED)], |init| {
        let join = join_fn(init.output_type(0))?;
        Kernel::sync(move |ctx| {
            let count = ctx.num_inputs();
            concat(ctx, 1..count, 0, join)
        })
    }),
    KernelDef::of("ConcatOffset", &[("shape_type", INDEX)], |init| {
        let dtype = init.output_type(0);
        Kernel::sync(move |ctx| concat_offset(ctx, dtype))
    }),
    KernelDef::of("Pack", &[("T", COPIED)], |init| {
        let (axis, join) = (init.attr::<i64>("axis")?, join_fn(init.output_type(0))?);
        Kernel::sync(move |ctx| stack(ctx, axis, join))
    }),
    KernelDef::of("ParallelConcat", &[("T", COPIED)], |init| {
        let (shape, join) = (init.attr::<PartialShape>("shape")?, join_fn(init.output_type(0))?);
        Kernel::sync(move |ctx| parallel_concat(ctx, &shape, join))
    }),
    KernelDef::of("Unpack", &[("T", COPIED)], |init| {
        let (axis, take) = (init.attr::<i64>("axis")?, take_fn(init.input_type(0))?);
        Kernel::sync(move |ctx| cut(ctx, &split_plan(ctx, axis)?, take))
    }),
    KernelDef::of("Split", &[("T", COPIED)], |init| {
        let take = take_fn(init.input_type(1))?;
        Kernel::sync(move |ctx| cut(ctx, &split(ctx)?, take))
    }),
    KernelDef::of("SplitV", &[("T", COPIED), ("Tlen", &[DType::Int8, DType::Int32, DType::Int64])], |init| {
        let take = take_fn(init.input_type(0))?;
        Kernel::sync(move |ctx| cut(ctx, &split_v(ctx)?, take))
    }),
];

/// A function that concatenates a range of inputs by a layout; see [`join`].
type JoinFn = fn(&KernelContext<'_>, Range<usize>, ConcatLayout) -> Result<Tensor>;

fn join_fn(dtype: DType) -> Result<JoinFn> {
    copied!(dtype, E => Ok(join::<E> as JoinFn))
}

/// Concatenates inputs row by row: each of the `prefix` rows of the result is one row of every input, and input `i`
/// contributes `rows[i]` elements to each row.
fn join<E: CopiedElement>(
    ctx: &KernelContext<'_>,
    inputs: Range<usize>,
    ConcatLayout { shape, prefix, rows }: ConcatLayout,
) -> Result<Tensor> {
    let dtype = ctx.input(inputs.start)?.dtype();
    let total: usize = rows.iter().sum();
    E::build(dtype, shape, |out| {
        let mut offset = 0;
        for (i, &row) in inputs.zip(&rows) {
            let dims = [prefix, row];
            let to = Layout { offset, strides: [total as isize, 1].as_slice().into() };
            copy(&dims, E::view(ctx.input(i)?)?, &Layout::packed(&dims), out, &to)?;
            offset += row as isize;
        }
        Ok(())
    })
}

/// `ParallelConcat`: concatenates inputs of one row each, which together have the given shape.
fn parallel_concat(ctx: &mut KernelContext<'_>, shape: &PartialShape, join: JoinFn) -> Result<()> {
    let count = ctx.num_inputs();
    for i in 0..count {
        let row = ctx.shape(i)?;
        if row.first() != Some(&1) {
            invalid!("Size of first dimension must be 1, but input {i} has the shape {row}");
        }
        let whole = [&[count], &row[1..]].concat();
        if !shape.accepts(&Shape::new(&whole)?) {
            invalid!("input {i} of shape {row} is not a row of the shape {shape} of {count} inputs");
        }
    }
    let shape = Shape::new(&[&[count], &ctx.shape(0)?[1..]].concat())?;
    let row = shape.num_elements() / count;
    let out = join(
        ctx,
        0..count,
        ConcatLayout { shape, prefix: 1, rows: std::iter::repeat_n(row, count).collect() },
    )?;
    ctx.set_output(0, out);
    Ok(())
}

fn concat(ctx: &mut KernelContext<'_>, values: Range<usize>, axis: usize, join: JoinFn) -> Result<()> {
    let layout = concat_layout(ctx, values.clone(), axis)?;
    let rows = &layout.rows;
    // If only one input has elements, the result is that input.
    if let Some(n) = rows.iter().position(|&r| r > 0)
        && rows[n + 1..].iter().all(|&r| r == 0)
    {
        let out = ctx.take_input(values.start + n)?;
        ctx.set_output(0, out);
        return Ok(());
    }
    let out = join(ctx, values, layout)?;
    ctx.set_output(0, out);
    Ok(())
}

/// `ConcatOffset`: outputs the offset of each input in the concatenation of all inputs.
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
        // The sizes come from the client, not from existing tensors, so their sum may overflow; the addition wraps.
        offset = offset.wrapping_add(sizes[at]);
    }
    Ok(())
}

fn stack(ctx: &mut KernelContext<'_>, axis: i64, join: JoinFn) -> Result<()> {
    let layout = stack_layout(ctx, axis)?;
    let out = match ctx.num_inputs() {
        1 => ctx.take_input(0)?.reshaped(layout.shape)?,
        count => join(ctx, 0..count, layout)?,
    };
    ctx.set_output(0, out);
    Ok(())
}

/// Sets each output to its part of the input that is split; `take` copies a part.
fn cut(ctx: &mut KernelContext<'_>, cut: &SplitPlan, take: TakeFn) -> Result<()> {
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
        let part = InputBox { shape: cut.shape(&shape, size)?, dims: [prefix, row].as_slice().into(), from };
        let out = take(&input, part)?;
        ctx.set_output(n, out);
        offset += row as isize;
    }
    Ok(())
}
