//! Distributions over classes from which candidate samplers draw.

use super::super::random::distribution::{unit_f32, unit_f64};
use crate::numeric::philox::PhiloxWords;
use device::kernel::KernelInit;
use device::{Error, Result, invalid};
use graph::{Code, DType, Shape, Tensor};
use parking_lot::Mutex;

/// A function that draws a class.
pub(super) type DrawFn<'a> = dyn Fn(&mut PhiloxWords) -> i64 + 'a;
/// A function that returns the probability of a class.
pub(super) type ProbabilityFn<'a> = dyn Fn(i64) -> f32 + 'a;
/// A function that fills a batch of classes with draws from the given function, and returns the classes and the number
/// of draws.
pub(super) type FillFn<'a> = dyn FnMut(&DrawFn<'_>) -> Result<(Vec<i64>, usize)> + 'a;
/// A function that receives a batch of classes, the number of draws that filled it, and the probabilities of the
/// classes at the time of the draws.
pub(super) type CountFn<'a> = dyn FnMut(&[i64], usize, &ProbabilityFn<'_>) -> Result<()> + 'a;

/// A distribution over classes, which may learn from the true classes of each batch.
pub(super) trait Sampler: Send + Sync {
    /// Returns the number of classes of the distribution.
    fn range(&self) -> i64;

    /// Draws one batch with `fill` and passes it to `count`; the distribution changes only afterwards, when it learns
    /// from `true_classes`.
    fn batch(&self, fill: &mut FillFn<'_>, count: &mut CountFn<'_>, true_classes: &[i64]) -> Result<()>;
}

/// Returns a uniform number below `n`. Random words below `2^32 mod n` are redrawn, so that all results are equally
/// likely.
fn below(numbers: &mut PhiloxWords, n: u32) -> u32 {
    if n.is_power_of_two() {
        return numbers.next() & (n - 1);
    }
    let rejected = u32::MAX % n + 1;
    loop {
        let number = numbers.next();
        if number >= rejected {
            return number % n;
        }
    }
}

fn next_u64(numbers: &mut PhiloxWords) -> u64 {
    let low = numbers.next();
    u64::from(low) | u64::from(numbers.next()) << 32
}

fn below_u64(numbers: &mut PhiloxWords, n: u64) -> u64 {
    if n.is_power_of_two() {
        return next_u64(numbers) & (n - 1);
    }
    let rejected = u64::MAX % n + 1;
    loop {
        let number = next_u64(numbers);
        if number >= rejected {
            return number % n;
        }
    }
}

/// The uniform distribution over `range` classes.
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

    fn batch(&self, fill: &mut FillFn<'_>, count: &mut CountFn<'_>, _: &[i64]) -> Result<()> {
        let probability = (1.0 / self.0 as f64) as f32;
        let (batch, tries) = fill(&|numbers| below_u64(numbers, self.0 as u64) as i64)?;
        count(&batch, tries, &|_| probability)
    }
}

/// A log-uniform (Zipfian) distribution, for classes sorted by falling frequency.
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

    fn batch(&self, fill: &mut FillFn<'_>, count: &mut CountFn<'_>, _: &[i64]) -> Result<()> {
        let draw = |numbers: &mut PhiloxWords| {
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

/// A distribution learned from the true classes: a class is drawn in proportion to 1 + the number of times it has
/// occurred.
pub(super) struct Unigram(Mutex<Weights>);

/// Integer weights with their partial sums in a Fenwick tree ("A new data structure for cumulative frequency
/// tables", 1994).
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

    /// Returns the class whose interval of the cumulative weights contains `position`.
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
        // Allocates a tensor of this size, which is not used, because its allocation fails with an error if there is
        // not enough memory.
        Tensor::unspecified(DType::Int64, Shape::new(&[count])?)?;
        let sums = (1..=count).map(|at| (at & at.wrapping_neg()) as i32).collect();
        Ok(Unigram(Mutex::new(Weights { weights: vec![1; count], sums, total: count as i32 })))
    }
}

impl Sampler for Unigram {
    fn range(&self) -> i64 {
        self.0.lock().weights.len() as i64
    }

