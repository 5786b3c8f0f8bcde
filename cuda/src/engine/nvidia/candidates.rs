//! Candidate algorithms for one computation, of which the fastest is found by timing.

use super::stopwatch;
use crate::engine::driver::StreamId;
use device::Result;
use std::time::Duration;

/// One or more algorithms for the same computation, in the order of expected speed; the fastest is first once
/// they have been timed. An algorithm that fails stays in the list, because it may work in later calls.
#[derive(Debug)]
pub(super) struct Candidates<T> {
    all: Vec<T>,
    are_timed: bool,
}

/// A candidate is preferred to an earlier one in the list only if its time is less than this fraction of the
/// earlier candidate's time.
const TIME_RATIO: f64 = 0.97;

impl<T> Candidates<T> {
    /// Returns the candidates of a list; `None` if the list is empty.
    pub(super) fn new(all: Vec<T>) -> Option<Candidates<T>> {
        let are_timed = all.len() == 1;
        (!all.is_empty()).then_some(Candidates { all, are_timed })
    }

    /// Iterates over the candidates, the preferred one first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.all.iter()
    }

    /// Returns whether the candidates have been timed.
    pub(super) fn are_timed(&self) -> bool {
        self.are_timed
    }

    /// Enqueues the work with the fastest candidate for which `fits` returns `true`. If `timing_stream` is
    /// given and all candidates fit, the candidates are timed first: the work is enqueued in that stream many
    /// times and waited for. `enqueue` returns `false`, without enqueueing anything, if the candidate does not
    /// support the work. Returns `false`, without enqueueing anything, if no candidate supports the work.
    ///
    /// # Errors
    /// The errors of `enqueue`.
    pub(super) fn enqueue(
        &mut self,
        timing_stream: Option<StreamId>,
        fits: impl Fn(&T) -> bool,
        mut enqueue: impl FnMut(&T) -> Result<bool>,
    ) -> Result<bool> {
        if let Some(stream) = timing_stream
            && !self.are_timed
            && self.all.iter().all(&fits)
        {
            self.time_all(|candidate| stopwatch::time(stream, || enqueue(candidate)));
        }
        for candidate in self.all.iter().filter(|candidate| fits(candidate)) {
            if enqueue(candidate)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Moves the fastest candidate to the front of the list. `time` returns a candidate's time, and `None` or
    /// an error for a candidate that does not work.
    fn time_all(&mut self, mut time: impl FnMut(&T) -> Result<Option<Duration>>) {
        let mut best: Option<(usize, Duration)> = None;
        for (i, candidate) in self.all.iter().enumerate() {
            let Ok(Some(took)) = time(candidate) else { continue };
            if best.is_none_or(|(_, least)| took < least.mul_f64(TIME_RATIO)) {
                best = Some((i, took));
            }
        }
        if let Some((i, _)) = best {
            self.all[..=i].rotate_right(1);
            self.are_timed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Error;

    fn candidates(count: usize) -> Result<Candidates<usize>> {
        Candidates::new((0..count).collect()).ok_or_else(|| Error::internal("no ways"))
    }

    /// Returns the order of candidates after they were timed, and whether the timing succeeded; `milliseconds`
    /// are their times, `None` for a candidate that does not work.
    fn timed(milliseconds: &[Option<u64>]) -> Result<(Vec<usize>, bool)> {
        let mut candidates = candidates(milliseconds.len())?;
        candidates.time_all(|&candidate| match milliseconds[candidate] {
            Some(took) => Ok(Some(Duration::from_millis(took))),
            None if candidate == 0 => Ok(None),
            None => Err(Error::internal("this way fails")),
        });
        Ok((candidates.all, candidates.are_timed))
    }

    #[test]
    fn fastest_candidate_comes_first_and_ties_keep_the_order() -> Result<()> {
        assert_eq!(timed(&[Some(30), Some(10), Some(20)])?, (vec![1, 0, 2], true));
        assert_eq!(timed(&[Some(100), Some(98), None])?, (vec![0, 1, 2], true));
        assert_eq!(timed(&[None, Some(50), Some(49), Some(40)])?, (vec![3, 0, 1, 2], true));
        assert_eq!(timed(&[None, None])?, (vec![0, 1], false));
        assert!(Candidates::<u8>::new(Vec::new()).is_none() && candidates(1)?.are_timed);
        Ok(())
    }

    #[test]
    fn unsuitable_and_refused_candidates_are_skipped_but_kept() -> Result<()> {
        let mut candidates = candidates(3)?;
        let mut asked = Vec::new();
        let mut run = |least: usize, refused: &[usize]| {
            let enqueued = candidates.enqueue(
                None,
                |&candidate| candidate >= least,
                |&candidate| {
                    asked.push(candidate);
                    Ok(!refused.contains(&candidate))
                },
            );
            (enqueued.is_ok_and(|enqueued| enqueued), std::mem::take(&mut asked))
        };
        assert_eq!(run(0, &[]), (true, vec![0]));
        assert_eq!(run(1, &[1]), (true, vec![1, 2]));
        assert_eq!(run(2, &[2]), (false, vec![2]));
        assert_eq!(run(0, &[0]), (true, vec![0, 1]));
        assert!(candidates.enqueue(None, |_| true, |_| Err(Error::internal("it fails"))).is_err());
        assert_eq!(candidates.all, [0, 1, 2]);
        Ok(())
    }
}
