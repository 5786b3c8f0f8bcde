//! Sums, means, products, minima and maxima over segments; a segment is all rows with one id. Sorted ids are in
//! host memory, because the last one determines the output's shape.

use super::cast::Narrowing;
use super::copy::zeros;
use super::scatter::{CHANGED, Scatter, start};
use super::support::{NUMBERS, allocate, function, launch, read, type_name, upload, wide, write};
use crate::engine::driver::Address;
use crate::engine::{Arguments, Function, Source};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{DeviceTensor, Error, Result};
use graph::{DType, Shape, Tensor};
use kernels::numeric::dispatch::{FLOATS, INDEX};
use kernels::plan::segment::sorted_ids;
use kernels::plan::shape::integers;
use kernels::plan::sparse_segment::{
    GradientRows, SelectedRows, gradient_rows, selected_rows, sorted_segments,
};
use smallvec::SmallVec;
use std::sync::Arc;

static SOURCE: Source = Source { file: "segment.cu", text: include_str!("segment.cu") };

type Types = &'static [(&'static str, &'static [DType])];

const UNSORTED: Types = &[("T", CHANGED), ("Tindices", INDEX)];
const SORTED: Types = &[("T", NUMBERS), ("Tindices", INDEX)];
const SPARSE: Types = &[("T", FLOATS), ("Tidx", INDEX)];

/// Arguments in host memory of gradients whose output has only the rows that occur in `indices`, because the
/// indices determine the output's shape.
const PICKED: &[&str] = &["indices", "segment_ids", "dense_output_dim0"];

macro_rules! kernels {
    ($($def:ident $op:literal $types:ident $host:expr, $make:ident $function:literal;)*) => {
        &[$(KernelDef { host_memory: $host, ..KernelDef::$def($op, $types, |init| $make(init, $function)) }),*]
    };
}

pub(super) const KERNELS: &[KernelDef] = kernels! {
    enqueuing "UnsortedSegmentSum" UNSORTED &["num_segments"], unsorted "Add";
    enqueuing "UnsortedSegmentProd" UNSORTED &["num_segments"], unsorted "Mul";
    enqueuing "UnsortedSegmentMax" UNSORTED &["num_segments"], unsorted "Max";
    enqueuing "UnsortedSegmentMin" UNSORTED &["num_segments"], unsorted "Min";
    of "SegmentSum" SORTED &["segment_ids"], sorted "Sum";
    of "SegmentMean" SORTED &["segment_ids"], sorted "Mean";
    of "SegmentProd" SORTED &["segment_ids"], sorted "Prod";
    of "SegmentMax" SORTED &["segment_ids"], sorted "Max";
    of "SegmentMin" SORTED &["segment_ids"], sorted "Min";
    of "SparseSegmentSum" SPARSE &["segment_ids"], sparse "Sum";
    of "SparseSegmentMean" SPARSE &["segment_ids"], sparse "Mean";
    of "SparseSegmentSqrtN" SPARSE &["segment_ids"], sparse "SqrtN";
    of "SparseSegmentSumWithNumSegments" SPARSE &["segment_ids", "num_segments"], sparse "Sum";
    of "SparseSegmentMeanWithNumSegments" SPARSE &["segment_ids", "num_segments"], sparse "Mean";
    of "SparseSegmentSqrtNWithNumSegments" SPARSE &["segment_ids", "num_segments"], sparse "SqrtN";
    of "SparseSegmentSumGrad" SPARSE &["segment_ids", "output_dim0"], gradient "Sum";
    of "SparseSegmentMeanGrad" SPARSE &["segment_ids", "output_dim0"], gradient "Mean";
    of "SparseSegmentSqrtNGrad" SPARSE &["segment_ids", "output_dim0"], gradient "SqrtN";
    of "SparseSegmentSumGradV2" SPARSE PICKED, gradient_to_picked "Sum";
    of "SparseSegmentMeanGradV2" SPARSE PICKED, gradient_to_picked "Mean";
    of "SparseSegmentSqrtNGradV2" SPARSE PICKED, gradient_to_picked "SqrtN";
};

