//! Decoding by prefix: the likeliest sequences, of which only the best so many are followed.

use super::{Scores, log_softmax, log_sum, set_sparse};
use crate::error::{Error, Result};
use crate::kernel::{KernelContext, KernelInit};
use crate::kernels::cpu::scalar::Real;
use graph::{Code, Element, Shape, Tensor};
use rustc_hash::FxHashMap;

/// The attributes.
#[derive(Clone, Copy)]
pub(super) struct Search {
    width: usize,
    paths: usize,
    merged: bool,
}

impl Search {
    pub(super) fn of(init: &KernelInit<'_>) -> Result<Search> {
        let size = |name: &str| -> Result<usize> {
            let value: i64 = init.attr(name)?;
            usize::try_from(value)
                .ok()
                .filter(|&v| v > 0)
                .ok_or_else(|| Error::invalid(format!("{name} must be > 0")))
        };
        let search = Search {
            width: size("beam_width")?,
            paths: size("top_paths")?,
            merged: init.attr("merge_repeated")?,
        };
        if search.paths > search.width {
            crate::invalid!(
                "top_paths must not be greater than beam_width: {} > {}",
                search.paths,
                search.width
            );
        }
        Ok(search)
    }
}

/// Log-probabilities of a prefix: in all, and of those alignments that end with a blank or with its last label.
#[derive(Clone, Copy)]
struct Chances<T> {
    total: T,
    blank: T,
    label: T,
}

impl<T: Real> Chances<T> {
    fn none() -> Chances<T> {
        Chances { total: T::neg_infinity(), blank: T::neg_infinity(), label: T::neg_infinity() }
    }
}

/// A prefix: that of its parent and one more label.
struct Prefix<T> {
    parent: Option<usize>,
    label: Option<usize>,
    old: Chances<T>,
    new: Chances<T>,
}

impl<T: Real> Prefix<T> {
    fn is_active(&self) -> bool {
        self.new.total != T::neg_infinity()
    }
}

struct Beam<T> {
    width: usize,
    prefixes: Vec<Prefix<T>>,
    children: FxHashMap<(usize, usize), usize>,
    /// The prefixes that are followed.
    leaves: Vec<usize>,
}

impl<T: Real> Beam<T> {
    fn new(width: usize) -> Beam<T> {
        let start = Chances { total: T::zero(), blank: T::zero(), label: T::neg_infinity() };
        let root = Prefix { parent: None, label: None, old: Chances::none(), new: start };
        Beam { width, prefixes: vec![root], children: FxHashMap::default(), leaves: vec![0] }
    }

    fn total(&self, prefix: usize) -> T {
        self.prefixes[prefix].new.total
    }

    /// The leaf with the least chance, by its place among the leaves.
    fn bottom(&self) -> usize {
        (1..self.leaves.len())
            .fold(0, |b, i| if self.total(self.leaves[i]) < self.total(self.leaves[b]) { i } else { b })
    }

    fn is_candidate(&self, total: T, least: T) -> bool {
        total > T::neg_infinity() && (self.leaves.len() < self.width || total > least)
    }

    /// The least chance of a leaf.
    fn least(&self) -> T {
        self.leaves.get(self.bottom()).map_or(T::neg_infinity(), |&leaf| self.total(leaf))
    }

    /// Follows the prefixes through one more time, at which classes have these log-probabilities; the last is the
    /// blank.
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
                    // A label after itself needs a blank between.
                    let before = if parent.label == Some(last) { parent.old.blank } else { parent.old.total };
                    label = log_sum(label, before);
                }
                label += input[last];
            }
            let with_blank = old.total + input[blank];
            self.prefixes[b].new = Chances { total: log_sum(with_blank, label), blank: with_blank, label };
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
                    // A prefix that was dropped in this very step has its own turn no more: so the peer has it.
                    if let Some(child) = child {
                        self.prefixes[child].old = Chances::none();
                    }
                    continue;
                }
                let child = child.unwrap_or_else(|| {
                    let (old, new) = (Chances::none(), Chances::none());
                    self.prefixes.push(Prefix { parent: Some(b), label: Some(label), old, new });
                    self.children.insert((b, label), self.prefixes.len() - 1);
                    self.prefixes.len() - 1
                });
                if self.leaves.len() == self.width {
                    let bottom = self.bottom();
                    let gone = self.leaves.swap_remove(bottom);
                    self.prefixes[gone].new = Chances::none();
                }
                self.prefixes[child].new = Chances { total, blank: T::neg_infinity(), label: total };
                self.leaves.push(child);
                least = self.least();
            }
        }
    }

    /// The leaves, the likeliest first.
    fn sorted(&self) -> Vec<usize> {
        let mut leaves = self.leaves.clone();
        leaves
            .sort_by(|&a, &b| self.total(b).partial_cmp(&self.total(a)).unwrap_or(std::cmp::Ordering::Equal));
        leaves
    }

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

pub(super) fn decode<T: Element + Real>(ctx: &mut KernelContext<'_>, search: Search) -> Result<()> {
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
            crate::invalid!(
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
