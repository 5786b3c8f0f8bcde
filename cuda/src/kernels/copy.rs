//! Copies of strided boxes, which slices, transposes, tiles, joins and pads use.

use super::support::{Axes, allocate, copied_type_name, function, kernel_stream, launch, read, write};
use crate::engine::{Arguments, Function, Source};
use device::DeviceTensor;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelInit};
use graph::DType;
use kernels::numeric::strided::{InputBox, Layout};
use std::sync::Arc;

pub(super) static SOURCE: Source = Source { file: "copy.cu", text: include_str!("copy.cu") };

/// Number of contiguous bytes that a thread copies at a time if possible: the size of `u128` in the `.cu`
/// files.
pub(super) const PACK: usize = 16;

/// The kernel that copies boxes of elements of one dtype.
#[derive(Clone, Debug)]
pub(super) struct Mover(Arc<Function>);

impl Mover {
    /// Loads the kernel for a dtype.
    pub(super) fn new(init: &KernelInit<'_>, dtype: DType) -> Result<Mover> {
        Ok(Mover(function(init, &SOURCE, format!("moved<{}>", copied_type_name(dtype)?))?))
    }

    /// Copies a box of the sizes `dims` from `source` to `target`; a layout is the offset and the strides of
    /// the box in a tensor.
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

/// Makes the kernel of an op whose output is a strided box of its first input; `take` returns the shape and
/// layout of the box.
pub(super) fn make_box_copy(
    init: &KernelInit<'_>,
    take: impl Fn(&KernelContext<'_>) -> Result<InputBox> + Send + Sync + 'static,
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

/// The kernel that sets all elements of a tensor to the value of a one-element tensor.
#[derive(Clone, Debug)]
pub(super) struct Filler(Arc<Function>);

impl Filler {
    /// Loads the kernel for a dtype.
    pub(super) fn new(init: &KernelInit<'_>, dtype: DType) -> Result<Filler> {
        Ok(Filler(function(init, &SOURCE, format!("fill<{}>", copied_type_name(dtype)?))?))
    }

    /// Sets all elements of `to`.
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

/// Allocates a tensor of zeros.
pub(super) fn zeros(ctx: &KernelContext<'_>, dtype: DType, shape: graph::Shape) -> Result<DeviceTensor> {
    let out = allocate(ctx, dtype, shape)?;
    kernel_stream(ctx)?.fill(&out, 0)?;
    Ok(out)
}
