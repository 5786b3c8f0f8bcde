//! The order-preserving encoding of slice keys: encoded keys sort like the values they encode.

/// Appends an unsigned number as the count of its bytes, then the bytes in big-endian order.
pub(crate) fn put_unsigned(out: &mut Vec<u8>, value: u64) {
    let bytes = value.to_be_bytes();
    let start = value.leading_zeros() as usize / 8;
    out.push((8 - start) as u8);
    out.extend_from_slice(&bytes[start..]);
}

/// Appends a string with zeros and 255s escaped, followed by a terminator.
pub(crate) fn put_string(out: &mut Vec<u8>, value: &[u8]) {
    for &byte in value {
        out.push(byte);
        match byte {
            0 => out.push(0xff),
            0xff => out.push(0),
            _ => {}
        }
    }
    out.extend_from_slice(&[0, 1]);
}

/// Appends a signed number in 1 to 10 bytes of seven bits each. A header in the highest bits gives the number
/// of bytes: one 1 bit for each byte (0 bits if the number is negative).
pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    let magnitude = if value < 0 { !value } else { value };
    // One bit is added for the sign.
    let bits = 64 - magnitude.leading_zeros() as usize + 1;
    let len = bits.div_ceil(7);
    let mut bytes = [if value < 0 { 0xff } else { 0 }; 10];
    bytes[2..].copy_from_slice(&value.to_be_bytes());
    let bytes = &mut bytes[10 - len..];
    // The header has `len` ones in its highest bits, and reaches into the second byte if `len` exceeds eight.
    let header = (0xffffu32 << (16 - len)) as u16;
    for (byte, ones) in bytes.iter_mut().zip(header.to_be_bytes()) {
        *byte ^= ones;
    }
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_numbers_keep_their_order() {
        let encode = |v: i64| {
            let mut out = Vec::new();
            put_signed(&mut out, v);
            out
        };
        assert_eq!(encode(0), [0x80]);
        assert_eq!(encode(-1), [0x7f]);
        assert_eq!(encode(63), [0xbf]);
        assert_eq!(encode(64), [0xc0, 64]);
        assert_eq!(encode(-65), [0x3f, 0xbf]);
        assert_eq!(encode(i64::MAX), [0xff, 0xc0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        let mut values = vec![0, i64::MIN, i64::MAX];
        for shift in 0..63 {
            let power = 1i64 << shift;
            values.extend([power - 1, power, power + 1, -power, 1 - power, -power - 1]);
        }
        values.sort_unstable();
        values.dedup();
        assert!(values.windows(2).all(|w| encode(w[0]) < encode(w[1])));
    }

    #[test]
    fn strings_and_numbers_have_their_encodings() {
        let mut out = Vec::new();
        put_unsigned(&mut out, 0);
        put_unsigned(&mut out, 300);
        put_string(&mut out, b"a\0\xff");
        assert_eq!(out, [0, 2, 1, 44, b'a', 0, 0xff, 0xff, 0, 0, 1]);
    }
}
