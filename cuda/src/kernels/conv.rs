//! Convolutions over images, and their gradients. cuDNN needs the filter's axes in another order than
//! TensorFlow, so filters are copied, and equal padding before and after an image, so images with unequal
//! padding are copied.

mod depthwise;
pub(super) mod volumes;

use super::copy::{Mover, zeros};
use super::pad::Padder;
use super::support::{allocate, kernel_stream, read, write};
use crate::engine::driver::{
    Address, Convolution, ConvolutionMemory, Direction, Image, Product, WorkspaceBytes,
};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{DeviceTensor, Result};
use graph::ops::conv::{Conv, ConvSizes};
use graph::ops::window::{DataFormat, Window};
use graph::{Code, DType, Shape};
use kernels::numeric::dispatch::FLOATS;
use kernels::numeric::strided::{Layout, permuted};
use kernels::plan::conv::{input_shape, sizes_input};
use kernels::plan::pad::padded;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("Conv2D", &[("T", FLOATS)], |init| make(init, Direction::Forward)),
    KernelDef {
        host_memory: &["input_sizes"],
        ..KernelDef::enqueuing("Conv2DBackpropInput", &[("T", FLOATS)], |init| make(init, Direction::Input))
    },
    KernelDef {
        host_memory: &["filter_sizes"],
        ..KernelDef::enqueuing("Conv2DBackpropFilter", &[("T", FLOATS)], |init| make(init, Direction::Filter))
    },
    KernelDef::enqueuing("DepthwiseConv2dNative", &[("T", FLOATS)], |i| {
        depthwise::make(i, Direction::Forward)
    }),
    KernelDef {
        host_memory: &["input_sizes"],
        ..KernelDef::enqueuing("DepthwiseConv2dNativeBackpropInput", &[("T", FLOATS)], |init| {
            depthwise::make(init, Direction::Input)
        })
    },
    KernelDef {
        host_memory: &["filter_sizes"],
        ..KernelDef::enqueuing("DepthwiseConv2dNativeBackpropFilter", &[("T", FLOATS)], |init| {
            depthwise::make(init, Direction::Filter)
        })
    },
];

/// The shapes of a convolution's input and filter. A gradient op computes one of the two tensors, and gets the
/// shape of that tensor as an input.
struct ConvShapes {
    direction: Direction,
    input: Shape,
    filter: Shape,
}

impl ConvShapes {
    /// Returns the shapes of an op's input and filter.
    fn of(ctx: &KernelContext<'_>, conv: &Conv, direction: Direction) -> Result<ConvShapes> {
        let (input, filter) = match direction {
            Direction::Forward => (ctx.shape(0)?.clone(), ctx.shape(1)?.clone()),
            Direction::Input => (input_shape(ctx, conv)?, ctx.shape(1)?.clone()),
            Direction::Filter => {
                (ctx.shape(0)?.clone(), Shape::from_i64(&sizes_input(ctx, 1, "filter_sizes")?)?)
            }
        };
        Ok(ConvShapes { direction, input, filter })
    }

    /// Returns the output's shape, which the incoming gradient must have.
    fn output(&self, ctx: &KernelContext<'_>, conv: &Conv, sizes: &ConvSizes) -> Result<Shape> {
        let output = conv.output_shape(sizes)?;
        if self.direction != Direction::Forward && *ctx.shape(2)? != output {
            device::invalid!(
                "{}: Size of out_backprop doesn't match computed: actual = {}, computed = {output}",
                ctx.node().op.name(),
                ctx.shape(2)?
            );
        }
        Ok(output)
    }

    /// Returns the shape of the op's result: the output, or the gradient with respect to input or filter.
    fn result<'a>(&'a self, output: &'a Shape) -> &'a Shape {
        match self.direction {
            Direction::Forward => output,
            Direction::Input => &self.input,
            Direction::Filter => &self.filter,
        }
    }

    /// Returns whether the input, filter or output has no elements.
    fn is_empty(&self, output: &Shape) -> bool {
        [&self.input, &self.filter, output].iter().any(|shape| shape.num_elements() == 0)
    }
}

/// A convolution node's attributes and kernels.
struct Convolver {
    conv: Conv,
    mover: Mover,
    padder: Padder,
    direction: Direction,
}

