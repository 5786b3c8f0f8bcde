//! Philox4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011),
//! with the key and the counter laid out as in TensorFlow.

use std::time::{SystemTime, UNIX_EPOCH};

/// A position in a stream of random numbers. It is cheap to copy; one addition computes any later position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Philox {
    key: [u32; 2],
    counter: u128,
}

/// Number of random numbers per value of the counter.
pub(crate) const GROUP: usize = 4;

impl Philox {
    /// Returns the stream of two seeds: the first is the key, the second the upper half of the counter.
    pub(crate) fn new(seed: u64, seed2: u64) -> Philox {
        Philox { key: [seed as u32, (seed >> 32) as u32], counter: u128::from(seed2) << 64 }
    }

    /// Returns the stream of `key` at a counter, given by the counter's lower and upper half.
    pub(crate) fn at_counter(key: u64, [low, high]: [u64; 2]) -> Philox {
        Philox { key: [key as u32, (key >> 32) as u32], counter: u128::from(low) | u128::from(high) << 64 }
    }

    /// Returns the stream of two seeds that may both be weak, for example small numbers. The seeds are used as a
    /// counter with a fixed key, and the four numbers drawn with it become the key and the upper half of the stream's
    /// counter.
    pub(crate) fn scrambled(seeds: [u64; 2]) -> Philox {
        const KEY: u64 = 0x0246_1e29_3ec8_f720;
        let [a, b, c, d] = Philox::at_counter(KEY, seeds).next();
        let wide = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        Philox::at_counter(wide(a, b), [0, wide(c, d)])
    }

    /// Returns the key, by which streams of different seeds differ.
    pub fn key(&self) -> u64 {
        u64::from(self.key[0]) | u64::from(self.key[1]) << 32
    }

    /// Returns the lower and the upper half of the counter.
    pub fn counter(&self) -> [u64; 2] {
        [self.counter as u64, (self.counter >> 64) as u64]
    }

    /// Returns the stream of a node's attributes `seed` and `seed2`; if both are 0, a stream with unpredictable
    /// seeds.
    pub(crate) fn seeded(seed: i64, seed2: i64) -> Philox {
        if seed == 0 && seed2 == 0 {
            Philox::new(entropy(), entropy())
        } else {
            Philox::new(seed as u64, seed2 as u64)
        }
    }

    /// Advances the position by `groups` groups of four numbers.
    pub(crate) fn skip(&mut self, groups: u64) {
        self.counter = self.counter.wrapping_add(u128::from(groups));
    }

    /// Returns the position `groups` groups of four numbers later.
    pub(crate) fn at(mut self, groups: u64) -> Philox {
        self.skip(groups);
        self
    }

    /// Returns the next four numbers, and advances the position.
    #[inline]
    pub(crate) fn next(&mut self) -> [u32; GROUP] {
        const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
        const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
        let n = self.counter;
        let mut c = [n as u32, (n >> 32) as u32, (n >> 64) as u32, (n >> 96) as u32];
        let mut key = self.key;
        for _ in 0..10 {
            let a = u64::from(MULTIPLIERS[0]) * u64::from(c[0]);
            let b = u64::from(MULTIPLIERS[1]) * u64::from(c[2]);
            c = [(b >> 32) as u32 ^ c[1] ^ key[0], b as u32, (a >> 32) as u32 ^ c[3] ^ key[1], a as u32];
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        self.counter = n.wrapping_add(1);
        c
    }
}

/// The numbers of a stream, returned one at a time; they are drawn in groups of four.
#[derive(Debug)]
pub(crate) struct PhiloxWords {
    stream: Philox,
    group: [u32; GROUP],
    used: usize,
}

impl PhiloxWords {
    pub(crate) fn new(stream: Philox) -> PhiloxWords {
        PhiloxWords { stream, group: [0; GROUP], used: GROUP }
    }

    /// Returns the position in the stream: the key, the lower and upper half of the counter of the next group, and the
    /// number of words of the current group that have been returned.
    pub(crate) fn position(&self) -> [u64; 4] {
        let [low, high] = self.stream.counter();
        [self.stream.key(), low, high, self.used as u64]
    }

    /// Returns the words after a [position](PhiloxWords::position); `None` if the four numbers are not a valid
    /// position.
    pub(crate) fn at_position([key, low, high, used]: [u64; 4]) -> Option<PhiloxWords> {
        let used = usize::try_from(used).ok().filter(|&used| used <= GROUP)?;
        let stream = Philox::at_counter(key, [low, high]);
        let before = Philox { counter: stream.counter.wrapping_sub(1), ..stream }.next();
        Some(PhiloxWords { stream, group: before, used })
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u32 {
        if self.used == GROUP {
            self.group = self.stream.next();
            self.used = 0;
        }
        self.used += 1;
        self.group[self.used - 1]
    }
}

/// Returns 64 unpredictable bits: the hash keys of the standard library come from the operating system once per
/// thread, and the clock makes the results within a thread differ.
pub(crate) fn entropy() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    RandomState::new().hash_one(now)
}

#[cfg(test)]
mod tests {
    use crate::numeric::philox::*;

    /// Compares the generator with the known answers that the authors of Philox publish for philox4x32-10.
    #[test]
    fn philox_gives_the_published_numbers() {
        let mut zero = Philox { key: [0; 2], counter: 0 };
        assert_eq!(zero.next(), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let mut ones = Philox { key: [u32::MAX; 2], counter: u128::MAX };
        assert_eq!(ones.next(), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(ones.counter, 0);
    }

    #[test]
    fn skipping_groups_equals_drawing_them() {
        let mut drawn = Philox::new(7, u64::MAX);
        for _ in 0..5 {
            drawn.next();
        }
        assert_eq!(Philox::new(7, u64::MAX).at(5), drawn);
        assert_eq!(Philox::new(7, 1).at(u64::MAX).at(1).counter, (1 << 64) + (1 << 64));
        let mut singles = PhiloxWords::new(drawn);
        let four = [singles.next(), singles.next(), singles.next(), singles.next()];
        assert_eq!(four, drawn.next());
    }

    #[test]
    fn words_continue_from_every_position() {
        let mut words = PhiloxWords::new(Philox::new(7, 3));
        for _ in 0..10 {
            let copy = PhiloxWords::at_position(words.position());
            assert_eq!(copy.map(|mut copy| copy.next()), Some(words.next()));
        }
        assert!(PhiloxWords::at_position([0, 0, 0, 5]).is_none());
    }

    #[test]
    fn without_seeds_streams_differ() {
        assert_ne!(Philox::seeded(0, 0), Philox::seeded(0, 0));
        assert_eq!(Philox::seeded(0, 3), Philox::seeded(0, 3));
    }
}
