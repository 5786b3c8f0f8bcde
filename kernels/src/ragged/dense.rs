//! RaggedTensorToTensor: rows are cut, or padded with a default value.

use crate::numeric::copied::CopiedElement;
use device::invalid;
use device::kernel::KernelContext;
use device::{Error, Result};
use graph::ops::ragged::RowPartitionType;
use graph::tensor::memory_limit;
use graph::{Code, Shape, Tensor};

/// The layout of a dense tensor made of ragged rows.
pub(super) struct Layout {
    shape: Shape,
    /// For each value, its offset in the output in units of values; `None` if the value is cut off.
    places: Vec<Option<usize>>,
    /// For each element of a value, the index of its default in the tensor of defaults.
    defaults: Vec<usize>,
}

/// A function `(values, default, layout)` that returns the dense tensor; see [`padded`].
pub(super) type BuildFn = fn(&Tensor, &Tensor, &Layout) -> Result<Tensor>;

/// Returns the dense tensor with the values at their offsets in `layout`, and defaults elsewhere.
pub(super) fn padded<E: CopiedElement>(values: &Tensor, default: &Tensor, layout: &Layout) -> Result<Tensor> {
    let (given, size) = (E::view(default)?, layout.defaults.len());
    let element: Vec<E> = layout.defaults.iter().map(|&at| given[at].clone()).collect();
    E::build(values.dtype(), layout.shape.clone(), |out| {
        let from = E::view(values)?;
        if size == 0 {
            return Ok(());
        }
        out.chunks_exact_mut(size).for_each(|to| to.clone_from_slice(&element));
        for (from, place) in from.chunks_exact(size).zip(&layout.places) {
            if let Some(place) = place {
                out[place * size..][..size].clone_from_slice(from);
            }
        }
        Ok(())
    })
}

pub(super) fn to_tensor(
    ctx: &mut KernelContext<'_>,
    types: &[RowPartitionType],
    build: BuildFn,
) -> Result<()> {
    let (values, default) = (ctx.input(1)?, ctx.input(2)?);
    let partitions =
        (3..ctx.num_inputs()).map(|i| Ok(ctx.input(i)?.to_i64s()?)).collect::<Result<Vec<_>>>()?;
    let Some((&count, inner)) = values.shape().split_first() else {
        invalid!("rt_input.flat_values must not be a scalar");
    };
    let defaults = default_indices(default, inner)?;
    let Some(&first) = partitions[0].first() else {
        invalid!("Invalid first partition input. Tensor requires at least one element.");
    };
    let rows = if types[0] == RowPartitionType::Size { first } else { partitions[0].len() as i64 - 1 };
    let Ok(rows) = usize::try_from(rows) else { invalid!("Dimension {rows} must be >= 0") };
    let levels: Vec<_> =
        types.iter().copied().zip(&partitions).filter(|(kind, _)| *kind != RowPartitionType::Size).collect();
    let dims = output_dims(ctx.input(0)?, rows, &levels, inner)?;
    let shape = Shape::new(&dims)?;
    // The offsets in the output, in units of values, of the rows of a level; after the last level, of the values.
    let mut stride: usize = product(&dims[1..=levels.len()])?;
    let mut places: Vec<Option<usize>> =
        (0..rows).map(|row| (row < dims[0]).then_some(row * stride)).collect();
    for ((kind, partition), &width) in levels.iter().zip(&dims[1..]) {
        stride /= width.max(1);
        places = match kind {
            RowPartitionType::Splits => by_splits(partition, &places, width, stride)?,
            _ => by_row_ids(partition, &places, width, stride)?,
        };
    }
    if places.len() > count {
        invalid!("the partitions have {} values, rt_input.flat_values {count}", places.len());
    }
    let out = build(values, default, &Layout { shape, places, defaults })?;
    ctx.set_output(0, out);
    Ok(())
}

fn product(dims: &[usize]) -> Result<usize> {
    let product = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    product.ok_or_else(|| Error::invalid("the dense tensor has too many elements"))
}

