//! Boxes of elements copied: what slices, transposes, tiles, joins and pads have in common.

use super::support::{Axes, allocate, function, lane, launch, moved_type_name, read, write};
use crate::engine::{Arguments, Function, Source};
use device::DeviceTensor;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelInit};
use graph::DType;
use kernels::numeric::strided::{Layout, Taken};
use std::sync::Arc;

pub(super) static SOURCE: Source = Source { file: "moved.cu", text: include_str!("moved.cu") };

/// Bytes that a thread moves at once where they lie together: `u128` of the `.cu` files.
pub(super) const PACK: usize = 16;

/// Copies boxes of elements of one type.
#[derive(Clone, Debug)]
pub(super) struct Mover(Arc<Function>);

impl Mover {
    pub(super) fn new(init: &KernelInit<'_>, dtype: DType) -> Result<Mover> {
        Ok(Mover(function(init, &SOURCE, format!("moved<{}>", moved_type_name(dtype)?))?))
    }

    /// Copies a box of these sizes.
    pub(super) fn copy(
        &self,
        ctx: &KernelContext<'_>,
        dims: &[usize],
        (source, from): (&DeviceTensor, &Layout),
        (target, to): (&DeviceTensor, &Layout),
    ) -> Result<()> {
        let count: usize = dims.iter().product();
        if count == 0 {
            return Ok(());
        }
        let steps = from.strides.iter().zip(&to.strides).map(|(&from, &to)| [from, to]);
        let axes = Axes::new(dims.iter().copied().zip(steps))?;
        let starts = [from.offset, to.offset];
        let pack = PACK / source.dtype.size().unwrap_or(PACK);
        let packed = if pack > 1 { axes.in_packs(pack, &starts) } else { None };
        let unit = if packed.is_some() { pack } else { 1 };
        let count = count / unit;
        let [from, to] = starts.map(|start| (start / unit as isize) as i64);
        let arguments = Arguments::new()
            .address(read(source)?)
            .address(write(target)?)
            .count(count)
            .integer(from)
            .integer(to)
            .flag(unit > 1)
            .structure(packed.as_ref().unwrap_or(&axes).words());
        launch(ctx, &self.0, count, arguments)
    }
}

/// The kernel of an op that takes a box of its first input.
pub(super) fn taking(
    init: &KernelInit<'_>,
    take: impl Fn(&KernelContext<'_>) -> Result<Taken> + Send + Sync + 'static,
) -> Result<Kernel> {
    let mover = Mover::new(init, init.input_type(0))?;
    Kernel::sync(move |ctx| {
        let taken = take(ctx)?;
        let input = ctx.take_device_input(0)?;
        let out = if taken.is_whole(input.shape.num_elements()) {
            DeviceTensor { shape: taken.shape, ..input }
        } else {
            let out = allocate(ctx, input.dtype, taken.shape)?;
            let packed = Layout::packed(&taken.dims);
            mover.copy(ctx, &taken.dims, (&input, &taken.from), (&out, &packed))?;
            out
        };
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Every element one value, which is a tensor of one element of the same type.
#[derive(Clone, Debug)]
pub(super) struct Filler(Arc<Function>);

impl Filler {
    pub(super) fn new(init: &KernelInit<'_>, dtype: DType) -> Result<Filler> {
        Ok(Filler(function(init, &SOURCE, format!("fill<{}>", moved_type_name(dtype)?))?))
    }

    pub(super) fn fill(
        &self,
        ctx: &KernelContext<'_>,
        value: &DeviceTensor,
        to: &DeviceTensor,
    ) -> Result<()> {
        let n = to.shape.num_elements();
        launch(ctx, &self.0, n, Arguments::new().address(read(value)?).address(write(to)?).count(n))
    }
}

/// A tensor of zeros.
pub(super) fn zeros(ctx: &KernelContext<'_>, dtype: DType, shape: graph::Shape) -> Result<DeviceTensor> {
    let out = allocate(ctx, dtype, shape)?;
    lane(ctx)?.fill(&out, 0)?;
    Ok(out)
}
