//! Connectionist temporal classification (CTC): the loss of label sequences, and greedy and beam-search decoding.

mod beam;
mod greedy;
mod loss;

use crate::numeric::dispatch::dispatch;
use crate::numeric::scalar::Real;
use device::kernel::{Kernel, KernelContext, KernelDef};
use device::{Error, Result};
use graph::{Code, DType, Element, Shape, Tensor};

const WIDE: &[(&str, &[DType])] = &[("T", &[DType::Float, DType::Double])];

macro_rules! wide {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!(@arms $dtype, $T => $body; Float f32, Double f64)
    };
}

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("CTCLoss", WIDE, |i| {
        let options = loss::LossOptions::of(i)?;
        wide!(i.output_type(0), T => Kernel::sync(move |ctx| loss::loss::<T>(ctx, options)))
    }),
    KernelDef::of("CTCGreedyDecoder", WIDE, |i| {
        let (merged, blank) = (i.attr("merge_repeated")?, i.attr("blank_index")?);
        wide!(i.input_type(0), T => Kernel::sync(move |ctx| greedy::decode::<T>(ctx, merged, blank)))
    }),
    KernelDef::of("CTCBeamSearchDecoder", WIDE, |i| {
        let search = beam::BeamSearch::of(i)?;
        wide!(i.input_type(0), T => Kernel::sync(move |ctx| beam::decode::<T>(ctx, search)))
    }),
];

/// The scores of classes, of shape `[time, batch, classes]`, and the length of each sequence.
struct Scores<'a, T> {
    values: &'a [T],
    time: usize,
    batch: usize,
    classes: usize,
    lengths: Vec<usize>,
}

impl<'a, T: Element> Scores<'a, T> {
    /// Reads the scores in input 0 and the sequence lengths in input `lengths`. `unfit` is the error code if the number
    /// of lengths is not the batch size or a length exceeds the number of time steps; negative lengths count as 0.
    fn of(ctx: &'a KernelContext<'_>, lengths: usize, unfit: Code) -> Result<Scores<'a, T>> {
        let (inputs, lengths) = (ctx.input(0)?, ctx.input(lengths)?);
        let &[time, batch, classes] = inputs.shape().dims() else {
            device::invalid!("inputs is not a 3-Tensor");
        };
        if inputs.num_elements() == 0 {
            device::invalid!("inputs must not be empty, got {}", inputs.shape());
        }
        if lengths.shape().rank() != 1 {
            device::invalid!("sequence_length is not a vector");
        }
        if lengths.num_elements() != batch {
            let (count, problem) = (lengths.num_elements(), "len(sequence_length) != batch_size.");
            return Err(Error::new(
                unfit,
                format!("{problem}  len(sequence_length):  {count} batch_size: {batch}"),
            ));
        }
        let mut checked = Vec::with_capacity(batch);
        for (b, &length) in lengths.values::<i32>()?.iter().enumerate() {
            let length = usize::try_from(length).unwrap_or(0);
            if length > time {
                return Err(Error::new(unfit, format!("sequence_length({b}) <= {time}")));
            }
            checked.push(length);
        }
        let lengths = checked;
        Ok(Scores { values: inputs.values()?, time, batch, classes, lengths })
    }

    /// Returns the scores of the classes at one time step of a sequence.
    fn at(&self, time: usize, sequence: usize) -> &'a [T] {
        &self.values[(time * self.batch + sequence) * self.classes..][..self.classes]
    }
}

/// Returns `ln(exp(a) + exp(b))`, without overflow.
fn log_sum<T: Real>(a: T, b: T) -> T {
    if a == T::neg_infinity() {
        return b;
    }
    if b == T::neg_infinity() {
        return a;
    }
    let (low, high) = if a > b { (b, a) } else { (a, b) };
    high + (low - high).exp().ln_1p()
}

/// Returns the logarithms of the softmax of the scores.
fn log_softmax<T: Real>(scores: &[T]) -> Vec<T> {
    let max = scores.iter().fold(T::neg_infinity(), |m, &s| m.max(s));
    let sum = scores.iter().fold(T::zero(), |sum, &s| sum + (s - max).exp());
    scores.iter().map(|&s| s - max - sum.ln()).collect()
}

/// Outputs label sequences as a sparse matrix; `at` holds the output numbers for its indices, its values and its shape.
fn set_sparse(ctx: &mut KernelContext<'_>, at: [usize; 3], sequences: &[Vec<i64>]) -> Result<()> {
    let indices =
        sequences.iter().enumerate().flat_map(|(b, s)| (0..s.len()).flat_map(move |i| [b as i64, i as i64]));
    let indices: Vec<i64> = indices.collect();
    let labels: Vec<i64> = sequences.iter().flatten().copied().collect();
    let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
    let shape = [sequences.len() as i64, longest as i64];
    ctx.set_output(at[0], Tensor::from_slice(&indices, Shape::new(&[labels.len(), 2])?)?);
    ctx.set_output(at[1], Tensor::from_slice(&labels, Shape::new(&[labels.len()])?)?);
    ctx.set_output(at[2], Tensor::from_slice(&shape, Shape::new(&[2])?)?);
    Ok(())
}
