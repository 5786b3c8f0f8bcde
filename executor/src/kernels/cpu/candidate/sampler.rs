//! Distributions over classes.

use super::super::random::distribution::{unit_f32, unit_f64};
use super::super::random::philox::Singles;
use crate::error::{Error, Result};
use crate::invalid;
use crate::kernel::KernelInit;
use graph::{Code, DType, Shape, Tensor};
use parking_lot::Mutex;

/// Draws a class.
pub(super) type Draw<'a> = dyn Fn(&mut Singles) -> i64 + 'a;
/// The probability of a class.
pub(super) type Probability<'a> = dyn Fn(i64) -> f32 + 'a;
/// Fills a batch by draws: the classes, and how often was drawn.
pub(super) type Fill<'a> = dyn FnMut(&Draw<'_>) -> Result<(Vec<i64>, usize)> + 'a;
/// Is told the batch, how often was drawn for it, and the probabilities that held.
pub(super) type Count<'a> = dyn FnMut(&[i64], usize, &Probability<'_>) -> Result<()> + 'a;

/// A distribution, which may learn from the classes that it sees.
pub(super) trait Sampler: Send + Sync {
    fn range(&self) -> i64;

    /// Draws one batch and counts it, under one state of the distribution; then learns from `seen`.
    fn batch(&self, fill: &mut Fill<'_>, count: &mut Count<'_>, seen: &[i64]) -> Result<()>;
}

/// Below `n`, every number as likely as the others: a little of the range is drawn again for that.
fn below(numbers: &mut Singles, n: u32) -> u32 {
    if n.is_power_of_two() {
        return numbers.next() & (n - 1);
    }
    let rest = u32::MAX % n + 1;
    loop {
        let number = numbers.next();
        if number >= rest {
            return number % n;
        }
    }
}

fn next_u64(numbers: &mut Singles) -> u64 {
    let low = numbers.next();
    u64::from(low) | u64::from(numbers.next()) << 32
}

fn below_u64(numbers: &mut Singles, n: u64) -> u64 {
    if n.is_power_of_two() {
        return next_u64(numbers) & (n - 1);
    }
    let rest = u64::MAX % n + 1;
    loop {
        let number = next_u64(numbers);
        if number >= rest {
            return number % n;
        }
    }
}

/// Every class as likely as the others.
pub(super) struct Uniform(i64);

impl Uniform {
    pub(super) fn new(range: i64) -> Uniform {
        Uniform(range.max(1))
    }
}

impl Sampler for Uniform {
    fn range(&self) -> i64 {
        self.0
    }

    fn batch(&self, fill: &mut Fill<'_>, count: &mut Count<'_>, _: &[i64]) -> Result<()> {
        let probability = (1.0 / self.0 as f64) as f32;
        let (batch, tries) = fill(&|numbers| below_u64(numbers, self.0 as u64) as i64)?;
        count(&batch, tries, &|_| probability)
    }
}

/// Classes in the order of their frequency, as words are by Zipf's law.
pub(super) struct LogUniform {
    range: i64,
    log_range: f64,
}

impl LogUniform {
    pub(super) fn new(range: i64) -> LogUniform {
        let range = range.max(1);
        LogUniform { range, log_range: (range as f64).ln_1p() }
    }
}

impl Sampler for LogUniform {
    fn range(&self) -> i64 {
        self.range
    }

    fn batch(&self, fill: &mut Fill<'_>, count: &mut Count<'_>, _: &[i64]) -> Result<()> {
        let draw = |numbers: &mut Singles| {
            let first = numbers.next();
            let uniform = unit_f64(first, numbers.next());
            ((uniform * self.log_range).exp() as i64 - 1) % self.range
        };
        let (batch, tries) = fill(&draw)?;
        count(&batch, tries, &|class| {
            (((class as f64 + 2.0) / (class as f64 + 1.0)).ln() / self.log_range) as f32
        })
    }
}

