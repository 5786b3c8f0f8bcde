//! Pooling over images and volumes, and its gradients.

use super::support::{allocate, function, kernel_stream, launch, read, type_name, write};
use crate::engine::driver::Address;
use crate::engine::{Arguments, Function, Source};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{DeviceTensor, Error, Result};
use graph::DType::{self, BFloat16, Float, Half};
use graph::Shape;
use graph::ops::pool::{Pool, PoolSizes};
use graph::ops::window::{DataFormat, Window};
use kernels::numeric::dispatch::{FLOATS, INDEX};
use kernels::plan::pool::{WINDOWS, Windows};
use smallvec::SmallVec;
use std::sync::Arc;

static SOURCE: Source = Source { file: "pool.cu", text: include_str!("pool.cu") };

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("MaxPool", &[("T", FLOATS)], |init| forward(init, images(init)?, "max_pool")),
    KernelDef {
        host_memory: WINDOWS,
        ..KernelDef::enqueuing("MaxPoolV2", &[("T", FLOATS)], |init| {
            forward(init, Windows::Inputs(1), "max_pool")
        })
    },
    KernelDef::enqueuing("AvgPool", &[("T", FLOATS)], |init| forward(init, images(init)?, "average_pool")),
    KernelDef::enqueuing("MaxPoolGrad", &[("T", FLOATS)], |init| max_gradient(init, images(init)?)),
    KernelDef {
        host_memory: WINDOWS,
        ..KernelDef::enqueuing("MaxPoolGradV2", &[("T", FLOATS)], |init| {
            max_gradient(init, Windows::Inputs(3))
        })
    },
    KernelDef::enqueuing("MaxPoolGradGrad", &[("T", FLOATS)], |init| second_gradient(init, images(init)?)),
    KernelDef {
        host_memory: WINDOWS,
        ..KernelDef::enqueuing("MaxPoolGradGradV2", &[("T", FLOATS)], |init| {
            second_gradient(init, Windows::Inputs(3))
        })
    },
    KernelDef::enqueuing("MaxPoolWithArgmax", WITH_ARGMAX, with_argmax),
    KernelDef::enqueuing("MaxPoolGradWithArgmax", WITH_ARGMAX, gradient_with_argmax),
    KernelDef {
        host_memory: &["orig_input_shape"],
        ..KernelDef::enqueuing("AvgPoolGrad", &[("T", FLOATS)], |init| average_gradient(init, images(init)?))
    },
    KernelDef::enqueuing("MaxPool3D", &[("T", SMALL)], |init| forward(init, volumes(init)?, "max_pool")),
    KernelDef::enqueuing("AvgPool3D", &[("T", FLOATS)], |init| forward(init, volumes(init)?, "average_pool")),
    max_pool_3d_gradient(&[("T", &[Float]), ("TInput", &[Float])]),
    max_pool_3d_gradient(&[("T", &[Half]), ("TInput", &[Half])]),
    max_pool_3d_gradient(&[("T", &[BFloat16]), ("TInput", &[BFloat16])]),
    KernelDef::enqueuing("MaxPool3DGradGrad", &[("T", FLOATS)], |init| second_gradient(init, volumes(init)?)),
    KernelDef {
        host_memory: &["orig_input_shape"],
        ..KernelDef::enqueuing("AvgPool3DGrad", &[("T", FLOATS)], |init| {
            average_gradient(init, volumes(init)?)
        })
    },
];

const WITH_ARGMAX: &[(&str, &[DType])] = &[("T", FLOATS), ("Targmax", INDEX)];

/// Returns the windows over images that the node's attributes define.
fn images(init: &KernelInit<'_>) -> Result<Windows> {
    Ok(Windows::Attrs(Pool::of(init.node)?))
}

/// Returns the windows over volumes that the node's attributes define.
fn volumes(init: &KernelInit<'_>) -> Result<Windows> {
    Ok(Windows::Attrs(Pool::of_volumes(init.node)?))
}

/// Dtypes of `MaxPool3D`.
const SMALL: &[DType] = &[Float, Half, BFloat16];

/// Defines `MaxPool3DGrad` for data and gradients of one dtype.
const fn max_pool_3d_gradient(types: &'static [(&'static str, &'static [DType])]) -> KernelDef {
    KernelDef::enqueuing("MaxPool3DGrad", types, |init| max_gradient(init, volumes(init)?))
}

