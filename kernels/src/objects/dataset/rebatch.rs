//! Changing batch sizes: splits and joins batches, so that the replicas of a program share one global batch.

use super::element::{concat, rows};
use super::state::{InputState, StateValue, mismatch};
use super::transform::{dataset, from_state};
use super::{Dataset, Element, ElementSpec, Pull, UNKNOWN};
use bytes::Bytes;
use device::Result;
use std::ops::Range;
use std::sync::Arc;

/// Returns the dataset that distributes the rows of all batches to new batches, whose sizes cycle through `sizes`. The
/// last batch may be smaller; `drop_remainder` omits it.
pub(crate) fn rebatch(
    input: Arc<Dataset>,
    sizes: &[i64],
    drop_remainder: bool,
    spec: ElementSpec,
) -> Result<Arc<Dataset>> {
    let sizes: Option<Vec<usize>> = sizes.iter().map(|&size| usize::try_from(size).ok()).collect();
    let Some(sizes) = sizes.filter(|sizes| sizes.iter().any(|&size| size > 0)) else {
        device::invalid!("`batch_sizes` must not be negative, and not all be zero.");
    };
    let inner = input.clone();
    dataset("RebatchV2", spec, UNKNOWN, &[&input], move |ctx| {
        let sizes = sizes.clone();
        // The value of the state is the index of the next size, and the rest of a batch.
        let state = InputState::new(inner.iterator(ctx)?, (0usize, BatchRest::default()));
        from_state("RebatchV2", state, move |state, pull| {
            let size = sizes.get(state.value.0).copied().unwrap_or_default();
            state.value.0 = (state.value.0 + 1) % sizes.len();
            let (mut missing, mut parts) = (size, Vec::new());
            while try_fill(state, pull)? {
                let part = state.value.1.take(missing)?;
                missing -= part.count;
                parts.push(part.element);
                if missing == 0 {
                    return join(&parts).map(Some);
                }
            }
            let has_rest = size > missing;
            if has_rest && !drop_remainder { join(&parts).map(Some) } else { Ok(None) }
        })
    })
}

/// Returns the dataset in which each batch is split into `replicas` batches of equal size; the last batches may be
/// smaller or empty.
pub(crate) fn split(input: Arc<Dataset>, replicas: i64, spec: ElementSpec) -> Result<Arc<Dataset>> {
    let Some(replicas) = usize::try_from(replicas).ok().filter(|&replicas| replicas > 0) else {
        device::invalid!("num_replicas must be greater than zero.");
    };
    let inner = input.clone();
    dataset("Rebatch", spec, UNKNOWN, &[&input], move |ctx| {
        // The value of the state is the current batch, and the index of its next part.
        let state = InputState::new(inner.iterator(ctx)?, (Element::new(), replicas));
        from_state("Rebatch", state, move |state, pull| {
            pull.check()?;
            if state.value.1 >= replicas {
                let Some(following) = state.next_input(pull)? else { return Ok(None) };
                state.value = (following, 0);
            }
            let (batch, next) = &mut state.value;
            let count = count(batch)?;
            let size = count.div_ceil(replicas);
            let start = size.saturating_mul(*next).min(count);
            *next += 1;
            cut(batch, start..(start + size).min(count)).map(Some)
        })
    })
}

/// The rows of an input batch that have not been consumed.
#[derive(Default)]
struct BatchRest {
    batch: Element,
    left: Range<usize>,
}

struct RowSlice {
    element: Element,
    count: usize,
}

impl StateValue for BatchRest {
    fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        self.batch.put(out)?;
        (self.left.start, self.left.end).put(out)
    }

    fn take(rest: &mut Bytes) -> Result<BatchRest> {
        let (batch, (start, end)): (Element, (usize, usize)) = StateValue::take(rest)?;
        if start < end && count(&batch)? < end {
            return Err(mismatch());
        }
        Ok(BatchRest { batch, left: start..end })
    }
}

/// Pulls batches until there is an unconsumed row. Returns false if the input has ended before.
fn try_fill(state: &mut InputState<(usize, BatchRest)>, pull: &Pull) -> Result<bool> {
    while state.value.1.left.is_empty() {
        pull.check()?;
        let Some(batch) = state.next_input(pull)? else { return Ok(false) };
        state.value.1 = BatchRest { left: 0..count(&batch)?, batch };
    }
    Ok(true)
}

impl BatchRest {
    /// Takes up to `max` of the unconsumed rows.
    fn take(&mut self, max: usize) -> Result<RowSlice> {
        let end = self.left.end.min(self.left.start.saturating_add(max));
        let taken = std::mem::replace(&mut self.left.start, end)..end;
        Ok(RowSlice { count: taken.len(), element: cut(&self.batch, taken)? })
    }
}

/// Returns the number of rows of a batch, which must be equal for all components.
fn count(batch: &[graph::Tensor]) -> Result<usize> {
    let mut counts = batch.iter().map(|component| component.shape().first().copied());
    let Some(count) = counts.next().flatten() else {
        device::invalid!("Cannot rebatch dataset: all components must be at least 1-dimensional.");
    };
    if counts.any(|other| other != Some(count)) {
        device::invalid!("Cannot rebatch dataset: all components must have the same first dimension.");
    }
    Ok(count)
}

fn cut(batch: &[graph::Tensor], range: Range<usize>) -> Result<Element> {
    batch.iter().map(|component| rows(component, range.clone())).collect()
}

fn join(parts: &[Element]) -> Result<Element> {
    match parts {
        [whole] => Ok(whole.clone()),
        parts => {
            let components = parts.first().map_or(0, Vec::len);
            (0..components).map(|c| concat(&parts.iter().map(|part| &part[c]).collect::<Vec<_>>())).collect()
        }
    }
}