/// As often as classes were seen so far, once more each.
pub(super) struct Unigram(Mutex<Weights>);

/// Whole weights with their partial sums, as a Fenwick tree: "A new data structure for cumulative frequency
/// tables", 1994.
struct Weights {
    weights: Vec<i32>,
    sums: Vec<i32>,
    total: i32,
}

impl Weights {
    fn add(&mut self, class: usize) {
        self.weights[class] += 1;
        self.total += 1;
        let mut at = class + 1;
        while at <= self.weights.len() {
            self.sums[at - 1] += 1;
            at += at & at.wrapping_neg();
        }
    }

    /// The class in whose part of the total `position` is.
    fn class_at(&self, position: u32) -> i64 {
        let (mut at, mut rest) = (0, position as i32);
        let mut step = self.weights.len().checked_ilog2().map_or(0, |log| 1usize << log);
        while step > 0 {
            if at + step <= self.weights.len() && self.sums[at + step - 1] <= rest {
                at += step;
                rest -= self.sums[at - 1];
            }
            step /= 2;
        }
        at as i64
    }
}

impl Unigram {
    pub(super) fn new(range: i64) -> Result<Unigram> {
        let Some(count) = usize::try_from(range).ok().filter(|&r| r < i32::MAX as usize) else {
            invalid!("range_max of a learned unigram sampler must be below {}, not {range}", i32::MAX);
        };
        // Refused here if there is no memory for so many.
        Tensor::unspecified(DType::Int64, Shape::new(&[count])?)?;
        let sums = (1..=count).map(|at| (at & at.wrapping_neg()) as i32).collect();
        Ok(Unigram(Mutex::new(Weights { weights: vec![1; count], sums, total: count as i32 })))
    }
}

impl Sampler for Unigram {
    fn range(&self) -> i64 {
        self.0.lock().weights.len() as i64
    }

    fn batch(&self, fill: &mut Fill<'_>, count: &mut Count<'_>, seen: &[i64]) -> Result<()> {
        let mut state = self.0.lock();
        let classes = state.weights.len();
        let place = |class: i64| usize::try_from(class).ok().filter(|&c| c < classes);
        if let Some(class) = seen.iter().find(|&&class| place(class).is_none()) {
            invalid!("true class {class} is not in [0, {classes})");
        }
        let (batch, tries) = fill(&|numbers| state.class_at(below(numbers, state.total as u32)))?;
        count(&batch, tries, &|class| {
            place(class).map_or(0.0, |at| state.weights[at] as f32 / state.total as f32)
        })?;
        let room = (i32::MAX - state.total) as usize;
        seen.iter().take(room).filter_map(|&class| place(class)).for_each(|at| state.add(at));
        Ok(())
    }
}

/// By given weights, with Walker's alias method.
pub(super) struct FixedUnigram {
    range: i64,
    weights: Vec<f32>,
    total: f64,
    /// For each class the chance that it stays, and what comes in its place.
    table: Vec<(f32, i64)>,
}

/// Reserved ids take memory that nothing in the input stands for.
const MAX_RESERVED: i64 = 1 << 20;

