//! Shuffles of indices without a table: the block cipher Simon (Beaulieu et al., "The SIMON and SPECK families of
//! lightweight block ciphers", 2013), applied until the result is an index.

use crate::numeric::dispatch::dispatch;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Result, invalid};
use graph::{DType, Element, Shape, Tensor};
use num_traits::AsPrimitive;

/// The least number of bits of a block.
const LEAST_BITS: u32 = 16;

/// The bits that are added to the keys of the rounds, from the lowest on.
const ROUND_BITS: u64 = 0x7369_f885_192c_0ef5;

/// The constant that is added to the keys of the rounds.
const ROUND_CONSTANT: u64 = 0xffff_fffc;

/// A permutation of the numbers of an even number of bits.
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

/// Makes the kernel of RandomIndexShuffle: the places of indices in random orders of the numbers up to a greatest one.
pub(in super::super) fn index_shuffle(init: &KernelInit<'_>) -> Result<Kernel> {
    let (dtype, rounds) = (init.output_type(0), init.attr::<i64>("rounds")?);
    let Some(rounds) = usize::try_from(rounds).ok().filter(|&n| (4..=1 << 16).contains(&n) && n % 2 == 0)
    else {
        invalid!("rounds must be an even number of at least 4, got {rounds}");
    };
    dispatch!(word, dtype, T => Kernel::sync(move |ctx| shuffle::<T>(ctx, rounds)))
}

fn shuffle<T: Element + AsPrimitive<i128>>(ctx: &mut KernelContext<'_>, rounds: usize) -> Result<()>
where
    u64: AsPrimitive<T>,
{
    let (index, seed, greatest) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if index.shape().rank() > 1 || greatest.shape().rank() > 1 {
        invalid!(
            "index and max_index must be scalars or vectors, got {} and {}",
            index.shape(),
            greatest.shape()
        );
    }
    let seeds = match *seed.shape().dims() {
        [3] => 1,
        [rows, 3] => rows,
        _ => {
            invalid!("Seed must be a vector of size [3] or a matrix of size [n, 3] but got {}.", seed.shape())
        }
    };
    let is_vector = index.shape().rank() + greatest.shape().rank() > 0 || seed.shape().rank() > 1;
    let sizes = [index.num_elements(), greatest.num_elements(), seeds];
    let count = sizes.into_iter().find(|&size| size != 1).unwrap_or(1);
    if sizes.iter().any(|&size| size != 1 && size != count) {
        invalid!("Index, seed, and maxval must have the same size or be scalars, got sizes {sizes:?}");
    }
    let words: Vec<u32> = dispatch!(word, seed.dtype(), S => {
        Ok::<_, device::Error>(seed.values::<S>()?.iter().map(|&word| AsPrimitive::<u32>::as_(word)).collect())
    })?;
    let (keys, _) = words.as_chunks::<3>();
    let (index, greatest) = (index.values::<T>()?, greatest.values::<T>()?);
    let mut out: Vec<T> = Vec::with_capacity(count);
    let mut made: Option<([u32; 3], u64, Simon)> = None;
    for i in 0..count {
        let of = |values: &[T]| -> i128 { values[if values.len() == 1 { 0 } else { i }].as_() };
        let (at, most, key) = (of(index), of(greatest), keys[if seeds == 1 { 0 } else { i }]);
        if at < 0 {
            invalid!("index must be >= 0 but was {at}");
        }
        if most < at {
            invalid!("max_index must be >= index, but {most} < {at}");
        }
        let (at, most) = (at as u64, most as u64);
        let known = made.as_ref().is_some_and(|(k, limit, _)| (*k, *limit) == (key, most));
        if !known {
            made = Some((key, most, Simon::new(key, most, rounds)));
        }
        if let Some((_, _, simon)) = &made {
            // The walk returns to the index at the latest when it has visited the whole block.
            let mut place = simon.permuted(at);
            while place > most {
                place = simon.permuted(place);
            }
            out.push(place.as_());
        }
    }
    let shape = if is_vector { Shape::new(&[count])? } else { Shape::scalar() };
    ctx.set_output(0, Tensor::from_slice(&out, shape)?);
    Ok(())
}

/// The types of the indices.
pub(in super::super) const SHUFFLED: &[(&str, &[DType])] =
    &[("dtype", crate::numeric::dispatch::WORDS), ("Tseed", crate::numeric::dispatch::WORDS)];
