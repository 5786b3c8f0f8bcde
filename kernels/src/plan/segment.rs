//! The segment ids of sorted segment reductions.

use device::kernel::KernelContext;
use device::{Result, invalid};
use graph::Shape;
use smallvec::SmallVec;

/// Returns the segment id of each row of input 0, in ascending order, and the shape of the result.
pub fn sorted_ids(ctx: &KernelContext<'_>) -> Result<(Vec<i64>, Shape)> {
    let (data, ids) = (ctx.shape(0)?, ctx.input(1)?);
    if data.rank() == 0 {
        invalid!("input must be at least rank 1");
    }
    if ids.shape().rank() != 1 {
        invalid!("segment_ids should be a vector.");
    }
    if ids.num_elements() != data[0] {
        invalid!("segment_ids should be the same size as dimension 0 of input.");
    }
    let ids = ids.to_i64s()?;
    let segments = match ids.last() {
        None => 0,
        Some(&last) => usize::try_from(last.saturating_add(1)).unwrap_or(0),
    };
    if ids.windows(2).any(|pair| pair[1] < pair[0]) {
        invalid!("segment ids are not increasing");
    }
    if let Some(&first) = ids.first()
        && first < 0
    {
        invalid!(
            "Segment id {first} out of range [0, {segments}), possibly because 'segment_ids' input is not sorted."
        );
    }
    let mut dims: SmallVec<[usize; 6]> = data.dims().into();
    dims[0] = segments;
    Ok((ids, Shape::new(&dims)?))
}
