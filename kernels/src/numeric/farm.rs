//! The fingerprints of strings that TensorFlow calls `Fingerprint64` and `Fingerprint128`: FarmHash's hashes of the same
//! names, which are the same in all its versions. All sums and products are modulo 2^64.

const K0: u64 = 0xc3a5_c85c_97cb_3127;
const K1: u64 = 0xb492_b66f_be98_f273;
const K2: u64 = 0x9ae1_6a3b_2f90_404f;

/// The number of bytes that a round mixes into the state.
const BLOCK: usize = 64;

/// Returns the fingerprint of a string.
pub fn fingerprint64(s: &[u8]) -> u64 {
    match s.len() {
        0..=16 => short(s),
        17..=32 => medium(s),
        33..=BLOCK => long(s),
        _ => blocks(s),
    }
}

/// The multiplier that mixes pairs of words in fingerprints of 128 bits.
const PAIR: u64 = 0x9ddf_ea08_eb38_2d69;

/// Returns the fingerprint of 128 bits of a string: the low word, then the high word.
pub(crate) fn fingerprint128(s: &[u8]) -> [u64; 2] {
    let (seed, rest) = match s.split_at_checked(16) {
        Some((_, rest)) => ([word(s, 0), word(s, 8).wrapping_add(K0)], rest),
        None => ([K0, K1], s),
    };
    if rest.len() < 2 * BLOCK { wide_short(rest, seed) } else { wide_blocks(rest, seed) }
}

/// Returns the eight bytes from `at` on as a little-endian number; missing bytes are zero.
fn word(s: &[u8], at: usize) -> u64 {
    let bytes = s.get(at..).and_then(|rest| rest.first_chunk::<8>());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Returns the four bytes from `at` on as a little-endian number; missing bytes are zero.
fn half_word(s: &[u8], at: usize) -> u64 {
    let bytes = s.get(at..).and_then(|rest| rest.first_chunk::<4>());
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes).into())
}

fn fold(x: u64) -> u64 {
    x ^ (x >> 47)
}

fn sum(terms: &[u64]) -> u64 {
    terms.iter().fold(0, |all, term| all.wrapping_add(*term))
}

/// Hashes two words with an odd multiplier.
fn pair(u: u64, v: u64, factor: u64) -> u64 {
    let first = fold((u ^ v).wrapping_mul(factor));
    fold((v ^ first).wrapping_mul(factor)).wrapping_mul(factor)
}

/// Returns the multiplier for a string of at most one block.
fn factor(s: &[u8]) -> u64 {
    K2.wrapping_add(2 * s.len() as u64)
}

fn short(s: &[u8]) -> u64 {
    let (len, factor) = (s.len(), factor(s));
    match s {
        [] => K2,
        [first, .., last] | [first @ last] if len < 4 => {
            let head = u64::from(*first) + (u64::from(s[len / 2]) << 8);
            let tail = len as u64 + (u64::from(*last) << 2);
            fold(head.wrapping_mul(K2) ^ tail.wrapping_mul(K0)).wrapping_mul(K2)
        }
        _ if len < 8 => pair(len as u64 + (half_word(s, 0) << 3), half_word(s, len - 4), factor),
        _ => {
            let (head, tail) = (word(s, 0).wrapping_add(K2), word(s, len - 8));
            let u = tail.rotate_right(37).wrapping_mul(factor).wrapping_add(head);
            let v = head.rotate_right(25).wrapping_add(tail).wrapping_mul(factor);
            pair(u, v, factor)
        }
    }
}

/// Combines four words, the common part of the hashes of 17 to 64 bytes.
fn mixed(a: u64, b: u64, c: u64, d: u64, e: u64) -> (u64, u64) {
    let u = sum(&[a.wrapping_add(b).rotate_right(43), c.rotate_right(30), d]);
    (u, sum(&[a, b.wrapping_add(e).rotate_right(18), c]))
}

fn medium(s: &[u8]) -> u64 {
    let (len, factor) = (s.len(), factor(s));
    let (a, b) = (word(s, 0).wrapping_mul(K1), word(s, 8));
    let (c, d) = (word(s, len - 8).wrapping_mul(factor), word(s, len - 16).wrapping_mul(K2));
    let (u, v) = mixed(a, b, c, d, K2);
    pair(u, v, factor)
}

