//! Sums, means, products and extremes over segments: the rows of one id. Ids in order are on the host, for the last one
//! says what size there is.

use super::moved::zeros;
use super::scatter::{ADDED, Scatter, start};
use super::support::{NUMBERS, allocate, function, launch, read, type_name, upload, write};
use crate::cuda::driver::Address;
use crate::cuda::{Arguments, Function, Source};
use crate::device::DeviceTensor;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use crate::kernels::cpu::dispatch::{FLOATS, INDEX};
use crate::kernels::cpu::segment::sorted_ids;
use crate::kernels::cpu::sparse_segment::{Spread, sorted_segments, spread};
use graph::{DType, Shape, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;

static SOURCE: Source = Source { file: "segment.cu", text: include_str!("segment.cu") };

type Types = &'static [(&'static str, &'static [DType])];

const UNSORTED: Types = &[("T", ADDED), ("Tindices", INDEX)];
const SORTED: Types = &[("T", NUMBERS), ("Tindices", INDEX)];
const SPARSE: Types = &[("T", FLOATS), ("Tidx", INDEX)];
/// Several threads add to one element.
const SPREAD: Types = &[("T", &[DType::Float, DType::Double]), ("Tidx", INDEX)];

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
    of "SparseSegmentSumGrad" SPREAD &["segment_ids", "output_dim0"], back "Sum";
    of "SparseSegmentMeanGrad" SPREAD &["segment_ids", "output_dim0"], back "Mean";
    of "SparseSegmentSqrtNGrad" SPREAD &["segment_ids", "output_dim0"], back "SqrtN";
};

fn unsorted(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let combine = Scatter::new(init, named, dtype, init.input_type(1))?;
    // Sums begin with zeros.
    let start = if named == "Add" { None } else { Some(start(init, named, dtype)?) };
    Kernel::sync(move |ctx| {
        let (data, ids) = (ctx.device_input(0)?, ctx.device_input(1)?);
        let count = ctx.scalar(2, "num_segments")?.to_i64s()?[0];
        let count = usize::try_from(count)
            .map_err(|_| Error::invalid(format!("Input num_segments == {count} must not be negative.")))?;
        if !data.shape.starts_with(&ids.shape) {
            crate::invalid!(
                "data.shape = {} does not start with segment_ids.shape = {}",
                data.shape,
                ids.shape
            );
        }
        let mut dims: SmallVec<[usize; 6]> = data.shape[ids.shape.rank()..].into();
        dims.insert(0, count);
        let shape = Shape::new(&dims)?;
        let out = match &start {
            None => zeros(ctx, dtype, shape)?,
            Some(start) => {
                let out = allocate(ctx, dtype, shape)?;
                let n = out.shape.num_elements();
                launch(ctx, start, n, Arguments::new().address(write(&out)?).count(n))?;
                out
            }
        };
        combine.run(ctx, &out, ids, data)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Where each segment begins, and behind the last one where it ends.
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

/// Combines the rows of data, or those that `indices` name, into segments.
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

fn of_indices(init: &KernelInit<'_>, kernel: &str, named: &str) -> Result<Arc<Function>> {
    let (element, index) = (type_name(init.output_type(0))?, type_name(init.input_type(1))?);
    function(init, &SOURCE, format!("{kernel}<{named}, {element}, {index}>"))
}

fn sparse(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let types = [init.input_type(1), init.input_type(2)];
    let function = of_indices(init, "segments", named)?;
    Kernel::sync(move |ctx| {
        let (ids, shape) = sorted_segments(ctx, types)?;
        let out = combine(ctx, &function, Some(ctx.device_input(1)?), &ids, shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn back(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let function = of_indices(init, "spread", named)?;
    Kernel::sync(move |ctx| {
        let Spread { segments, counts, rows } = spread(ctx)?;
        let (grad, indices) = (ctx.device_input(0)?, ctx.device_input(1)?);
        let mut dims: SmallVec<[usize; 6]> = grad.shape.dims().into();
        dims[0] = rows;
        let out = zeros(ctx, dtype, Shape::new(&dims)?)?;
        let inner: usize = dims[1..].iter().product();
        let n = segments.len() * inner;
        if n > 0 && rows > 0 {
            let table: Vec<i64> = segments.iter().flat_map(|&s| [s, counts[s as usize] as i64]).collect();
            let table = Tensor::from_slice(&table, Shape::new(&[table.len()])?)?;
            let table = upload(ctx, &table)?;
            let arguments = Arguments::new()
                .address(read(grad)?)
                .address(read(indices)?)
                .address(read(&table)?)
                .address(write(&out)?)
                .count(n)
                .count(inner)
                .count(rows);
            launch(ctx, &function, n, arguments)?;
        }
        ctx.set_output(0, out);
        Ok(())
    })
}
