//! Convolutions over images, and their gradients. The library wants filters in another order than ours, and as much
//! padding after an image as before it: where either differs, elements are moved.

mod depthwise;
pub(super) mod volumes;

use super::moved::{Mover, zeros};
use super::pad::Padder;
use super::support::{allocate, lane, read, write};
use crate::engine::driver::{Address, Convolution, ConvolutionAt, Direction, Image, Product, WorkspaceBytes};
use device::DeviceTensor;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::ops::conv::{Conv, ConvSizes};
use graph::ops::window::{DataFormat, Window};
use graph::{Code, DType, Shape};
use kernels::conv::{input_shape, sizes_input};
use kernels::numeric::dispatch::FLOATS;
use kernels::numeric::strided::{Layout, permuted};
use kernels::pad::padded;

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

/// The shapes of an input and a filter, of which a gradient is given its own as sizes.
struct Given {
    direction: Direction,
    input: Shape,
    filter: Shape,
}

impl Given {
    fn of(ctx: &KernelContext<'_>, conv: &Conv, direction: Direction) -> Result<Given> {
        let (input, filter) = match direction {
            Direction::Forward => (ctx.shape(0)?.clone(), ctx.shape(1)?.clone()),
            Direction::Input => (input_shape(ctx, conv)?, ctx.shape(1)?.clone()),
            Direction::Filter => {
                (ctx.shape(0)?.clone(), Shape::from_i64(&sizes_input(ctx, 1, "filter_sizes")?)?)
            }
        };
        Ok(Given { direction, input, filter })
    }

    /// The output's shape, which what comes back to it must have.
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

    /// The shape of what is computed.
    fn result<'a>(&'a self, output: &'a Shape) -> &'a Shape {
        match self.direction {
            Direction::Forward => output,
            Direction::Input => &self.input,
            Direction::Filter => &self.filter,
        }
    }

    /// Whether there is nothing to multiply.
    fn is_empty(&self, output: &Shape) -> bool {
        [&self.input, &self.filter, output].iter().any(|shape| shape.num_elements() == 0)
    }
}

/// The kernels of one node.
struct Convolver {
    conv: Conv,
    mover: Mover,
    padder: Padder,
    direction: Direction,
}

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
    fn run(&self, ctx: &KernelContext<'_>) -> Result<DeviceTensor> {
        let conv = &self.conv;
        let given = Given::of(ctx, conv, self.direction)?;
        let sizes = conv.sizes(&given.input, &given.filter)?;
        let output = given.output(ctx, conv, &sizes)?;
        let (dtype, result) = (ctx.node().attr("T")?, given.result(&output));
        if given.is_empty(&output) {
            return zeros(ctx, dtype, result.clone());
        }
        let Given { input, filter, .. } = &given;
        let out = allocate(ctx, dtype, result.clone())?;
        if self.is_product(&sizes) {
            self.multiply(ctx, &sizes, &out)?;
            return Ok(out);
        }
        match self.direction {
            Direction::Forward => {
                let image = self.padded(ctx, ctx.device_input(0)?, &sizes)?;
                let turned = self.turned(ctx, ctx.device_input(1)?)?;
                self.enqueue(ctx, &sizes, [&image, &turned, &out])?;
            }
            Direction::Input => {
                let turned = self.turned(ctx, ctx.device_input(1)?)?;
                let dy = ctx.device_input(2)?;
                match self.margins(&sizes) {
                    None => self.enqueue(ctx, &sizes, [&out, &turned, dy])?,
                    Some(margins) => {
                        let image = allocate(ctx, dtype, padded(input, &margins)?)?;
                        let mut at = Layout::packed(&image.shape);
                        at.offset =
                            margins.iter().zip(&at.strides).map(|(m, step)| m.0 as isize * step).sum();
                        self.enqueue(ctx, &sizes, [&image, &turned, dy])?;
                        self.mover.copy(ctx, input, (&image, &at), (&out, &Layout::packed(input)))?;
                    }
                }
            }
            Direction::Filter => {
                let image = self.padded(ctx, ctx.device_input(0)?, &sizes)?;
                let turned = allocate(ctx, dtype, self.turned_shape(filter)?)?;
                self.enqueue(ctx, &sizes, [&image, &turned, ctx.device_input(2)?])?;
                // Back to rows, columns, input and output channels.
                let place = if self.channels_last() { [1, 2, 3, 0] } else { [2, 3, 1, 0] };
                let from = permuted(&turned.shape, &place);
                self.mover.copy(ctx, filter, (&turned, &from), (&out, &Layout::packed(filter)))?;
            }
        }
        Ok(out)
    }

    fn channels_last(&self) -> bool {
        self.conv.format == DataFormat::Nhwc
    }

    /// Whether each output position is one input position's: pixels times a matrix.
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

    /// Output channels first, and the others as the images have them.
    fn turned_shape(&self, filter: &Shape) -> Result<Shape> {
        Ok(Shape::new(&self.turning().map(|axis| filter[axis]))?)
    }

    fn turning(&self) -> [usize; 4] {
        if self.channels_last() { [3, 0, 1, 2] } else { [3, 2, 0, 1] }
    }

    fn turned(&self, ctx: &KernelContext<'_>, filter: &DeviceTensor) -> Result<DeviceTensor> {
        let out = allocate(ctx, filter.dtype, self.turned_shape(&filter.shape)?)?;
        let from = permuted(&filter.shape, &self.turning());
        let dims = out.shape.clone();
        self.mover.copy(ctx, &dims, (filter, &from), (&out, &Layout::packed(&dims)))?;
        Ok(out)
    }

    /// What is around the image, before and after each axis, if that is not the same on both sides.
    fn margins(&self, sizes: &ConvSizes) -> Option<[(usize, usize); 4]> {
        let around = [&sizes.rows, &sizes.columns].map(padding);
        if around.iter().all(Around::is_even) {
            return None;
        }
        let [rows, columns] = around.map(|Around { before, after }| (before, after));
        Some(self.conv.format.of_nhwc([(0, 0), rows, columns, (0, 0)]))
    }

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

    /// Enqueues the convolution over an image (padded if need be), a filter (turned) and an output.
    fn enqueue(&self, ctx: &KernelContext<'_>, sizes: &ConvSizes, tensors: [&DeviceTensor; 3]) -> Result<()> {
        let [image, filter, output] = tensors;
        let lane = lane(ctx)?;
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
            tf32: lane.tf32(),
        };
        debug_assert_eq!(filter.shape.num_elements(), convolution.filter.iter().product::<usize>());
        match lane.call(|driver, stream| driver.convolution_workspace(&convolution, stream))? {
            None if channels_last => self.enqueue_channels_first(ctx, convolution, tensors),
            bytes => convolve(ctx, &convolution, bytes, tensors),
        }
    }

    /// What the library has for images whose channels come first alone: as such, moved there and back.
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
        let bytes = lane(ctx)?.call(|driver, stream| driver.convolution_workspace(&convolution, stream))?;
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