/// Makes the kernel of a convolution over images, or of one of its gradients.
fn make(init: &KernelInit<'_>, direction: Direction) -> Result<Kernel> {
    let convolver = Convolver {
        conv: Conv::of_images(init.node)?,
        mover: Mover::new(init, init.output_type(0))?,
        padder: Padder::new(init, init.output_type(0))?,
        direction,
    };
    Kernel::sync(move |ctx| {
        let out = convolver.run(ctx)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

impl Convolver {
    /// Computes the op's result.
    fn run(&self, ctx: &KernelContext<'_>) -> Result<DeviceTensor> {
        let conv = &self.conv;
        let shapes = ConvShapes::of(ctx, conv, self.direction)?;
        let sizes = conv.sizes(&shapes.input, &shapes.filter)?;
        let output = shapes.output(ctx, conv, &sizes)?;
        let (dtype, result) = (ctx.node().attr("T")?, shapes.result(&output));
        if shapes.is_empty(&output) {
            return zeros(ctx, dtype, result.clone());
        }
        let ConvShapes { input, filter, .. } = &shapes;
        let out = allocate(ctx, dtype, result.clone())?;
        if self.is_product(&sizes) {
            self.multiply(ctx, &sizes, &out)?;
            return Ok(out);
        }
        match self.direction {
            Direction::Forward => {
                let image = self.padded(ctx, ctx.device_input(0)?, &sizes)?;
                let reordered = self.reordered_filter(ctx, ctx.device_input(1)?)?;
                self.enqueue(ctx, &sizes, [&image, &reordered, &out])?;
            }
            Direction::Input => {
                let reordered = self.reordered_filter(ctx, ctx.device_input(1)?)?;
                let dy = ctx.device_input(2)?;
                match self.margins(&sizes) {
                    None => self.enqueue(ctx, &sizes, [&out, &reordered, dy])?,
                    Some(margins) => {
                        let image = allocate(ctx, dtype, padded(input, &margins)?)?;
                        let mut at = Layout::packed(&image.shape);
                        at.offset =
                            margins.iter().zip(&at.strides).map(|(m, step)| m.0 as isize * step).sum();
                        self.enqueue(ctx, &sizes, [&image, &reordered, dy])?;
                        self.mover.copy(ctx, input, (&image, &at), (&out, &Layout::packed(input)))?;
                    }
                }
            }
            Direction::Filter => {
                let image = self.padded(ctx, ctx.device_input(0)?, &sizes)?;
                let reordered = allocate(ctx, dtype, self.reordered_shape(filter)?)?;
                self.enqueue(ctx, &sizes, [&image, &reordered, ctx.device_input(2)?])?;
                // The library's axis order is permuted back to rows, columns, input and output channels.
                let place = if self.channels_last() { [1, 2, 3, 0] } else { [2, 3, 1, 0] };
                let from = permuted(&reordered.shape, &place);
                self.mover.copy(ctx, filter, (&reordered, &from), (&out, &Layout::packed(filter)))?;
            }
        }
        Ok(out)
    }

    fn channels_last(&self) -> bool {
        self.conv.format == DataFormat::Nhwc
    }

    /// Returns whether the convolution is a matrix product of pixels and filter, because each output position
    /// depends on one input position only.
    fn is_product(&self, sizes: &ConvSizes) -> bool {
        let is_whole = |window: &Window| {
            window.filter == 1
                && window.stride == 1
                && window.pad_before == 0
                && window.input == window.output
        };
        self.channels_last()
            && sizes.in_channels == sizes.filter_channels
            && [&sizes.rows, &sizes.columns].into_iter().all(is_whole)
    }

    /// Enqueues the convolution as a matrix product.
    fn multiply(&self, ctx: &KernelContext<'_>, sizes: &ConvSizes, out: &DeviceTensor) -> Result<()> {
        let pixels = sizes.batch * sizes.rows.output * sizes.columns.output;
        let (channels, depth) = (sizes.in_channels, sizes.out_channels);
        let (factors, sizes, flips) = match self.direction {
            Direction::Forward => ([0, 1], [pixels, channels, depth], [false, false]),
            Direction::Input => ([2, 1], [pixels, depth, channels], [false, true]),
            Direction::Filter => ([0, 2], [channels, pixels, depth], [true, false]),
        };
        let [a, b] = factors.map(|i| ctx.device_input(i).and_then(read));
        product(ctx, out.dtype, sizes, flips, [a?, b?, write(out)?])
    }

    /// Returns the filter's shape in the library's axis order: output channels first, and the other axes like
    /// the images'.
    fn reordered_shape(&self, filter: &Shape) -> Result<Shape> {
        Ok(Shape::new(&self.filter_order().map(|axis| filter[axis]))?)
    }

    /// Returns the permutation of the filter's axes that gives the library's axis order.
    fn filter_order(&self) -> [usize; 4] {
        if self.channels_last() { [3, 0, 1, 2] } else { [3, 2, 0, 1] }
    }

    /// Returns a copy of the filter in the library's axis order.
    fn reordered_filter(&self, ctx: &KernelContext<'_>, filter: &DeviceTensor) -> Result<DeviceTensor> {
        let out = allocate(ctx, filter.dtype, self.reordered_shape(&filter.shape)?)?;
        let from = permuted(&filter.shape, &self.filter_order());
        let dims = out.shape.clone();
        self.mover.copy(ctx, &dims, (filter, &from), (&out, &Layout::packed(&dims)))?;
        Ok(out)
    }

    /// Returns the padding before and after each axis if the two differ along rows or columns; else `None`.
    fn margins(&self, sizes: &ConvSizes) -> Option<[(usize, usize); 4]> {
        let paddings = [&sizes.rows, &sizes.columns].map(padding);
        if paddings.iter().all(AxisPadding::is_even) {
            return None;
        }
        let [rows, columns] = paddings.map(|AxisPadding { before, after }| (before, after));
        Some(self.conv.format.of_nhwc([(0, 0), rows, columns, (0, 0)]))
    }

    /// Returns the image, copied into a padded tensor if the padding before the image differs from the padding
    /// after it.
    fn padded(
        &self,
        ctx: &KernelContext<'_>,
        image: &DeviceTensor,
        sizes: &ConvSizes,
    ) -> Result<DeviceTensor> {
        match self.margins(sizes) {
            Some(margins) => self.padder.pad(ctx, image, &margins, None),
            None => Ok(image.clone()),
        }
    }

    /// Enqueues the library's convolution on image, filter and output. The filter is in the library's axis
    /// order. If the padding before the image differs from the padding after it, the image contains its
    /// padding.
    fn enqueue(&self, ctx: &KernelContext<'_>, sizes: &ConvSizes, tensors: [&DeviceTensor; 3]) -> Result<()> {
        let [image, filter, output] = tensors;
        let stream = kernel_stream(ctx)?;
        let of_axes = |of: fn(&Window) -> usize| [of(&sizes.rows), of(&sizes.columns)];
        let is_padded = self.margins(sizes).is_some();
        let channels_last = self.channels_last();
        let batch = |tensor: &DeviceTensor| {
            let dims: [usize; 4] = std::array::from_fn(|i| tensor.shape[i]);
            let [n, h, w, c] = self.conv.format.to_nhwc(dims);
            Image { sizes: [n, c, h, w], channels_last }
        };
        let convolution = Convolution {
            direction: self.direction,
            dtype: image.dtype,
            input: batch(image),
            filter: [sizes.out_channels, sizes.filter_channels, sizes.rows.filter, sizes.columns.filter],
            output: batch(output),
            padding: if is_padded { [0, 0] } else { of_axes(|w| w.pad_before) },
            strides: of_axes(|w| w.stride),
            dilations: of_axes(|w| w.dilation),
            groups: sizes.in_channels / sizes.filter_channels.max(1),
            tf32: stream.tf32(),
        };
        debug_assert_eq!(filter.shape.num_elements(), convolution.filter.iter().product::<usize>());
        match stream.call(|driver, stream| driver.convolution_workspace(&convolution, stream))? {
            None if channels_last => self.enqueue_channels_first(ctx, convolution, tensors),
            bytes => convolve(ctx, &convolution, bytes, tensors),
        }
    }

    /// Enqueues a convolution that the library supports only with channels first: copies the tensors to
    /// channels-first order and the result back.
    fn enqueue_channels_first(
        &self,
        ctx: &KernelContext<'_>,
        mut convolution: Convolution,
        tensors: [&DeviceTensor; 3],
    ) -> Result<()> {
        let (first, last) = ([0, 3, 1, 2], [0, 2, 3, 1]);
        let result = result_of(self.direction);
        let mut moved = tensors.map(Clone::clone);
        for (i, (tensor, moved)) in tensors.into_iter().zip(&mut moved).enumerate() {
            let dims = Shape::new(&first.map(|axis| tensor.shape[axis]))?;
            *moved = allocate(ctx, tensor.dtype, dims.clone())?;
            if i != result {
                let from = permuted(&tensor.shape, &first);
                self.mover.copy(ctx, &dims, (tensor, &from), (moved, &Layout::packed(&dims)))?;
            }
        }
        (convolution.input.channels_last, convolution.output.channels_last) = (false, false);
        let bytes =
            kernel_stream(ctx)?.call(|driver, stream| driver.convolution_workspace(&convolution, stream))?;
        convolve(ctx, &convolution, bytes, [&moved[0], &moved[1], &moved[2]])?;
        let (from, to) = (&moved[result], tensors[result]);
        self.mover.copy(
            ctx,
            &to.shape,
            (from, &permuted(&from.shape, &last)),
            (to, &Layout::packed(&to.shape)),
        )
    }
}

/// Enqueues the product of an `m` x `k` and a `k` x `n` matrix.
fn product(
    ctx: &KernelContext<'_>,
    dtype: DType,
    [m, k, n]: [usize; 3],
    flips: [bool; 2],
    [a, b, c]: [Address; 3],
) -> Result<()> {
    let stream = kernel_stream(ctx)?;
    let tf32 = stream.tf32();
    let steps = [m * k, k * n, m * n];
    let product =
        Product { dtype, m, n, k, flips, conjugates: false, a, b, c, count: 1, steps, tf32, epilogue: None };
    stream.call(|driver, stream| driver.product(&product, stream))
}

/// Returns the index of the tensor that the convolution computes, in the list of image, filter and output.
fn result_of(direction: Direction) -> usize {
    match direction {
        Direction::Forward => 2,
        Direction::Input => 0,
        Direction::Filter => 1,
    }
}

/// Allocates a workspace and enqueues the library's convolution.
fn convolve(
    ctx: &KernelContext<'_>,
    convolution: &Convolution,
    bytes: Option<WorkspaceBytes>,
    tensors: [&DeviceTensor; 3],
) -> Result<()> {
    let stream = kernel_stream(ctx)?;
    let workspace = workspace(ctx, bytes)?;
    let result = result_of(convolution.direction);
    let at = |i: usize| if i == result { write(tensors[i]) } else { read(tensors[i]) };
    let space = workspace.as_ref().map(|(space, bytes)| Ok::<_, device::Error>((write(space)?, *bytes)));
    let at =
        ConvolutionMemory { input: at(0)?, filter: at(1)?, output: at(2)?, workspace: space.transpose()? };
    stream.call(|driver, stream| driver.convolve(convolution, &at, stream))
}

/// Allocates a workspace of the preferred size, or of the minimum size if there is not enough memory. Returns
/// the workspace with its size in bytes.
fn workspace(
    ctx: &KernelContext<'_>,
    bytes: Option<WorkspaceBytes>,
) -> Result<Option<(DeviceTensor, usize)>> {
    let take = |bytes: usize| -> Result<Option<(DeviceTensor, usize)>> {
        match bytes {
            0 => Ok(None),
            bytes => Ok(Some((kernel_stream(ctx)?.scratch(&ctx.node().name, bytes)?, bytes))),
        }
    };
    let Some(WorkspaceBytes { preferred, minimum }) = bytes else { return Ok(None) };
    match take(preferred) {
        Err(error) if error.code() == Code::ResourceExhausted && minimum < preferred => take(minimum),
        taken => taken,
    }
}

/// The part of the padding along one axis that windows cover: before the image, and after it.
struct AxisPadding {
    before: usize,
    after: usize,
}

impl AxisPadding {
    fn is_even(&self) -> bool {
        self.before == self.after
    }
}

/// Returns the padding along one axis. The padding after the image is made as large as the padding before it if
/// this does not change the result.
fn padding(window: &Window) -> AxisPadding {
    let reach = window.output.saturating_sub(1) * window.stride + (window.filter - 1) * window.dilation + 1;
    let before = window.pad_before;
    // `after` is the part of the padding that windows cover; more padding changes nothing unless another window
    // fits.
    let after = reach.saturating_sub(before + window.input);
    if after < before && fits(window, before) {
        AxisPadding { before, after: before }
    } else {
        AxisPadding { before, after }
    }
}

/// Returns whether the number of windows stays the same with `padding` on both sides of the image.
fn fits(window: &Window, padding: usize) -> bool {
    let size = window.input + 2 * padding;
    let effective = (window.filter - 1) * window.dilation + 1;
    size >= effective && (size - effective) / window.stride + 1 == window.output
}
