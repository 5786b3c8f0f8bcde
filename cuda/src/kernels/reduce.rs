//! Reductions along axes, indices of maxima and minima, and cumulative sums and products.

use super::support::{
    Axes, NUMBERS, allocate, function, kernel_stream, launch, read, type_name, wide, write,
};
use crate::engine::{Arguments, BUSY_BLOCKS, Function, Source};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{DeviceTensor, Result};
use graph::{DType, Shape};
use kernels::numeric::dispatch::{COMPLEX, FLOATS, INDEX};
use kernels::plan::reduce::{Direction, ReductionLayout, scan_lines};
use smallvec::SmallVec;
use std::sync::Arc;

static SOURCE: Source = Source { file: "reduce.cu", text: include_str!("reduce.cu") };

macro_rules! kernels {
    ($($op:literal $types:expr;)*) => {
        &[
            $(KernelDef {
                host_memory: &["reduction_indices"],
                ..KernelDef::enqueuing($op, $types, |init| along_axes(init, $op))
            },)*
            KernelDef {
                host_memory: &["dimension"],
                ..KernelDef::enqueuing("ArgMax", &[("T", NUMBERS), ("output_type", INDEX)], |init| arg_extreme(init, "ArgMax"))
            },
            KernelDef {
                host_memory: &["dimension"],
                ..KernelDef::enqueuing("ArgMin", &[("T", NUMBERS), ("output_type", INDEX)], |init| arg_extreme(init, "ArgMin"))
            },
            KernelDef {
                host_memory: &["axis"],
                ..KernelDef::enqueuing("Cumsum", &[("T", NUMBERS)], |init| cumulative(init, "Sum"))
            },
            KernelDef {
                host_memory: &["axis"],
                ..KernelDef::enqueuing("Cumsum", &[("T", COMPLEX)], |init| cumulative(init, "Sum"))
            },
            KernelDef {
                host_memory: &["axis"],
                ..KernelDef::enqueuing("Cumprod", &[("T", NUMBERS)], |init| cumulative(init, "Prod"))
            },
            KernelDef {
                host_memory: &["axis"],
                ..KernelDef::enqueuing("Cumprod", &[("T", COMPLEX)], |init| cumulative(init, "Prod"))
            },
        ]
    };
}

pub(super) const KERNELS: &[KernelDef] = kernels! {
    "Sum" &[("T", NUMBERS)];
    "Sum" &[("T", COMPLEX)];
    "Prod" &[("T", NUMBERS)];
    "Prod" &[("T", COMPLEX)];
    "Max" &[("T", NUMBERS)];
    "Min" &[("T", NUMBERS)];
    "Mean" &[("T", FLOATS)];
    "Mean" &[("T", COMPLEX)];
    "EuclideanNorm" &[("T", FLOATS)];
    "EuclideanNorm" &[("T", COMPLEX)];
    "All" &[];
    "Any" &[];
};

/// The kernels of a reduction for different layouts.
#[derive(Debug)]
pub(super) struct Reduction {
    dtype: DType,
    /// The kernel with one thread per result.
    each: Arc<Function>,
    /// The kernel with one block per part of a result.
    block: Arc<Function>,
    /// The kernel for the columns of a matrix, with one block per part of 32 columns.
    columns: Arc<Function>,
    /// The kernel that combines the partial results of each result.
    parts: Arc<Function>,
}

/// Smallest number of elements per result that a block of threads reduces; fewer elements are reduced by one
/// thread.
const MIN_PER_BLOCK: usize = 64;

/// Least number of elements in a part of a result: eight for each of a block's 256 threads.
pub(super) const MIN_PER_PART: usize = 2048;
/// Least number of rows in a part of columns: eight for each of the eight threads that share a column.
const MIN_ROWS_PER_PART: usize = 64;

/// Returns the number of parts, of at least `least` elements, into which the `count` elements of a result are
/// divided. There are several parts only if `blocks`, the number of blocks with one part per result, would not
/// keep a GPU busy.
pub(super) fn part_count(count: usize, blocks: usize, least: usize) -> usize {
    (count / least).min(BUSY_BLOCKS / blocks.max(1)).max(1)
}

impl Reduction {
    /// Loads the kernels for a dtype.
    pub(super) fn new(init: &KernelInit<'_>, named: &str, dtype: DType) -> Result<Reduction> {
        let types = format!("<{named}, {}>", type_name(dtype)?);
        let function = |kind: &str| function(init, &SOURCE, format!("reduce_{kind}{types}"));
        let (each, block, columns) = (function("each")?, function("block")?, function("columns")?);
        Ok(Reduction { dtype, each, block, columns, parts: function("parts")? })
    }

