//! CRC-32C as TensorFlow's files hold it: masked, so that the checksum of bytes that contain checksums stays good.

const DELTA: u32 = 0xa282_ead8;

/// The masked CRC-32C of these bytes.
pub fn masked(bytes: &[u8]) -> u32 {
    mask(crc32c::crc32c(bytes))
}

/// A CRC-32C in the form that is stored.
pub fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(DELTA)
}

/// A CRC-32C from the form that is stored.
pub fn unmask(masked: u32) -> u32 {
    masked.wrapping_sub(DELTA).rotate_left(15)
}

/// A CRC-32C that bytes are added to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(u32);

impl Checksum {
    pub fn add(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    pub fn masked(self) -> u32 {
        mask(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // RFC 3720, B.4: 32 bytes of zeros.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(unmask(masked(b"abc")), crc32c::crc32c(b"abc"));
        let mut parts = Checksum::default();
        parts.add(b"a");
        parts.add(b"bc");
        assert_eq!(parts.masked(), masked(b"abc"));
    }
}