/// The variants of a pooling kernel for different packs and indices.
struct KernelVariants {
    /// The variant for packs of several elements, with 32-bit indices.
    wide: Arc<Function>,
    /// The variant for single elements, with 32-bit indices.
    single: Arc<Function>,
    /// The variant for single elements, with 64-bit indices.
    index_64: Arc<Function>,
}

/// The attributes of a pooling node.
struct Pooling {
    windows: Windows,
    format: DataFormat,
    /// Number of spatial axes: 2 for images, 3 for volumes.
    space: usize,
    dtype: DType,
}

impl Pooling {
    /// Reads the attributes of a pooling node.
    fn new(init: &KernelInit<'_>, windows: Windows) -> Result<Pooling> {
        let pool = match windows {
            Windows::Attrs(pool) => pool,
            // The windows are known only when the kernel runs, so the data format is read with windows of size
            // 1.
            Windows::Inputs(_) => Pool::with(init.node, &[1; 4], &[1; 4])?,
        };
        Ok(Pooling { windows, format: pool.format, space: pool.rank() - 2, dtype: init.output_type(0) })
    }

    /// Loads the variants of the kernel `named`; `more` are further template arguments, which only some kernels
    /// have.
    fn variants(&self, init: &KernelInit<'_>, named: &str, more: &str) -> Result<KernelVariants> {
        let (name, space) = (type_name(self.dtype)?, self.space);
        let variant = |pack: usize, index: &str| {
            function(init, &SOURCE, format!("{named}<{name}, {pack}, {index}, {space}{more}>"))
        };
        Ok(KernelVariants {
            wide: variant(self.widest(), "i32")?,
            single: variant(1, "i32")?,
            index_64: variant(1, "i64")?,
        })
    }

    /// Returns the number of elements in a pack of 16 bytes if a pixel's elements are contiguous, else 1.
    fn widest(&self) -> usize {
        match self.format {
            DataFormat::Nhwc => 16 / self.dtype.size().unwrap_or(16),
            DataFormat::Nchw => 1,
        }
    }

    /// Returns the windows, from the node's attributes or from its inputs.
    fn pool(&self, ctx: &KernelContext<'_>) -> Result<Pool> {
        let pool = self.windows.of(ctx)?;
        if pool.is_depthwise() {
            let op = ctx.node().op.name();
            return Err(Error::unimplemented(format!("{op} over channels has no GPU kernel")));
        }
        Ok(pool)
    }

    /// Checks the shapes of the data, of the pooled values, and of the incoming gradient, which has the shape
    /// of the pooled values or of the data. Returns the sizes of the pooling.
    fn gradient_sizes(&self, ctx: &KernelContext<'_>, is_of_pooled: bool) -> Result<PoolSizes> {
        let (pool, x, pooled, slopes) = (self.pool(ctx)?, ctx.shape(0)?, ctx.shape(1)?, ctx.shape(2)?);
        let sizes = pool.sizes(x)?;
        let expected = pool.output_shape(&sizes)?;
        if *pooled != expected {
            device::invalid!("Expected orig_output shape to be {expected}, but got {pooled}");
        }
        let expected = if is_of_pooled { &expected } else { x };
        if slopes != expected {
            device::invalid!("Expected grad shape to be {expected}, but got {slopes}");
        }
        Ok(sizes)
    }

    /// Returns the layout of tensors with these sizes.
    fn layout(&self, sizes: &PoolSizes) -> Layout {
        let axes = [sizes.planes, sizes.rows, sizes.columns];
        let space: SmallVec<[Window; 3]> = axes[3 - self.space..].iter().copied().collect();
        let (images, pixel) = match self.format {
            DataFormat::Nhwc => (sizes.batch, sizes.channels),
            DataFormat::Nchw => (sizes.batch.saturating_mul(sizes.channels), 1),
        };
        let needs_64_bit_indices = needs_64_bit_indices(images.saturating_mul(pixel), &space);
        let widest = self.widest();
        let pack = if !needs_64_bit_indices && pixel % widest == 0 { widest } else { 1 };
        Layout { space, pixel, pack, needs_64_bit_indices }
    }
}

