//! Rounding of numbers to the levels of a quantised model, and the gradients of the rounding.

use super::cast;
use super::copy::zeros;
use super::reduce::Reduction;
use super::support::{allocate, function, launch, read, type_name, upload, write};
use crate::engine::{Arguments, Source};
use device::Result;
use device::kernel::{Kernel, KernelDef, KernelInit};
use graph::{DType, Element, Shape, Tensor};
use kernels::plan::quantize::{
    Levels, RoundTrip, channels_of, check_ends, check_range, check_same, ends, gradient_slices,
};

static SOURCE: Source = Source { file: "quantize.cu", text: include_str!("quantize.cu") };

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("FakeQuantWithMinMaxArgs", &[], by_attrs),
    KernelDef::enqueuing("FakeQuantWithMinMaxArgsGradient", &[], by_attrs_gradient),
    KernelDef::enqueuing("FakeQuantWithMinMaxVars", &[], |init| by_inputs(init, false)),
    KernelDef::enqueuing("FakeQuantWithMinMaxVarsPerChannel", &[], |init| by_inputs(init, true)),
    KernelDef::enqueuing("FakeQuantWithMinMaxVarsGradient", &[], |init| by_inputs_gradient(init, false)),
    KernelDef::enqueuing("FakeQuantWithMinMaxVarsPerChannelGradient", &[], |init| {
        by_inputs_gradient(init, true)
    }),
    // The bounds are in host memory, and the kernel uploads them in each run.
    KernelDef { host_memory: BOUNDS, ..KernelDef::of("QuantizeAndDequantizeV2", WIDE, round_trip) },
    KernelDef {
        host_memory: &["input_min", "input_max", "num_bits"],
        ..KernelDef::of("QuantizeAndDequantizeV3", WIDE, round_trip)
    },
    KernelDef { host_memory: BOUNDS, ..KernelDef::of("QuantizeAndDequantizeV4", WIDE, round_trip) },
    KernelDef {
        host_memory: BOUNDS,
        ..KernelDef::of("QuantizeAndDequantizeV4Grad", WIDE, round_trip_gradient)
    },
];

const WIDE: &[(&str, &[DType])] = &[("T", &[DType::Float, DType::Double])];
const BOUNDS: &[&str] = &["input_min", "input_max"];

/// Returns the fields of the `Ends` structure of `quantize.cu`, in the order of declaration.
fn words([from, to]: [f32; 2], Levels([lowest, highest]): Levels) -> [i64; 4] {
    [from, to, lowest, highest].map(|word| f64::from(word).to_bits() as i64)
}

/// Makes the kernel of `FakeQuantWithMinMaxArgs`.
fn by_attrs(init: &KernelInit<'_>) -> Result<Kernel> {
    let ends = words(ends(init)?, Levels::of(init)?);
    let quantized = function(init, &SOURCE, "fake_quantized".into())?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let (y, n) = (allocate(ctx, DType::Float, x.shape.clone())?, x.shape.num_elements());
        let arguments = Arguments::new().address(read(x)?).address(write(&y)?).count(n).structure(ends);
        launch(ctx, &quantized, n, arguments)?;
        ctx.set_output(0, y);
        Ok(())
    })
}

/// Makes the kernel of the gradient of `FakeQuantWithMinMaxArgs`.
fn by_attrs_gradient(init: &KernelInit<'_>) -> Result<Kernel> {
    let ends = words(ends(init)?, Levels::of(init)?);
    let gradient = function(init, &SOURCE, "fake_quantized_gradient".into())?;
    Kernel::sync(move |ctx| {
        check_same(ctx)?;
        let (dy, x) = (ctx.device_input(0)?, ctx.device_input(1)?);
        let (dx, n) = (allocate(ctx, DType::Float, x.shape.clone())?, x.shape.num_elements());
        let inputs = Arguments::new().address(read(dy)?).address(read(x)?);
        launch(ctx, &gradient, n, inputs.address(write(&dx)?).count(n).structure(ends))?;
        ctx.set_output(0, dx);
        Ok(())
    })
}

/// Makes the kernel of a fake quantisation with the ends of its range, or of one range per channel, in inputs 1
/// and 2.
fn by_inputs(init: &KernelInit<'_>, per_channel: bool) -> Result<Kernel> {
    let ends = words([0.0; 2], Levels::of(init)?);
    let quantized = function(init, &SOURCE, "fake_quantized_by".into())?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let channels = channels_of(&x.shape, per_channel)?;
        check_ends(ctx, 1, channels)?;
        let (y, n) = (allocate(ctx, DType::Float, x.shape.clone())?, x.shape.num_elements());
        let mut arguments = Arguments::new();
        for i in 0..3 {
            arguments = arguments.address(read(ctx.device_input(i)?)?);
        }
        let arguments = arguments.address(write(&y)?).count(n).count(channels.unwrap_or(1));
        launch(ctx, &quantized, n, arguments.structure(ends).flag(channels.is_none()))?;
        ctx.set_output(0, y);
        Ok(())
    })
}

