//! Variable partitioners: the number of shards of a variable along an axis, and the offset and shape of each
//! shard.

use crate::error::{Error, Result};
use graph::{DType, Shape};

/// The rule that gives the number of shards of a variable, with the parameters of TensorFlow 1's partitioners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitioner {
    /// A fixed number of shards, reduced if shards would be empty.
    FixedSize { shards: usize, axis: usize },
    /// The smallest number of shards that keeps each shard within `max_shard_bytes`, but at most `max_shards`. If one
    /// slice along the axis is larger than `max_shard_bytes`, each shard is one slice.
    AxisSize { max_shard_bytes: usize, axis: usize, bytes_per_string: usize, max_shards: Option<usize> },
    /// At most `max_partitions` shards, and at most the variable's size in bytes divided by `min_slice_size`, rounded
    /// up.
    MinMax { max_partitions: usize, axis: usize, min_slice_size: usize, bytes_per_string: usize },
}

impl Partitioner {
    /// Creates a partitioner with a fixed number of shards along axis 0.
    pub fn fixed_size(shards: usize) -> Partitioner {
        Partitioner::FixedSize { shards, axis: 0 }
    }

    /// Creates a partitioner along axis 0 whose shards have at most `max_shard_bytes` bytes.
    pub fn axis_size(max_shard_bytes: usize) -> Partitioner {
        Partitioner::AxisSize { max_shard_bytes, axis: 0, bytes_per_string: 16, max_shards: None }
    }

    /// Creates a partitioner along axis 0 with at most `max_partitions` shards, and at most the variable's size divided
    /// by 256 KiB, rounded up.
    pub fn min_max(max_partitions: usize) -> Partitioner {
        Partitioner::MinMax { max_partitions, axis: 0, min_slice_size: 256 << 10, bytes_per_string: 16 }
    }

    /// Returns the number of shards along each axis: 1 along all axes except the partitioner's axis.
    ///
    /// # Errors
    /// `InvalidArgument` if the shape has no such axis, or a size that must be positive is 0.
    pub fn partitions(&self, shape: &Shape, dtype: DType) -> Result<Vec<usize>> {
        let axis = match *self {
            Partitioner::FixedSize { axis, .. }
            | Partitioner::AxisSize { axis, .. }
            | Partitioner::MinMax { axis, .. } => axis,
        };
        let Some(&size) = shape.dims().get(axis) else {
            return Err(Error::invalid(format!(
                "Cannot partition variable along axis {axis} when shape is only {shape}"
            )));
        };
        let count = match *self {
            Partitioner::FixedSize { shards, .. } => {
                positive("the number of shards", shards)?;
                shards.min(size)
            }
            Partitioner::AxisSize { max_shard_bytes, bytes_per_string, max_shards, .. } => {
                positive("max_shard_bytes", max_shard_bytes)?;
                positive("bytes_per_string", bytes_per_string)?;
                positive("max_shards", max_shards.unwrap_or(1))?;
                let elements = element_count(shape, Some(axis));
                let slice = elements * element_size(dtype, bytes_per_string)?;
                let slices = (max_shard_bytes as u128).checked_div(slice).unwrap_or(size as u128).max(1);
                let count = (size as u128).div_ceil(slices) as usize;
                max_shards.map_or(count, |most| most.min(count))
            }
            Partitioner::MinMax { max_partitions, min_slice_size, bytes_per_string, .. } => {
                positive("min_slice_size", min_slice_size)?;
                positive("bytes_per_string", bytes_per_string)?;
                let total = element_count(shape, None) * element_size(dtype, bytes_per_string)?;
                let wanted = total.div_ceil(min_slice_size as u128);
                (size.min(max_partitions) as u128).min(wanted).max(1) as usize
            }
        };
        let mut partitions = vec![1; shape.rank()];
        partitions[axis] = count;
        Ok(partitions)
    }
}

fn positive(what: &str, size: usize) -> Result<()> {
    if size == 0 { Err(Error::invalid(format!("{what} must be positive"))) } else { Ok(()) }
}

/// Returns the number of elements of a shape, or of one slice along the axis `without`. Numbers above
/// `u64::MAX` are returned as `u64::MAX`.
fn element_count(shape: &Shape, without: Option<usize>) -> u128 {
    let dims = shape.dims().iter().enumerate().filter(|(i, _)| Some(*i) != without);
    dims.fold(1u128, |product, (_, &d)| product.saturating_mul(d as u128)).min(u128::from(u64::MAX))
}

/// Returns the bytes of an element of type `dtype`.
fn element_size(dtype: DType, bytes_per_string: usize) -> Result<u128> {
    match (dtype, dtype.size()) {
        (DType::String, _) => Ok(bytes_per_string as u128),
        (_, Some(size)) => Ok(size as u128),
        _ => Err(Error::invalid(format!("a variable of {dtype} cannot be cut into shards"))),
    }
}

/// A shard of a variable: its offset in the whole variable, and its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    pub offset: Vec<usize>,
    pub shape: Vec<usize>,
}

/// Returns the shards of a variable that is cut as [`Partitioner::partitions`] specifies. If the rows cannot
/// be divided equally, the first shards have one row more.
///
/// # Errors
/// `InvalidArgument` if more than one axis is cut, or `partitions` does not fit the shape.
pub fn shards(shape: &Shape, partitions: &[usize]) -> Result<Vec<Shard>> {
    let dims = shape.dims();
    if partitions.len() != dims.len() {
        return Err(Error::invalid(format!("{} axes are cut of shape {shape}", partitions.len())));
    }
    let mut cut = partitions.iter().enumerate().filter(|(_, n)| **n != 1);
    let Some((axis, &count)) = cut.next() else {
        return Ok(vec![Shard { offset: vec![0; dims.len()], shape: dims.to_vec() }]);
    };
    if cut.next().is_some() {
        return Err(Error::invalid("a variable can be cut along one axis only"));
    }
    if count == 0 || count > dims[axis] {
        return Err(Error::invalid(format!(
            "axis {axis} of shape {shape} cannot be cut into {count} shards"
        )));
    }
    let (rows, longer) = (dims[axis] / count, dims[axis] % count);
    let mut start = 0;
    Ok((0..count)
        .map(|i| {
            let mut shard = Shard { offset: vec![0; dims.len()], shape: dims.to_vec() };
            shard.offset[axis] = start;
            shard.shape[axis] = rows + usize::from(i < longer);
            start += shard.shape[axis];
            shard
        })
        .collect())
}
