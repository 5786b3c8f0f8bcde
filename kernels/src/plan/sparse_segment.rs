//! Segments of selected rows, and the rows that get the gradients of the segments.

use device::kernel::KernelContext;
use device::{Result, invalid};
use graph::{DType, Shape};

/// Returns the segment ids in input 2, after checking that there is one for each index in input 1.
fn segment_ids(ctx: &KernelContext<'_>) -> Result<Vec<i64>> {
    let (indices, segments) = (ctx.shape(1)?, ctx.input(2)?);
    for (name, shape) in [("indices", indices), ("segment_ids", segments.shape())] {
        if shape.rank() != 1 {
            invalid!("{name} should be a vector.");
        }
    }
    if indices.num_elements() != segments.num_elements() {
        invalid!("segment_ids and indices should have same size.");
    }
    Ok(segments.to_i64s()?)
}

fn check_sorted(segments: &[i64]) -> Result<()> {
    if segments.first().is_some_and(|&s| s < 0) {
        invalid!("segment ids must be >= 0");
    }
    if segments.windows(2).any(|w| w[1] < w[0]) {
        invalid!("segment ids are not increasing");
    }
    Ok(())
}

/// Returns the number of output rows if the last segment id is `last`; fails if the number does not fit the dtypes of
/// the indices and of the segment ids.
fn rows_to(last: Option<i64>, indices: DType, segments: DType) -> Result<i64> {
    let greatest = |dtype| if dtype == DType::Int32 { i64::from(i32::MAX) } else { i64::MAX };
    let limit = greatest(indices);
    match last {
        None => Ok(0),
        Some(last) if last >= limit => {
            invalid!("Last segment id must be < kintmax, got {last} limit {limit}")
        }
        Some(last) if last >= greatest(segments) => invalid!("segment ids must be >= 0"),
        Some(last) => Ok(last + 1),
    }
}

/// Returns the segment id of each index, ascending and not negative, and the shape of the result. The arguments are the
/// dtypes of the indices and of the segment ids.
pub fn sorted_segments(ctx: &KernelContext<'_>, [indices, ids]: [DType; 2]) -> Result<(Vec<i64>, Shape)> {
    let Some((_, inner)) = ctx.shape(0)?.split_first() else {
        invalid!("data must be at least rank 1.");
    };
    let segments = segment_ids(ctx)?;
    check_sorted(&segments)?;
    let last = segments.last().copied();
    let rows = match ctx.num_inputs() {
        4 => {
            let rows = ctx.scalar(3, "num_segments")?.to_i64s()?[0];
            if rows < 0 {
                invalid!("segment ids must be >= 0");
            }
            if last.is_some_and(|last| last >= rows) {
                invalid!("segment ids must be < num_segments");
            }
            rows
        }
        _ => rows_to(last, indices, ids)?,
    };
    let mut dims = vec![rows];
    dims.extend(inner.iter().map(|&d| d as i64));
    Ok((segments, Shape::from_i64(&dims)?))
}

/// The distribution of the gradients of segments to the rows that the segments combine.
#[derive(Debug)]
pub struct GradientRows {
    /// For each index, its segment.
    pub segments: Vec<i64>,
    /// For each segment, the number of its indices.
    pub counts: Vec<usize>,
    /// The number of rows of the gradient's output.
    pub rows: usize,
}

/// Returns the distribution of the gradient in input 0 to rows. The number of segments, the first dimension of input 0,
/// must exceed every segment id.
pub fn gradient_rows(ctx: &KernelContext<'_>) -> Result<GradientRows> {
    let Some(&segment_count) = ctx.shape(0)?.first() else {
        invalid!("grad must be at least rank 1.");
    };
    let segments = segment_ids(ctx)?;
    let rows = ctx.scalar(3, "output_dim0")?.to_i64s()?[0];
    let Ok(rows) = usize::try_from(rows) else {
        invalid!("Segment id {rows} out of range [0, {segment_count})");
    };
    let mut counts = vec![0usize; segment_count];
    for &segment in segments.iter().filter(|_| rows > 0) {
        match usize::try_from(segment).ok().and_then(|s| counts.get_mut(s)) {
            Some(count) => *count += 1,
            None => invalid!("Segment id {segment} out of range [0, {segment_count})."),
        }
    }
    Ok(GradientRows { segments, counts, rows })
}

/// The distinct rows that the indices select, for a gradient with these rows only.
#[derive(Debug)]
pub struct SelectedRows {
    /// The distinct selected rows, ascending.
    pub rows: Vec<i64>,
    /// For each index, the position of its row in `rows`.
    pub places: Vec<i64>,
    pub(crate) indices: Vec<i64>,
}

/// Returns the distribution of the gradient in input 0, and the rows that the indices in input 1 select.
pub fn selected_rows(ctx: &KernelContext<'_>) -> Result<(GradientRows, SelectedRows)> {
    let mut spread = gradient_rows(ctx)?;
    let mut indices = ctx.input(1)?.to_i64s()?;
    if spread.rows == 0 {
        // The output has no row, so the indices are ignored.
        indices.clear();
        spread.segments.clear();
    }
    if let Some(index) = indices.iter().find(|&&i| !(0..spread.rows as i64).contains(&i)) {
        invalid!("Index {index} out of range [0, {}).", spread.rows);
    }
    let mut rows = indices.clone();
    rows.sort_unstable();
    rows.dedup();
    let places = indices.iter().map(|&index| rows.partition_point(|&row| row < index) as i64).collect();
    Ok((spread, SelectedRows { rows, places, indices }))
}
