//! Kernels of regressions.

mod ascent;
mod loss;

use crate::numeric::dispatch::dispatch;
use crate::numeric::farm::fingerprint128;
use crate::numeric::widen::Lane as _;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef};
use graph::DType::{self, *};
use graph::{Shape, Tensor};
use half::{bf16, f16};
use num_traits::AsPrimitive;

const NARROW_INTEGERS: &[(&str, &[DType])] = &[("T", &[Int8, Int16]), ("output_dtype", &[Float])];
const WIDE_INTEGERS: &[(&str, &[DType])] = &[("T", &[Int32, Int64]), ("output_dtype", &[Double])];

/// Makes the row of isotonic regressions of elements of one floating-point type.
const fn same(types: &'static [(&'static str, &'static [DType])]) -> KernelDef {
    KernelDef::of("IsotonicRegression", types, |_| Kernel::sync(isotonic))
}

pub(super) const KERNELS: &[KernelDef] = &[
    same(NARROW_INTEGERS),
    same(WIDE_INTEGERS),
    same(&[("T", &[Double]), ("output_dtype", &[Double])]),
    same(&[("T", &[Float]), ("output_dtype", &[Float])]),
    same(&[("T", &[BFloat16]), ("output_dtype", &[BFloat16])]),
    same(&[("T", &[Half]), ("output_dtype", &[Half])]),
    KernelDef::of("SdcaOptimizer", &[], |init| ascent::ascend(init, "adaptative")),
    KernelDef::of("SdcaOptimizerV2", &[], |init| ascent::ascend(init, "adaptive")),
    KernelDef::of("SdcaFprint", &[], |_| Kernel::sync(fingerprint)),
    KernelDef::of("SdcaShrinkL1", &[], |init| {
        let (l1, l2) = (init.attr::<f32>("l1")?, init.attr::<f32>("l2")?);
        Kernel::sync(move |ctx| shrink(ctx, l1, l2))
    }),
];

/// Outputs for each row the non-increasing sequence that is nearest in squares, and the number of the constant part of
/// each element. Adjacent elements that are out of order are replaced by their mean (the algorithm of Ayer et al., 1955).
fn isotonic(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (input, dtype) = (ctx.input(0)?, ctx.node().attr::<DType>("output_dtype")?);
    let values: Vec<f64> = dispatch!(@arms input.dtype(), T => {
        Ok::<_, device::Error>(input.values::<T>()?.iter().map(|v| v.to_wide().as_()).collect())
    }; Float f32, Double f64, Half f16, BFloat16 bf16, Int8 i8, Int16 i16, Int32 i32, Int64 i64)?;
    let shape = input.shape().clone();
    let width = shape.dims().last().copied().unwrap_or(1);
    let (mut fitted, mut segments) = (Vec::with_capacity(values.len()), Vec::with_capacity(values.len()));
    // The sum and the number of elements of each constant part of a row.
    let mut parts: Vec<(f64, usize)> = Vec::new();
    for row in values.chunks(width.max(1)) {
        parts.clear();
        for &value in row {
            let mut last = (value, 1);
            while let Some(&(sum, count)) = parts.last()
                && sum / (count as f64) < last.0 / last.1 as f64
            {
                parts.pop();
                last = (last.0 + sum, last.1 + count);
            }
            parts.push(last);
        }
        for (i, &(sum, count)) in parts.iter().enumerate() {
            fitted.extend(std::iter::repeat_n(sum / count as f64, count));
            segments.extend(std::iter::repeat_n(i as i32, count));
        }
    }
    let output = match dtype {
        Half => {
            Tensor::from_slice(&fitted.iter().map(|&v| f16::from_f64(v)).collect::<Vec<_>>(), shape.clone())?
        }
        BFloat16 => {
            Tensor::from_slice(&fitted.iter().map(|&v| bf16::from_f64(v)).collect::<Vec<_>>(), shape.clone())?
        }
        Float => Tensor::from_slice(&fitted.iter().map(|&v| v as f32).collect::<Vec<_>>(), shape.clone())?,
        _ => Tensor::from_slice(&fitted, shape.clone())?,
    };
    ctx.set_output(0, output);
    ctx.set_output(1, Tensor::from_slice(&segments, shape)?);
    Ok(())
}

/// Outputs the fingerprint of each string as two numbers, of which the first is never 0 or 1.
fn fingerprint(ctx: &mut KernelContext<'_>) -> Result<()> {
    let input = ctx.input(0)?;
    let [count] = input.shape().dims() else {
        device::invalid!("Input must be a vector, got shape {}", input.shape());
    };
    let words = input.as_strings()?.iter().flat_map(|text| {
        let [low, high] = fingerprint128(text);
        [if low < 2 { low.wrapping_sub(2) } else { low }, high].map(|word| word as i64)
    });
    let shape = Shape::new(&[*count, 2])?;
    ctx.set_output(0, Tensor::from_slice(&words.collect::<Vec<_>>(), shape)?);
    Ok(())
}

/// Moves every weight towards zero by the ratio of the two regularizations, at most to zero.
fn shrink(ctx: &mut KernelContext<'_>, l1: f32, l2: f32) -> Result<()> {
    let by = (f64::from(l1) / f64::from(l2)) as f32;
    for i in 0..ctx.num_inputs() {
        ctx.ref_input(i)?.clone().update(|weights| {
            for weight in weights.values_mut::<f32>()? {
                let rest = (weight.abs() - by).max(0.0);
                *weight = if *weight < 0.0 { -rest } else { rest };
            }
            Ok(())
        })?;
    }
    Ok(())
}
