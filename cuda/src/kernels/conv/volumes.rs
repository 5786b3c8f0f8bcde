//! Convolutions over volumes, and their gradients, as matrix products. A patch, the input elements under the
//! filter at one position, is copied to a row of a matrix. A few volumes are processed at a time, so that the
//! patches take bounded memory.

use super::super::copy::{Mover, zeros};
use super::super::support::{allocate, function, launch, read, type_name, wide, write};
use super::super::{binary, cast};
use super::{ConvShapes, product};
use crate::engine::driver::{Address, Direction};
use crate::engine::{Arguments, Function, KernelStream, Source};
use device::DeviceTensor;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::ops::conv::{Conv, ConvSizes};
use graph::ops::window::{DataFormat, Window};
use graph::{DType, Shape};
use kernels::numeric::dispatch::FLOATS;
use kernels::numeric::strided::{Layout, permuted};
use std::sync::Arc;

pub(in crate::kernels) static SOURCE: Source =
    Source { file: "volumes.cu", text: include_str!("../volumes.cu") };

pub(in crate::kernels) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("Conv3D", &[("T", FLOATS)], |init| make(init, Direction::Forward)),
    KernelDef {
        host_memory: &["input_sizes"],
        ..KernelDef::enqueuing("Conv3DBackpropInputV2", &[("T", FLOATS)], |init| make(init, Direction::Input))
    },
    KernelDef {
        host_memory: &["filter_sizes"],
        ..KernelDef::enqueuing("Conv3DBackpropFilterV2", &[("T", FLOATS)], |init| {
            make(init, Direction::Filter)
        })
    },
];

/// The patches of the volumes that are processed at a time use at most the GPU's memory divided by this number,
/// unless the patches of a single volume need more.
const SHARE: u64 = 256;

/// A convolution node's attributes and kernels.
struct Convolver {
    conv: Conv,
    dtype: DType,
    /// The dtype in which sums are computed.
    wide: DType,
    direction: Direction,
    /// Largest size in bytes of the patches of the volumes that are processed at a time.
    most: usize,
    mover: Mover,
    patches: Arc<Function>,
    of_patches: Arc<Function>,
    widened: Arc<Function>,
    add: Arc<Function>,
}

