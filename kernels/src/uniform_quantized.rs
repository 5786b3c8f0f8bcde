//! Kernels of uniformly quantized values: a value stands for the number `scale * (value - zero point)`.

mod arithmetic;
mod conv;
mod convert;
mod dot;
mod dynamic;
mod scales;

use self::conv::Convolution;
use self::scales::Scaling;
use crate::quantized::level::of_levels;
use device::kernel::{Kernel, KernelDef};
use graph::DType::{self, Float, QInt8, QInt32, QUInt8};

const ALL: &[DType] = &[QInt8, QUInt8, QInt32];
const FACTORS: &[(&str, &[DType])] = &[("Tin", &[QInt8]), ("Tout", &[QInt32])];
const HYBRID: &[(&str, &[DType])] = &[("Tlhs", &[Float]), ("Trhs", &[QInt8]), ("Tout", &[Float])];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("UniformQuantize", &[("Tin", &[Float]), ("Tout", ALL)], |i| {
        let scaling = Scaling::of(i, "")?;
        of_levels!(i.output_type(0), T => Kernel::sync(move |ctx| convert::quantize::<T>(ctx, scaling)))
    }),
    KernelDef::of("UniformDequantize", &[("Tin", ALL), ("Tout", &[Float])], |i| {
        let scaling = Scaling::of(i, "")?;
        of_levels!(i.input_type(0), T => Kernel::sync(move |ctx| convert::dequantize::<T>(ctx, scaling)))
    }),
    KernelDef::of("UniformRequantize", &[("Tin", &[QInt8, QInt32]), ("Tout", &[QInt8])], |i| {
        let scalings = [Scaling::of(i, "input_")?, Scaling::of(i, "output_")?];
        scales::check_pair(scalings)?;
        of_levels!(i.input_type(0), T => Kernel::sync(move |ctx| convert::requantize::<T>(ctx, scalings)))
    }),
    KernelDef::of("UniformQuantizedAdd", &[("T", &[QInt32])], |i| {
        let scaling = |prefix| Scaling::of(i, prefix);
        let scalings = [scaling("lhs_")?, scaling("rhs_")?, scaling("output_")?];
        Kernel::sync(move |ctx| arithmetic::add(ctx, scalings))
    }),
    KernelDef::of("UniformQuantizedClipByValue", &[("T", &[QInt32])], |i| {
        let scaling = Scaling::of(i, "")?;
        Kernel::sync(move |ctx| arithmetic::clip(ctx, scaling))
    }),
    KernelDef::of("UniformQuantizedDot", FACTORS, |i| {
        let scalings = scales::of_product(i, 1)?;
        Kernel::sync(move |ctx| dot::integer(ctx, scalings))
    }),
    KernelDef::of("UniformQuantizedDotHybrid", HYBRID, |i| {
        let scaling = scales::of_factor(i, 1)?;
        Kernel::sync(move |ctx| dot::hybrid(ctx, scaling))
    }),
    KernelDef::of("UniformQuantizedConvolution", FACTORS, |i| {
        let convolution = Convolution::of(i)?;
        let scalings = convolution.scalings(i)?;
        Kernel::sync(move |ctx| conv::integer(ctx, &convolution, scalings))
    }),
    KernelDef::of("UniformQuantizedConvolutionHybrid", HYBRID, |i| {
        let convolution = Convolution::of(i)?;
        let scaling = convolution.rhs_scaling(i)?;
        Kernel::sync(move |ctx| conv::hybrid(ctx, &convolution, scaling))
    }),
];
