//! Permutations of indices without a table: the block cipher Simon (Beaulieu et al., "The SIMON and SPECK families of
//! lightweight block ciphers", 2013), applied until the result is an index.

/// The least number of bits of a block.
const LEAST_BITS: u32 = 16;

/// The bits that are added to the keys of the rounds, from the lowest on.
const ROUND_BITS: u64 = 0x7369_f885_192c_0ef5;

/// The constant that is added to the keys of the rounds.
const ROUND_CONSTANT: u64 = 0xffff_fffc;

/// A pseudorandom permutation of the numbers up to a greatest one. Like in TensorFlow, the map is not a permutation
/// if the greatest number is 2^k for an even k of at least 16: the greatest number has no place in a block of k bits, so it
/// is mapped like 0, and no number is mapped to it.
#[derive(Debug)]
pub(crate) struct IndexPermutation {
    simon: Simon,
    greatest: u64,
}

impl IndexPermutation {
    /// Returns the permutation of the numbers 0 to `greatest` that a key of three words and an even number of rounds
    /// define; the number of rounds is at least 4.
    pub(crate) fn new(key: [u32; 3], greatest: u64, rounds: usize) -> IndexPermutation {
        IndexPermutation { simon: Simon::new(key, greatest, rounds), greatest }
    }

    /// Returns the number that the permutation maps `index` to, which must not be more than the greatest number.
    pub(crate) fn place_of(&self, index: u64) -> u64 {
        // The walk returns to the index at the latest when it has visited the whole block. If the index is beyond the
        // block, all numbers of the block are less than the greatest number, and the walk ends at once.
        let mut place = self.simon.permuted(index);
        while place > self.greatest {
            place = self.simon.permuted(place);
        }
        place
    }
}

/// A permutation of the numbers of an even number of bits.
#[derive(Debug)]
struct Simon {
    /// Half the number of bits.
    width: u32,
    keys: Vec<u64>,
}

impl Simon {
    /// Returns the permutation of a key of three words for blocks that hold about the numbers below `limit`.
    fn new(key: [u32; 3], limit: u64, rounds: usize) -> Simon {
        // The logarithm of a large limit is rounded, like in TensorFlow.
        let bits = if limit > 1 { (limit as f64).log2().ceil() as u32 } else { 0 };
        let width = (bits + bits % 2).max(LEAST_BITS) / 2;
        let mut simon = Simon { width, keys: key.map(u64::from).to_vec() };
        let mask = simon.mask();
        simon.keys.iter_mut().for_each(|key| *key &= mask);
        for i in 3..rounds {
            let last = simon.keys[i - 1];
            let turned = simon.rotated(last, width - 3) ^ simon.rotated(last, width - 4);
            // The bits beyond the width are zero.
            let bit = (ROUND_BITS & mask).checked_shr(i as u32 - 3).unwrap_or(0) & 1;
            simon.keys.push((ROUND_CONSTANT & mask) ^ bit ^ simon.keys[i - 3] ^ turned);
        }
        simon
    }

    fn mask(&self) -> u64 {
        (1 << self.width) - 1
    }

    /// Rotates a word of half a block to the left.
    fn rotated(&self, word: u64, by: u32) -> u64 {
        (word << by | word >> (self.width - by)) & self.mask()
    }

    fn mixed(&self, word: u64) -> u64 {
        (self.rotated(word, 1) & self.rotated(word, 8)) ^ self.rotated(word, 2)
    }

    fn permuted(&self, block: u64) -> u64 {
        let (mut right, mut left) = (block >> self.width & self.mask(), block & self.mask());
        for pair in self.keys.chunks_exact(2) {
            right ^= self.mixed(left) ^ pair[0];
            left ^= self.mixed(right) ^ pair[1];
        }
        right << self.width | left
    }
}