    /// Reduces `x` into `y`; `axes` are the axes of `x`, outermost first: the size, and true if the axis is
    /// reduced.
    pub(super) fn run(
        &self,
        ctx: &KernelContext<'_>,
        x: &DeviceTensor,
        y: &DeviceTensor,
        axes: &[(usize, bool)],
    ) -> Result<()> {
        if let [(rows, true), (columns, false)] = *axes {
            return self.columns(ctx, x, y, [rows, columns]);
        }
        let mut step = 1usize;
        let mut all: SmallVec<[(usize, bool, usize); 8]> = SmallVec::new();
        for &(size, goes) in axes.iter().rev() {
            all.push((size, goes, step));
            step = step.saturating_mul(size);
        }
        all.reverse();
        let of_kind = |goes: bool| -> SmallVec<[(usize, usize); 8]> {
            all.iter().filter(|axis| axis.1 == goes).map(|&(size, _, step)| (size, step)).collect()
        };
        self.reduce_axes(ctx, x, y, &of_kind(false), &of_kind(true))
    }

    /// Reduces `x` into `y`. `kept` are the sizes and strides of the axes of `x` that remain in `y`; `reduced`
    /// are the sizes and strides of the axes that are reduced.
    pub(super) fn reduce_axes(
        &self,
        ctx: &KernelContext<'_>,
        x: &DeviceTensor,
        y: &DeviceTensor,
        kept: &[(usize, usize)],
        reduced: &[(usize, usize)],
    ) -> Result<()> {
        let axes =
            |of: &[(usize, usize)]| Axes::<1>::new(of.iter().map(|&(size, step)| (size, [step as isize])));
        let (n, count) = (y.shape.num_elements(), reduced.iter().map(|axis| axis.0).product());
        let (kept, reduced) = (axes(kept)?, axes(reduced)?);
        let layout = kept.words().chain(reduced.words());
        if count < MIN_PER_BLOCK {
            let arguments = Arguments::new().address(read(x)?).address(write(y)?).count(n).count(count);
            return launch(ctx, &self.each, n, arguments.structure(layout));
        }
        let to = self.parts(ctx, y, count, part_count(count, n, MIN_PER_PART))?;
        let arguments = Arguments::new().address(read(x)?).structure(to.words()?).count(n).count(to.parts);
        kernel_stream(ctx)?.launch_blocks(&self.block, n * to.parts, &arguments.structure(layout))?;
        self.finish(ctx, &to)
    }

    /// Reduces each column of the matrix `x` to an element of `y`.
    fn columns(
        &self,
        ctx: &KernelContext<'_>,
        x: &DeviceTensor,
        y: &DeviceTensor,
        [rows, columns]: [usize; 2],
    ) -> Result<()> {
        let tiles = columns.div_ceil(32);
        let to = self.parts(ctx, y, rows, part_count(rows, tiles, MIN_ROWS_PER_PART))?;
        let arguments = Arguments::new().address(read(x)?).structure(to.words()?).count(columns);
        kernel_stream(ctx)?.launch_blocks(&self.columns, tiles * to.parts, &arguments.count(to.parts))?;
        self.finish(ctx, &to)
    }

    /// Allocates the memory for `parts` partial results per result.
    fn parts<'a>(
        &self,
        ctx: &KernelContext<'_>,
        y: &'a DeviceTensor,
        count: usize,
        parts: usize,
    ) -> Result<Parts<'a>> {
        let sums = match parts {
            1 => None,
            _ => Some(self.memory(ctx, y.shape.num_elements(), parts)?),
        };
        Ok(Parts { sums, y, count, parts })
    }

    /// Allocates memory for `parts` partial results of each of `n` results, for [`Reduction::add_up`].
    pub(super) fn memory(&self, ctx: &KernelContext<'_>, n: usize, parts: usize) -> Result<DeviceTensor> {
        allocate(ctx, wide(self.dtype), Shape::new(&[n * parts])?)
    }

    /// Combines the partial results in `sums` into `y`; the partial results of one result are contiguous.
    pub(super) fn add_up(
        &self,
        ctx: &KernelContext<'_>,
        sums: DeviceTensor,
        y: &DeviceTensor,
        [count, parts]: [usize; 2],
    ) -> Result<()> {
        self.reduce_parts(ctx, &Parts { sums: Some(sums), y, count, parts })
    }

    fn finish(&self, ctx: &KernelContext<'_>, of: &Parts<'_>) -> Result<()> {
        if of.parts == 1 { Ok(()) } else { self.reduce_parts(ctx, of) }
    }

    fn reduce_parts(&self, ctx: &KernelContext<'_>, of: &Parts<'_>) -> Result<()> {
        let n = of.y.shape.num_elements();
        let arguments = Arguments::new().structure(of.words()?).count(n).count(of.parts);
        kernel_stream(ctx)?.launch_blocks(&self.parts, n, &arguments)
    }
}