    fn batch(&self, fill: &mut FillFn<'_>, count: &mut CountFn<'_>, true_classes: &[i64]) -> Result<()> {
        let mut state = self.0.lock();
        let classes = state.weights.len();
        let index_of = |class: i64| usize::try_from(class).ok().filter(|&c| c < classes);
        if let Some(class) = true_classes.iter().find(|&&class| index_of(class).is_none()) {
            invalid!("true class {class} is not in [0, {classes})");
        }
        let (batch, tries) = fill(&|numbers| state.class_at(below(numbers, state.total as u32)))?;
        count(&batch, tries, &|class| {
            index_of(class).map_or(0.0, |at| state.weights[at] as f32 / state.total as f32)
        })?;
        let room = (i32::MAX - state.total) as usize;
        true_classes.iter().take(room).filter_map(|&class| index_of(class)).for_each(|at| state.add(at));
        Ok(())
    }
}

/// A fixed distribution given by weights, sampled by Walker's alias method.
pub(super) struct FixedUnigram {
    range: i64,
    weights: Vec<f32>,
    total: f64,
    /// For each class, the probability with which the class is kept after it has been drawn, and the class that
    /// replaces it otherwise.
    table: Vec<(f32, i64)>,
}

/// The largest number of reserved ids, limited because they use memory that no input accounts for.
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
        let is_in_shard = |id: i64| id % shards == shard;
        let mut weights: Vec<f32> = (0..reserved).filter(|&id| is_in_shard(id)).map(|_| 0.0).collect();
        let mut total = 0.0;
        let source = if file.is_empty() { unigrams } else { read_weights(&file)? };
        for (id, weight) in (reserved..).zip(source) {
            if is_in_shard(id) {
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

/// Reads the last column of each line of a file of comma-separated values.
fn read_weights(file: &str) -> Result<Vec<f32>> {
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

/// Returns Walker's alias table: for each class, the probability with which the class is kept after it has been drawn,
/// and the class that replaces it otherwise.
fn alias_table(weights: &[f32]) -> Vec<(f32, i64)> {
    let count = weights.len();
    let sum: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    let mut chances: Vec<f64> = weights.iter().map(|&w| f64::from(w * count as f32) / sum).collect();
    let (mut low, mut high): (Vec<usize>, Vec<usize>) = (0..count).partition(|&i| chances[i] < 1.0);
    let mut aliases: Vec<i64> = vec![-1; count];
    while let (Some(&l), Some(&h)) = (low.last(), high.last()) {
        low.pop();
        high.pop();
        aliases[l] = h as i64;
        chances[h] -= 1.0 - chances[l];
        if chances[h] < 1.0 { low.push(h) } else { high.push(h) }
    }
    // Because of rounding, some classes may be left in `low` or `high`; they get the probability 1 and are never
    // replaced.
    for i in low.into_iter().chain(high) {
        chances[i] = 1.0;
        aliases[i] = i as i64;
    }
    chances.into_iter().map(|chance| chance as f32).zip(aliases).collect()
}

impl Sampler for FixedUnigram {
    fn range(&self) -> i64 {
        self.range
    }

    fn batch(&self, fill: &mut FillFn<'_>, count: &mut CountFn<'_>, _: &[i64]) -> Result<()> {
        let draw = |numbers: &mut PhiloxWords| {
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

/// A sampler without randomness: each batch contains every class once, in ascending order.
pub(super) struct AllClasses(pub(super) i64);

impl Sampler for AllClasses {
    fn range(&self) -> i64 {
        self.0
    }

    fn batch(&self, fill: &mut FillFn<'_>, count: &mut CountFn<'_>, _: &[i64]) -> Result<()> {
        let next = std::cell::Cell::new(0);
        let (batch, _) = fill(&|_| next.replace(next.get() + 1))?;
        // The number of draws is given as `usize::MAX`: if it equalled the number of classes, the expected count would
        // be `probability * batch`, but each class occurs exactly once.
        count(&batch, usize::MAX, &|_| 1.0)
    }
}
