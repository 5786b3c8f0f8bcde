//! CTC beam search: decoding that extends only the likeliest label prefixes.

use super::{Scores, log_softmax, log_sum, set_sparse};
use crate::numeric::scalar::Real;
use device::kernel::{KernelContext, KernelInit};
use device::{Error, Result};
use graph::{Code, Element, Shape, Tensor};
use rustc_hash::FxHashMap;
use std::cmp::Ordering;

/// The attributes of `CTCBeamSearchDecoder`.
#[derive(Clone, Copy)]
pub(super) struct BeamSearch {
    /// The beam width: the largest number of prefixes that a time step extends.
    width: usize,
    /// The number of decoded sequences per input.
    paths: usize,
    /// Set if repeated labels are merged in the decoded sequences.
    merged: bool,
}

impl BeamSearch {
    /// Reads the attributes of `CTCBeamSearchDecoder`.
    pub(super) fn of(init: &KernelInit<'_>) -> Result<BeamSearch> {
        let size = |name: &str| -> Result<usize> {
            let value: i64 = init.attr(name)?;
            usize::try_from(value)
                .ok()
                .filter(|&v| v > 0)
                .ok_or_else(|| Error::invalid(format!("{name} must be > 0")))
        };
        let search = BeamSearch {
            width: size("beam_width")?,
            paths: size("top_paths")?,
            merged: init.attr("merge_repeated")?,
        };
        if search.paths > search.width {
            device::invalid!(
                "top_paths must not be greater than beam_width: {} > {}",
                search.paths,
                search.width
            );
        }
        Ok(search)
    }
}

/// Log-probabilities of a prefix: of all its alignments, of the alignments that end with a blank, and of the alignments
/// that end with its last label.
#[derive(Clone, Copy)]
struct LogProbabilities<T> {
    total: T,
    blank: T,
    label: T,
}

impl<T: Real> LogProbabilities<T> {
    fn zero() -> LogProbabilities<T> {
        LogProbabilities { total: T::neg_infinity(), blank: T::neg_infinity(), label: T::neg_infinity() }
    }
}

/// A label prefix: the labels of its parent, followed by one more label.
struct Prefix<T> {
    parent: Option<usize>,
    label: Option<usize>,
    /// The log-probabilities of the prefix before the current time step.
    old: LogProbabilities<T>,
    /// The log-probabilities of the prefix after the current time step.
    new: LogProbabilities<T>,
}

impl<T: Real> Prefix<T> {
    /// Returns whether the prefix has a nonzero probability after the current time step.
    fn is_active(&self) -> bool {
        self.new.total != T::neg_infinity()
    }
}

/// The state of the search in one sequence.
struct Beam<T> {
    width: usize,
    prefixes: Vec<Prefix<T>>,
    /// The index in `prefixes` of each prefix, by its parent's index and its last label.
    children: FxHashMap<(usize, usize), usize>,
    /// The indices in `prefixes` of the likeliest prefixes, which the next time step extends.
    leaves: Vec<usize>,
}

impl<T: Real> Beam<T> {
    fn new(width: usize) -> Beam<T> {
        let start = LogProbabilities { total: T::zero(), blank: T::zero(), label: T::neg_infinity() };
        let root = Prefix { parent: None, label: None, old: LogProbabilities::zero(), new: start };
        Beam { width, prefixes: vec![root], children: FxHashMap::default(), leaves: vec![0] }
    }

    fn total(&self, prefix: usize) -> T {
        self.prefixes[prefix].new.total
    }

    /// Returns the index of the least likely leaf.
    fn least_likely(&self) -> usize {
        (1..self.leaves.len())
            .fold(0, |b, i| if self.total(self.leaves[i]) < self.total(self.leaves[b]) { i } else { b })
    }

    /// Returns whether a prefix of log-probability `total` may become a leaf; `least` is that of the least likely leaf.
    fn is_candidate(&self, total: T, least: T) -> bool {
        total > T::neg_infinity() && (self.leaves.len() < self.width || total > least)
    }

    /// Returns the log-probability of the least likely leaf.
    fn least(&self) -> T {
        self.leaves.get(self.least_likely()).map_or(T::neg_infinity(), |&leaf| self.total(leaf))
    }

