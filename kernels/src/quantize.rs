//! Kernels that round numbers as quantisation would, without changing their dtype, and their gradients.

mod fake;
mod round_trip;

use crate::numeric::dispatch::dispatch;
use crate::plan::quantize::{Levels, RoundTrip};
use device::kernel::{Kernel, KernelDef};
use graph::DType;

const WIDE: &[(&str, &[DType])] = &[("T", &[DType::Float, DType::Double])];

macro_rules! wide {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!(@arms $dtype, $T => $body; Float f32, Double f64)
    };
}

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("FakeQuantWithMinMaxArgs", &[], |i| {
        let range = fake::Range::of_attrs(i)?;
        Kernel::sync(move |ctx| fake::by_attrs(ctx, range))
    }),
    KernelDef::of("FakeQuantWithMinMaxArgsGradient", &[], |i| {
        let range = fake::Range::of_attrs(i)?;
        Kernel::sync(move |ctx| fake::by_attrs_grad(ctx, range))
    }),
    KernelDef::of("FakeQuantWithMinMaxVars", &[], |i| {
        let levels = Levels::of(i)?;
        Kernel::sync(move |ctx| fake::by_inputs(ctx, levels, false))
    }),
    KernelDef::of("FakeQuantWithMinMaxVarsGradient", &[], |i| {
        let levels = Levels::of(i)?;
        Kernel::sync(move |ctx| fake::by_inputs_grad(ctx, levels, false))
    }),
    KernelDef::of("FakeQuantWithMinMaxVarsPerChannel", &[], |i| {
        let levels = Levels::of(i)?;
        Kernel::sync(move |ctx| fake::by_inputs(ctx, levels, true))
    }),
    KernelDef::of("FakeQuantWithMinMaxVarsPerChannelGradient", &[], |i| {
        let levels = Levels::of(i)?;
        Kernel::sync(move |ctx| fake::by_inputs_grad(ctx, levels, true))
    }),
    KernelDef::of("QuantizeAndDequantize", WIDE, |i| {
        let attrs = RoundTrip::of(i)?;
        wide!(i.output_type(0), T => Kernel::sync(move |ctx| round_trip::forward::<T>(ctx, &attrs)))
    }),
    KernelDef::of("QuantizeAndDequantizeV2", WIDE, |i| {
        let attrs = RoundTrip::of(i)?;
        wide!(i.output_type(0), T => Kernel::sync(move |ctx| round_trip::forward::<T>(ctx, &attrs)))
    }),
    KernelDef::of("QuantizeAndDequantizeV3", WIDE, |i| {
        let attrs = RoundTrip::of(i)?;
        wide!(i.output_type(0), T => Kernel::sync(move |ctx| round_trip::forward::<T>(ctx, &attrs)))
    }),
    KernelDef::of("QuantizeAndDequantizeV4", WIDE, |i| {
        let attrs = RoundTrip::of(i)?;
        wide!(i.output_type(0), T => Kernel::sync(move |ctx| round_trip::forward::<T>(ctx, &attrs)))
    }),
    KernelDef::of("QuantizeAndDequantizeV4Grad", WIDE, |i| {
        let axis = i.attr("axis")?;
        wide!(i.output_type(0), T => Kernel::sync(move |ctx| round_trip::backward::<T>(ctx, axis)))
    }),
];
