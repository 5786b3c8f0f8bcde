//! Random permutations and random choices.

use crate::numeric::dispatch::dispatch;
use crate::numeric::philox::{GROUP, PhiloxWords};
use crate::numeric::scalar::Real as _;
use crate::numeric::widen::Float;
use crate::plan::random::{Source, choice_sizes, reserve_choices};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelInit};
use graph::{DType, Element, Shape, Tensor};
use num_traits::{AsPrimitive, Float as _};

/// Makes the kernel that outputs a tensor's rows in random order, such as RandomShuffle.
pub(in super::super) fn shuffle(source: Source) -> Result<Kernel> {
    Kernel::sync(move |ctx| {
        let value = ctx.take_input(0)?;
        let rows = value.shape().first().copied().unwrap_or(1);
        if value.num_elements() <= 1 || rows <= 1 {
            // The algorithm input is checked even if no row can move.
            if !matches!(source, Source::Node(_)) {
                source.reserve(ctx, 0)?;
            }
            ctx.set_output(0, value);
            return Ok(());
        }
        let draws = (rows - 1) as u64;
        let mut bits = PhiloxWords::new(source.reserve(ctx, draws.div_ceil(GROUP as u64))?);
        let mut order: Vec<usize> = (0..rows).collect();
        for i in 0..rows - 1 {
            // Only the low 32 bits of the number of rows are used, because TensorFlow's sequence is defined that way.
            let rest = (rows - i) as u32;
            let draw = bits.next();
            order.swap(i, i + if rest == 0 { draw } else { draw % rest } as usize);
        }
        let out = pick_rows(ctx, &value, &order)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn pick_rows(ctx: &KernelContext<'_>, value: &Tensor, order: &[usize]) -> Result<Tensor> {
    let shape = value.shape().clone();
    let row = value.num_elements() / order.len();
    match value.dtype() {
        DType::String => {
            let all = value.as_strings()?;
            let picked = order.iter().flat_map(|&i| all[i * row..(i + 1) * row].iter().cloned());
            Ok(Tensor::strings(picked.collect(), shape)?)
        }
        DType::Resource => {
            let all = value.as_resources()?;
            let picked = order.iter().flat_map(|&i| all[i * row..(i + 1) * row].iter().cloned());
            Ok(Tensor::resources(picked.collect(), shape)?)
        }
        dtype => {
            let mut out = ctx.allocate(dtype, shape)?;
            let from = value.bytes()?;
            let row = from.len() / order.len();
            for (to, &i) in out.bytes_mut()?.chunks_exact_mut(row).zip(order) {
                to.copy_from_slice(&from[i * row..(i + 1) * row]);
            }
            Ok(out)
        }
    }
}

/// Makes the kernel that draws class indices by unnormalised log-probabilities, such as Multinomial.
pub(in super::super) fn multinomial(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    let sum = dispatch!(float, init.input_type(0), T => Ok(sum_weights::<T> as SumWeightsFn))?;
    dispatch!(index, init.output_type(0), O => Kernel::sync(move |ctx| choose::<O>(ctx, &source, sum)))
}

fn choose<O: Element>(ctx: &mut KernelContext<'_>, source: &Source, sum: SumWeightsFn) -> Result<()>
where
    usize: AsPrimitive<O>,
{
    let [batch, classes, samples] = choice_sizes(ctx)?;
    let mut out = ctx.allocate(O::DTYPE, Shape::new(&[batch, samples])?)?;
    if out.num_elements() == 0 {
        source.check(ctx)?;
    } else {
        let logits = ctx.input(0)?;
        let mut bits = PhiloxWords::new(reserve_choices(ctx, source, batch, samples)?);
        let mut sums = vec![0f64; classes];
        for (row, out) in out.values_mut::<O>()?.chunks_exact_mut(samples).enumerate() {
            let total = sum(logits, row, &mut sums)?;
            for o in out {
                let find = unit(&mut bits) * total;
                *o = sums.partition_point(|&s| s <= find).as_();
            }
        }
    }
    ctx.set_output(0, out);
    Ok(())
}

/// A function `(logits, row, sums)` that computes the running sums of the weights of a row's classes; see
/// [`sum_weights`].
type SumWeightsFn = fn(&Tensor, usize, &mut [f64]) -> Result<f64>;

/// Sets `sums` to the running sums of the weights of a row's classes, relative to the row's largest weight, and returns
/// the total. A class whose log-probability is not finite has weight 0.
fn sum_weights<T: Float>(logits: &Tensor, row: usize, sums: &mut [f64]) -> Result<f64>
where
    T::Wide: AsPrimitive<f64>,
{
    let row = &logits.values::<T>()?[row * sums.len()..][..sums.len()];
    let finite = row.iter().map(|v| v.to_wide()).filter(|v| v.is_finite());
    let max: f64 = finite.fold(T::Wide::of(f64::MIN), T::Wide::max).as_();
    let mut total = 0.0;
    for (sum, v) in sums.iter_mut().zip(row) {
        let v = v.to_wide();
        if v.is_finite() {
            let v: f64 = v.as_();
            total += (v - max).exp();
        }
        *sum = total;
    }
    Ok(total)
}

/// Returns a uniform number in [0, 1).
fn unit(bits: &mut PhiloxWords) -> f64 {
    let high = bits.next();
    super::distribution::unit_f64(high, bits.next())
}