fn long(s: &[u8]) -> u64 {
    let (len, factor) = (s.len(), factor(s));
    let (a, b) = (word(s, 0).wrapping_mul(K2), word(s, 8));
    let (c, d) = (word(s, len - 8).wrapping_mul(factor), word(s, len - 16).wrapping_mul(K2));
    let (y, v) = mixed(a, b, c, d, K2);
    let z = pair(y, v, factor);
    let (e, f) = (word(s, 16).wrapping_mul(factor), word(s, 24));
    let g = y.wrapping_add(word(s, len - 32)).wrapping_mul(factor);
    let h = z.wrapping_add(word(s, len - 24)).wrapping_mul(factor);
    let (u, v) = mixed(e, f, g, h, a);
    pair(u, v, factor)
}

/// The state between the blocks of a string: three words and two pairs of words.
struct State {
    x: u64,
    y: u64,
    z: u64,
    v: [u64; 2],
    w: [u64; 2],
}

/// Mixes the 32 bytes from `at` on into two words.
fn half_block(s: &[u8], at: usize, a: u64, b: u64) -> [u64; 2] {
    let [first, second, third, fourth] = [0, 8, 16, 24].map(|i| word(s, at + i));
    let a = a.wrapping_add(first);
    let b = sum(&[b, a, fourth]).rotate_right(21);
    let all = sum(&[a, second, third]);
    [all.wrapping_add(fourth), sum(&[b, all.rotate_right(44), a])]
}

impl State {
    /// Mixes the 64 bytes from `at` on into the state. The last block has a multiplier of its own, and adds `weight`
    /// times some words.
    fn mix(&mut self, s: &[u8], at: usize, factor: u64, weight: u64) {
        let State { x, y, z, v, w } = self;
        *x = sum(&[*x, *y, v[0], word(s, at + 8)]).rotate_right(37).wrapping_mul(factor);
        *y = sum(&[*y, v[1], word(s, at + 48)]).rotate_right(42).wrapping_mul(factor);
        *x ^= w[1].wrapping_mul(weight);
        *y = sum(&[*y, v[0].wrapping_mul(weight), word(s, at + 40)]);
        *z = z.wrapping_add(w[0]).rotate_right(33).wrapping_mul(factor);
        *v = half_block(s, at, v[1].wrapping_mul(factor), x.wrapping_add(w[0]));
        *w = half_block(s, at + 32, z.wrapping_add(w[1]), y.wrapping_add(word(s, at + 16)));
        std::mem::swap(z, x);
    }
}

/// Hashes a string of more than one block. All blocks but the last are read in turn; the last block is the last 64
/// bytes, which overlap the block before unless the length is a multiple of 64.
fn blocks(s: &[u8]) -> u64 {
    const SEED: u64 = 81;
    let y = SEED.wrapping_mul(K1).wrapping_add(113);
    let z = fold(y.wrapping_mul(K2).wrapping_add(113)).wrapping_mul(K2);
    let x = SEED.wrapping_mul(K2).wrapping_add(word(s, 0));
    let mut state = State { x, y, z, v: [0; 2], w: [0; 2] };
    let whole = (s.len() - 1) / BLOCK;
    for block in 0..whole {
        state.mix(s, block * BLOCK, K1, 1);
    }
    let factor = K1.wrapping_add((state.z & 0xff) << 1);
    state.w[0] = state.w[0].wrapping_add((s.len() as u64 - 1) % BLOCK as u64);
    state.v[0] = state.v[0].wrapping_add(state.w[0]);
    state.w[0] = state.w[0].wrapping_add(state.v[0]);
    state.mix(s, s.len() - BLOCK, factor, 9);
    let State { x, y, z, v, w } = state;
    let u = sum(&[pair(v[0], w[0], factor), fold(y).wrapping_mul(K0), z]);
    pair(u, pair(v[1], w[1], factor).wrapping_add(x), factor)
}

/// Returns the fingerprint of 128 bits of a string of less than two blocks.
fn wide_short(s: &[u8], [mut a, mut b]: [u64; 2]) -> [u64; 2] {
    let spread = |word: u64| fold(word.wrapping_mul(K1)).wrapping_mul(K1);
    let (mut c, mut d);
    if s.len() <= 16 {
        a = spread(a);
        c = b.wrapping_mul(K1).wrapping_add(short(s));
        d = fold(a.wrapping_add(if s.len() >= 8 { word(s, 0) } else { c }));
    } else {
        c = pair(word(s, s.len() - 8).wrapping_add(K1), a, PAIR);
        d = pair(b.wrapping_add(s.len() as u64), c.wrapping_add(word(s, s.len() - 16)), PAIR);
        a = a.wrapping_add(d);
        // The last 16 bytes, or less, have been read above.
        for at in (0..s.len() - 16).step_by(16) {
            a = (a ^ spread(word(s, at))).wrapping_mul(K1);
            b ^= a;
            c = (c ^ spread(word(s, at + 8))).wrapping_mul(K1);
            d ^= c;
        }
    }
    let (a, b) = (pair(a, c, PAIR), pair(d, b, PAIR));
    [a ^ b, pair(b, a, PAIR)]
}

