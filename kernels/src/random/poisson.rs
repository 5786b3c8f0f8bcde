//! The Poisson distribution: small rates by counting (Knuth, "Seminumerical Algorithms"), large ones by transformed
//! rejection (Hörmann, "The transformed rejection method for generating Poisson random variables", 1993).

use super::distribution::Uniform;
use super::draw::{ATTEMPTS, Draw, ReversedGroups, doubles, drawn, drawn_shape};
use crate::numeric::philox::Philox;
use crate::plan::random::Source;
use device::Result;
use device::kernel::{Kernel, KernelInit};
use graph::DType;
use std::marker::PhantomData;

/// Makes the kernel of Poisson-distributed numbers; the first parameter input gives the rates.
pub(in super::super) fn poisson(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let largest = match dtype {
        DType::Half => half::f16::MAX.into(),
        DType::Float => f32::MAX.into(),
        DType::Int32 => i32::MAX.into(),
        DType::Int64 => i64::MAX as f64,
        _ => f64::MAX,
    };
    // The result for an infinite rate: infinity, or 0 for a dtype without infinity.
    let infinity = if matches!(dtype, DType::Int32 | DType::Int64) { 0.0 } else { f64::INFINITY };
    Kernel::sync(move |ctx| {
        let rates = ctx.input(source.parameters())?;
        let shape = drawn_shape(ctx, &source, rates.shape())?;
        let draws: Vec<Poisson> =
            doubles(rates)?.into_iter().map(|rate| Poisson { rate, largest, infinity }).collect();
        let out = drawn(ctx, &source, dtype, shape, &draws)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The Poisson distribution with rate `rate`; `largest` is the largest value of the output's dtype, and `infinity` the
/// result for an infinite rate.
struct Poisson {
    rate: f64,
    largest: f64,
    infinity: f64,
}

impl Draw for Poisson {
    fn draw(&self, stream: Philox) -> Option<f64> {
        if self.rate < 10.0 {
            self.count(stream)
        } else if self.rate == f64::INFINITY {
            Some(self.infinity)
        } else {
            self.reject(stream)
        }
    }
}

impl Poisson {
    fn count(&self, mut stream: Philox) -> Option<f64> {
        let mut uniform = ReversedGroups::of(Uniform::<f64>(PhantomData));
        let enough = (-self.rate).exp();
        let mut product = 1.0;
        for events in 0..ATTEMPTS {
            product *= uniform.next(&mut stream);
            let events = events as f64;
            if product <= enough && events <= self.largest {
                return Some(events);
            }
        }
        None
    }

    fn reject(&self, mut stream: Philox) -> Option<f64> {
        let rate = self.rate;
        let mut uniform = ReversedGroups::of(Uniform::<f64>(PhantomData));
        let log_rate = rate.ln();
        let b = 0.931 + 2.53 * rate.sqrt();
        let a = -0.059 + 0.02483 * b;
        let inverse_alpha = 1.1239 + 1.1328 / (b - 3.4);
        for _ in 0..ATTEMPTS {
            let u = uniform.next(&mut stream) - 0.5;
            let v = uniform.next(&mut stream);
            let shifted = 0.5 - u.abs();
            let k = ((2.0 * a / shifted + b) * u + rate + 0.43).floor();
            if k > self.largest {
                continue;
            }
            if shifted >= 0.07 && v <= 0.9277 - 3.6224 / (b - 2.0) {
                return Some(k);
            }
            if k < 0.0 || shifted < 0.013 && v > shifted {
                continue;
            }
            let s = (v * inverse_alpha / (a / (shifted * shifted) + b)).ln();
            if s <= -rate + k * log_rate - libm::lgamma(k + 1.0) {
                return Some(k);
            }
        }
        None
    }
}
