//! The arguments of a kernel launch.

use super::driver::Address;
use smallvec::SmallVec;

/// A kernel's arguments in order, each as 64-bit words. Kernels take addresses, `long long`, `double`, and
/// structures of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    words: SmallVec<[u64; 24]>,
    /// The index in the list of words at which each argument begins.
    starts: SmallVec<[u32; 12]>,
}

impl Arguments {
    /// Returns an empty argument list.
    pub fn new() -> Arguments {
        Arguments::default()
    }

    /// Appends one argument, given as its 64-bit words.
    fn push(mut self, words: impl IntoIterator<Item = u64>) -> Arguments {
        self.starts.push(self.words.len() as u32);
        self.words.extend(words);
        self
    }

    /// Appends a device address.
    pub fn address(self, address: Address) -> Arguments {
        self.push([address.0])
    }

    /// Appends a count, as `long long`.
    pub fn count(self, count: usize) -> Arguments {
        self.push([count as u64])
    }

    /// Appends a `long long`.
    pub fn integer(self, value: i64) -> Arguments {
        self.push([value as u64])
    }

    /// Appends a `double`.
    pub fn real(self, value: f64) -> Arguments {
        self.push([value.to_bits()])
    }

    /// Appends a boolean, as a `long long` of 0 or 1.
    pub fn flag(self, value: bool) -> Arguments {
        self.push([u64::from(value)])
    }

    /// Appends a structure of `long long` fields.
    pub fn structure(self, words: impl IntoIterator<Item = i64>) -> Arguments {
        self.push(words.into_iter().map(|word| word as u64))
    }

    /// Appends the arguments of `others`.
    pub(super) fn followed_by(mut self, others: &Arguments) -> Arguments {
        for words in others.iter() {
            self = self.push(words.iter().copied());
        }
        self
    }

    /// Iterates over the arguments, each as its words.
    pub fn iter(&self) -> impl Iterator<Item = &[u64]> {
        let ends = self.starts.iter().skip(1).copied().chain([self.words.len() as u32]);
        self.starts.iter().zip(ends).map(|(&from, to)| &self.words[from as usize..to as usize])
    }
}