impl FixedUnigram {
    pub(super) fn new(init: &KernelInit<'_>, range: i64) -> Result<FixedUnigram> {
        let file: String = init.attr("vocab_file")?;
        let unigrams: Vec<f32> = init.attr("unigrams")?;
        if file.is_empty() == unigrams.is_empty() {
            invalid!("Must provide exactly one of vocab_file and unigrams");
        }
        let (shards, shard): (i64, i64) = (init.attr("num_shards")?, init.attr("shard")?);
        if shards < 1 || !(0..shards).contains(&shard) {
            invalid!("shard must be in [0, num_shards), got shard {shard} of {shards}");
        }
        let reserved: i64 = init.attr("num_reserved_ids")?;
        let distortion: f32 = init.attr("distortion")?;
        if !(0..=range.min(MAX_RESERVED)).contains(&reserved) {
            invalid!(
                "num_reserved_ids must be in [0, range_max], and at most {MAX_RESERVED}, got {reserved}"
            );
        }
        let is_own = |id: i64| id % shards == shard;
        let mut weights: Vec<f32> = (0..reserved).filter(|&id| is_own(id)).map(|_| 0.0).collect();
        let mut total = 0.0;
        let given = if file.is_empty() { unigrams } else { read(&file)? };
        for (id, weight) in (reserved..).zip(given) {
            if is_own(id) {
                let weight = weight.powf(distortion);
                total += f64::from(weight);
                weights.push(weight);
            }
        }
        if weights.is_empty()
            || i64::try_from(weights.len()).is_ok_and(|n| n != range)
            || total.is_nan()
            || total <= 0.0
        {
            invalid!("range is {range} but {} weights of sum {total} are given", weights.len());
        }
        let table = alias_table(&weights);
        Ok(FixedUnigram { range, weights, total, table })
    }
}

/// The last column of each line of a file of comma-separated values.
fn read(file: &str) -> Result<Vec<f32>> {
    let failed = |e: std::io::Error| {
        let code = if e.kind() == std::io::ErrorKind::NotFound { Code::NotFound } else { Code::Unknown };
        Error::new(code, format!("{file}; {e}"))
    };
    let text = std::fs::read_to_string(file).map_err(failed)?;
    let weight = |line: &str| line.rsplit(',').next().and_then(|w| w.trim().parse().ok());
    text.lines()
        .map(|line| {
            weight(line).ok_or_else(|| Error::invalid(format!("Wrong vocabulary format at line: {line}")))
        })
        .collect()
}

fn alias_table(weights: &[f32]) -> Vec<(f32, i64)> {
    let count = weights.len();
    let sum: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    let mut chances: Vec<f64> = weights.iter().map(|&w| f64::from(w * count as f32) / sum).collect();
    let (mut low, mut high): (Vec<usize>, Vec<usize>) = (0..count).partition(|&i| chances[i] < 1.0);
    let mut others: Vec<i64> = vec![-1; count];
    while let (Some(&l), Some(&h)) = (low.last(), high.last()) {
        low.pop();
        high.pop();
        others[l] = h as i64;
        chances[h] -= 1.0 - chances[l];
        if chances[h] < 1.0 { low.push(h) } else { high.push(h) }
    }
    // What rounding left over stays as it is.
    for i in low.into_iter().chain(high) {
        chances[i] = 1.0;
        others[i] = i as i64;
    }
    chances.into_iter().map(|chance| chance as f32).zip(others).collect()
}

impl Sampler for FixedUnigram {
    fn range(&self) -> i64 {
        self.range
    }

    fn batch(&self, fill: &mut Fill<'_>, count: &mut Count<'_>, _: &[i64]) -> Result<()> {
        let draw = |numbers: &mut Singles| {
            let uniform = unit_f32(numbers.next());
            let class = below(numbers, self.table.len() as u32);
            let (chance, other) = self.table[class as usize];
            if uniform < chance { i64::from(class) } else { other }
        };
        let (batch, tries) = fill(&draw)?;
        count(&batch, tries, &|class| {
            let weight = usize::try_from(class).ok().and_then(|at| self.weights.get(at));
            weight.map_or(0.0, |&weight| (f64::from(weight) / self.total) as f32)
        })
    }
}

/// Every class once, in order.
pub(super) struct All(pub(super) i64);

impl Sampler for All {
    fn range(&self) -> i64 {
        self.0
    }

    fn batch(&self, fill: &mut Fill<'_>, count: &mut Count<'_>, _: &[i64]) -> Result<()> {
        let next = std::cell::Cell::new(0);
        let (batch, _) = fill(&|_| next.replace(next.get() + 1))?;
        // Not to be mistaken for as many tries as there are classes: each is certain to be there once.
        count(&batch, usize::MAX, &|_| 1.0)
    }
}