/// Returns the output's sizes; unknown sizes become the length of the longest row.
fn output_dims(
    shape: &Tensor,
    rows: usize,
    levels: &[(RowPartitionType, &Vec<i64>)],
    inner: &[usize],
) -> Result<Vec<usize>> {
    let rank = 1 + levels.len() + inner.len();
    let wanted = match shape.shape().rank() {
        0 if shape.to_i64s()? == [-1] => vec![-1; rank],
        0 => invalid!("The only valid scalar shape tensor is the fully unknown shape specified as -1."),
        1 => shape.to_i64s()?,
        more => invalid!("Shape must be at most rank 1 but is rank {more}"),
    };
    if wanted.len() != rank {
        invalid!(
            "rt_input.shape and shape={wanted:?} are incompatible: rt_input.rank = {rank} but shape.rank = {}",
            wanted.len()
        );
    }
    let widths = levels.iter().map(|(kind, partition)| longest(*kind, partition));
    let own = std::iter::once(rows).chain(widths).chain(inner.iter().copied());
    let mut dims = Vec::with_capacity(rank);
    for (axis, (&wanted, own)) in wanted.iter().zip(own).enumerate() {
        dims.push(match usize::try_from(wanted) {
            Ok(size) if axis > levels.len() && size != own => invalid!(
                "rt_input.shape and shape are incompatible: rt_input.shape[{axis}] = {own} but shape[{axis}] = {size}"
            ),
            Ok(size) => size,
            Err(_) if wanted == -1 => own,
            Err(_) => invalid!("Dimension {wanted} must be >= -1"),
        });
    }
    Ok(dims)
}

fn longest(kind: RowPartitionType, partition: &[i64]) -> usize {
    let length = match kind {
        RowPartitionType::Splits => {
            partition.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or(0)
        }
        _ => partition.chunk_by(|a, b| a == b).map(|run| run.len() as i64).max().unwrap_or(0),
    };
    usize::try_from(length).unwrap_or(0)
}

fn by_splits(
    splits: &[i64],
    rows: &[Option<usize>],
    width: usize,
    stride: usize,
) -> Result<Vec<Option<usize>>> {
    let count = splits.len().saturating_sub(1);
    if count > rows.len() {
        invalid!("Row partition size is greater than output size: {count} > {}", rows.len());
    }
    if splits.first().is_some_and(|&first| first != 0) || splits.windows(2).any(|pair| pair[1] < pair[0]) {
        invalid!("Invalid row split size.");
    }
    let end = splits.last().map_or(0, |&end| end as u64);
    if end > memory_limit() as u64 / size_of::<Option<usize>>() as u64 {
        return Err(Error::new(Code::ResourceExhausted, format!("OOM when placing {end} rows")));
    }
    let mut places = Vec::with_capacity(end as usize);
    for (pair, row) in splits.windows(2).zip(rows) {
        let length = (pair[1] - pair[0]) as usize;
        places.extend((0..length).map(|i| row.filter(|_| i < width).map(|row| row + i * stride)));
    }
    Ok(places)
}

fn by_row_ids(
    ids: &[i64],
    rows: &[Option<usize>],
    width: usize,
    stride: usize,
) -> Result<Vec<Option<usize>>> {
    let mut places = Vec::with_capacity(ids.len());
    for run in ids.chunk_by(|a, b| a == b) {
        let Some(row) = usize::try_from(run[0]).ok().and_then(|id| rows.get(id)) else {
            invalid!("Got next_value_rowid={} which is not less than {}", run[0], rows.len());
        };
        places.extend((0..run.len()).map(|i| row.filter(|_| i < width).map(|row| row + i * stride)));
    }
    Ok(places)
}

/// Broadcasts the default value to the shape of one value: returns, for each element of a value, an index into
/// `default`.
fn default_indices(default: &Tensor, inner: &[usize]) -> Result<Vec<usize>> {
    let dims = default.shape().dims();
    let fits = dims.len() <= inner.len()
        && dims.iter().rev().zip(inner.iter().rev()).all(|(&from, &to)| from == to || from == 1);
    if !fits {
        invalid!(
            "default_value.shape={} and rt_input.flat_values.shape are incompatible: one value has shape {inner:?}",
            default.shape()
        );
    }
    let size: usize = inner.iter().product();
    let mut out = Vec::with_capacity(size);
    for element in 0..size {
        // Adds up the offset in the default value axis by axis, from the last axis on.
        let (mut rest, mut at, mut step) = (element, 0, 1);
        for (axis, &to) in inner.iter().rev().enumerate() {
            let from = dims.len().checked_sub(axis + 1).map_or(1, |i| dims[i]);
            at += if from == 1 { 0 } else { rest % to * step };
            step *= from;
            rest /= to;
        }
        out.push(at);
    }
    Ok(out)
}