    /// Extends the prefixes by one time step, at which the classes have the log-probabilities `input`; the last
    /// class is the blank.
    fn step(&mut self, input: &[T]) {
        let blank = input.len() - 1;
        let branches = self.sorted();
        for &b in &branches {
            let prefix = &mut self.prefixes[b];
            prefix.old = prefix.new;
        }
        for &b in &branches {
            let old = self.prefixes[b].old;
            let mut label = old.label;
            if let (Some(parent), Some(last)) = (self.prefixes[b].parent, self.prefixes[b].label) {
                let parent = &self.prefixes[parent];
                if parent.is_active() {
                    // Between two equal labels, an alignment needs a blank.
                    let before = if parent.label == Some(last) { parent.old.blank } else { parent.old.total };
                    label = log_sum(label, before);
                }
                label += input[last];
            }
            let with_blank = old.total + input[blank];
            self.prefixes[b].new =
                LogProbabilities { total: log_sum(with_blank, label), blank: with_blank, label };
        }
        self.leaves.clone_from(&branches);
        let mut least = self.least();
        for &b in &branches {
            let (old, last) = (self.prefixes[b].old, self.prefixes[b].label);
            if !self.is_candidate(old.total, least) {
                continue;
            }
            for (label, &chance) in input[..blank].iter().enumerate() {
                let before = if last == Some(label) { old.blank } else { old.total };
                let total = chance + before;
                let child = self.children.get(&(b, label)).copied();
                if child.is_some_and(|c| self.prefixes[c].is_active()) {
                    continue;
                }
                if !self.is_candidate(total, least) {
                    // A prefix that was dropped in the current time step loses its old probabilities and is not
                    // extended, like in TensorFlow.
                    if let Some(child) = child {
                        self.prefixes[child].old = LogProbabilities::zero();
                    }
                    continue;
                }
                let child = child.unwrap_or_else(|| {
                    let (old, new) = (LogProbabilities::zero(), LogProbabilities::zero());
                    self.prefixes.push(Prefix { parent: Some(b), label: Some(label), old, new });
                    self.children.insert((b, label), self.prefixes.len() - 1);
                    self.prefixes.len() - 1
                });
                if self.leaves.len() == self.width {
                    let least_likely = self.least_likely();
                    let dropped = self.leaves.swap_remove(least_likely);
                    self.prefixes[dropped].new = LogProbabilities::zero();
                }
                self.prefixes[child].new = LogProbabilities { total, blank: T::neg_infinity(), label: total };
                self.leaves.push(child);
                least = self.least();
            }
        }
    }

    /// Returns the leaves, the likeliest first.
    fn sorted(&self) -> Vec<usize> {
        let mut leaves = self.leaves.clone();
        sort_by(&mut leaves, &|&a, &b| self.total(b).partial_cmp(&self.total(a)).unwrap_or(Ordering::Equal));
        leaves
    }

    /// Returns the labels of a leaf; `merged` drops repetitions.
    fn labels(&self, leaf: usize, merged: bool) -> Vec<i64> {
        let mut labels = Vec::new();
        let (mut at, mut last) = (leaf, None);
        while let (Some(parent), Some(label)) = (self.prefixes[at].parent, self.prefixes[at].label) {
            if !(merged && last == Some(label)) {
                labels.push(label as i64);
            }
            (at, last) = (parent, Some(label));
        }
        labels.reverse();
        labels
    }
}

/// Sorts leaves; `compare` is a trait object so that the sort is compiled once, not once per element type.
fn sort_by(leaves: &mut [usize], compare: &dyn Fn(&usize, &usize) -> Ordering) {
    leaves.sort_by(compare);
}

/// `CTCBeamSearchDecoder`: outputs the likeliest sequences and their log-probabilities.
pub(super) fn decode<T: Element + Real>(ctx: &mut KernelContext<'_>, search: BeamSearch) -> Result<()> {
    let scores = Scores::<T>::of(ctx, 1, Code::FailedPrecondition)?;
    let mut decoded = vec![Vec::with_capacity(scores.batch); search.paths];
    let mut chances = Vec::with_capacity(scores.batch * search.paths);
    for b in 0..scores.batch {
        ctx.check_cancelled()?;
        let mut beam = Beam::new(search.width);
        for t in 0..scores.lengths[b] {
            beam.step(&log_softmax(scores.at(t, b)));
        }
        let leaves = beam.sorted();
        if leaves.len() < search.paths {
            device::invalid!(
                "Less leaves in the beam search than requested: {} of {}",
                leaves.len(),
                search.paths
            );
        }
        for (path, &leaf) in decoded.iter_mut().zip(&leaves) {
            path.push(beam.labels(leaf, search.merged));
            chances.push(beam.total(leaf));
        }
    }
    let shape = Shape::new(&[scores.batch, search.paths])?;
    for (i, path) in decoded.iter().enumerate() {
        set_sparse(ctx, [i, search.paths + i, 2 * search.paths + i], path)?;
    }
    ctx.set_output(3 * search.paths, Tensor::from_slice(&chances, shape)?);
    Ok(())
}
