//! Masked CRC-32C checksums as TensorFlow's files store them. The mask keeps a checksum strong for data that
//! itself contains checksums.

const DELTA: u32 = 0xa282_ead8;

/// Returns the masked CRC-32C of the bytes.
pub fn masked(bytes: &[u8]) -> u32 {
    mask(crc32c::crc32c(bytes))
}

/// Converts a CRC-32C to its stored, masked form.
pub fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(DELTA)
}

/// Converts a masked CRC-32C back to the plain CRC-32C.
pub fn unmask(masked: u32) -> u32 {
    masked.wrapping_sub(DELTA).rotate_left(15)
}

/// A CRC-32C that is computed incrementally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(u32);

impl Checksum {
    /// Appends bytes to the checked data.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    /// Returns the masked checksum of all bytes added so far.
    pub fn masked(self) -> u32 {
        mask(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_have_their_known_values() {
        // RFC 3720, B.4: the checksum of 32 bytes of zeros.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(unmask(masked(b"abc")), crc32c::crc32c(b"abc"));
        let mut parts = Checksum::default();
        parts.add(b"a");
        parts.add(b"bc");
        assert_eq!(parts.masked(), masked(b"abc"));
    }
}
