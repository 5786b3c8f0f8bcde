//! Kernels of the debugger: they write a watched tensor, or numbers about it, to the debug URLs of their node.

use crate::numeric::dispatch::{PLAIN, REALS, dispatch};
use crate::objects::debug::{DebugTargets, Trace, TraceFiles, Watched};
use crate::objects::io::{begin_on_file_thread, blocking};
use bytes::Bytes;
use device::kernel::{AsyncContext, Kernel, KernelContext, KernelDef, KernelInit};
use device::value::Value;
use device::{Error, Result};
use graph::{Bool8, Code, DType, Shape, Tensor};
use num_traits::ToPrimitive;
use smallvec::smallvec;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Copy", &[], |_| Kernel::sync(pass)).brief(),
    KernelDef::of("CopyHost", &[], |_| Kernel::sync(pass)).brief(),
    KernelDef::of("DebugIdentity", &[], |init| {
        watch(init, "DebugIdentity", |watched| Ok(Observation { publish: None, output: watched.cloned() }))
    }),
    KernelDef::of("DebugIdentityV2", &[], trace),
    KernelDef::of("DebugIdentityV3", &[], |init| {
        watch(init, "DebugIdentityV3", |watched| Ok(Observation { publish: None, output: watched.cloned() }))
    }),
    KernelDef::of("DebugNanCount", &[("T", REALS)], |init| {
        watch(init, "DebugNanCount", |watched| {
            let nans = watched.map(numbers).transpose()?.unwrap_or_default();
            let nans = nans.iter().filter(|x| x.is_nan()).count();
            Ok(Observation::of(Tensor::vector(&[nans as i64])?, true))
        })
    }),
    KernelDef::of("DebugNumericSummary", &[("T", SUMMARIZED)], |init| {
        let bounds = (init.attr::<f32>("lower_bound")?.into(), init.attr::<f32>("upper_bound")?.into());
        let (mutes, dtype) = (init.attr::<bool>("mute_if_healthy")?, init.input_type(0));
        watch(init, "DebugNumericSummary", move |watched| {
            let summary = Summary::of(watched, bounds)?;
            let is_muted = mutes && summary.is_healthy();
            Ok(Observation::of(summary.tensor(dtype)?, !is_muted))
        })
    }),
    KernelDef::of("DebugNumericSummaryV2", &[("T", PLAIN), ("output_dtype", WIDE)], summary_v2),
    KernelDef::of("DebugGradientIdentity", &[], |_| Kernel::sync(pass)).brief(),
    KernelDef::of("DebugGradientRefIdentity", &[], |_| Kernel::sync(pass)).brief(),
    KernelDef::of("CheckPinned", &[], |_| {
        Kernel::sync(|_| {
            let message = "to check pinnedness, the tensor must be in memory of a server for CUDA";
            Err(Error::new(Code::FailedPrecondition, message))
        })
    }),
];

const WIDE: &[DType] = &[DType::Float, DType::Double];

/// The largest number that a `tensor_id` may have in an output of 32-bit floats, which represent all integers up to it.
const MAX_ID_OF_FLOAT: i64 = 1 << 24;

/// The number of sizes in the summary of a shape.
const SHAPE_SIZES: usize = 6;

/// `DebugNumericSummaryV2`: numbers about a tensor, chosen by a mode.
fn summary_v2(init: &KernelInit<'_>) -> Result<Kernel> {
    let (mode, id) = (init.attr::<i64>("tensor_debug_mode")?, init.attr::<i64>("tensor_id")?);
    let dtype = init.output_type(0);
    if dtype == DType::Float && id > MAX_ID_OF_FLOAT {
        device::invalid!(
            "DebugNumericSummaryV2Op requires tensor_id to be less than or equal to (2^24). Given tensor_id:{id}"
        );
    }
    Kernel::sync(move |ctx| {
        let tensor = ctx.input(0)?;
        let values = mode_summary(tensor, mode, id as f64)?;
        let summary = match dtype {
            DType::Float => Tensor::vector(&values.iter().map(|&x| x as f32).collect::<Vec<_>>())?,
            _ => Tensor::vector(&values)?,
        };
        ctx.set_output(0, summary);
        Ok(())
    })
}

