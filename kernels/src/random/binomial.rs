//! The binomial distribution: few expected events by sums of geometric numbers, many by transformed rejection (Hörmann,
//! "The generation of binomial random variates", Journal of Statistical Computation and Simulation, 1993).

use super::distribution::Uniform;
use super::draw::{
    ATTEMPTS, Draw, ReversedGroups, broadcast_shape, doubles, draw_all, place_in, shape_after,
};
use crate::numeric::philox::Philox;
use crate::numeric::scratch::check_scratch;
use crate::plan::random::{RESERVED, Source};
use device::Result;
use device::kernel::{Kernel, KernelInit};
use graph::DType::{self, *};
use std::marker::PhantomData;

/// The types of the parameters and of the numbers.
pub(in super::super) const BINOMIAL: &[(&str, &[DType])] =
    &[("S", &[Int32, Int64]), ("T", &[Half, Float, Double]), ("dtype", &[Half, Float, Double, Int32, Int64])];

/// The expected number of events from which numbers are drawn by rejection.
const MANY: f64 = 10.0;

/// The number of groups of random words that are reserved for each number with few expected events.
const RESERVED_FOR_FEW: u64 = 42;

/// Makes the kernel of binomially distributed numbers; the parameters are numbers of trials, and probabilities.
pub(in super::super) fn binomial(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    let dtype = init.output_type(0);
    Kernel::sync(move |ctx| {
        let first = source.parameters();
        let (counts, chances) = (ctx.input(first)?, ctx.input(first + 1)?);
        let each = broadcast_shape(&[counts, chances])?;
        let shape = shape_after(ctx, &source, &each)?;
        let (count_values, chance_values) = (doubles(counts)?, doubles(chances)?);
        check_scratch::<Binomial>(each.num_elements())?;
        let draws: Vec<Binomial> = (0..each.num_elements())
            .map(|i| {
                let count = count_values[place_in(counts.shape(), &each, i)];
                Binomial::new(count, chance_values[place_in(chances.shape(), &each, i)])
            })
            .collect();
        let samples = shape.num_elements().checked_div(draws.len()).unwrap_or(0) as u64;
        // The words that a generator's state skips do not depend on those that are drawn.
        let groups = (draws.len() as u64).wrapping_mul(200).wrapping_mul(samples + 3) / 4;
        let stream = source.reserve(ctx, groups.wrapping_mul(RESERVED as u64))?;
        let mut out = ctx.allocate(dtype, shape)?;
        if out.num_elements() > 0 {
            draw_all(stream, &mut out, &draws)?;
        }
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The number of events in `count` trials, of which each is an event by the chance `chance`, at most a half; if
/// `is_mirrored`, the number of trials without event.
struct Binomial {
    count: f64,
    chance: f64,
    is_mirrored: bool,
    /// The result if it does not depend on chance.
    certain: Option<f64>,
}

impl Binomial {
    fn new(count: f64, chance: f64) -> Binomial {
        let certain = if chance <= 0.0 || count <= 0.0 {
            Some(0.0)
        } else if chance >= 1.0 {
            Some(count)
        } else if chance.is_nan() {
            Some(f64::NAN)
        } else {
            None
        };
        let is_mirrored = chance > 0.5;
        Binomial { count, chance: if is_mirrored { 1.0 - chance } else { chance }, is_mirrored, certain }
    }

    fn has_many(&self) -> bool {
        self.count * self.chance >= MANY
    }

    /// Counts the events: the trials from one to the next are geometrically distributed.
    fn count_events(&self, mut stream: Philox) -> Option<f64> {
        let mut uniform = ReversedGroups::of(Uniform::<f64>(PhantomData));
        let mut trials = 0.0;
        for events in 0..ATTEMPTS {
            trials += (uniform.next(&mut stream).ln() / (-self.chance).ln_1p()).ceil();
            if trials > self.count {
                return Some(events as f64);
            }
        }
        None
    }

    fn reject(&self, mut stream: Philox) -> Option<f64> {
        let mut uniform = ReversedGroups::of(Uniform::<f64>(PhantomData));
        let (count, chance) = (self.count, self.chance);
        let deviation = (count * chance * (1.0 - chance)).sqrt();
        let b = 1.15 + 2.53 * deviation;
        let a = -0.0873 + 0.0248 * b + 0.01 * chance;
        let center = count * chance + 0.5;
        let odds = chance / (1.0 - chance);
        let alpha = (2.83 + 5.1 / b) * deviation;
        let mode = ((count + 1.0) * chance).floor();
        for _ in 0..ATTEMPTS {
            let u = uniform.next(&mut stream) - 0.5;
            let v = uniform.next(&mut stream);
            let shifted = 0.5 - u.abs();
            let k = ((2.0 * a / shifted + b) * u + center).floor();
            if shifted >= 0.07 && v <= 0.92 - 4.2 / b {
                return Some(k);
            }
            if k < 0.0 || k > count {
                continue;
            }
            let ratio = (v * alpha / (a / (shifted * shifted) + b)).ln();
            let bound = (mode + 0.5) * ((mode + 1.0) / (odds * (count - mode + 1.0))).ln()
                + (count + 1.0) * ((count - mode + 1.0) / (count - k + 1.0)).ln()
                + (k + 0.5) * (odds * (count - k + 1.0) / (k + 1.0)).ln()
                + factorial_tail(mode)
                + factorial_tail(count - mode)
                - factorial_tail(k)
                - factorial_tail(count - k);
            if ratio <= bound {
                return Some(k);
            }
        }
        None
    }
}

impl Draw for Binomial {
    fn draw(&self, stream: Philox) -> Option<f64> {
        if self.certain.is_some() {
            return self.certain;
        }
        if !self.count.is_finite() {
            return None;
        }
        let events = if self.has_many() { self.reject(stream) } else { self.count_events(stream) };
        events.map(|events| if self.is_mirrored { self.count - events } else { events })
    }

    fn reserved(&self) -> u64 {
        if self.has_many() { RESERVED as u64 } else { RESERVED_FOR_FEW }
    }
}

/// Returns the logarithm of the factorial of `k` less Stirling's approximation of it.
fn factorial_tail(k: f64) -> f64 {
    const TAILS: [f64; 10] = [
        0.081_061_466_795_327_2,
        0.041_340_695_955_409_2,
        0.027_677_925_684_998_3,
        0.020_790_672_103_765_09,
        0.016_644_691_189_821_1,
        0.013_876_128_823_070_7,
        0.011_896_709_945_891_7,
        0.010_411_265_261_972_0,
        0.009_255_462_182_712_73,
        0.008_330_563_433_362_87,
    ];
    if k <= 9.0 {
        return TAILS[k.max(0.0) as usize];
    }
    let next = (k + 1.0) * (k + 1.0);
    (1.0 / 12.0 - (1.0 / 360.0 - 1.0 / 1260.0 / next) / next) / (k + 1.0)
}
