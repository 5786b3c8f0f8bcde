//! Resizing of batches of images, and its gradients. The tables of input positions for rows and columns are
//! computed by the CPU's code and uploaded.

use super::copy::zeros;
use super::support::{SUMMED, allocate, copied_type_name, function, launch, read, type_name, upload, write};
use crate::engine::{Arguments, Function, Source};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{DeviceTensor, Result};
use graph::{DType, Shape, Tensor};
use kernels::plan::resize::{
    CubicTaps, Grid, Sizes, area_covered, area_shares, back_sizes, cubic_taps, linear_taps, nearest,
};

static SOURCE: Source = Source { file: "resize.cu", text: include_str!("resize.cu") };

/// Dtypes of images.
const RESIZED: &[DType] = &[
    DType::Float,
    DType::Double,
    DType::Half,
    DType::BFloat16,
    DType::Int8,
    DType::Int16,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["size"],
        ..KernelDef::of("ResizeBilinear", &[("T", RESIZED)], |init| {
            let (grid, element) = (Grid::of(init)?, type_name(init.input_type(0))?);
            let resize = function(init, &SOURCE, format!("bilinear<{element}>"))?;
            Kernel::sync(move |ctx| {
                let sizes = Sizes::forward(ctx)?;
                let y = allocate(ctx, DType::Float, sizes.output_shape()?)?;
                run(ctx, &resize, &y, &sizes, |input, output| pairs(grid, input, output))
            })
        })
    },
    KernelDef::of("ResizeBilinearGrad", &[("T", SUMMED)], |init| {
        let (grid, element) = (Grid::of(init)?, type_name(init.output_type(0))?);
        let resize = function(init, &SOURCE, format!("bilinear_gradient<{element}>"))?;
        Kernel::sync(move |ctx| {
            let sizes = Sizes::backward(ctx)?;
            let dx = zeros(ctx, ctx.node().attr("T")?, sizes.input_shape()?)?;
            run(ctx, &resize, &dx, &sizes, |input, output| pairs(grid, input, output))
        })
    }),
    KernelDef {
        host_memory: &["size"],
        ..KernelDef::of("ResizeNearestNeighbor", &[("T", RESIZED)], |init| {
            let (grid, dtype) = (Grid::of(init)?, init.output_type(0));
            let resize = function(init, &SOURCE, format!("nearest<{}>", copied_type_name(dtype)?))?;
            Kernel::sync(move |ctx| {
                let sizes = Sizes::forward(ctx)?;
                let y = allocate(ctx, dtype, sizes.output_shape()?)?;
                run(ctx, &resize, &y, &sizes, |input, output| places(grid, input, output))
            })
        })
    },
    KernelDef {
        host_memory: &["size"],
        ..KernelDef::of("ResizeNearestNeighborGrad", &[("T", SUMMED)], |init| {
            let (grid, dtype) = (Grid::of_grad(init)?, init.output_type(0));
            let resize = function(init, &SOURCE, format!("nearest_gradient<{}>", type_name(dtype)?))?;
            Kernel::sync(move |ctx| {
                let sizes = back_sizes(ctx)?;
                let dx = zeros(ctx, dtype, sizes.input_shape()?)?;
                run(ctx, &resize, &dx, &sizes, |input, output| places(grid, input, output))
            })
        })
    },
    KernelDef {
        host_memory: &["size"],
        ..KernelDef::of("ResizeBicubic", &[("T", RESIZED)], |init| by_weights(init, Grid::of(init)?, cubic))
    },
    KernelDef {
        host_memory: &["size"],
        ..KernelDef::of("ResizeArea", &[("T", RESIZED)], |init| {
            by_weights(init, Grid::of_corners(init)?, areas)
        })
    },
    KernelDef::of("ResizeBicubicGrad", &[("T", SUMMED)], |init| {
        let (grid, dtype) = (Grid::of(init)?, init.output_type(0));
        let resize = function(init, &SOURCE, format!("weighted_gradient<{}>", type_name(dtype)?))?;
        Kernel::sync(move |ctx| {
            let sizes = Sizes::backward(ctx)?;
            let dx = zeros(ctx, dtype, sizes.input_shape()?)?;
            run(ctx, &resize, &dx, &sizes, |input, output| cubic(grid, input, output))
        })
    }),
];