/// Returns the numbers about a tensor that a mode of TensorFlow's debugger asks for.
///
/// # Errors
/// `Unimplemented` for a mode without numbers.
fn mode_summary(tensor: &Tensor, mode: i64, id: f64) -> Result<Vec<f64>> {
    let dims = tensor.shape().dims();
    let (kind, rank) = (f64::from(tensor.dtype().number()), dims.len() as f64);
    if !matches!(mode, 2..=5 | 8) {
        return Err(Error::unimplemented(format!("Unimplemented tensor debug mode: {mode}")));
    }
    let none = (f64::NEG_INFINITY, f64::INFINITY);
    let of = Summary::of(Some(tensor), none)?;
    let [negative_infinite, positive_infinite, nan] =
        [of.negative_infinite, of.positive_infinite, of.nan].map(|count| count as f64);
    let count = of.count as f64;
    Ok(match mode {
        2 => vec![id, f64::from(u8::from(!of.is_healthy()))],
        3 => vec![id, count, negative_infinite, positive_infinite, nan],
        // The number of the device is not known to the op.
        4 => {
            let signs = [of.negative, of.zero, of.positive].map(|count| count as f64);
            [&[id, -1.0, kind, rank, count, negative_infinite, positive_infinite, nan], &signs[..]].concat()
        }
        5 => {
            let mut sizes: Vec<f64> =
                dims.iter().skip(dims.len().saturating_sub(SHAPE_SIZES)).map(|&d| d as f64).collect();
            sizes.resize(SHAPE_SIZES, 0.0);
            [&[id, kind, rank, count], &sizes[..]].concat()
        }
        _ => {
            let if_any = |count: usize, value: f64| if count > 0 { value } else { 0.0 };
            vec![
                if_any(of.negative_infinite, f64::NEG_INFINITY),
                if_any(of.positive_infinite, f64::INFINITY),
                if_any(of.nan, f64::NAN),
            ]
        }
    })
}

/// The types that TensorFlow's kernel summarizes: no 16-bit floats.
const SUMMARIZED: &[DType] = &[
    DType::Float,
    DType::Double,
    DType::Bool,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
];

fn pass(ctx: &mut KernelContext<'_>) -> Result<()> {
    let value = ctx.take_value(0);
    ctx.set_output(0, value);
    Ok(())
}

/// The result of a debug op.
struct Observation {
    /// True to publish the output, false to publish nothing; `None` to publish the watched tensor itself.
    publish: Option<bool>,
    output: Option<Tensor>,
}

impl Observation {
    fn of(output: Tensor, is_published: bool) -> Observation {
        Observation { publish: Some(is_published), output: Some(output) }
    }
}

/// Makes the kernel of a debug op. `observe` gets the watched tensor, or `None` for a variable without a value.
fn watch(
    init: &KernelInit<'_>,
    op: &str,
    observe: impl Fn(Option<&Tensor>) -> Result<Observation> + Send + Sync + 'static,
) -> Result<Kernel> {
    let targets = DebugTargets::of_node(init, op)?;
    let (dtype, output_dtype) = (init.input_type(0), init.output_type(0));
    begin_on_file_thread(move |mut ctx: AsyncContext| {
        let observed = ctx.step.cancellation.check().and_then(|()| {
            let watched = take_watched(&mut ctx)?;
            if targets.are_closed() {
                return Ok((None, empty(output_dtype)?));
            }
            let Observation { publish, output } = observe(watched.as_ref())?;
            let published = match publish {
                None => Some(watched),
                Some(is_published) => is_published.then(|| output.clone()),
            };
            Ok((published, output.map_or_else(|| empty(output_dtype), Ok)?))
        });
        let (published, output) = match observed {
            Ok(observed) => observed,
            Err(error) => return ctx.done(Err(error)),
        };
        let step = ctx.step.clone();
        let end = move |result: Result<()>| ctx.done(result.map(|()| smallvec![Value::Host(output)]));
        match &published {
            None => end(Ok(())),
            Some(tensor) => {
                let tensor = tensor.as_ref().map_or(Watched::Uninitialized(dtype), Watched::Value);
                targets.publish(tensor, &step, Box::new(end));
            }
        }
    })
}

/// Takes the watched tensor from the inputs; `None` for a variable without a value.
fn take_watched(ctx: &mut AsyncContext) -> Result<Option<Tensor>> {
    match std::mem::take(&mut ctx.inputs[0]) {
        Value::Host(tensor) => Ok(Some(tensor)),
        Value::Ref(variable) => Ok(variable.lock().clone()),
        other => Err(Error::internal(format!("a tensor is watched, not {other:?}"))),
    }
}

fn empty(dtype: DType) -> Result<Tensor> {
    Ok(Tensor::zeros(dtype, Shape::new(&[0])?)?)
}

/// `DebugIdentityV2`: adds the tensor to the files of a run of TensorFlow 2's debugger, and passes it on.
fn trace(init: &KernelInit<'_>) -> Result<Kernel> {
    let trace = Trace {
        context: init.attr("tfdbg_context_id")?,
        op: init.attr("op_name")?,
        slot: init.attr("output_slot")?,
        mode: init.attr("tensor_debug_mode")?,
        device: init.device.name().to_string(),
    };
    let (run, kept) = (init.attr::<String>("tfdbg_run_id")?, init.attr::<i64>("circular_buffer_size")?);
    let urls = init.attr::<Vec<Bytes>>("debug_urls")?;
    let files = urls.iter().map(|url| TraceFiles::open(&String::from_utf8_lossy(url), &run));
    let files = files.collect::<Result<Vec<_>>>()?;
    blocking(move |ctx: &mut AsyncContext| {
        let watched = ctx.input(0)?.clone();
        files.iter().try_for_each(|files| files.add(&trace, &watched, kept))?;
        Ok(smallvec![Value::Host(watched)])
    })
}