/// The memory for partial results and results: `Parts` of the `.cu` file.
struct Parts<'a> {
    /// Memory for the partial results if there is more than one per result.
    sums: Option<DeviceTensor>,
    y: &'a DeviceTensor,
    /// Number of elements that are reduced to a result.
    count: usize,
    parts: usize,
}

impl Parts<'_> {
    fn words(&self) -> Result<[i64; 3]> {
        let sums = self.sums.as_ref().map(write).transpose()?.map_or(0, |at| at.0);
        Ok([sums as i64, write(self.y)?.0 as i64, self.count as i64])
    }
}

/// Makes the kernel of a reduction along the axes in input 1.
fn along_axes(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let keep_dims = init.attr::<bool>("keep_dims")?;
    let reduction = Reduction::new(init, named, init.input_type(0))?;
    // The reduction of a single element is the element, except for the norm, which is the absolute value.
    let keeps_one = named != "EuclideanNorm";
    Kernel::sync(move |ctx| {
        let layout = ReductionLayout::new(ctx.shape(0)?, ctx.input(1)?, keep_dims)?;
        let x = ctx.take_device_input(0)?;
        let out = if layout.reduces() || !keeps_one {
            let y = allocate(ctx, x.dtype, layout.shape)?;
            let axes: SmallVec<[(usize, bool); 8]> =
                layout.axes.iter().map(|a| (a.size, a.reduced)).collect();
            reduction.run(ctx, &x, &y, &axes)?;
            y
        } else {
            DeviceTensor { shape: layout.shape, ..x }
        };
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes a kernel that reduces all elements to a scalar.
pub(super) fn to_scalar(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let reduction = Reduction::new(init, named, init.input_type(0))?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let y = allocate(ctx, x.dtype, Shape::scalar())?;
        reduction.run(ctx, x, &y, &[(x.shape.num_elements(), true)])?;
        ctx.set_output(0, y);
        Ok(())
    })
}

/// Makes the kernel of `ArgMax` or `ArgMin`.
fn arg_extreme(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let (from, to) = (init.input_type(0), init.output_type(0));
    let name = format!("extreme<{named}, {}, {}>", type_name(from)?, type_name(to)?);
    let function = function(init, &SOURCE, name)?;
    Kernel::sync(move |ctx| {
        let (x, dimension) = (ctx.device_input(0)?, ctx.input(1)?);
        if dimension.shape().rank() != 0 {
            device::invalid!("dim must be a scalar, but received tensor of shape: {}", dimension.shape());
        }
        let (rank, axis) = (x.shape.rank(), dimension.to_i64s()?[0]);
        let Some(at) = graph::shape::resolve_axis(axis, rank) else {
            device::invalid!("Expected dimension in the range [-{rank}, {rank}), but got {axis}");
        };
        let size = x.shape[at];
        if size == 0 {
            device::invalid!("Reduction axis {axis} is empty in shape {}", x.shape);
        }
        let mut dims: SmallVec<[usize; 6]> = x.shape.dims().into();
        dims.remove(at);
        let inner: usize = x.shape[at + 1..].iter().product();
        let out = allocate(ctx, to, Shape::new(&dims)?)?;
        let n = out.shape.num_elements();
        let arguments =
            Arguments::new().address(read(x)?).address(write(&out)?).count(n).count(size).count(inner);
        launch(ctx, &function, n, arguments)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes the kernel of `Cumsum` or `Cumprod`.
fn cumulative(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let (dtype, direction) = (init.output_type(0), Direction::of(init)?);
    let scan = function(init, &SOURCE, format!("scan<{named}, {}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let (size, inner) = scan_lines(ctx)?;
        let x = ctx.device_input(0)?;
        let out = allocate(ctx, dtype, x.shape.clone())?;
        let lines = x.shape.num_elements().checked_div(size).unwrap_or(0);
        let arguments = Arguments::new()
            .address(read(x)?)
            .address(write(&out)?)
            .count(lines)
            .count(size)
            .count(inner)
            .flag(direction.exclusive)
            .flag(direction.reverse);
        kernel_stream(ctx)?.launch_blocks(&scan, lines, &arguments)?;
        ctx.set_output(0, out);
        Ok(())
    })
}
