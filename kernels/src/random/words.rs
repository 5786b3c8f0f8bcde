//! Random words for kernels of other families that draw a few numbers per step.

use super::distribution::unit_f64;
use crate::numeric::philox::{GROUP, Philox, PhiloxWords};
use crate::plan::random::Stream;
use device::Result;
use device::kernel::KernelInit;

/// A stream of random 32-bit words, with the kernel's current position in it.
pub(crate) struct WordStream(Stream);

impl WordStream {
    /// Returns the stream of the attributes `seed` and `seed2`.
    pub(crate) fn of(init: &KernelInit<'_>) -> Result<WordStream> {
        Ok(WordStream(Stream::of(init)?))
    }

    /// Returns the stream of two seeds; if both are 0, a stream with unpredictable seeds.
    pub(crate) fn seeded(seeds: [i64; 2]) -> WordStream {
        WordStream(Stream::seeded(seeds))
    }

    /// Reserves the next `count` words, rounded up to whole groups.
    pub(crate) fn reserve(&self, count: usize) -> Words {
        Words(PhiloxWords::new(self.0.reserve((count as u64).div_ceil(GROUP as u64))))
    }
}

/// Reserved words of a stream, read one at a time.
pub(crate) struct Words(PhiloxWords);

impl Words {
    /// Returns the words of a stream from a position on.
    pub(crate) fn of(stream: Philox) -> Words {
        Words(PhiloxWords::new(stream))
    }

    pub(crate) fn next(&mut self) -> u32 {
        self.0.next()
    }

    /// Returns a number in [0, 1), made from one word.
    pub(crate) fn unit_f32(&mut self) -> f32 {
        f32::from_bits(0x3f80_0000 | self.0.next() & 0x7f_ffff) - 1.0
    }

    /// Returns a number in [0, 1), made from two words.
    pub(crate) fn unit_f64(&mut self) -> f64 {
        let high = self.0.next();
        unit_f64(high, self.0.next())
    }

    /// Returns a number in `0..bound`: the remainder of a word. `bound` is not 0.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0.next() % bound
    }
}
