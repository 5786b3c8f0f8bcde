//! Normal numbers between individual bounds (Robert, "Simulation of truncated normal variables", 1995): three
//! sampling methods, chosen by the position of the bounds. Every step is computed in the element's own precision.

use super::distribution::RandomFloat;
use super::draw::{broadcast_shape, place_in, shape_after};
use crate::numeric::philox::Philox;
use crate::plan::random::{Source, shape_input};
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result, invalid};
use graph::{Code, DType, Shape, Tensor};
use half::f16;
use num_traits::Float;

/// The number of failed attempts at one number after which sampling gives up.
const TRIES: usize = 1000;

/// The number of elements per batch if all elements share the same parameters.
const BATCH: usize = 100;

/// The index of the lower bound among the parameters: mean, deviation, lower bound, upper bound.
const BOUNDS: usize = 2;

/// The distance of a bound from the mean, in standard deviations, above which candidates are drawn from the unbounded
/// normal distribution and rejected if they are outside the bounds.
const WIDE: f32 = 1.3;

/// Makes the kernel of normal numbers between bounds; mean, deviation and bounds are shared by all numbers or differ
/// along the first axis. All numbers come from one stream, one after the other.
pub(in super::super) fn bounded_by_batch(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let fill = match dtype {
        DType::Float => fill_batches::<f32>,
        DType::Half => fill_batches::<f16>,
        _ => fill_batches::<f64>,
    };
    Kernel::sync(move |ctx| by_batch(ctx, &source, dtype, fill))
}

/// A function that fills the batches of a tensor; see [`fill_batches`].
type FillBatchesFn = fn([&Tensor; 4], usize, Philox, &mut Tensor) -> Result<()>;

fn by_batch(ctx: &mut KernelContext<'_>, source: &Source, dtype: DType, fill: FillBatchesFn) -> Result<()> {
    let shape = shape_input(ctx, source)?;
    let Some(&batches) = shape.first() else {
        invalid!("shape must not be empty");
    };
    let total = shape.num_elements();
    // If no parameter varies, numbers are drawn in batches of [`BATCH`]; a vector of bounds counts as varying, even
    // with one element.
    let mut is_shared = true;
    let mut parameters = [ctx.input(source.parameters())?; 4];
    for (i, name) in ["means", "stddevs", "minvals", "maxvals"].into_iter().enumerate() {
        let given = ctx.input(source.parameters() + i)?;
        if given.shape().rank() > 1 {
            invalid!("Input {name} should be a scalar or vector, got shape: {}", given.shape());
        }
        parameters[i] = given;
        is_shared &= given.num_elements() == 1 && (i < BOUNDS || given.shape().rank() == 0);
        if given.num_elements() != 1 && given.num_elements() != batches {
            invalid!("Input {name} should have length 1 or shape[0], got shape: {}", given.shape());
        }
    }
    let mut out = ctx.allocate(dtype, shape)?;
    if total > 0 {
        let size = if is_shared { BATCH } else { total / batches };
        // The groups of random words reserved for all batches: two words for each attempt at each number.
        let groups = total.div_ceil(size) as u64 * 2 * TRIES as u64;
        let groups = groups.wrapping_mul(size as u64 + 3) / 4;
        fill(parameters, size, source.reserve(ctx, groups)?, &mut out)?;
    }
    ctx.set_output(0, out);
    Ok(())
}

/// Fills each batch of `size` numbers from a bounded normal distribution with the batch's parameters.
fn fill_batches<T: RandomFloat + Float>(
    parameters: [&Tensor; 4],
    size: usize,
    mut stream: Philox,
    out: &mut Tensor,
) -> Result<()> {
    let mut values: [&[T]; 4] = [&[]; 4];
    for (values, parameter) in values.iter_mut().zip(parameters) {
        *values = parameter.values()?;
    }
    for (batch, out) in out.values_mut::<T>()?.chunks_mut(size).enumerate() {
        let [mean, deviation, low, high] = values.map(|v| if v.len() == 1 { v[0] } else { v[batch] });
        Bounded::of(mean, deviation, low, high)?.fill(&mut stream, out)?;
    }
    Ok(())
}