/// Makes the kernel of an unsorted segment op.
fn unsorted(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let combine = Scatter::new(init, named, [wide(dtype), dtype], init.input_type(1))?;
    let narrow = Narrowing::new(init, dtype)?;
    // Sums start with zeros, so no initialisation kernel is loaded for them.
    let start = if named == "Add" { None } else { Some(start(init, named, dtype)?) };
    Kernel::sync(move |ctx| {
        let (data, ids) = (ctx.device_input(0)?, ctx.device_input(1)?);
        let count = ctx.scalar(2, "num_segments")?.to_i64s()?[0];
        let count = usize::try_from(count)
            .map_err(|_| Error::invalid(format!("Input num_segments == {count} must not be negative.")))?;
        if !data.shape.starts_with(&ids.shape) {
            device::invalid!(
                "data.shape = {} does not start with segment_ids.shape = {}",
                data.shape,
                ids.shape
            );
        }
        let mut dims: SmallVec<[usize; 6]> = data.shape[ids.shape.rank()..].into();
        dims.insert(0, count);
        let shape = Shape::new(&dims)?;
        let out = match &start {
            None => zeros(ctx, wide(dtype), shape)?,
            Some(start) => {
                let out = allocate(ctx, wide(dtype), shape)?;
                let n = out.shape.num_elements();
                launch(ctx, start, n, Arguments::new().address(write(&out)?).count(n))?;
                out
            }
        };
        combine.run(ctx, &out, ids, data)?;
        let out = narrow.run(ctx, out)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Uploads, for each segment, the position in the sorted `ids` where it starts, followed by the end of the last
/// segment.
fn starts(ctx: &KernelContext<'_>, ids: &[i64], segments: usize) -> Result<DeviceTensor> {
    let mut starts = Vec::with_capacity(segments + 1);
    let mut at = 0;
    for segment in 0..=segments as i64 {
        at += ids[at..].iter().take_while(|&&id| id < segment).count();
        starts.push(at as i64);
    }
    let starts = Tensor::from_slice(&starts, Shape::new(&[starts.len()])?)?;
    upload(ctx, &starts)
}

/// Combines the rows of the data, or the rows that `indices` name, into segments.
fn combine(
    ctx: &KernelContext<'_>,
    function: &Function,
    indices: Option<&DeviceTensor>,
    ids: &[i64],
    shape: Shape,
) -> Result<DeviceTensor> {
    let data = ctx.device_input(0)?;
    let (segments, n) = (shape[0], shape.num_elements());
    let out = allocate(ctx, data.dtype, shape)?;
    if n > 0 {
        let starts = starts(ctx, ids, segments)?;
        let arguments = Arguments::new()
            .address(read(data)?)
            .address(indices.map_or(Ok(Address(0)), read)?)
            .address(read(&starts)?)
            .address(write(&out)?)
            .count(n)
            .count(out.shape[1..].iter().product())
            .count(data.shape[0]);
        launch(ctx, function, n, arguments)?;
    }
    Ok(out)
}

/// Makes the kernel of a sorted segment op.
fn sorted(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let name = format!("segments<{named}, {}, i64>", type_name(init.output_type(0))?);
    let function = function(init, &SOURCE, name)?;
    Kernel::sync(move |ctx| {
        let (ids, shape) = sorted_ids(ctx)?;
        let out = combine(ctx, &function, None, &ids, shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Loads the kernel template `kernel` for the combination `named`, the output's dtype and the dtype `index` of
/// the indices.
fn of_indices(init: &KernelInit<'_>, kernel: &str, named: &str, index: DType) -> Result<Arc<Function>> {
    let (element, index) = (type_name(init.output_type(0))?, type_name(index)?);
    function(init, &SOURCE, format!("{kernel}<{named}, {element}, {index}>"))
}

/// Makes the kernel of a sparse segment op.
fn sparse(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let types = [init.input_type(1), init.input_type(2)];
    let function = of_indices(init, "segments", named, types[0])?;
    Kernel::sync(move |ctx| {
        let (ids, shape) = sorted_segments(ctx, types)?;
        let out = combine(ctx, &function, Some(ctx.device_input(1)?), &ids, shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The kernels of a sparse segment op's gradient, which adds the gradient of each segment to the segment's
/// rows. The sums are in no fixed order, and in a dtype that several threads can add to concurrently.
struct SegmentGradient {
    spread: Arc<Function>,
    narrow: Narrowing,
    dtype: DType,
}

impl SegmentGradient {
    /// Loads the kernels of the gradient for the node's dtypes.
    fn new(init: &KernelInit<'_>, named: &str, index: DType) -> Result<SegmentGradient> {
        let dtype = init.output_type(0);
        Ok(SegmentGradient {
            spread: of_indices(init, "spread", named, index)?,
            narrow: Narrowing::new(init, dtype)?,
            dtype,
        })
    }

    /// Returns the gradient, which has `rows` rows; `places` has the row of the gradient for each index.
    fn run(
        &self,
        ctx: &KernelContext<'_>,
        from: &GradientRows,
        places: &DeviceTensor,
        rows: usize,
    ) -> Result<DeviceTensor> {
        let grad = ctx.device_input(0)?;
        let mut dims: SmallVec<[usize; 6]> = grad.shape.dims().into();
        dims[0] = rows;
        let sums = zeros(ctx, wide(self.dtype), Shape::new(&dims)?)?;
        let inner: usize = dims[1..].iter().product();
        let n = from.segments.len() * inner;
        if n > 0 && rows > 0 {
            let table = from.segments.iter().flat_map(|&s| [s, from.counts[s as usize] as i64]);
            let table = upload(ctx, &Tensor::vector(&table.collect::<Vec<i64>>())?)?;
            let arguments = Arguments::new()
                .address(read(grad)?)
                .address(read(places)?)
                .address(read(&table)?)
                .address(write(&sums)?)
                .count(n)
                .count(inner)
                .count(rows);
            launch(ctx, &self.spread, n, arguments)?;
        }
        self.narrow.run(ctx, sums)
    }
}

/// Makes the kernel of a sparse segment op's gradient.
fn gradient(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let gradient = SegmentGradient::new(init, named, init.input_type(1))?;
    Kernel::sync(move |ctx| {
        let spread = gradient_rows(ctx)?;
        let out = gradient.run(ctx, &spread, ctx.device_input(1)?, spread.rows)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes the kernel of a sparse segment op's gradient that outputs only the rows that occur in the indices, and
/// the numbers of these rows.
fn gradient_to_picked(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let gradient = SegmentGradient::new(init, named, DType::Int64)?;
    let index = init.input_type(1);
    Kernel::sync(move |ctx| {
        let (spread, SelectedRows { rows, places, .. }) = selected_rows(ctx)?;
        let places = upload(ctx, &Tensor::vector(&places)?)?;
        let out = gradient.run(ctx, &spread, &places, rows.len())?;
        ctx.set_output(0, out);
        let rows = upload(ctx, &integers(index, &rows)?)?;
        ctx.set_output(1, rows);
        Ok(())
    })
}
