//! Several ways to enqueue the same work, of which the one that takes the GPU the least time is found by trying them.

use super::stopwatch;
use crate::cuda::driver::StreamId;
use crate::error::Result;
use std::time::Duration;

/// Ways to do the same, in the order in which they are expected to be fast, until they have been tried: then one.
#[derive(Debug)]
pub(super) struct Ways<T>(Vec<T>);

/// What is expected to be faster stays unless another takes less than this part of its time.
const CLEARLY: f64 = 0.97;

impl<T> Ways<T> {
    pub(super) fn new(ways: Vec<T>) -> Ways<T> {
        Ways(ways)
    }

    /// Those that are left.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }

    /// Enqueues the work the fastest way, which is found first if there is a stream to try them in: then the work is
    /// enqueued there many times, and waited for. `enqueue` tells whether it has enqueued the work that way; what refuses is
    /// not asked again. `false`, and nothing is enqueued, if every way refuses.
    ///
    /// # Errors
    /// Those of `enqueue`, and the driver's.
    pub(super) fn enqueue(
        &mut self,
        trying: Option<StreamId>,
        mut enqueue: impl FnMut(&T) -> Result<bool>,
    ) -> Result<bool> {
        if let Some(stream) = trying
            && self.0.len() > 1
        {
            self.try_all(|way| stopwatch::time(stream, || enqueue(way)))?;
        }
        while let Some(way) = self.0.first() {
            if enqueue(way)? {
                return Ok(true);
            }
            self.0.remove(0);
        }
        Ok(false)
    }

    /// Keeps the fastest by what `time` tells, which is `None` for one that refuses.
    fn try_all(&mut self, mut time: impl FnMut(&T) -> Result<Option<Duration>>) -> Result<()> {
        let mut best: Option<(T, Duration)> = None;
        for way in std::mem::take(&mut self.0) {
            match (time(&way)?, &best) {
                (Some(took), Some((_, least))) if took >= least.mul_f64(CLEARLY) => {}
                (Some(took), _) => best = Some((way, took)),
                (None, _) => {}
            }
        }
        self.0.extend(best.map(|(way, _)| way));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fastest_of(milliseconds: &[Option<u64>]) -> Result<Vec<usize>> {
        let mut ways = Ways::new((0..milliseconds.len()).collect());
        ways.try_all(|&way| Ok(milliseconds[way].map(Duration::from_millis)))?;
        Ok(ways.0)
    }

    #[test]
    fn the_fastest_stays_and_of_those_alike_the_first() -> Result<()> {
        assert_eq!(fastest_of(&[Some(30), Some(10), Some(20)])?, [1]);
        assert_eq!(fastest_of(&[Some(100), Some(98), None])?, [0]);
        assert_eq!(fastest_of(&[None, Some(50), Some(49), Some(40)])?, [3]);
        assert_eq!(fastest_of(&[None, None])?, [0usize; 0]);
        Ok(())
    }

    #[test]
    fn where_none_may_be_tried_the_first_is_taken_that_does_not_refuse() -> Result<()> {
        let mut ways = Ways::new(vec!['a', 'b', 'c']);
        let mut asked = String::new();
        let mut run = |ways: &mut Ways<char>, refused: &str| {
            ways.enqueue(None, |&way| {
                asked.push(way);
                Ok(!refused.contains(way))
            })
        };
        assert!(run(&mut ways, "a")? && run(&mut ways, "")?);
        assert!(!run(&mut ways, "bc")? && !run(&mut ways, "")?);
        assert_eq!(asked, "abbbc");
        Ok(())
    }
}
