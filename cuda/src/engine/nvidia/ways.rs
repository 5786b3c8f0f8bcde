//! Several ways to enqueue the same work, of which the one that takes the GPU the least time is found by trying them.

use super::stopwatch;
use crate::engine::driver::StreamId;
use device::Result;
use std::time::Duration;

/// Ways to do the same, more than none, in the order in which they are expected to be fast; the fastest first once they have
/// been tried. None is given up for good: what fails now may do later.
#[derive(Debug)]
pub(super) struct Ways<T> {
    all: Vec<T>,
    are_tried: bool,
}

/// What is expected to be faster stays unless another takes less than this part of its time.
const CLEARLY: f64 = 0.97;

impl<T> Ways<T> {
    /// `None` if there are none.
    pub(super) fn new(all: Vec<T>) -> Option<Ways<T>> {
        let are_tried = all.len() == 1;
        (!all.is_empty()).then_some(Ways { all, are_tried })
    }

    /// The one that is taken first, and then the others.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.all.iter()
    }

    pub(super) fn are_tried(&self) -> bool {
        self.are_tried
    }

    /// Enqueues the work the fastest way. Which that is, is found first if there is a stream to try them in, and all fit: then
    /// the work is enqueued there many times, and waited for. `enqueue` tells whether it has enqueued the work that way, or
    /// that is no way to do it. `false`, and nothing is enqueued, if none is.
    ///
    /// # Errors
    /// Those of `enqueue`.
    pub(super) fn enqueue(
        &mut self,
        trying: Option<StreamId>,
        fits: impl Fn(&T) -> bool,
        mut enqueue: impl FnMut(&T) -> Result<bool>,
    ) -> Result<bool> {
        if let Some(stream) = trying
            && !self.are_tried
            && self.all.iter().all(&fits)
        {
            self.try_all(|way| stopwatch::time(stream, || enqueue(way)));
        }
        for way in self.all.iter().filter(|way| fits(way)) {
            if enqueue(way)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Has the fastest first, by what `time` tells, which is `None` for one that is no way, or fails.
    fn try_all(&mut self, mut time: impl FnMut(&T) -> Result<Option<Duration>>) {
        let mut best: Option<(usize, Duration)> = None;
        for (i, way) in self.all.iter().enumerate() {
            let Ok(Some(took)) = time(way) else { continue };
            if best.is_none_or(|(_, least)| took < least.mul_f64(CLEARLY)) {
                best = Some((i, took));
            }
        }
        if let Some((i, _)) = best {
            self.all[..=i].rotate_right(1);
            self.are_tried = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Error;

    fn ways(count: usize) -> Result<Ways<usize>> {
        Ways::new((0..count).collect()).ok_or_else(|| Error::internal("no ways"))
    }

    /// The ways in their order once they have taken so many milliseconds, or failed.
    fn tried(milliseconds: &[Option<u64>]) -> Result<(Vec<usize>, bool)> {
        let mut ways = ways(milliseconds.len())?;
        ways.try_all(|&way| match milliseconds[way] {
            Some(took) => Ok(Some(Duration::from_millis(took))),
            None if way == 0 => Ok(None),
            None => Err(Error::internal("this way fails")),
        });
        Ok((ways.all, ways.are_tried))
    }

    #[test]
    fn the_fastest_comes_first_and_of_those_alike_the_one_that_did() -> Result<()> {
        assert_eq!(tried(&[Some(30), Some(10), Some(20)])?, (vec![1, 0, 2], true));
        assert_eq!(tried(&[Some(100), Some(98), None])?, (vec![0, 1, 2], true));
        assert_eq!(tried(&[None, Some(50), Some(49), Some(40)])?, (vec![3, 0, 1, 2], true));
        assert_eq!(tried(&[None, None])?, (vec![0, 1], false));
        assert!(Ways::<u8>::new(Vec::new()).is_none() && ways(1)?.are_tried);
        Ok(())
    }

    #[test]
    fn what_does_not_fit_or_is_no_way_is_passed_over_and_asked_again() -> Result<()> {
        let mut ways = ways(3)?;
        let mut asked = Vec::new();
        let mut run = |least: usize, refused: &[usize]| {
            let enqueued = ways.enqueue(
                None,
                |&way| way >= least,
                |&way| {
                    asked.push(way);
                    Ok(!refused.contains(&way))
                },
            );
            (enqueued.is_ok_and(|enqueued| enqueued), std::mem::take(&mut asked))
        };
        assert_eq!(run(0, &[]), (true, vec![0]));
        assert_eq!(run(1, &[1]), (true, vec![1, 2]));
        assert_eq!(run(2, &[2]), (false, vec![2]));
        assert_eq!(run(0, &[0]), (true, vec![0, 1]));
        assert!(ways.enqueue(None, |_| true, |_| Err(Error::internal("it fails"))).is_err());
        assert_eq!(ways.all, [0, 1, 2]);
        Ok(())
    }
}
