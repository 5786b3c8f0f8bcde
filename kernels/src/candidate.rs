//! Candidate samplers, which draw the classes of sampled losses. The classes equal TensorFlow's for the same seeds.

mod sampler;

use crate::numeric::philox::PhiloxWords;
use crate::plan::random::Stream;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Result, invalid};
use graph::{Shape, Tensor};
use rustc_hash::{FxHashMap, FxHashSet};
use sampler::{AllClasses, FixedUnigram, LogUniform, Sampler, Uniform, Unigram};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("UniformCandidateSampler", &[], |i| kernel(i, Box::new(Uniform::new(range(i)?)))),
    KernelDef::of("LogUniformCandidateSampler", &[], |i| kernel(i, Box::new(LogUniform::new(range(i)?)))),
    KernelDef::of("LearnedUnigramCandidateSampler", &[], |i| kernel(i, Box::new(Unigram::new(range(i)?)?))),
    KernelDef::of("ThreadUnsafeUnigramCandidateSampler", &[], |i| {
        kernel(i, Box::new(Unigram::new(range(i)?)?))
    }),
    KernelDef::of("FixedUnigramCandidateSampler", &[], |i| {
        kernel(i, Box::new(FixedUnigram::new(i, range(i)?)?))
    }),
    KernelDef::of("AllCandidateSampler", &[], |i| kernel(i, Box::new(AllClasses(i.attr("num_sampled")?)))),
    KernelDef::of("ComputeAccidentalHits", &[], |init| {
        let num_true: i64 = init.attr("num_true")?;
        Kernel::sync(move |ctx| accidental_hits(ctx, num_true))
    }),
];

/// Returns the number of classes, the attribute `range_max`, from which the sampler draws.
fn range(init: &KernelInit<'_>) -> Result<i64> {
    init.attr("range_max")
}

/// The number of groups of four random words that are reserved for each sampled class.
const RESERVED: u64 = 2048 / 4;

/// Makes the kernel of a sampler, which outputs the sampled classes and the expected counts of the true and sampled
/// classes.
fn kernel(init: &KernelInit<'_>, sampler: Box<dyn Sampler>) -> Result<Kernel> {
    let num_true: i64 = init.attr("num_true")?;
    let unique: bool = init.attr("unique")?;
    let count: i64 = init.attr("num_sampled")?;
    let stream = Stream::of(init)?;
    Kernel::sync(move |ctx| {
        let classes = ctx.input(0)?;
        let [batch, columns] = *classes.shape().dims() else { invalid!("true_classes must be a matrix") };
        if columns as i64 != num_true {
            invalid!("true_classes must have num_true columns, expected: {columns} was: {num_true}");
        }
        if unique && count > sampler.range() {
            invalid!("Sampler's range is too small.");
        }
        let classes = classes.values::<i64>()?;
        let range = sampler.range();
        if let Some(class) = classes.iter().find(|c| !(0..range).contains(*c)) {
            invalid!("`true_candidate` out of range [0, {range}), received {class}");
        }
        let count = usize::try_from(count).unwrap_or(0);
        let mut sampled = Tensor::zeros(graph::DType::Int64, Shape::new(&[count])?)?;
        let mut true_counts = Tensor::zeros(graph::DType::Float, Shape::new(&[batch, columns])?)?;
        let mut sampled_counts = Tensor::zeros(graph::DType::Float, Shape::new(&[count])?)?;
        let mut numbers = PhiloxWords::new(stream.reserve((count as u64).wrapping_mul(RESERVED)));
        let cancelled = || ctx.check_cancelled();
        sampler.batch(
            &mut |sample| fill(sampled.values_mut::<i64>()?, unique, || sample(&mut numbers), &cancelled),
            &mut |picked, tries, probability| {
                let expected = |class: i64| expected_count(probability(class), picked.len(), tries);
                let counts = sampled_counts.values_mut::<f32>()?;
                counts.iter_mut().zip(picked).for_each(|(count, &class)| *count = expected(class));
                let counts = true_counts.values_mut::<f32>()?;
                counts.iter_mut().zip(classes).for_each(|(count, &class)| *count = expected(class));
                Ok(())
            },
            classes,
        )?;
        ctx.set_output(0, sampled);
        ctx.set_output(1, true_counts);
        ctx.set_output(2, sampled_counts);
        Ok(())
    })
}

/// Fills a batch of classes and returns it with the number of draws. If `unique`, classes already in the batch are
/// drawn again.
fn fill(
    out: &mut [i64],
    unique: bool,
    mut draw: impl FnMut() -> i64,
    cancelled: &dyn Fn() -> Result<()>,
) -> Result<(Vec<i64>, usize)> {
    let mut tries = 0usize;
    let mut drawn = FxHashSet::default();
    for slot in out.iter_mut() {
        loop {
            tries += 1;
            let class = draw();
            if !unique || drawn.insert(class) {
                *slot = class;
                break;
            }
            if tries.is_multiple_of(1 << 16) {
                cancelled()?;
            }
            if tries >= i32::MAX as usize {
                invalid!("no {} different classes are found in {tries} tries", out.len());
            }
        }
    }
    Ok((out.to_vec(), tries))
}

/// Returns the expected number of occurrences of a class in a batch that took `tries` draws to fill.
fn expected_count(probability: f32, batch: usize, tries: usize) -> f32 {
    if tries == batch {
        return probability * batch as f32;
    }
    -(tries as f32 * (-probability).ln_1p()).exp_m1()
}

/// `ComputeAccidentalHits`: outputs the true classes that were also sampled, as their row and their index among the
/// samples.
fn accidental_hits(ctx: &mut KernelContext<'_>, num_true: i64) -> Result<()> {
    let (classes, sampled) = (ctx.input(0)?, ctx.input(1)?);
    let [batch, columns] = *classes.shape().dims() else {
        invalid!("true_candidates must be a batch_size * num_true matrix");
    };
    if columns as i64 != num_true {
        invalid!("true_candidates must be a batch_size * num_true matrix");
    }
    if sampled.shape().rank() != 1 {
        invalid!("sampled_candidates must be a vector, which is typically an output from CandidateSampler");
    }
    let indices: FxHashMap<i64, i64> =
        sampled.values::<i64>()?.iter().enumerate().map(|(i, &class)| (class, i as i64)).collect();
    let (mut rows, mut ids) = (Vec::new(), Vec::new());
    let classes = classes.values::<i64>()?;
    for row in 0..batch {
        for class in &classes[row * columns..(row + 1) * columns] {
            if let Some(&index) = indices.get(class) {
                rows.push(row as i32);
                ids.push(index);
            }
        }
    }
    let weights = Tensor::full(-f32::MAX, Shape::new(&[ids.len()])?)?;
    ctx.set_output(0, Tensor::vector(&rows)?);
    ctx.set_output(1, Tensor::vector(&ids)?);
    ctx.set_output(2, weights);
    Ok(())
}
