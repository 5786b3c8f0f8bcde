//! The Huffman code of strings in header blocks (RFC 7541, appendix B). It is a canonical code: the code
//! lengths determine the codes.

/// Length of each byte's code, bits.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26,
];
const LONGEST: usize = 30;

/// The Huffman codes by length in bits: the first code, the number of codes, and the index in `bytes` of the
/// first code's byte.
struct Code {
    first: [u32; LONGEST + 1],
    count: [u32; LONGEST + 1],
    start: [usize; LONGEST + 1],
    bytes: [u8; 256],
}

const CODE: Code = {
    let mut code =
        Code { first: [0; LONGEST + 1], count: [0; LONGEST + 1], start: [0; LONGEST + 1], bytes: [0; 256] };
    let (mut len, mut next, mut placed) = (1, 0, 0);
    while len <= LONGEST {
        next <<= 1;
        (code.first[len], code.start[len]) = (next, placed);
        let mut byte = 0;
        while byte < 256 {
            if LENGTHS[byte] as usize == len {
                code.bytes[placed] = byte as u8;
                placed += 1;
                code.count[len] += 1;
            }
            byte += 1;
        }
        next += code.count[len];
        len += 1;
    }
    code
};

/// Decodes a string. Returns `None` for an invalid code or invalid padding.
pub(super) fn decode(coded: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(coded.len() * 8 / 5);
    let (mut code, mut len) = (0u32, 0usize);
    for byte in coded {
        for shift in (0..8).rev() {
            code = code << 1 | u32::from(byte >> shift & 1);
            len += 1;
            let index = code.wrapping_sub(CODE.first[len]);
            if index < CODE.count[len] {
                bytes.push(CODE.bytes[CODE.start[len] + index as usize]);
                (code, len) = (0, 0);
            } else if len == LONGEST {
                return None;
            }
        }
    }
    // The last byte is padded with fewer than eight one bits.
    (len < 8 && code == (1 << len) - 1).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The Huffman-coded strings of RFC 7541, appendix C.4 and C.6.
    #[test]
    fn example_strings_of_the_rfc_are_decoded() {
        let coded = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(decode(&coded).as_deref(), Some(&b"www.example.com"[..]));
        let coded = [0x64, 0x02];
        assert_eq!(decode(&coded).as_deref(), Some(&b"302"[..]));
        assert_eq!(decode(&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]).as_deref(), Some(&b"no-cache"[..]));
        assert_eq!(decode(&[]).as_deref(), Some(&b""[..]));
    }

    #[test]
    fn every_byte_has_a_distinct_code() {
        let mut bytes = CODE.bytes.to_vec();
        bytes.sort_unstable();
        assert!((0..=255).eq(bytes));
        assert_eq!(
            CODE.first[LONGEST] + CODE.count[LONGEST],
            (1 << LONGEST) - 1,
            "the last code is no byte's"
        );
    }

    #[test]
    fn padding_is_less_than_a_byte_of_ones() {
        assert_eq!(decode(&[0x64, 0x02, 0xff]), None);
        assert_eq!(decode(&[0x64, 0x02, 0x00]), None);
        assert_eq!(decode(&[0xff; 4]), None);
    }
}
