//! Reductions along axes, and the positions of extremes.

use super::support::{Axes, NUMBERS, allocate, function, lane, launch, read, type_name, write};
use crate::cuda::{Arguments, Function, Source};
use crate::device::DeviceTensor;
use crate::error::Result;
use crate::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use crate::kernels::cpu::dispatch::{FLOATS, INDEX};
use crate::kernels::cpu::reduce::Layout;
use crate::kernels::cpu::reduce::scan::{Direction, lines};
use graph::{DType, Shape};
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
                ..KernelDef::enqueuing("Cumprod", &[("T", NUMBERS)], |init| running(init, "Prod"))
            },
        ]
    };
}

pub(super) const KERNELS: &[KernelDef] = kernels! {
    "Sum" &[("T", NUMBERS)];
    "Prod" &[("T", NUMBERS)];
    "Max" &[("T", NUMBERS)];
    "Min" &[("T", NUMBERS)];
    "Mean" &[("T", FLOATS)];
    "EuclideanNorm" &[("T", FLOATS)];
    "All" &[];
    "Any" &[];
};

/// A reduction's kernels, which do the same in ways that suit different layouts.
#[derive(Debug)]
pub(super) struct Reduction {
    /// A thread a result.
    each: Arc<Function>,
    /// A block a result.
    block: Arc<Function>,
    /// The columns of a matrix.
    columns: Arc<Function>,
}

/// Results of at least so many elements are worth a block of threads.
const WORTH_A_BLOCK: usize = 64;

impl Reduction {
    pub(super) fn new(init: &KernelInit<'_>, named: &str, dtype: DType) -> Result<Reduction> {
        let types = format!("<{named}, {}>", type_name(dtype)?);
        let function = |kind: &str| function(init, &SOURCE, format!("reduce_{kind}{types}"));
        Ok(Reduction { each: function("each")?, block: function("block")?, columns: function("columns")? })
    }

    /// Reduces axes (outermost first, with whether they go) of `x` into `y`.
    pub(super) fn run(
        &self,
        ctx: &KernelContext<'_>,
        x: &DeviceTensor,
        y: &DeviceTensor,
        axes: &[(usize, bool)],
    ) -> Result<()> {
        let n = y.shape.num_elements();
        let count: usize = axes.iter().filter(|(_, goes)| *goes).map(|(size, _)| size).product();
        let arguments = Arguments::new().address(read(x)?).address(write(y)?);
        if let [(rows, true), (columns, false)] = *axes {
            let arguments = arguments.count(columns).count(rows);
            return lane(ctx)?.launch_blocks(&self.columns, columns.div_ceil(32), &arguments);
        }
        let mut step = 1isize;
        let mut all: SmallVec<[(usize, bool, isize); 8]> = SmallVec::new();
        for &(size, goes) in axes.iter().rev() {
            all.push((size, goes, step));
            step = step.saturating_mul(size as isize);
        }
        all.reverse();
        let of_kind = |goes: bool| {
            let axes = all.iter().filter(move |axis| axis.1 == goes);
            Axes::<1>::new(axes.map(|&(size, _, step)| (size, [step])))
        };
        self.launch(ctx, arguments, (n, count), (of_kind(false)?, of_kind(true)?))
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
        let sizes = (y.shape.num_elements(), reduced.iter().map(|axis| axis.0).product());
        let arguments = Arguments::new().address(read(x)?).address(write(y)?);
        self.launch(ctx, arguments, sizes, (axes(kept)?, axes(reduced)?))
    }

    /// `n` results of `count` elements each.
    fn launch(
        &self,
        ctx: &KernelContext<'_>,
        arguments: Arguments,
        (n, count): (usize, usize),
        (kept, reduced): (Axes<1>, Axes<1>),
    ) -> Result<()> {
        let arguments = arguments.count(n).count(count).structure(kept.words().chain(reduced.words()));
        match count >= WORTH_A_BLOCK {
            true => lane(ctx)?.launch_blocks(&self.block, n, &arguments),
            false => launch(ctx, &self.each, n, arguments),
        }
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
            crate::invalid!("dim must be a scalar, but received tensor of shape: {}", dimension.shape());
        }
        let (rank, axis) = (x.shape.rank(), dimension.to_i64s()?[0]);
        let Some(at) = graph::shape::resolve_axis(axis, rank) else {
            crate::invalid!("Expected dimension in the range [-{rank}, {rank}), but got {axis}");
        };
        let size = x.shape[at];
        if size == 0 {
            crate::invalid!("Reduction axis {axis} is empty in shape {}", x.shape);
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
