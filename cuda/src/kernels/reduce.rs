//! Reductions along axes, and the positions of extremes.

use super::support::{Axes, NUMBERS, allocate, function, lane, launch, read, type_name, wide, write};
use crate::engine::{Arguments, BUSY, Function, Source};
use device::DeviceTensor;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::{DType, Shape};
use kernels::numeric::dispatch::{COMPLEX, FLOATS, INDEX};
use kernels::reduce::Layout;
use kernels::reduce::scan::{Direction, lines};
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
                ..KernelDef::enqueuing("ArgMax", &[("T", NUMBERS), ("output_type", INDEX)], |init| extreme(init, "ArgMax"))
            },
            KernelDef {
                host_memory: &["dimension"],
                ..KernelDef::enqueuing("ArgMin", &[("T", NUMBERS), ("output_type", INDEX)], |init| extreme(init, "ArgMin"))
            },
            KernelDef {
                host_memory: &["axis"],
                ..KernelDef::enqueuing("Cumsum", &[("T", NUMBERS)], |init| running(init, "Sum"))
            },
            KernelDef {
                host_memory: &["axis"],
                ..KernelDef::enqueuing("Cumsum", &[("T", COMPLEX)], |init| running(init, "Sum"))
            },
            KernelDef {
                host_memory: &["axis"],
                ..KernelDef::enqueuing("Cumprod", &[("T", NUMBERS)], |init| running(init, "Prod"))
            },
            KernelDef {
                host_memory: &["axis"],
                ..KernelDef::enqueuing("Cumprod", &[("T", COMPLEX)], |init| running(init, "Prod"))
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

/// A reduction's kernels, which do the same in ways that suit different layouts.
#[derive(Debug)]
pub(super) struct Reduction {
    dtype: DType,
    /// A thread a result.
    each: Arc<Function>,
    /// A block a part of a result.
    block: Arc<Function>,
    /// A block a part of some columns of a matrix.
    columns: Arc<Function>,
    /// What the parts come to.
    parts: Arc<Function>,
}

/// Results of at least so many elements are worth a block of threads.
const WORTH_A_BLOCK: usize = 64;

/// Elements of a part at least: eight a thread, of which there are 256; of a column, eight share it.
pub(super) const WORTH_A_PART: usize = 2048;
const ROWS_WORTH_A_PART: usize = 64;

/// Parts of each of `count` elements, for so many blocks' work: where results do not keep a GPU busy, there are several.
pub(super) fn parts_of(count: usize, blocks: usize, least: usize) -> usize {
    (count / least).min(BUSY / blocks.max(1)).max(1)
}

impl Reduction {
    pub(super) fn new(init: &KernelInit<'_>, named: &str, dtype: DType) -> Result<Reduction> {
        let types = format!("<{named}, {}>", type_name(dtype)?);
        let function = |kind: &str| function(init, &SOURCE, format!("reduce_{kind}{types}"));
        let (each, block, columns) = (function("each")?, function("block")?, function("columns")?);
        Ok(Reduction { dtype, each, block, columns, parts: function("parts")? })
    }

    /// Reduces axes (outermost first, with whether they go) of `x` into `y`.
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
        self.walk(ctx, x, y, &of_kind(false), &of_kind(true))
    }

    /// Reduces elements of `x` that axes (sizes and steps) lead to from where those of `kept` do.
    pub(super) fn walk(
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
        if count < WORTH_A_BLOCK {
            let arguments = Arguments::new().address(read(x)?).address(write(y)?).count(n).count(count);
            return launch(ctx, &self.each, n, arguments.structure(layout));
        }
        let to = self.parts(ctx, y, count, parts_of(count, n, WORTH_A_PART))?;
        let arguments = Arguments::new().address(read(x)?).structure(to.words()?).count(n).count(to.parts);
        lane(ctx)?.launch_blocks(&self.block, n * to.parts, &arguments.structure(layout))?;
        self.finish(ctx, &to)
    }

    /// Reduces the columns of a matrix.
    fn columns(
        &self,
        ctx: &KernelContext<'_>,
        x: &DeviceTensor,
        y: &DeviceTensor,
        [rows, columns]: [usize; 2],
    ) -> Result<()> {
        let tiles = columns.div_ceil(32);
        let to = self.parts(ctx, y, rows, parts_of(rows, tiles, ROWS_WORTH_A_PART))?;
        let arguments = Arguments::new().address(read(x)?).structure(to.words()?).count(columns);
        lane(ctx)?.launch_blocks(&self.columns, tiles * to.parts, &arguments.count(to.parts))?;
        self.finish(ctx, &to)
    }

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

    /// Memory for so many parts of each of `n` results, which [`Reduction::add_up`] reduces.
    pub(super) fn memory(&self, ctx: &KernelContext<'_>, n: usize, parts: usize) -> Result<DeviceTensor> {
        allocate(ctx, wide(self.dtype), Shape::new(&[n * parts])?)
    }

    /// Reduces the parts of each result, which follow each other.
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
        lane(ctx)?.launch_blocks(&self.parts, n, &arguments)
    }
}

/// Where parts of results go: `Parts` of the `.cu` file.
struct Parts<'a> {
    /// Memory for more than one.
    sums: Option<DeviceTensor>,
    y: &'a DeviceTensor,
    /// Elements of a result.
    count: usize,
    parts: usize,
}

impl Parts<'_> {
    fn words(&self) -> Result<[i64; 3]> {
        let sums = self.sums.as_ref().map(write).transpose()?.map_or(0, |at| at.0);
        Ok([sums as i64, write(self.y)?.0 as i64, self.count as i64])
    }
}

fn along_axes(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let keep_dims = init.attr::<bool>("keep_dims")?;
    let reduction = Reduction::new(init, named, init.input_type(0))?;
    // What becomes of one element: the norm of a negative one is not that element.
    let keeps_one = named != "EuclideanNorm";
    Kernel::sync(move |ctx| {
        let layout = Layout::new(ctx.shape(0)?, ctx.input(1)?, keep_dims)?;
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

/// All elements into a scalar.
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

fn extreme(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
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

fn running(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let (dtype, direction) = (init.output_type(0), Direction::of(init)?);
    let scan = function(init, &SOURCE, format!("scan<{named}, {}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let (size, inner) = lines(ctx)?;
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
        lane(ctx)?.launch_blocks(&scan, lines, &arguments)?;
        ctx.set_output(0, out);
        Ok(())
    })
}
