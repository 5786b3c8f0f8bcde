//! TensorFlow's 64-bit hash of names, a variant of MurmurHash64A. Ids of loop frames are such hashes.

const M: u64 = 0xc6a4_a793_5bd1_e995;
const R: u32 = 47;
const SEED: u64 = 0x00DE_CAFC_AFFE;

/// Returns the hash of a text.
pub fn hash64(text: &[u8]) -> u64 {
    let mut hash = SEED ^ (text.len() as u64).wrapping_mul(M);
    let (blocks, tail) = text.as_chunks::<8>();
    for block in blocks {
        let mut k = u64::from_le_bytes(*block).wrapping_mul(M);
        k ^= k >> R;
        hash = (hash ^ k.wrapping_mul(M)).wrapping_mul(M);
    }
    if !tail.is_empty() {
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        hash = (hash ^ u64::from_le_bytes(last)).wrapping_mul(M);
    }
    hash ^= hash >> R;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> R)
}

/// Combines two hashes into one; `combine(a, b)` differs from `combine(b, a)`.
pub fn combine(a: u64, b: u64) -> u64 {
    let mixed = b.wrapping_add(0x9e37_79b9_7f4a_7800).wrapping_add(a << 10).wrapping_add(a >> 4);
    a ^ mixed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected value is from a rendezvous key that a TensorFlow process sent for a tensor inside a loop.
    #[test]
    fn loop_frame_ids_match_tensorflow() {
        let of_child =
            |parent, iteration, name: &str| combine(parent, combine(iteration, hash64(name.as_bytes())));
        assert_eq!(of_child(0, 0, "while/while_context"), 18_186_195_969_791_715_286);
    }
}
