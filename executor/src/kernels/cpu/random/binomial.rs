//! The binomial distribution: few successes by summing the gaps between them, more by transformed rejection (Hörmann,
//! "The generation of binomial random variates", 1993, algorithm BTRS).

use super::distribution::Uniform;
use super::draw::{ATTEMPTS, Backwards, Draw, doubles, drawn, drawn_shape};
use super::philox::Philox;
use super::source::Source;
use crate::error::Result;
use crate::kernel::{Kernel, KernelInit};
use crate::kernels::cpu::broadcast::Plan;
use graph::DType;
use half::f16;
use std::marker::PhantomData;

/// Numbers of successes in as many trials as the first parameter says, of the probability in the second.
pub(in super::super) fn binomial(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    let dtype = init.output_type(0);
    Kernel::sync(move |ctx| {
        let first = source.parameters();
        let (counts, probabilities) = (ctx.input(first)?, ctx.input(first + 1)?);
        let plan = Plan::new(counts.shape(), probabilities.shape())?;
        let shape = drawn_shape(ctx, &source, plan.shape())?;
        let draws = binomials(&plan, &doubles(counts)?, &doubles(probabilities)?, counts.dtype());
        let out = drawn(ctx, &source, dtype, shape, &draws)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn binomials(plan: &Plan, counts: &[f64], probabilities: &[f64], dtype: DType) -> Vec<Binomial> {
    let total = plan.shape().num_elements();
    let repeats = plan.repeats();
    let mut all = Vec::with_capacity(total);
    plan.walk(0, total, |_, run, at| {
        for i in 0..run {
            let [count, probability] = [0, 1].map(|t| at[t] + if repeats[t] { 0 } else { i });
            all.push(Binomial::of(counts[count], probabilities[probability], dtype));
        }
    });
    all
}

enum Binomial {
    Certain(f64),
    /// Of this many trials those that succeed, or all others.
    Drawn { count: f64, probability: f64, is_often: bool, is_complement: bool },
}

impl Binomial {
    /// `dtype`: that of the parameters, in which they are multiplied.
    fn of(count: f64, probability: f64, dtype: DType) -> Binomial {
        if count <= 0.0 || probability <= 0.0 {
            return Binomial::Certain(0.0);
        }
        if probability >= 1.0 {
            return Binomial::Certain(count);
        }
        if probability.is_nan() {
            return Binomial::Certain(f64::NAN);
        }
        let is_complement = probability > 0.5;
        let probability = if is_complement { 1.0 - probability } else { probability };
        let expected = match dtype {
            DType::Half => f16::from_f64(count * probability).into(),
            DType::Float => f64::from((count * probability) as f32),
            _ => count * probability,
        };
        Binomial::Drawn { count, probability, is_often: expected >= 10.0, is_complement }
    }
}

impl Draw for Binomial {
    fn draw(&self, stream: Philox) -> Option<f64> {
        match *self {
            Binomial::Certain(number) => Some(number),
            Binomial::Drawn { count, probability, is_often, is_complement } => {
                let draw = if is_often { reject } else { sum_gaps };
                let drawn = draw(count, probability, stream)?;
                Some(if is_complement { count - drawn } else { drawn })
            }
        }
    }
}

fn sum_gaps(count: f64, probability: f64, mut stream: Philox) -> Option<f64> {
    let mut uniform = Backwards::of(Uniform::<f64>(PhantomData));
    let mut trials = 0.0;
    for successes in 0..ATTEMPTS {
        trials += (uniform.next(&mut stream).ln() / (-probability).ln_1p()).ceil();
        if trials > count {
            return Some(successes as f64);
        }
    }
    None
}

fn reject(count: f64, probability: f64, mut stream: Philox) -> Option<f64> {
    let mut uniform = Backwards::of(Uniform::<f64>(PhantomData));
    let deviation = (count * probability * (1.0 - probability)).sqrt();
    let b = 1.15 + 2.53 * deviation;
    let a = -0.0873 + 0.0248 * b + 0.01 * probability;
    let c = count * probability + 0.5;
    let v_r = 0.92 - 4.2 / b;
    let r = probability / (1.0 - probability);
    let alpha = (2.83 + 5.1 / b) * deviation;
    let m = ((count + 1.0) * probability).floor();
    for _ in 0..ATTEMPTS {
        let u = uniform.next(&mut stream);
        let v = uniform.next(&mut stream);
        let u = u - 0.5;
        let us = 0.5 - u.abs();
        let k = ((2.0 * a / us + b) * u + c).floor();
        if us >= 0.07 && v <= v_r {
            return Some(k);
        }
        if k < 0.0 || k > count {
            continue;
        }
        let v = (v * alpha / (a / (us * us) + b)).ln();
        let bound = (m + 0.5) * ((m + 1.0) / (r * (count - m + 1.0))).ln()
            + (count + 1.0) * ((count - m + 1.0) / (count - k + 1.0)).ln()
            + (k + 0.5) * (r * (count - k + 1.0) / (k + 1.0)).ln()
            + stirling_rest(m)
            + stirling_rest(count - m)
            - stirling_rest(k)
            - stirling_rest(count - k);
        if v <= bound {
            return Some(k);
        }
    }
    None
}

/// What Stirling's formula lacks of `ln(k!)`.
fn stirling_rest(k: f64) -> f64 {
    const FIRST: [f64; 10] = [
        0.0810614667953272,
        0.0413406959554092,
        0.0276779256849983,
        0.02079067210376509,
        0.0166446911898211,
        0.0138761288230707,
        0.0118967099458917,
        0.0104112652619720,
        0.00925546218271273,
        0.00833056343336287,
    ];
    if k <= 9.0 {
        return FIRST[k as usize];
    }
    let square = (k + 1.0) * (k + 1.0);
    (1.0 / 12.0 - (1.0 / 360.0 - 1.0 / 1260.0 / square) / square) / (k + 1.0)
}
