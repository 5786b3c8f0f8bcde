//! The decoder of header blocks.

use super::table::{MAX_TABLE_SIZE, Table};
use super::{Field, huffman};
use bytes::Bytes;

/// Largest total size of the fields of one header block, measured as in RFC 7541, section 4.1, bytes.
const MAX_FIELDS_SIZE: usize = 256 << 10;

/// The error for a header block that cannot be decoded. Later blocks of the connection cannot be decoded
/// either, because the state of the dynamic table is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// The decoder of a connection's header blocks, which must be decoded in the order in which they arrive.
#[derive(Debug)]
pub(crate) struct Decoder {
    table: Table,
}

impl Decoder {
    pub(crate) fn new() -> Decoder {
        Decoder { table: Table::new() }
    }

    /// Returns the field at an index of the static and dynamic table.
    fn indexed(&self, number: usize) -> Result<Field, Malformed> {
        self.table.get(number).ok_or(Malformed("HPACK: an index is not in the table"))
    }

    /// Decodes the fields of a complete block.
    pub(crate) fn decode(&mut self, block: &[u8]) -> Result<Vec<Field>, Malformed> {
        let mut rest = block;
        let mut fields = Vec::with_capacity(12);
        let mut size = 0;
        while let Some(&first) = rest.first() {
            let field = match first {
                0x80.. => {
                    let number = integer(&mut rest, 7)?;
                    self.indexed(number)?
                }
                0x40.. => {
                    let field = self.literal(&mut rest, 6)?;
                    self.table.add(field.clone());
                    field
                }
                0x20.. if fields.is_empty() => {
                    let limit = integer(&mut rest, 5)?;
                    if limit > MAX_TABLE_SIZE {
                        return Err(Malformed(
                            "HPACK: the new size of the dynamic table is greater than its limit",
                        ));
                    }
                    self.table.set_limit(limit);
                    continue;
                }
                0x20.. => return Err(Malformed("HPACK: the dynamic table is resized after the first field")),
                _ => self.literal(&mut rest, 4)?,
            };
            size += field.size();
            if size > MAX_FIELDS_SIZE {
                return Err(Malformed("HPACK: the header fields are too large"));
            }
            fields.push(field);
        }
        Ok(fields)
    }

    /// Decodes a literal field. The field's name is given by an index with a prefix of `bits` bits, or
    /// spelled out if the index is zero.
    fn literal(&self, rest: &mut &[u8], bits: u32) -> Result<Field, Malformed> {
        let name = match integer(rest, bits)? {
            0 => string(rest)?,
            number => self.indexed(number)?.name,
        };
        Ok(Field { name, value: string(rest)? })
    }
}

/// Decodes an integer whose prefix is the low `bits` bits of the first byte (RFC 7541, section 5.1).
fn integer(rest: &mut &[u8], bits: u32) -> Result<usize, Malformed> {
    const CUT: Malformed = Malformed("HPACK: the header block ends within an integer");
    let mask = (1usize << bits) - 1;
    let (first, mut left) = rest.split_first().ok_or(CUT)?;
    let mut value = usize::from(*first) & mask;
    if value == mask {
        for shift in (0..).step_by(7) {
            let (byte, behind) = left.split_first().ok_or(CUT)?;
            left = behind;
            // No length or index of a header block needs more than 28 bits.
            if shift > 21 {
                return Err(Malformed("HPACK: an integer is too large"));
            }
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *rest = left;
    Ok(value)
}

fn string(rest: &mut &[u8]) -> Result<Bytes, Malformed> {
    let is_coded = rest.first().is_some_and(|first| first & 0x80 != 0);
    let len = integer(rest, 7)?;
    let (bytes, behind) =
        rest.split_at_checked(len).ok_or(Malformed("HPACK: the header block ends within a string"))?;
    *rest = behind;
    match is_coded {
        true => huffman::decode(bytes).map(Bytes::from).ok_or(Malformed("a string's code")),
        false => Ok(Bytes::copy_from_slice(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(fields: &[Field]) -> String {
        let line = |f: &Field| {
            format!("{}: {}\n", String::from_utf8_lossy(&f.name), String::from_utf8_lossy(&f.value))
        };
        fields.iter().map(line).collect()
    }

    /// The three requests of RFC 7541, appendix C.3 in plain text and appendix C.4 Huffman-coded.
    #[test]
    fn example_requests_of_the_rfc_are_decoded() -> Result<(), Malformed> {
        let plain: [&[u8]; 3] = [
            b"\x82\x86\x84\x41\x0fwww.example.com",
            b"\x82\x86\x84\xbe\x58\x08no-cache",
            b"\x82\x87\x85\xbf\x40\x0acustom-key\x0ccustom-value",
        ];
        let coded: [&[u8]; 3] = [
            b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
            b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf",
            b"\x82\x87\x85\xbf\x40\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf",
        ];
        let expected = [
            ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\n",
            ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\ncache-control: no-cache\n",
            ":method: GET\n:scheme: https\n:path: /index.html\n:authority: www.example.com\n\
             custom-key: custom-value\n",
        ];
        for blocks in [plain, coded] {
            let mut decoder = Decoder::new();
            for (block, expected) in blocks.iter().zip(expected) {
                assert_eq!(text(&decoder.decode(block)?), expected);
            }
        }
        Ok(())
    }

    #[test]
    fn old_fields_are_evicted_from_the_table() -> Result<(), Malformed> {
        let mut decoder = Decoder::new();
        // The dynamic table has room for one field of 64 bytes: each new field evicts the one before.
        let long = [b"\x3f\x21\x40\x10".as_slice(), &[b'a'; 16], b"\x10", &[b'b'; 16]].concat();
        assert_eq!(decoder.decode(&long)?.len(), 1);
        assert_eq!(decoder.decode(b"\xbe")?.len(), 1);
        assert_eq!(text(&decoder.decode(b"\x40\x01c\x01d\xbe")?), "c: d\nc: d\n");
        assert_eq!(decoder.decode(b"\xbf"), Err(Malformed("HPACK: an index is not in the table")));
        assert_eq!(decoder.decode(b"\x20")?, []);
        assert!(decoder.decode(b"\xbe").is_err());
        Ok(())
    }

    #[test]
    fn malformed_blocks_are_refused() {
        let refused: [&[u8]; 9] = [
            b"\x80",                     // index zero
            b"\xff",                     // a truncated index
            b"\xff\xff\xff\xff\xff\x7f", // an index that is too large
            b"\xc0",                     // an index beyond the table
            b"\x40\x05abc",              // a truncated name
            b"\x40\x01a",                // no value
            b"\x82\x20",                 // a table size after a field
            b"\x3f\xe2\x1f",             // a table size of 4097
            b"\x40\x81\x00\x00",         // a name with an invalid Huffman code
        ];
        for block in refused {
            assert!(Decoder::new().decode(block).is_err(), "{block:x?}");
        }
        // A short block that refers to one long field of the table many times exceeds the limit on the
        // decoded size.
        let mut decoder = Decoder::new();
        let long = [b"\x40\x01a\x7f\xd1\x0e".as_slice(), &[b'x'; 2000]].concat();
        assert_eq!(decoder.decode(&long).map(|f| f.len()), Ok(1));
        assert_eq!(decoder.decode(&[0xbe; 1000]), Err(Malformed("HPACK: the header fields are too large")));
    }
}