/// Returns the fingerprint of 128 bits of a string of two or more blocks.
fn wide_blocks(s: &[u8], [x, y]: [u64; 2]) -> [u64; 2] {
    let z = (s.len() as u64).wrapping_mul(K1);
    let first = (y ^ K1).rotate_right(49).wrapping_mul(K1).wrapping_add(word(s, 0));
    let v = [first, first.rotate_right(42).wrapping_mul(K1).wrapping_add(word(s, 8))];
    let w = [
        y.wrapping_add(z).rotate_right(35).wrapping_mul(K1).wrapping_add(x),
        x.wrapping_add(word(s, 88)).rotate_right(53).wrapping_mul(K1),
    ];
    let mut state = State { x, y, z, v, w };
    // Blocks are read in pairs.
    let whole = s.len() / (2 * BLOCK) * (2 * BLOCK);
    for at in (0..whole).step_by(BLOCK) {
        state.mix(s, at, K1, 1);
    }
    let State { mut x, mut y, mut z, mut v, mut w } = state;
    x = x.wrapping_add(v[0].wrapping_add(z).rotate_right(49).wrapping_mul(K0));
    y = y.wrapping_mul(K0).wrapping_add(w[1].rotate_right(37));
    z = z.wrapping_mul(K0).wrapping_add(w[0].rotate_right(27));
    w[0] = w[0].wrapping_mul(9);
    v[0] = v[0].wrapping_mul(K0);
    // The rest is read backwards, in parts of 32 bytes; the last part may overlap the blocks.
    let mut done = 0;
    while done < s.len() - whole {
        done += 32;
        let at = s.len() - done;
        y = x.wrapping_add(y).rotate_right(42).wrapping_mul(K0).wrapping_add(v[1]);
        w[0] = w[0].wrapping_add(word(s, at + 16));
        x = x.wrapping_mul(K0).wrapping_add(w[0]);
        z = sum(&[z, w[1], word(s, at)]);
        w[1] = w[1].wrapping_add(v[0]);
        v = half_block(s, at, v[0].wrapping_add(z), v[1]);
        v[0] = v[0].wrapping_mul(K0);
    }
    x = pair(x, v[0], PAIR);
    y = pair(y.wrapping_add(z), w[0], PAIR);
    let low = pair(x.wrapping_add(v[1]), w[1], PAIR).wrapping_add(y);
    [low, pair(x.wrapping_add(w[1]), y.wrapping_add(v[1]), PAIR)]
}

#[cfg(test)]
mod tests {
    use super::{fingerprint64, fingerprint128};

    /// One line for each length from 0 on: the result of TensorFlow's StringToHashBucketFast with 2^63 - 1 buckets for
    /// the string whose byte `i` is `31 * i + 17 * length`.
    const TENSORFLOW: &str = include_str!("farm.txt");

    #[test]
    fn strings_of_all_lengths_have_the_fingerprints_of_tensorflow() {
        let mut lengths = 0;
        for (length, line) in TENSORFLOW.lines().enumerate() {
            let text: Vec<u8> = (0..length).map(|i| (31 * i + 17 * length) as u8).collect();
            assert_eq!((fingerprint64(&text) % i64::MAX as u64).to_string(), line, "length {length}");
            lengths += 1;
        }
        assert_eq!(lengths, 601);
    }

    /// The same for TensorFlow's SdcaFprint: the low word and the high word.
    const TENSORFLOW_WIDE: &str = include_str!("farm_wide.txt");

    #[test]
    fn strings_of_all_lengths_have_the_wide_fingerprints_of_tensorflow() {
        let mut lengths = 0;
        for (length, line) in TENSORFLOW_WIDE.lines().enumerate() {
            let text: Vec<u8> = (0..length).map(|i| (31 * i + 17 * length) as u8).collect();
            let [low, high] = fingerprint128(&text).map(|word| word as i64);
            assert_eq!(format!("{low} {high}"), line, "length {length}");
            lengths += 1;
        }
        assert_eq!(lengths, 601);
    }
}
