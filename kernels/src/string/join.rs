//! Joins of strings: elementwise, along axes, and by segment.

use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result};
use graph::shape::resolve_axis;
use graph::{Code, Shape, Tensor};

pub(super) fn join(init: &KernelInit<'_>) -> Result<Kernel> {
    let separator = init.attr::<Bytes>("separator")?;
    Kernel::sync(move |ctx| {
        let inputs = ctx.inputs_from(0)?;
        let mut shape = Shape::scalar();
        let mut is_set = false;
        for input in inputs.iter().filter(|t| t.shape().rank() > 0) {
            if is_set && *input.shape() != shape {
                device::invalid!("Input shapes do not match: {shape} vs. {}", input.shape());
            }
            (shape, is_set) = (input.shape().clone(), true);
        }
        let columns = inputs.iter().map(|t| Ok(t.as_strings()?)).collect::<Result<Vec<_>>>()?;
        let of = |i: usize| {
            let parts: Vec<&[u8]> =
                columns.iter().map(|c| &c[if c.len() == 1 { 0 } else { i }][..]).collect();
            Bytes::from(parts.join(&separator[..]))
        };
        let out = Tensor::strings((0..shape.num_elements()).map(of).collect(), shape)?;
        drop(inputs);
        ctx.set_output(0, out);
        Ok(())
    })
}

pub(super) fn reduce(init: &KernelInit<'_>) -> Result<Kernel> {
    let separator = init.attr::<Bytes>("separator")?;
    let keep = init.attr::<bool>("keep_dims")?;
    Kernel::sync(move |ctx| {
        let (input, axes) = (ctx.input(0)?, ctx.input(1)?);
        let shape = input.shape();
        let mut order = Vec::new();
        for axis in axes.to_i64s()? {
            let Some(resolved) = resolve_axis(axis, shape.rank()) else {
                let message = format!(
                    "Invalid reduction dimension {axis} for input with {} dimension(s)",
                    shape.rank()
                );
                return Err(Error::new(Code::OutOfRange, message));
            };
            if order.contains(&resolved) {
                device::invalid!("Duplicate reduction dimension {axis}");
            }
            order.push(resolved);
        }
        let kept: Vec<usize> = (0..shape.rank()).filter(|axis| !order.contains(axis)).collect();
        let size = |axes: &[usize]| axes.iter().map(|&a| shape[a]).product::<usize>();
        let strides = shape.strides();
        // Returns the offset of the `i`-th index over `axes`, the first of which varies fastest.
        let place = |axes: &[usize], mut i: usize| {
            axes.iter().fold(0, |at, &axis| {
                let index = i % shape[axis];
                i /= shape[axis];
                at + index * strides[axis]
            })
        };
        let strings = input.as_strings()?;
        let outer: Vec<usize> = kept.iter().rev().copied().collect();
        let joined = |i: usize| {
            let start = place(&outer, i);
            let parts: Vec<&[u8]> =
                (0..size(&order)).map(|j| &strings[start + place(&order, j)][..]).collect();
            Bytes::from(parts.join(&separator[..]))
        };
        let dims: Vec<usize> = match keep {
            true => (0..shape.rank()).map(|a| if order.contains(&a) { 1 } else { shape[a] }).collect(),
            false => kept.iter().map(|&a| shape[a]).collect(),
        };
        let out = Tensor::strings((0..size(&kept)).map(joined).collect(), Shape::new(&dims)?)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The maximum number of segments; it is limited because the size of the input does not bound it.
const MOST_SEGMENTS: usize = 1 << 24;

pub(super) fn segments(init: &KernelInit<'_>) -> Result<Kernel> {
    let separator = init.attr::<Bytes>("separator")?;
    Kernel::sync(move |ctx| segmented(ctx, &separator))
}

fn segmented(ctx: &mut KernelContext<'_>, separator: &[u8]) -> Result<()> {
    let (input, ids) = (ctx.input(0)?, ctx.input(1)?);
    let (shape, rank) = (input.shape(), ids.shape().rank());
    let count = ctx.scalar(2, "num_segments")?.to_i64s()?[0];
    let Ok(count) = usize::try_from(count) else {
        device::invalid!("Number of segments must not be negative, is {count}");
    };
    if rank == 0 {
        device::invalid!("Segment_id cannot have rank 0");
    }
    if rank > shape.rank() {
        return Err(Error::new(
            Code::OutOfRange,
            format!("Invalid segment_id rank {rank} for input with {} dimension(s)", shape.rank()),
        ));
    }
    for (axis, (&of_ids, &of_input)) in ids.shape().iter().zip(shape.iter()).enumerate() {
        if of_ids != of_input {
            device::invalid!(
                "Segment dimension is {of_ids} while input dimension is {of_input} in rank {axis}"
            );
        }
    }
    let row: usize = shape[rank..].iter().product();
    let out_shape = Shape::new(&[&[count], &shape[rank..]].concat())?;
    if out_shape.num_elements() > MOST_SEGMENTS {
        return Err(Error::new(
            Code::ResourceExhausted,
            format!("OOM when allocating strings of shape {out_shape}"),
        ));
    }
    let strings = input.as_strings()?;
    let mut joined: Vec<Vec<u8>> = vec![vec![]; out_shape.num_elements()];
    for (i, id) in ids.to_i64s()?.into_iter().enumerate() {
        let Some(id) = usize::try_from(id).ok().filter(|&id| id < count) else {
            device::invalid!(
                "segment_ids are not allowed to exceed num_segments or to have negative values."
            );
        };
        for j in 0..row {
            let text = &mut joined[id * row + j];
            // No separator follows text that is still empty.
            if !text.is_empty() {
                text.extend_from_slice(separator);
            }
            text.extend_from_slice(&strings[i * row + j]);
        }
    }
    let strings = joined.into_iter().map(Into::into).collect();
    let out = Tensor::strings(strings, out_shape)?;
    ctx.set_output(0, out);
    Ok(())
}