/// Enqueues the product of two matrices of `m` rows and `k` columns, and `k` rows and `n` columns.
fn product(
    ctx: &KernelContext<'_>,
    dtype: DType,
    [m, k, n]: [usize; 3],
    flips: [bool; 2],
    [a, b, c]: [Address; 3],
) -> Result<()> {
    let lane = lane(ctx)?;
    let tf32 = lane.tf32();
    let steps = [m * k, k * n, m * n];
    let product =
        Product { dtype, m, n, k, flips, conjugates: false, a, b, c, count: 1, steps, tf32, epilogue: None };
    lane.call(|driver, stream| driver.product(&product, stream))
}

/// Which of an image, a filter and an output is computed.
fn result_of(direction: Direction) -> usize {
    match direction {
        Direction::Forward => 2,
        Direction::Input => 0,
        Direction::Filter => 1,
    }
}

/// Enqueues a convolution over an image, a filter and an output as the library wants them, with bytes of a workspace.
fn convolve(
    ctx: &KernelContext<'_>,
    convolution: &Convolution,
    bytes: Option<WorkspaceBytes>,
    tensors: [&DeviceTensor; 3],
) -> Result<()> {
    let lane = lane(ctx)?;
    let workspace = workspace(ctx, bytes)?;
    let result = result_of(convolution.direction);
    let at = |i: usize| if i == result { write(tensors[i]) } else { read(tensors[i]) };
    let space = workspace.as_ref().map(|(space, bytes)| Ok::<_, device::Error>((write(space)?, *bytes)));
    let at = ConvolutionAt { input: at(0)?, filter: at(1)?, output: at(2)?, workspace: space.transpose()? };
    lane.call(|driver, stream| driver.convolve(convolution, &at, stream))
}

/// Memory to work in, and its bytes: as much as is needed if what is wanted is not there.
fn workspace(
    ctx: &KernelContext<'_>,
    bytes: Option<WorkspaceBytes>,
) -> Result<Option<(DeviceTensor, usize)>> {
    let take = |bytes: usize| -> Result<Option<(DeviceTensor, usize)>> {
        match bytes {
            0 => Ok(None),
            bytes => Ok(Some((lane(ctx)?.scratch(&ctx.node().name, bytes)?, bytes))),
        }
    };
    let Some(WorkspaceBytes { wanted, needed }) = bytes else { return Ok(None) };
    match take(wanted) {
        Err(error) if error.code() == Code::ResourceExhausted && needed < wanted => take(needed),
        taken => taken,
    }
}

/// What is around an image along one axis, as far as windows reach.
struct Around {
    before: usize,
    after: usize,
}

impl Around {
    fn is_even(&self) -> bool {
        self.before == self.after
    }
}

fn padding(window: &Window) -> Around {
    let reach = window.output.saturating_sub(1) * window.stride + (window.filter - 1) * window.dilation + 1;
    let before = window.pad_before;
    // Windows that end before the image does leave the rest unread: as much padding after it changes nothing.
    let after = reach.saturating_sub(before + window.input);
    if after < before && fits(window, before) {
        Around { before, after: before }
    } else {
        Around { before, after }
    }
}

/// Whether as much padding on both sides makes no further window.
fn fits(window: &Window, padding: usize) -> bool {
    let size = window.input + 2 * padding;
    let effective = (window.filter - 1) * window.dilation + 1;
    size >= effective && (size - effective) / window.stride + 1 == window.output
}