/// Makes the kernel of a resizing whose output elements are weighted sums of input elements; `table` makes the
/// table of weights along an axis.
fn by_weights(
    init: &KernelInit<'_>,
    grid: Grid,
    table: fn(Grid, usize, usize) -> Vec<i64>,
) -> Result<Kernel> {
    let resize = function(init, &SOURCE, format!("weighted<{}>", type_name(init.input_type(0))?))?;
    Kernel::sync(move |ctx| {
        let sizes = Sizes::forward(ctx)?;
        let y = allocate(ctx, DType::Float, sizes.output_shape()?)?;
        run(ctx, &resize, &y, &sizes, |input, output| table(grid, input, output))
    })
}

/// Enqueues the kernel `resize`, which writes `out` and has one thread per element of the resized images, and
/// sets output 0 to `out`. `table` makes, for an axis, the table of the input positions and weights of each output
/// position, from the axis's input and output size.
fn run(
    ctx: &mut KernelContext<'_>,
    resize: &Function,
    out: &DeviceTensor,
    sizes: &Sizes,
    table: impl Fn(usize, usize) -> Vec<i64>,
) -> Result<()> {
    let Sizes { batch, input, output, channels } = *sizes;
    let n = batch * output[0] * output[1] * channels;
    if n > 0 && out.shape.num_elements() > 0 {
        let tables = [0, 1].map(|axis| table(input[axis], output[axis]));
        let [rows, columns] = &tables;
        let whole = Tensor::from_slice(&tables.concat(), Shape::new(&[rows.len() + columns.len()])?)?;
        let whole = upload(ctx, &whole)?;
        let start = read(&whole)?;
        let behind = crate::engine::driver::Address(start.0 + rows.len() as u64 * 8);
        let arguments = Arguments::new()
            .address(read(ctx.device_input(0)?)?)
            .address(start)
            .address(behind)
            .address(write(out)?)
            .count(n)
            .structure([input[0], input[1], output[0], output[1], channels].map(|v| v as i64));
        launch(ctx, resize, n, arguments)?;
    }
    ctx.set_output(0, out.clone());
    Ok(())
}

/// Returns the table of bilinear interpolation along an axis: a `LinearTaps` structure of the `.cu` file for
/// each output position.
fn pairs(grid: Grid, input: usize, output: usize) -> Vec<i64> {
    let pairs = linear_taps(grid, input, output).into_iter();
    pairs.flat_map(|at| [at.lower as i64, at.upper as i64, f64::from(at.part).to_bits() as i64]).collect()
}

/// Returns the table of nearest-neighbour resizing along an axis: the input position for each output position.
fn places(grid: Grid, input: usize, output: usize) -> Vec<i64> {
    nearest(grid, input, output).into_iter().map(|place| place as i64).collect()
}

/// Returns a table in the format of the `Weighted` structure of `resize.cu`: for each output position the input
/// positions and their weights. `whole` is the sum of the weights of an output position.
fn weighted(whole: f32, positions: &[Vec<(usize, f32)>]) -> Vec<i64> {
    let mut words = vec![f64::from(whole).to_bits() as i64];
    let mut first = 0;
    for position in positions {
        words.extend([first, position.len() as i64]);
        first += position.len() as i64;
    }
    let entries = positions.iter().flatten();
    words.extend(entries.flat_map(|&(at, weight)| [at as i64, f64::from(weight).to_bits() as i64]));
    words
}

/// Returns the table of bicubic interpolation along an axis.
fn cubic(grid: Grid, input: usize, output: usize) -> Vec<i64> {
    let pairs = |taps: CubicTaps| taps.at.into_iter().zip(taps.weights).collect();
    weighted(1.0, &cubic_taps(grid, input, output).into_iter().map(pairs).collect::<Vec<_>>())
}

/// Returns the table of resizing by the area method along an axis.
fn areas(grid: Grid, input: usize, output: usize) -> Vec<i64> {
    weighted(area_covered(grid, input, output), &area_shares(grid, input, output))
}
