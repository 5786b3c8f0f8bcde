//! Counting values in bins, and searching sorted bounds.

use super::copy::zeros;
use super::support::{ORDERED, allocate, function, launch, read, type_name, write};
use crate::engine::driver::Address;
use crate::engine::{Arguments, Source, engine_of};
use device::Result;
use device::kernel::{Kernel, KernelDef, KernelInit};
use graph::DType::{self, Double, Float, Int32, Int64};
use graph::{Shape, Tensor};
use kernels::numeric::dispatch::INDEX;
use kernels::plan::histogram::{BincountInputs, Bins, boundaries, widths};

static SOURCE: Source = Source { file: "histogram.cu", text: include_str!("histogram.cu") };

const FOUR: &[DType] = &[Int32, Int64, Float, Double];
const BOUNDS: &[(&str, &[DType])] = &[("T", ORDERED), ("out_type", INDEX)];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("Bucketize", &[("T", FOUR)], bucketize),
    KernelDef {
        host_memory: &["value_range", "nbins"],
        ..KernelDef::enqueuing("HistogramFixedWidth", &[("T", FOUR), ("dtype", INDEX)], fixed_width)
    },
    KernelDef {
        host_memory: &["size"],
        ..KernelDef::enqueuing("Bincount", &[("T", FOUR)], |init| bincount(init, false))
    },
    KernelDef {
        host_memory: &["size"],
        ..KernelDef::enqueuing("DenseBincount", &[("T", FOUR), ("Tidx", INDEX)], |init| {
            bincount(init, init.attr("binary_output")?)
        })
    },
    KernelDef::enqueuing("LowerBound", BOUNDS, |init| bound(init, "LowerBound")),
    KernelDef::enqueuing("UpperBound", BOUNDS, |init| bound(init, "UpperBound")),
];

/// Makes the kernel of `Bucketize`, whose bounds are uploaded once.
fn bucketize(init: &KernelInit<'_>) -> Result<Kernel> {
    let bounds: Vec<f64> = boundaries(init)?.into_iter().map(f64::from).collect();
    let bounds = Tensor::from_slice(&bounds, Shape::new(&[bounds.len()])?)?;
    let bounds = engine_of(init.device)?.upload(&init.node.name, &bounds)?;
    let place = function(init, &SOURCE, format!("bucketize<{}>", type_name(init.input_type(0))?))?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let y = allocate(ctx, Int32, x.shape.clone())?;
        let n = x.shape.num_elements();
        let arguments = Arguments::new()
            .address(read(x)?)
            .address(read(&bounds)?)
            .address(write(&y)?)
            .count(n)
            .count(bounds.shape.num_elements());
        launch(ctx, &place, n, arguments)?;
        ctx.set_output(0, y);
        Ok(())
    })
}

/// Makes the kernel of `HistogramFixedWidth`.
fn fixed_width(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let name = format!("fixed_width<{}, {}>", type_name(init.input_type(0))?, type_name(dtype)?);
    let count = function(init, &SOURCE, name)?;
    Kernel::sync(move |ctx| {
        let (x, bins) = (ctx.device_input(0)?, Bins::of(ctx)?);
        let counts = zeros(ctx, dtype, Shape::new(&[bins.count])?)?;
        let n = x.shape.num_elements();
        let arguments = Arguments::new().address(read(x)?).address(write(&counts)?).count(n);
        launch(ctx, &count, n, arguments.real(bins.low).real(bins.width).count(bins.count))?;
        ctx.set_output(0, counts);
        Ok(())
    })
}

/// Makes the kernel of `Bincount`; if `is_binary` is set, the output is 1 for a number that occurs and 0 for
/// other numbers, not a count.
fn bincount(init: &KernelInit<'_>, is_binary: bool) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let name = format!("bincount<{}, {}>", type_name(dtype)?, type_name(init.input_type(0))?);
    let count = function(init, &SOURCE, name)?;
    let presence = function(init, &SOURCE, format!("presence<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let (numbers, counted) = (ctx.device_input(0)?, BincountInputs::of(ctx)?);
        let sums = zeros(ctx, dtype, counted.shape()?)?;
        // If `is_binary` is set, weights are ignored, because an output only says whether a number occurs.
        let has_weights = counted.is_weighted && !is_binary;
        let weights = if has_weights { read(ctx.device_input(2)?)? } else { Address(0) };
        let n = numbers.shape.num_elements();
        let arguments = Arguments::new()
            .address(read(numbers)?)
            .address(weights)
            .address(write(&sums)?)
            .count(n)
            .count(counted.columns)
            .count(counted.bins);
        launch(ctx, &count, n, arguments)?;
        if is_binary {
            let n = sums.shape.num_elements();
            launch(ctx, &presence, n, Arguments::new().address(write(&sums)?).count(n))?;
        }
        ctx.set_output(0, sums);
        Ok(())
    })
}

/// Makes the kernel of `LowerBound` or `UpperBound`.
fn bound(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let name = format!("bound<{named}, {}, {}>", type_name(init.input_type(0))?, type_name(dtype)?);
    let bound = function(init, &SOURCE, name)?;
    Kernel::sync(move |ctx| {
        let [width, count] = widths(ctx, dtype)?;
        let (sorted, values) = (ctx.device_input(0)?, ctx.device_input(1)?);
        let places = allocate(ctx, dtype, values.shape.clone())?;
        let n = values.shape.num_elements();
        let arguments = Arguments::new()
            .address(read(sorted)?)
            .address(read(values)?)
            .address(write(&places)?)
            .count(n)
            .count(width)
            .count(count);
        launch(ctx, &bound, n, arguments)?;
        ctx.set_output(0, places);
        Ok(())
    })
}
