//! Kernels that make sparse tensors dense, or sort, reshape, concatenate, split or slice them.

use super::coo::{Coo, check_sorted, joined, matrix, picked, text};
use crate::numeric::copied::{CopiedElement, copied};
use crate::plan::sparse::dense_shape;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result, invalid};
use graph::shape::resolve_axis;
use graph::{Shape, Tensor};

pub(super) fn to_dense(init: &KernelInit<'_>) -> Result<Kernel> {
    let validate = init.attr::<bool>("validate_indices")?;
    copied!(init.output_type(0), E => Kernel::sync(move |ctx| dense::<E>(ctx, validate)))
}

fn dense<E: CopiedElement>(ctx: &mut KernelContext<'_>, validate: bool) -> Result<()> {
    let (count, shape) = dense_shape(ctx)?;
    let (indices, values, default) = (ctx.input(0)?, ctx.input(2)?, ctx.input(3)?);
    let (rank, dims) = (shape.rank(), ctx.input(1)?.to_i64s()?);
    let indices = indices.to_i64s()?;
    let rows = || (0..count).map(|i| &indices[i * rank..(i + 1) * rank]);
    if validate {
        check_sorted(rows(), &dims)?;
    }
    let mut places = Vec::with_capacity(count);
    for index in rows() {
        let place = index
            .iter()
            .zip(&dims)
            .try_fold(0usize, |at, (&i, &d)| (0..d).contains(&i).then(|| at * d as usize + i as usize));
        match place {
            Some(place) => places.push(place),
            None => invalid!("Indices are not valid (out of bounds).  Shape: {}", text(&dims)),
        }
    }
    let out = E::build(values.dtype(), shape, |out| {
        let (values, default) = (E::view(values)?, &E::view(default)?[0]);
        out.fill(default.clone());
        for (i, &place) in places.iter().enumerate() {
            out[place].clone_from(if values.len() == 1 { &values[0] } else { &values[i] });
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    Ok(())
}

pub(super) fn reorder(ctx: &mut KernelContext<'_>) -> Result<()> {
    let coo = Coo::with_any_sizes(ctx.input(0)?, ctx.input(1)?, ctx.input(2)?)?;
    let axes: Vec<usize> = (0..coo.rank()).collect();
    let order = coo.order_by(&axes);
    let rows: Vec<i64> = order.iter().flat_map(|&i| coo.index(i)).copied().collect();
    let (indices, values) = (matrix(&rows, coo.rank(), coo.len())?, picked(coo.values, &order)?);
    ctx.set_output(0, indices);
    ctx.set_output(1, values);
    Ok(())
}

pub(super) fn reshape(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (indices, from, to) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let [count, rank] = *indices.shape().dims() else {
        invalid!("Input indices should be a matrix but received shape {}", indices.shape());
    };
    for (name, shape) in [("Input", from.shape()), ("Target", to.shape())] {
        if shape.rank() != 1 {
            invalid!("{name} shape should be a vector but received shape {shape}");
        }
    }
    let from = from.to_i64s()?;
    if from.len() != rank {
        invalid!("Input tensor rank must match input shape length.");
    }
    let size = Shape::from_i64(&from)?.num_elements() as i64;
    let mut to = to.to_i64s()?;
    let mut product = 1i64;
    let mut unknown = None;
    for (i, &d) in to.iter().enumerate() {
        match d {
            -1 if unknown.is_some() => invalid!("only one output dimension may be -1"),
            -1 => unknown = Some(i),
            d if d < 0 => invalid!("size {i} must be non-negative, not {d}"),
            d => match product.checked_mul(d) {
                Some(p) => product = p,
                None => invalid!("the sizes {} overflow", text(&to)),
            },
        }
    }
    if let Some(unknown) = unknown {
        if product == 0 {
            invalid!(
                "reshape cannot infer the missing input size for an empty tensor unless all specified \
                input sizes are non-zero"
            );
        }
        if size % product != 0 {
            invalid!(
                "Input to reshape is a SparseTensor with {size} dense values, but the requested shape \
                requires a multiple of {product}. input_shape={} output_shape={}",
                text(&from),
                text(&to)
            );
        }
        to[unknown] = size / product;
        product = size;
    }
    if product != size {
        invalid!(
            "Input to reshape is a tensor with {size} dense values, but the requested shape has {product}. \
            input_shape={} output_shape={}",
            text(&from),
            text(&to)
        );
    }
    if size == 0 && count > 0 {
        invalid!("Input tensor has {count} non zero elements but input shape {} is empty", text(&from));
    }
    let rows = indices.values::<i64>()?;
    let (from, strides) = (strides(&from), strides(&to));
    let mut out = Vec::with_capacity(count * to.len());
    for i in 0..count {
        // Indices outside the shape are converted without a check, so their linear index may be out of range.
        let index = rows[i * rank..(i + 1) * rank].iter().zip(&from);
        let mut at = index.fold(0i64, |at, (&i, &stride)| at.wrapping_add(i.wrapping_mul(stride)));
        for &stride in &strides {
            out.push(at / stride);
            at %= stride;
        }
    }
    let (indices, shape) = (matrix(&out, to.len(), count)?, Tensor::vector(&to)?);
    ctx.set_output(0, indices);
    ctx.set_output(1, shape);
    Ok(())
}

/// Returns the row-major strides of a shape; each is at least 1.
fn strides(shape: &[i64]) -> Vec<i64> {
    let inner = |axis: usize| shape[axis + 1..].iter().fold(1i64, |n, &d| n.saturating_mul(d.max(1)));
    (0..shape.len()).map(inner).collect()
}

pub(super) fn concat(init: &KernelInit<'_>) -> Result<Kernel> {
    let axis: i64 = init.attr("concat_dim")?;
    let count = init.attr::<i64>("N")? as usize;
    Kernel::sync(move |ctx| {
        let mut parts = Vec::with_capacity(count);
        for i in 0..count {
            parts.push(Coo::new(ctx.input(i)?, ctx.input(count + i)?, ctx.input(2 * count + i)?)?);
        }
        let rank = parts[0].rank();
        let Some(axis) = resolve_axis(axis, rank) else {
            invalid!("Concat dimension must be in range [-{rank}, {rank}), got {axis}");
        };
        let mut shape = parts[0].shape.clone();
        let (mut rows, mut offset) = (Vec::new(), 0i64);
        for (i, part) in parts.iter().enumerate() {
            let fits =
                part.rank() == rank && (0..rank).all(|d| d == axis || part.shape[d] == parts[0].shape[d]);
            if !fits {
                invalid!(
                    "Concat shapes must match except for the concat dimension {axis}: input 0 has {}, input {i} \
                     has {}",
                    text(&parts[0].shape),
                    text(&part.shape)
                );
            }
            for index in part.rows() {
                let start = rows.len();
                rows.extend_from_slice(index);
                rows[start + axis] = rows[start + axis].wrapping_add(offset);
            }
            match offset.checked_add(part.shape[axis]) {
                Some(sum) => offset = sum,
                None => invalid!("the sizes of dimension {axis} overflow"),
            }
        }
        shape[axis] = offset;
        let values = joined(&parts.iter().map(|p| p.values).collect::<Vec<_>>())?;
        let (indices, shape) = (matrix(&rows, rank, values.num_elements())?, Tensor::vector(&shape)?);
        let whole = Coo::new(&indices, &values, &shape)?;
        let order = whole.order_by(&(0..rank).collect::<Vec<_>>());
        let rows: Vec<i64> = order.iter().flat_map(|&i| whole.index(i)).copied().collect();
        let (sorted, values) = (matrix(&rows, rank, order.len())?, picked(&values, &order)?);
        ctx.set_output(0, sorted);
        ctx.set_output(1, values);
        ctx.set_output(2, shape);
        Ok(())
    })
}

pub(super) fn split(init: &KernelInit<'_>) -> Result<Kernel> {
    let count: i64 = init.attr("num_split")?;
    Kernel::sync(move |ctx| {
        let axis = ctx.scalar(0, "split_dim")?.to_i64s()?[0];
        let coo = Coo::of(ctx, 1)?;
        coo.check_bounds()?;
        let rank = coo.rank();
        let Some(at) = resolve_axis(axis, rank) else {
            invalid!("Input axis should be in range [-{rank}, {rank}), got {axis}");
        };
        let size = coo.shape[at];
        if count < 1 || count > size {
            invalid!(
                "Input num_split should be between 1 and the splitting dimension size ({size}), got {count}"
            );
        }
        // If the size does not divide evenly, the first parts are one index longer than the others.
        let (each, more) = (size / count, size % count);
        let start = |part: i64| part * each + part.min(more);
        let part_of = |i: i64| match i < more * (each + 1) {
            true => i / (each + 1),
            false => more + (i - more * (each + 1)) / each,
        };
        let mut members = vec![Vec::new(); count as usize];
        for (i, index) in coo.rows().enumerate() {
            members[part_of(index[at]) as usize].push(i);
        }
        let mut out = Vec::with_capacity(members.len());
        for (part, members) in members.iter().enumerate() {
            let first = start(part as i64);
            let mut rows: Vec<i64> = members.iter().flat_map(|&i| coo.index(i)).copied().collect();
            rows.chunks_exact_mut(rank).for_each(|index| index[at] -= first);
            let mut shape = coo.shape.clone();
            shape[at] = start(part as i64 + 1) - first;
            out.push((
                matrix(&rows, rank, members.len())?,
                picked(coo.values, members)?,
                Tensor::vector(&shape)?,
            ));
        }
        let count = out.len();
        for (i, (indices, values, shape)) in out.into_iter().enumerate() {
            ctx.set_output(i, indices);
            ctx.set_output(count + i, values);
            ctx.set_output(2 * count + i, shape);
        }
        Ok(())
    })
}

pub(super) fn slice(ctx: &mut KernelContext<'_>) -> Result<()> {
    let coo = Coo::of(ctx, 0)?;
    let rank = coo.rank();
    let mut bounds = [Vec::new(), Vec::new()];
    for (i, (bound, name)) in bounds.iter_mut().zip(["start", "size"]).enumerate() {
        let input = ctx.input(3 + i)?;
        if input.shape().rank() != 1 {
            invalid!("Input {name} should be a vector but received shape {}", input.shape());
        }
        if input.num_elements() != rank {
            invalid!(
                "Expected {name} to be a vector of length {rank} but got length {}",
                input.num_elements()
            );
        }
        *bound = input.to_i64s()?;
    }
    let [start, size] = bounds;
    let mut shape = Vec::with_capacity(rank);
    for d in 0..rank {
        // A slice may begin before index 0; it contains no values at negative indices.
        let whole = start[d] < coo.shape[d].saturating_sub(size[d]);
        let taken = if whole { size[d] } else { (coo.shape[d] - start[d].min(coo.shape[d])).min(size[d]) };
        if taken < 0 {
            invalid!("Expected a non-negative size, got {taken}");
        }
        shape.push(taken);
    }
    let is_kept = |index: &[i64]| {
        (0..rank).all(|d| {
            index[d] >= start[d] && i128::from(index[d]) < i128::from(start[d]) + i128::from(size[d])
        })
    };
    let kept: Vec<usize> = (0..coo.len()).filter(|&i| is_kept(coo.index(i))).collect();
    let mut rows = Vec::with_capacity(kept.len() * rank);
    for &i in &kept {
        rows.extend(coo.index(i).iter().zip(&start).map(|(i, s)| i - s));
    }
    let (indices, values) = (matrix(&rows, rank, kept.len())?, picked(coo.values, &kept)?);
    ctx.set_output(0, indices);
    ctx.set_output(1, values);
    ctx.set_output(2, Tensor::vector(&shape)?);
    Ok(())
}

/// Outputs the gradient of each input value: the gradient of the value in the slice, or 0 if the slice does not contain
/// it.
pub(super) fn slice_grad(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (grad, start) = (ctx.input(0)?, ctx.input(2)?);
    let (input, output) = (ctx.input(1)?, ctx.input(3)?);
    if grad.shape().rank() != 1 {
        invalid!("Input backprop_val_grad should be a vector but received shape {}", grad.shape());
    }
    let (&[count, rank], &[kept, kept_rank]) = (input.shape().dims(), output.shape().dims()) else {
        invalid!(
            "Input and output indices should be matrices but received shapes: {} and {}",
            input.shape(),
            output.shape()
        );
    };
    if rank != kept_rank {
        invalid!("The input and output should have the same ndims: got: {rank} and {kept_rank}");
    }
    if kept > count || grad.num_elements() != kept {
        invalid!("# rows of output_indices ({kept}) should be that of backprop_val_grad and at most {count}");
    }
    if start.shape().rank() != 1 || start.num_elements() != rank {
        invalid!("Input start should be a vector of {rank} but received shape {}", start.shape());
    }
    let (rows, kept_rows, start) = (input.values::<i64>()?, output.values::<i64>()?, start.to_i64s()?);
    let mut next = 0;
    let mut sources = Vec::with_capacity(count);
    for i in 0..count {
        let index = &rows[i * rank..(i + 1) * rank];
        let is_next = next < kept
            && (0..rank).all(|d| kept_rows[next * rank + d].checked_add(start[d]) == Some(index[d]));
        sources.push(is_next.then_some(next));
        next += usize::from(is_next);
    }
    if next < kept {
        return Err(Error::internal(format!(
            "Elements of backprop_val_grad aren't all propagated. Num elements:{kept}, used: {next}"
        )));
    }
    let out = placed(grad, &sources)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Returns the elements of `values` at the positions in `sources`; zero for `None`.
pub(super) fn placed(values: &Tensor, sources: &[Option<usize>]) -> Result<Tensor> {
    copied!(values.dtype(), E => E::build(values.dtype(), Shape::new(&[sources.len()])?, |out| {
        let values = E::view(values)?;
        for (o, source) in out.iter_mut().zip(sources) {
            match source {
                Some(i) => o.clone_from(&values[*i]),
                None => *o = E::zero(),
            }
        }
        Ok(())
    }))
}
