//! CTC greedy decoding: the likeliest class at each time.

use super::{Scores, set_sparse};
use crate::numeric::scalar::Real;
use device::kernel::KernelContext;
use device::{Error, Result};
use graph::{Code, Element, Shape, Tensor};

/// `CTCGreedyDecoder`: outputs the decoded sequences without blanks, and for each sequence the negated sum of the
/// scores of its classes.
pub(super) fn decode<T: Element + Real>(ctx: &mut KernelContext<'_>, merged: bool, blank: i64) -> Result<()> {
    let scores = Scores::<T>::of(ctx, 1, Code::FailedPrecondition)?;
    let classes = scores.classes as i64;
    let blank = if blank < 0 { blank.checked_add(classes) } else { Some(blank) };
    let blank = blank.and_then(|b| usize::try_from(b).ok()).filter(|&b| b < scores.classes);
    let blank = blank
        .ok_or_else(|| Error::invalid(format!("blank_index expected to be in [-{classes}, {classes})")))?;
    let mut sequences = vec![Vec::new(); scores.batch];
    let mut costs = vec![T::zero(); scores.batch];
    for (b, (sequence, cost)) in sequences.iter_mut().zip(&mut costs).enumerate() {
        let mut last = None;
        for t in 0..scores.lengths[b] {
            let row = scores.at(t, b);
            let best = (1..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
            *cost -= row[best];
            if best != blank && !(merged && last == Some(best)) {
                sequence.push(best as i64);
            }
            last = Some(best);
        }
    }
    set_sparse(ctx, [0, 1, 2], &sequences)?;
    ctx.set_output(3, Tensor::from_slice(&costs, Shape::new(&[costs.len(), 1])?)?);
    Ok(())
}
