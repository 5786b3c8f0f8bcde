//! The gamma distribution (Marsaglia and Tsang, "A simple method for generating gamma variables", 2000).

use super::distribution::{Normal, Uniform};
use super::draw::{ATTEMPTS, Draw, ReversedGroups, doubles, drawn, drawn_shape};
use crate::numeric::philox::Philox;
use crate::plan::random::Source;
use device::Result;
use device::kernel::{Kernel, KernelInit};
use std::marker::PhantomData;

/// Makes the kernel of gamma numbers with scale 1; the first parameter input gives the shape parameters.
pub(in super::super) fn gamma(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    let dtype = init.output_type(0);
    Kernel::sync(move |ctx| {
        let alpha = ctx.input(source.parameters())?;
        let shape = drawn_shape(ctx, &source, alpha.shape())?;
        let draws: Vec<Gamma> = doubles(alpha)?.into_iter().map(Gamma).collect();
        let out = drawn(ctx, &source, dtype, shape, &draws)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The gamma distribution with scale 1 and the given shape parameter.
struct Gamma(f64);

impl Draw for Gamma {
    fn draw(&self, mut stream: Philox) -> Option<f64> {
        let alpha = self.0;
        let mut uniform = ReversedGroups::of(Uniform::<f64>(PhantomData));
        if alpha == 1.0 {
            return Some(-(-uniform.next(&mut stream)).ln_1p());
        }
        let mut normal = ReversedGroups::of(Normal::<f64>(PhantomData));
        // For a shape below 1, a number is drawn with the shape plus 1 and multiplied by a power of a uniform number.
        let is_small = alpha < 1.0;
        let d = alpha + if is_small { 2.0 / 3.0 } else { -1.0 / 3.0 };
        let c = 1.0 / 3.0 / d.sqrt();
        for _ in 0..ATTEMPTS {
            let x = normal.next(&mut stream);
            let v = 1.0 + c * x;
            if v <= 0.0 {
                continue;
            }
            let v = v * v * v;
            let u = uniform.next(&mut stream);
            if u < 1.0 - 0.0331 * (x * x) * (x * x) || u.ln() < 0.5 * x * x + d * (1.0 - v + v.ln()) {
                let number = d * v;
                return Some(if is_small {
                    number * uniform.next(&mut stream).powf(1.0 / alpha)
                } else {
                    number
                });
            }
        }
        None
    }
}