/// Returns whether 32-bit indices would overflow in an input or output of the pooling, or while an index is
/// computed; `channels` is the number of channels of all images together.
fn needs_64_bit_indices(channels: usize, space: &[Window]) -> bool {
    let most = i32::MAX as usize;
    let elements = |of: fn(&Window) -> usize| space.iter().map(of).fold(channels, usize::saturating_mul);
    let reach = |window: &Window| {
        let covered = (window.output.saturating_add(1)).saturating_mul(window.stride);
        [window.filter, window.input, window.pad_before, window.skip_before]
            .into_iter()
            .fold(covered, usize::saturating_add)
    };
    elements(|window| window.input) > most
        || elements(|window| window.output) > most
        || space.iter().any(|window| reach(window) > most)
}

/// The layout of a pooling's tensors: images that consist of pixels, and pixels that consist of packs.
struct Layout {
    space: SmallVec<[Window; 3]>,
    /// Number of elements in a pixel.
    pixel: usize,
    /// Number of elements in a pack.
    pack: usize,
    /// True if indices need 64 bits.
    needs_64_bit_indices: bool,
}

impl Layout {
    /// Returns the variant of a kernel for the layout.
    fn variant<'a>(&self, variants: &'a KernelVariants) -> &'a Function {
        match (self.needs_64_bit_indices, self.pack) {
            (true, _) => &variants.index_64,
            (false, 1) => &variants.single,
            (false, _) => &variants.wide,
        }
    }

    /// Returns the size of an index in bytes.
    fn index_size(&self) -> usize {
        if self.needs_64_bit_indices { size_of::<i64>() } else { size_of::<i32>() }
    }

    /// Enqueues a kernel over `count` elements, one thread per pack; `addresses` are its first arguments.
    fn run(
        &self,
        ctx: &KernelContext<'_>,
        variants: &KernelVariants,
        addresses: Arguments,
        count: usize,
    ) -> Result<()> {
        let packs = count / self.pack;
        launch(ctx, self.variant(variants), packs, addresses.count(packs).structure(self.windows()))
    }

    /// Returns the fields of the `Windows` structure of `pool.cu`, in the order of declaration.
    fn windows(&self) -> SmallVec<[i64; 40]> {
        let images = |of: fn(&Window) -> usize| {
            let space = self.space.iter().map(of);
            space.chain([self.pixel / self.pack]).flat_map(divisor)
        };
        let steps = self.space.iter().flat_map(|window| {
            let pad = window.pad_before as i64 - window.skip_before as i64;
            divisor(window.stride).into_iter().chain([window.filter as i64, pad])
        });
        images(|window| window.input).chain(images(|window| window.output)).chain(steps).collect()
    }
}

/// Returns the fields of the `Divisor` structure of `pool.cu`: a size, and the factor and the shift that
/// replace the division of a 31-bit index by the size.
fn divisor(size: usize) -> [i64; 3] {
    let shift = size.checked_next_power_of_two().map_or(0, usize::trailing_zeros);
    let factor = (1u128 << (31 + shift)).div_ceil(size.max(1) as u128);
    [size as i64, factor as i64, i64::from(shift)]
}