/// Makes the kernel of normal numbers between bounds, where the parameters are broadcast, and the numbers of each
/// combination of parameters are the last axes. All numbers come from one stream: those of the first parameters, and so
/// on.
pub(in super::super) fn bounded(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let fill = match dtype {
        DType::Float => fill_broadcast::<f32>,
        DType::Half => fill_broadcast::<f16>,
        _ => fill_broadcast::<f64>,
    };
    Kernel::sync(move |ctx| {
        let mut parameters = [ctx.input(source.parameters())?; 4];
        for (i, parameter) in parameters.iter_mut().enumerate() {
            *parameter = ctx.input(source.parameters() + i)?;
        }
        let each = broadcast_shape(&parameters)?;
        let shape = shape_after(ctx, &source, &each)?;
        let mut out = ctx.allocate(dtype, shape)?;
        if out.num_elements() > 0 {
            fill(parameters, &each, source.reserve(ctx, 0)?, &mut out)?;
        }
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Fills a tensor with the numbers of broadcast parameters; `each` is the shape of the parameters.
fn fill_broadcast<T: RandomFloat + Float>(
    parameters: [&Tensor; 4],
    each: &Shape,
    mut stream: Philox,
    out: &mut Tensor,
) -> Result<()> {
    let mut values: [&[T]; 4] = [&[]; 4];
    for (values, parameter) in values.iter_mut().zip(parameters) {
        *values = parameter.values()?;
    }
    let count = each.num_elements();
    let mut samples = vec![T::zero(); out.num_elements() / count];
    let out = out.values_mut::<T>()?;
    for i in 0..count {
        let of = |at: usize| values[at][place_in(parameters[at].shape(), each, i)];
        Bounded::of(of(0), of(1), of(2), of(3))?.fill(&mut stream, &mut samples)?;
        for (sample, &value) in samples.iter().enumerate() {
            out[sample * count + i] = value;
        }
    }
    Ok(())
}

/// A normal distribution between the bounds `low` and `high`, which are given in deviations from the mean.
struct Bounded<T> {
    mean: T,
    /// The standard deviation; negative if the distribution was mirrored because the lower bound was infinite or both
    /// bounds were below the mean.
    deviation: T,
    low: T,
    high: T,
}

/// A function that receives a candidate, and whether the candidate is accepted.
type Candidates<'a, T> = dyn FnMut(T, bool) + 'a;

impl<T: RandomFloat + Float> Bounded<T> {
    fn of(mean: T, deviation: T, low: T, high: T) -> Result<Bounded<T>> {
        let is_bounded = low.is_finite() || high.is_finite();
        if !(deviation > T::zero() && low < high && is_bounded) {
            return Err(Error::invalid("Invalid parameters"));
        }
        let (deviation, low, high) = if low.is_infinite() && low < T::zero() || high < mean {
            (-deviation, high, low)
        } else {
            (deviation, low, high)
        };
        Ok(Bounded { mean, deviation, low: (low - mean) / deviation, high: (high - mean) / deviation })
    }

    fn fill(&self, stream: &mut Philox, out: &mut [T]) -> Result<()> {
        let of = |value: f32| T::from(value).unwrap_or_else(T::zero);
        let (low, high, two) = (self.low, self.high, of(2.0));
        let wide = of(WIDE);
        if low < -wide && high >= T::zero() || high > wide && low <= T::zero() {
            return self.accept(out, "randn", TRIES, &mut |candidates| {
                for z in T::normal(stream.next()).into_iter().take(T::COUNT) {
                    candidates(z, z >= low && z <= high);
                }
            });
        }
        let root = (low * low + of(4.0)).sqrt();
        let steep = two * (of(0.5) + (low * (low - root)) / of(4.0)).exp() / (low + root);
        if high - low < steep {
            let most = if low < T::zero() { T::zero() } else { low * low };
            let uniform = |stream: &mut Philox| T::uniform(stream.next());
            return self.accept(out, "uniform", TRIES - 1, &mut |candidates| {
                let numbers = uniform(stream);
                let limits = uniform(stream);
                for (number, limit) in numbers.into_iter().zip(limits).take(T::COUNT) {
                    let z = number * (high - low) + low;
                    candidates(z, limit <= ((most - z * z) / two).exp());
                }
            });
        }
        let alpha = (low + root) / two;
        self.accept(out, "exponential distribution", TRIES - 1, &mut |candidates| {
            let numbers = T::uniform(stream.next());
            for pair in numbers[..T::COUNT].chunks_exact(2) {
                let z = -pair[0].ln() / alpha + low;
                let x = if low < alpha { alpha - z } else { low - alpha };
                candidates(z, pair[1] <= (-x * x / two).exp() && z < high);
            }
        })
    }

    /// Fills `out` with the accepted candidates of `round`, which is called until `out` is full. More than `tries`
    /// rejections in succession are an error.
    fn accept(
        &self,
        out: &mut [T],
        method: &str,
        tries: usize,
        round: &mut dyn FnMut(&mut Candidates<'_, T>),
    ) -> Result<()> {
        let (mut done, mut failed) = (0, 0);
        while done < out.len() {
            if failed > tries {
                return Err(rejected_error(method));
            }
            round(&mut |z, fits| {
                if !fits {
                    failed += 1;
                } else if done < out.len() && failed <= tries {
                    out[done] = z * self.deviation + self.mean;
                    done += 1;
                    failed = 0;
                }
            });
        }
        Ok(())
    }
}

fn rejected_error(method: &str) -> Error {
    Error::new(
        Code::Internal,
        format!("TruncatedNormal {method} rejection sampler failed to accept a sample."),
    )
}