/// Makes the kernel of a convolution over volumes, or of one of its gradients.
fn make(init: &KernelInit<'_>, direction: Direction) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let of = |named: &str| function(init, &SOURCE, format!("{named}<{}>", type_name(dtype)?));
    let convolver = Convolver {
        conv: Conv::of_volumes(init.node)?,
        dtype,
        wide: wide(dtype),
        direction,
        most: (KernelStream::of(init.device)?.driver().memory()?.1 / SHARE) as usize,
        mover: Mover::new(init, dtype)?,
        patches: of("patches")?,
        of_patches: of("of_patches")?,
        widened: cast::function(init, dtype, wide(dtype))?,
        add: function(init, &binary::SOURCE, format!("add_to<{}>", type_name(dtype)?))?,
    };
    Kernel::sync(move |ctx| {
        let out = convolver.run(ctx)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The sizes of the tensors in one run of the kernel.
struct CallSizes<'a> {
    sizes: ConvSizes,
    /// Number of elements in a patch, which is one row of the matrix product.
    taps: usize,
    /// Number of patches in a volume, each of which is a row of the matrix product.
    positions: usize,
    /// The fields of the `Volumes` structure of `volumes.cu`, in the order of declaration.
    words: &'a [i64],
}

impl Convolver {
    fn run(&self, ctx: &KernelContext<'_>) -> Result<DeviceTensor> {
        let shapes = ConvShapes::of(ctx, &self.conv, self.direction)?;
        let sizes = self.conv.sizes(&shapes.input, &shapes.filter)?;
        let output = shapes.output(ctx, &self.conv, &sizes)?;
        if shapes.is_empty(&output) {
            return zeros(ctx, self.dtype, shapes.result(&output).clone());
        }
        let windows = [&sizes.planes, &sizes.rows, &sizes.columns];
        let call = CallSizes {
            sizes,
            taps: windows.iter().map(|window| window.filter).product::<usize>() * sizes.in_channels,
            positions: windows.iter().map(|window| window.output).product(),
            words: &words(self.conv.format, sizes.in_channels, windows).collect::<Vec<_>>(),
        };
        match self.direction {
            Direction::Forward => self.forward(ctx, &call, output),
            Direction::Input => self.input(ctx, &call, shapes.input),
            Direction::Filter => self.filter(ctx, &call, shapes.filter),
        }
    }

    /// Calls `run` for each group of volumes that is processed at a time, with the index of the first volume,
    /// the number of volumes, and memory for their patches.
    fn for_each_chunk(
        &self,
        ctx: &KernelContext<'_>,
        call: &CallSizes<'_>,
        dtype: DType,
        mut run: impl FnMut(usize, usize, &DeviceTensor) -> Result<()>,
    ) -> Result<()> {
        let volume = call.positions * call.taps;
        let bytes = volume * dtype.size().unwrap_or(1);
        let most = (self.most / bytes).clamp(1, call.sizes.batch);
        let patches = allocate(ctx, dtype, Shape::new(&[most * volume])?)?;
        for first in (0..call.sizes.batch).step_by(most) {
            run(first, most.min(call.sizes.batch - first), &patches)?;
        }
        Ok(())
    }

    /// Enqueues the copy of the patches of `count` volumes of `x`, from volume `first` on.
    fn extract_patches(
        &self,
        ctx: &KernelContext<'_>,
        call: &CallSizes<'_>,
        x: &DeviceTensor,
        (first, count): (usize, usize),
        patches: &DeviceTensor,
    ) -> Result<()> {
        let n = count * call.positions * call.taps;
        let arguments = Arguments::new().address(read(x)?).address(write(patches)?).count(n).count(first);
        launch(ctx, &self.patches, n, arguments.structure(call.words.iter().copied()))
    }

    /// Computes the output of the convolution.
    fn forward(&self, ctx: &KernelContext<'_>, call: &CallSizes<'_>, shape: Shape) -> Result<DeviceTensor> {
        let (x, filter) = (ctx.device_input(0)?, ctx.device_input(1)?);
        let depth = call.sizes.out_channels;
        let y = allocate(ctx, self.dtype, self.channels_last(&shape)?)?;
        self.for_each_chunk(ctx, call, self.dtype, |first, count, patches| {
            self.extract_patches(ctx, call, x, (first, count), patches)?;
            let rows = element(write(&y)?, self.dtype, first * call.positions * depth);
            let sizes = [count * call.positions, call.taps, depth];
            product(ctx, self.dtype, sizes, [false; 2], [read(patches)?, read(filter)?, rows])
        })?;
        match self.conv.format {
            DataFormat::Nhwc => Ok(y),
            DataFormat::Nchw => {
                // The output is copied from channels-last to channels-first order.
                let out = allocate(ctx, self.dtype, shape)?;
                let (from, dims) = (permuted(&y.shape, &[0, 4, 1, 2, 3]), out.shape.clone());
                self.mover.copy(ctx, &dims, (&y, &from), (&out, &Layout::packed(&dims)))?;
                Ok(out)
            }
        }
    }

    /// Computes the gradient with respect to the input.
    fn input(&self, ctx: &KernelContext<'_>, call: &CallSizes<'_>, shape: Shape) -> Result<DeviceTensor> {
        // The products are computed in the wider dtype, so that contributions of patches are summed before they
        // are rounded.
        let (filter, dy) =
            (self.widen(ctx, ctx.device_input(1)?)?, self.widen(ctx, &self.output_gradient(ctx)?)?);
        let (depth, volume) = (call.sizes.out_channels, shape.num_elements() / call.sizes.batch);
        let dx = allocate(ctx, self.dtype, shape)?;
        self.for_each_chunk(ctx, call, self.wide, |first, count, patches| {
            let rows = element(read(&dy)?, self.wide, first * call.positions * depth);
            let sizes = [count * call.positions, depth, call.taps];
            product(ctx, self.wide, sizes, [false, true], [rows, read(&filter)?, write(patches)?])?;
            let n = count * volume;
            let arguments =
                Arguments::new().address(read(patches)?).address(write(&dx)?).count(n).count(first);
            launch(ctx, &self.of_patches, n, arguments.structure(call.words.iter().copied()))
        })?;
        Ok(dx)
    }

    /// Computes the gradient with respect to the filter.
    fn filter(&self, ctx: &KernelContext<'_>, call: &CallSizes<'_>, shape: Shape) -> Result<DeviceTensor> {
        let (x, dy) = (ctx.device_input(0)?, self.output_gradient(ctx)?);
        let depth = call.sizes.out_channels;
        let (sum, n) = (allocate(ctx, self.dtype, shape.clone())?, shape.num_elements());
        self.for_each_chunk(ctx, call, self.dtype, |first, count, patches| {
            self.extract_patches(ctx, call, x, (first, count), patches)?;
            let rows = element(read(&dy)?, self.dtype, first * call.positions * depth);
            let sizes = [call.taps, count * call.positions, depth];
            // The product of the first group of volumes initialises the sum; the products of later groups are
            // added.
            let part = match first {
                0 => sum.clone(),
                _ => allocate(ctx, self.dtype, shape.clone())?,
            };
            product(ctx, self.dtype, sizes, [true, false], [read(patches)?, rows, write(&part)?])?;
            if first > 0 {
                let arguments = Arguments::new().address(read(&part)?).address(write(&sum)?).count(n);
                launch(ctx, &self.add, n, arguments)?;
            }
            Ok(())
        })?;
        Ok(sum)
    }

    /// Returns the incoming gradient (input 2), copied to channels-last order if necessary.
    fn output_gradient(&self, ctx: &KernelContext<'_>) -> Result<DeviceTensor> {
        let dy = ctx.device_input(2)?;
        match self.conv.format {
            DataFormat::Nhwc => Ok(dy.clone()),
            DataFormat::Nchw => {
                let last = allocate(ctx, self.dtype, self.channels_last(&dy.shape)?)?;
                let (from, dims) = (permuted(&dy.shape, &[0, 2, 3, 4, 1]), last.shape.clone());
                self.mover.copy(ctx, &dims, (dy, &from), (&last, &Layout::packed(&dims)))?;
                Ok(last)
            }
        }
    }

    /// Returns a shape in channels-last order.
    fn channels_last(&self, shape: &Shape) -> Result<Shape> {
        Ok(match (shape.dims(), self.conv.format) {
            (&[n, c, d, h, w], DataFormat::Nchw) => Shape::new(&[n, d, h, w, c])?,
            _ => shape.clone(),
        })
    }

    /// Returns the tensor converted to the dtype in which sums are computed.
    fn widen(&self, ctx: &KernelContext<'_>, x: &DeviceTensor) -> Result<DeviceTensor> {
        if self.wide == self.dtype {
            return Ok(x.clone());
        }
        let (y, n) = (allocate(ctx, self.wide, x.shape.clone())?, x.shape.num_elements());
        launch(ctx, &self.widened, n, Arguments::new().address(read(x)?).address(write(&y)?).count(n))?;
        Ok(y)
    }
}

/// Returns the address of element `number` of a tensor whose first element is at `start`.
fn element(start: Address, dtype: DType, number: usize) -> Address {
    Address(start.0 + (number * dtype.size().unwrap_or(1)) as u64)
}

/// Returns the fields of the `Volumes` structure of `volumes.cu`, which describes how a filter moves over
/// planes, rows and columns, in the order of declaration.
pub(in crate::kernels) fn words(
    format: DataFormat,
    channels: usize,
    windows: [&Window; 3],
) -> impl Iterator<Item = i64> + use<> {
    let per_axis = |of: fn(&Window) -> usize| windows.map(of);
    let ([d, h, w], c) = (per_axis(|window| window.input), channels);
    let steps = match format {
        DataFormat::Nhwc => [d * h * w * c, h * w * c, w * c, c, 1],
        DataFormat::Nchw => [c * d * h * w, h * w, w, 1, d * h * w],
    };
    let axes = [
        per_axis(|window| window.input),
        per_axis(|window| window.output),
        per_axis(|window| window.filter),
        per_axis(|window| window.stride),
        per_axis(|window| window.dilation),
        per_axis(|window| window.pad_before.wrapping_sub(window.skip_before)),
    ];
    [c].into_iter().chain(axes.into_iter().flatten()).chain(steps).map(|word| word as i64)
}