/// Returns the elements of a tensor as 64-bit floats.
fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    if tensor.dtype() == DType::Bool {
        return Ok(tensor.values::<Bool8>()?.iter().map(|&x| f64::from(u8::from(x.get()))).collect());
    }
    dispatch!(real, tensor.dtype(), T => {
        Ok(tensor.values::<T>()?.iter().map(|x| x.to_f64().unwrap_or(f64::NAN)).collect())
    })
}

/// The numbers of `DebugNumericSummary`, in the order of its output.
struct Summary {
    is_initialized: bool,
    count: usize,
    nan: usize,
    negative_infinite: usize,
    negative: usize,
    zero: usize,
    positive: usize,
    positive_infinite: usize,
    minimum: f64,
    maximum: f64,
    mean: f64,
    variance: f64,
    dims: Vec<usize>,
}

impl Summary {
    /// Counts the elements of a tensor. Finite elements beyond the bounds count as infinite.
    fn of(watched: Option<&Tensor>, (lower, upper): (f64, f64)) -> Result<Summary> {
        let values = watched.map(numbers).transpose()?.unwrap_or_default();
        let mut summary = Summary {
            is_initialized: watched.is_some(),
            count: values.len(),
            nan: 0,
            negative_infinite: 0,
            negative: 0,
            zero: 0,
            positive: 0,
            positive_infinite: 0,
            minimum: f64::INFINITY,
            maximum: f64::NEG_INFINITY,
            mean: f64::NAN,
            variance: f64::NAN,
            dims: watched.map(|tensor| tensor.shape().dims().to_vec()).unwrap_or_default(),
        };
        for &x in &values {
            let counter = if x.is_nan() {
                &mut summary.nan
            } else if x == f64::NEG_INFINITY || (x.is_finite() && lower.is_finite() && x <= lower) {
                &mut summary.negative_infinite
            } else if x == f64::INFINITY || (x.is_finite() && upper.is_finite() && x >= upper) {
                &mut summary.positive_infinite
            } else if x < 0.0 {
                &mut summary.negative
            } else if x > 0.0 {
                &mut summary.positive
            } else {
                &mut summary.zero
            };
            *counter += 1;
        }
        let finite = || values.iter().copied().filter(|x| x.is_finite());
        let count = finite().count() as f64;
        if count > 0.0 {
            summary.minimum = finite().fold(f64::INFINITY, f64::min);
            summary.maximum = finite().fold(f64::NEG_INFINITY, f64::max);
            let mean = finite().sum::<f64>() / count;
            summary.mean = mean;
            summary.variance = finite().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
        }
        Ok(summary)
    }

    /// Returns whether the tensor has neither NaN nor an infinity, nor an element beyond the bounds.
    fn is_healthy(&self) -> bool {
        self.nan == 0 && self.negative_infinite == 0 && self.positive_infinite == 0
    }

    fn tensor(&self, dtype: DType) -> Result<Tensor> {
        let counts = [
            usize::from(self.is_initialized),
            self.count,
            self.nan,
            self.negative_infinite,
            self.negative,
            self.zero,
            self.positive,
            self.positive_infinite,
        ];
        let mut values: Vec<f64> = counts.iter().map(|&count| count as f64).collect();
        values.extend([self.minimum, self.maximum, self.mean, self.variance]);
        values.extend([f64::from(dtype.number()), self.dims.len() as f64]);
        values.extend(self.dims.iter().map(|&size| size as f64));
        Ok(Tensor::vector(&values)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run_op;

    #[test]
    fn a_numeric_summary_counts_the_kinds_of_elements() -> Result<()> {
        let x = Tensor::try_from([f32::NAN, f32::NEG_INFINITY, -2.0, 0.0, 4.0, 9.0])?;
        let attrs =
            [("T", DType::Float.into()), ("tensor_name", "x:0".into()), ("upper_bound", 8.0f32.into())];
        let summary = run_op("DebugNumericSummary", std::slice::from_ref(&x), &attrs)?.swap_remove(0);
        let expected = [1.0, 6.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -2.0, 9.0, 2.75, 17.6875, 1.0, 1.0, 6.0];
        assert_eq!(summary.values::<f64>()?, expected);
        let nans = run_op("DebugNanCount", &[x], &attrs[..2])?;
        assert_eq!(nans[0].values::<i64>()?, [1]);
        Ok(())
    }
}