/// Makes the kernel of the gradient of a fake quantisation with the ends of its range in inputs 2 and 3; the
/// outputs include the gradients of the ends.
fn by_inputs_gradient(init: &KernelInit<'_>, per_channel: bool) -> Result<Kernel> {
    let ends = words([0.0; 2], Levels::of(init)?);
    let gradient = function(init, &SOURCE, "fake_quantized_gradient_by".into())?;
    let single = cast::function(init, DType::Double, DType::Float)?;
    let sum = Reduction::new(init, "Sum", DType::Double)?;
    Kernel::sync(move |ctx| {
        check_same(ctx)?;
        let shape = ctx.shape(1)?.clone();
        let channels = channels_of(&shape, per_channel)?;
        check_ends(ctx, 2, channels)?;
        let n = shape.num_elements();
        let dx = allocate(ctx, DType::Float, shape.clone())?;
        let parts = [allocate(ctx, DType::Double, shape.clone())?, allocate(ctx, DType::Double, shape)?];
        let mut arguments = Arguments::new();
        for i in 0..4 {
            arguments = arguments.address(read(ctx.device_input(i)?)?);
        }
        for written in [&dx, &parts[0], &parts[1]] {
            arguments = arguments.address(write(written)?);
        }
        let arguments = arguments.count(n).count(channels.unwrap_or(1)).structure(ends);
        launch(ctx, &gradient, n, arguments.flag(channels.is_none()))?;
        ctx.set_output(0, dx);
        let count = channels.unwrap_or(1);
        let shape = channels.map_or(Ok(Shape::scalar()), |channels| Shape::new(&[channels]))?;
        for (i, part) in parts.iter().enumerate() {
            let wide = allocate(ctx, DType::Double, shape.clone())?;
            let axes = [(n.checked_div(count).unwrap_or(0), true), (count, false)];
            sum.run(ctx, part, &wide, if channels.is_some() { &axes } else { &axes[..1] })?;
            let side = allocate(ctx, DType::Float, shape.clone())?;
            let arguments = Arguments::new().address(read(&wide)?).address(write(&side)?).count(count);
            launch(ctx, &single, count, arguments)?;
            ctx.set_output(i + 1, side);
        }
        Ok(())
    })
}

/// Makes the kernel of `QuantizeAndDequantizeV2` and later versions.
fn round_trip(init: &KernelInit<'_>) -> Result<Kernel> {
    let (attrs, dtype) = (RoundTrip::of(init)?, init.output_type(0));
    let rounded = function(init, &SOURCE, format!("round_trip<{}>", type_name(dtype)?))?;
    let [least, most] = ["Min", "Max"].map(|named| Reduction::new(init, named, dtype));
    let (least, most) = (least?, most?);
    Kernel::sync(move |ctx| {
        let slices @ [outer, count, inner] = attrs.slices(ctx)?;
        let [lowest, highest] = attrs.levels(ctx)?;
        let x = ctx.device_input(0)?;
        let [low, high] = if attrs.range_given {
            let (min, max) = (ctx.input(1)?, ctx.input(2)?);
            match dtype {
                DType::Float => check_ranges::<f32>(min, max)?,
                _ => check_ranges::<f64>(min, max)?,
            }
            [upload(ctx, min)?, upload(ctx, max)?]
        } else {
            let ends = [(); 2].map(|()| allocate(ctx, dtype, Shape::new(&[count])?));
            let [low, high] = ends;
            let (low, high) = (low?, high?);
            let axes = [(outer, true), (count, false), (inner, true)];
            least.run(ctx, x, &low, &axes)?;
            most.run(ctx, x, &high, &axes)?;
            [low, high]
        };
        let (y, n) = (allocate(ctx, dtype, x.shape.clone())?, slices.iter().product());
        let arguments = Arguments::new()
            .address(read(x)?)
            .address(read(&low)?)
            .address(read(&high)?)
            .address(write(&y)?)
            .count(n)
            .count(count)
            .count(inner)
            .real(lowest)
            .real(highest)
            .flag(attrs.range_given)
            .flag(attrs.half_up);
        launch(ctx, &rounded, n, arguments)?;
        ctx.set_output(0, y);
        Ok(())
    })
}

/// Checks that each lower bound is not above its upper bound.
fn check_ranges<T: Element + PartialOrd>(min: &Tensor, max: &Tensor) -> Result<()> {
    min.values::<T>()?.iter().zip(max.values::<T>()?).try_for_each(|(low, high)| check_range(low, high))
}

/// Makes the kernel of `QuantizeAndDequantizeV4Grad`. The gradients of `input_min` and `input_max` are zero.
fn round_trip_gradient(init: &KernelInit<'_>) -> Result<Kernel> {
    let (axis, dtype) = (init.attr::<i64>("axis")?, init.output_type(0));
    let gradient = function(init, &SOURCE, format!("round_trip_gradient<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let [_, count, inner] = gradient_slices(ctx, axis)?;
        let (dy, x) = (ctx.device_input(0)?, ctx.device_input(1)?);
        let (min, max) = (ctx.input(2)?, ctx.input(3)?);
        let (low, high) = (upload(ctx, min)?, upload(ctx, max)?);
        let shapes = [min.shape().clone(), max.shape().clone()];
        let (dx, n) = (allocate(ctx, dtype, x.shape.clone())?, x.shape.num_elements());
        let arguments = Arguments::new()
            .address(read(dy)?)
            .address(read(x)?)
            .address(read(&low)?)
            .address(read(&high)?)
            .address(write(&dx)?)
            .count(n)
            .count(count)
            .count(inner);
        launch(ctx, &gradient, n, arguments)?;
        ctx.set_output(0, dx);
        for (i, shape) in shapes.into_iter().enumerate() {
            let none = zeros(ctx, dtype, shape)?;
            ctx.set_output(i + 1, none);
        }
        Ok(())
    })
}
