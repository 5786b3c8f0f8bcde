//! Kernels of quantized values: integers that stand for levels of a range of numbers.

mod arrange;
pub(crate) mod conv;
mod convert;
mod elementwise;
pub(crate) mod level;
mod normalize;
mod per_channel;
mod pool;
mod product;
mod range;
mod requantize;
mod resize;

use self::convert::{Dequantization, Quantization};
use self::level::of_levels;
use super::quantized_fused::{Steps, fused_convolution};
use crate::numeric::dispatch::INDEX;
use device::kernel::{Kernel, KernelDef};
use graph::DType::{self, BFloat16, Float, QInt8, QInt16, QInt32, QUInt8, QUInt16};

const ALL: &[DType] = &[QInt8, QUInt8, QInt16, QUInt16, QInt32];
const BYTES: &[DType] = &[QInt8, QUInt8];
const WIDE: &[DType] = &[QUInt8, QInt32];
const FACTORS: &[(&str, &[DType])] = &[("T1", &[QUInt8]), ("T2", &[QUInt8]), ("Toutput", &[QInt32])];

macro_rules! same_types {
    ($input:literal, $dtype:ident) => {
        &[($input, &[$dtype]), ("out_type", &[$dtype])]
    };
}

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("QuantizeV2", &[("T", ALL)], |i| {
        let attrs = Quantization::of(i)?;
        of_levels!(i.output_type(0), T => Kernel::sync(move |ctx| convert::quantize::<T>(ctx, &attrs)))
    }),
    KernelDef::of("Dequantize", &[("T", ALL), ("dtype", &[BFloat16, Float])], |i| {
        let attrs = Dequantization::of(i)?;
        of_levels!(i.input_type(0), T => Kernel::sync(move |ctx| convert::dequantize::<T>(ctx, &attrs)))
    }),
    KernelDef::of("QuantizeDownAndShrinkRange", &[("Tinput", &[QInt32]), ("out_type", &[QUInt8])], |_| {
        Kernel::sync(requantize::shrink)
    }),
    KernelDef::of(
        "Requantize",
        &[("Tinput", &[QInt32]), ("out_type", BYTES)],
        |i| of_levels!(i.output_type(0), T => Kernel::sync(requantize::to_range::<T>)),
    ),
    KernelDef::of("RequantizationRange", &[("Tinput", &[QInt32])], |_| Kernel::sync(requantize::used_range)),
    KernelDef::of(
        "RequantizePerChannel",
        &[("T", &[QInt32]), ("out_type", BYTES)],
        |i| of_levels!(i.output_type(0), T => Kernel::sync(per_channel::requantize::<T>)),
    ),
    KernelDef::of("RequantizationRangePerChannel", &[("T", &[QInt32])], |i| {
        let limit = i.attr("clip_value_max")?;
        Kernel::sync(move |ctx| per_channel::used_range(ctx, limit))
    }),
    KernelDef {
        host_memory: &["concat_dim"],
        ..KernelDef::of(
            "QuantizedConcat",
            &[("T", WIDE)],
            |i| of_levels!(i.output_type(0), T => Kernel::sync(arrange::concat::<T>)),
        )
    },
    KernelDef {
        host_memory: &["shape"],
        ..KernelDef::of("QuantizedReshape", &[("T", WIDE), ("Tshape", INDEX)], |_| {
            Kernel::sync(arrange::reshape)
        })
    },
    KernelDef::of("QuantizedAdd", FACTORS, |_| Kernel::sync(elementwise::add)),
    KernelDef::of("QuantizedMul", FACTORS, |_| Kernel::sync(elementwise::multiply)),
    KernelDef::of("QuantizedBiasAdd", &[("T1", &[QInt8]), ("T2", &[QInt8]), ("out_type", &[QInt32])], |_| {
        Kernel::sync(elementwise::add_bias::<i8>)
    }),
    KernelDef::of(
        "QuantizedBiasAdd",
        &[("T1", &[QUInt8]), ("T2", &[QUInt8]), ("out_type", &[QInt32])],
        |_| Kernel::sync(elementwise::add_bias::<u8>),
    ),
    KernelDef::of("QuantizedRelu", same_types!("Tinput", QUInt8), |_| {
        Kernel::sync(|ctx| elementwise::rectify::<u8>(ctx, None))
    }),
    KernelDef::of("QuantizedRelu", same_types!("Tinput", QInt32), |_| {
        Kernel::sync(|ctx| elementwise::rectify::<i32>(ctx, None))
    }),
    KernelDef::of("QuantizedRelu6", same_types!("Tinput", QUInt8), |_| {
        Kernel::sync(|ctx| elementwise::rectify::<u8>(ctx, Some(6.0)))
    }),
    KernelDef::of("QuantizedRelu6", same_types!("Tinput", QInt32), |_| {
        Kernel::sync(|ctx| elementwise::rectify::<i32>(ctx, Some(6.0)))
    }),
    KernelDef::of("QuantizedMatMul", FACTORS, |i| {
        let flips = [i.attr("transpose_a")?, i.attr("transpose_b")?];
        Kernel::sync(move |ctx| product::matmul(ctx, flips))
    }),
    KernelDef::of(
        "QuantizedConv2D",
        &[("Tinput", &[QUInt8]), ("Tfilter", &[QUInt8]), ("out_type", &[QInt32])],
        |i| {
            let windows = conv::Windows::of(i)?;
            Kernel::sync(move |ctx| conv::forward(ctx, windows))
        },
    ),
    KernelDef::of(
        "QuantizedConv2D",
        &[("Tinput", &[QUInt8]), ("Tfilter", &[QInt8]), ("out_type", &[QInt32])],
        |i| fused_convolution(i, Steps::NONE),
    ),
    KernelDef::of("QuantizedMaxPool", &[("T", BYTES)], |i| {
        let pool = pool::attrs(i)?;
        of_levels!(i.output_type(0), T => Kernel::sync(move |ctx| pool::maxima::<T>(ctx, &pool)))
    }),
    KernelDef::of("QuantizedAvgPool", &[("T", BYTES)], |i| {
        let pool = pool::attrs(i)?;
        of_levels!(i.output_type(0), T => Kernel::sync(move |ctx| pool::means::<T>(ctx, &pool)))
    }),
    KernelDef::of("QuantizedInstanceNorm", &[("T", &[QUInt8])], |i| {
        let attrs = normalize::Instance::of(i)?;
        Kernel::sync(move |ctx| normalize::instances(ctx, &attrs))
    }),
    KernelDef::of(
        "QuantizedBatchNormWithGlobalNormalization",
        &[("Tinput", &[QUInt8]), ("out_type", &[QInt32])],
        |i| {
            let (epsilon, scales) = (i.attr("variance_epsilon")?, i.attr("scale_after_normalization")?);
            Kernel::sync(move |ctx| normalize::batch(ctx, epsilon, scales))
        },
    ),
    KernelDef {
        host_memory: &["size"],
        ..KernelDef::of("QuantizedResizeBilinear", &[("T", &[QUInt8, QInt32, Float])], resize::kernel)
    },
];