/// Makes the kernel of max or average pooling; `named` is the name of the kernel in `pool.cu`.
fn forward(init: &KernelInit<'_>, windows: Windows, named: &str) -> Result<Kernel> {
    let pooling = Pooling::new(init, windows)?;
    let variants = pooling.variants(init, named, "")?;
    Kernel::sync(move |ctx| {
        let (pool, x) = (pooling.pool(ctx)?, ctx.device_input(0)?);
        let sizes = pool.forward_sizes(&x.shape)?;
        let out = allocate(ctx, x.dtype, pool.output_shape(&sizes)?)?;
        let addresses = Arguments::new().address(read(x)?).address(write(&out)?);
        pooling.layout(&sizes).run(ctx, &variants, addresses, out.shape.num_elements())?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The kernels of the gradient of max pooling: `First` for images, `Near` for volumes.
enum MaxGradient {
    /// Finds the index of each window's first maximum, then adds the window's gradient to the element of that
    /// index.
    First { places: KernelVariants, sums: KernelVariants },
    /// Compares each element with the maxima of the windows that contain it.
    Near(KernelVariants),
}

impl MaxGradient {
    /// Loads the kernels for images or for volumes.
    fn of(init: &KernelInit<'_>, pooling: &Pooling) -> Result<MaxGradient> {
        if pooling.space == 3 {
            return Ok(MaxGradient::Near(pooling.variants(init, "near_max_pool_gradient", "")?));
        }
        let places = pooling.variants(init, "first_maxima", "")?;
        Ok(MaxGradient::First { places, sums: pooling.variants(init, "max_pool_gradient", "")? })
    }

    /// Enqueues the kernels, which write the gradient to `out`.
    fn run(
        &self,
        ctx: &KernelContext<'_>,
        layout: &Layout,
        [x, pooled, dy]: [&DeviceTensor; 3],
        out: &DeviceTensor,
    ) -> Result<()> {
        let (count, windows) = (out.shape.num_elements(), dy.shape.num_elements());
        match self {
            MaxGradient::Near(variants) => {
                let inputs = Arguments::new().address(read(x)?).address(read(pooled)?).address(read(dy)?);
                layout.run(ctx, variants, inputs.address(write(out)?), count)
            }
            MaxGradient::First { places, sums } => {
                let found = kernel_stream(ctx)?.scratch(&ctx.node().name, windows * layout.index_size())?;
                let addresses = Arguments::new().address(read(x)?).address(write(&found)?);
                layout.run(ctx, places, addresses.address(Address(0)), windows)?;
                let addresses = Arguments::new().address(read(&found)?).address(read(dy)?);
                layout.run(ctx, sums, addresses.address(write(out)?), count)
            }
        }
    }
}

/// Makes the kernel of the gradient of max pooling.
fn max_gradient(init: &KernelInit<'_>, windows: Windows) -> Result<Kernel> {
    let pooling = Pooling::new(init, windows)?;
    let gradient = MaxGradient::of(init, &pooling)?;
    Kernel::sync(move |ctx| {
        let sizes = pooling.gradient_sizes(ctx, true)?;
        let (x, pooled, dy) = (ctx.device_input(0)?, ctx.device_input(1)?, ctx.device_input(2)?);
        let out = allocate(ctx, x.dtype, x.shape.clone())?;
        gradient.run(ctx, &pooling.layout(&sizes), [x, pooled, dy], &out)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes the kernel of the second gradient of max pooling.
fn second_gradient(init: &KernelInit<'_>, windows: Windows) -> Result<Kernel> {
    let pooling = Pooling::new(init, windows)?;
    let variants = pooling.variants(init, "max_pool_second_gradient", "")?;
    Kernel::sync(move |ctx| {
        let sizes = pooling.gradient_sizes(ctx, false)?;
        let (x, pooled, dx) = (ctx.device_input(0)?, ctx.device_input(1)?, ctx.device_input(2)?);
        let out = allocate(ctx, x.dtype, pooled.shape.clone())?;
        let inputs = Arguments::new().address(read(x)?).address(read(pooled)?).address(read(dx)?);
        let count = out.shape.num_elements();
        pooling.layout(&sizes).run(ctx, &variants, inputs.address(write(&out)?), count)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Returns the further template arguments of kernels that read or write the op's tensor of indices.
fn of_argmax(init: &KernelInit<'_>) -> Result<String> {
    let in_batch: bool = init.attr("include_batch_in_index")?;
    Ok(format!(", {}, {in_batch}", type_name(init.attr("Targmax")?)?))
}

/// Makes the kernel of `MaxPoolWithArgmax`.
fn with_argmax(init: &KernelInit<'_>) -> Result<Kernel> {
    let pooling = Pooling::new(init, images(init)?)?;
    let variants = pooling.variants(init, "first_maxima", &of_argmax(init)?)?;
    let index = init.output_type(1);
    Kernel::sync(move |ctx| {
        let (pool, x) = (pooling.pool(ctx)?, ctx.device_input(0)?);
        if x.shape.num_elements() == 0 {
            device::invalid!("tensor_in must not be empty, has shape {}", x.shape);
        }
        let sizes = pool.sizes(&x.shape)?;
        let shape = pool.output_shape(&sizes)?;
        let (y, places) = (allocate(ctx, x.dtype, shape.clone())?, allocate(ctx, index, shape)?);
        let addresses = Arguments::new().address(read(x)?).address(write(&places)?).address(write(&y)?);
        pooling.layout(&sizes).run(ctx, &variants, addresses, y.shape.num_elements())?;
        ctx.set_output(0, y);
        ctx.set_output(1, places);
        Ok(())
    })
}

/// Makes the kernel of `MaxPoolGradWithArgmax`.
fn gradient_with_argmax(init: &KernelInit<'_>) -> Result<Kernel> {
    let pooling = Pooling::new(init, images(init)?)?;
    let variants = pooling.variants(init, "max_pool_gradient", &of_argmax(init)?)?;
    Kernel::sync(move |ctx| {
        let (pool, x) = (pooling.pool(ctx)?, ctx.shape(0)?.clone());
        let sizes = pool.sizes(&x)?;
        let expected = pool.output_shape(&sizes)?;
        for (i, name) in [(1, "grad"), (2, "argmax")] {
            if *ctx.shape(i)? != expected {
                device::invalid!("Expected {name} shape to be {expected}, but got {}", ctx.shape(i)?);
            }
        }
        let (dy, places) = (ctx.device_input(1)?, ctx.device_input(2)?);
        let dx = allocate(ctx, dy.dtype, x)?;
        let addresses = Arguments::new().address(read(places)?).address(read(dy)?).address(write(&dx)?);
        pooling.layout(&sizes).run(ctx, &variants, addresses, dx.shape.num_elements())?;
        ctx.set_output(0, dx);
        Ok(())
    })
}

/// Makes the kernel of the gradient of average pooling.
fn average_gradient(init: &KernelInit<'_>, windows: Windows) -> Result<Kernel> {
    let pooling = Pooling::new(init, windows)?;
    let variants = pooling.variants(init, "average_pool_gradient", "")?;
    Kernel::sync(move |ctx| {
        let (pool, given, dy) = (pooling.pool(ctx)?, ctx.input(0)?, ctx.device_input(1)?);
        let rank = pool.rank();
        if given.shape().dims() != [rank] {
            device::invalid!(
                "out_backprop must be 1-dimensional and of {rank} elements, not {}",
                given.shape()
            );
        }
        let shape = Shape::from_i64(&given.to_i64s()?)?;
        let sizes = pool.sizes(&shape)?;
        let expected = pool.output_shape(&sizes)?;
        if dy.shape != expected {
            device::invalid!("Expected grad shape to be {expected}, but got {}", dy.shape);
        }
        let out = allocate(ctx, dy.dtype, shape)?;
        let addresses = Arguments::new().address(read(dy)?).address(write(&out)?);
        pooling.layout(&sizes).run(ctx, &variants, addresses, out.shape.num_elements())?;
        ctx.set_output(0, out);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::ops::window::Padding;

    #[test]
    fn division_by_multiplication_and_shift_is_exact() {
        let most = i32::MAX as usize;
        for size in [1, 2, 3, 5, 7, 56, 64, 112, 641, 65_535, 65_537, (1 << 30) + 1, most - 1, most] {
            let [_, factor, shift] = divisor(size);
            assert!(u32::try_from(factor).is_ok());
            for times in [0, 1, most / size / 2, most / size] {
                for i in [times * size, (times * size).saturating_sub(1), most] {
                    let upper = (2 * i as u64 * factor as u64) >> 32;
                    assert_eq!((upper >> shift) as usize, i / size, "{i} / {size}");
                }
            }
        }
    }

    #[test]
    fn sizes_beyond_32_bits_need_64_bit_indices() -> Result<()> {
        let window = |input, filter, stride| Window::new(input, filter, stride, 1, Padding::Same, 0);
        let image = [window(112, 3, 2)?, window(112, 3, 2)?];
        assert!(!needs_64_bit_indices(64 * 64, &image));
        assert!(needs_64_bit_indices(1 << 18, &image));
        assert!(needs_64_bit_indices(1, &[window(7, 2, i32::MAX as usize)?, image[0]]));
        assert!(needs_64_bit_indices(1, &[window(7, i32::MAX as usize, 1)?, image[0]]));
        Ok(())
    }
}
