//! What a kernel is called with.

use super::driver::Address;
use smallvec::SmallVec;

/// A kernel's arguments in order, each in words of 8 bytes: kernels take addresses, `long long`, `double`, and
/// structures of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    words: SmallVec<[u64; 24]>,
    /// Where each one begins.
    starts: SmallVec<[u32; 12]>,
}

impl Arguments {
    pub fn new() -> Arguments {
        Arguments::default()
    }

    fn push(mut self, words: impl IntoIterator<Item = u64>) -> Arguments {
        self.starts.push(self.words.len() as u32);
        self.words.extend(words);
        self
    }

    pub fn address(self, address: Address) -> Arguments {
        self.push([address.0])
    }

    pub fn count(self, count: usize) -> Arguments {
        self.push([count as u64])
    }

    pub fn integer(self, value: i64) -> Arguments {
        self.push([value as u64])
    }

    pub fn real(self, value: f64) -> Arguments {
        self.push([value.to_bits()])
    }

    pub fn flag(self, value: bool) -> Arguments {
        self.push([u64::from(value)])
    }

    /// A structure of numbers.
    pub fn structure(self, words: impl IntoIterator<Item = i64>) -> Arguments {
        self.push(words.into_iter().map(|word| word as u64))
    }

    /// With others behind them.
    pub(super) fn followed_by(mut self, others: &Arguments) -> Arguments {
        for words in others.iter() {
            self = self.push(words.iter().copied());
        }
        self
    }

    /// Each argument's words.
    pub fn iter(&self) -> impl Iterator<Item = &[u64]> {
        let ends = self.starts.iter().skip(1).copied().chain([self.words.len() as u32]);
        self.starts.iter().zip(ends).map(|(&from, to)| &self.words[from as usize..to as usize])
    }
}
