//! A codec for the wire format of protocol buffers that writes and reads field by field, for the few messages
//! in files and in strings that clients parse.

use std::fmt;

/// A writer of a message whose fields are written in the order of the calls.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Creates a writer of an empty message.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Returns the encoded message.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    fn tag(&mut self, field: u32, kind: u32) {
        put_varint(&mut self.bytes, u64::from(field) << 3 | u64::from(kind));
    }

    /// Writes an integer or enum, even if it is zero.
    pub fn varint(&mut self, field: u32, value: u64) -> &mut Self {
        self.tag(field, 0);
        put_varint(&mut self.bytes, value);
        self
    }

    /// Writes a signed integer unless it is zero, like proto3.
    pub fn int(&mut self, field: u32, value: i64) -> &mut Self {
        if value != 0 {
            self.varint(field, value as u64);
        }
        self
    }

    /// Writes bytes, a string or an encoded message, even if empty.
    pub fn bytes(&mut self, field: u32, value: &[u8]) -> &mut Self {
        self.tag(field, 2);
        put_varint(&mut self.bytes, value.len() as u64);
        self.bytes.extend_from_slice(value);
        self
    }

    /// Writes a string unless it is empty.
    pub fn string(&mut self, field: u32, value: &[u8]) -> &mut Self {
        if !value.is_empty() {
            self.bytes(field, value);
        }
        self
    }

    /// Writes an embedded message.
    pub fn message(&mut self, field: u32, write: impl FnOnce(&mut Writer)) -> &mut Self {
        let mut inner = Writer::new();
        write(&mut inner);
        self.bytes(field, &inner.bytes)
    }

    /// Writes a float unless it is positive zero.
    pub fn float(&mut self, field: u32, value: f32) -> &mut Self {
        if value.to_bits() != 0 {
            self.fixed32(field, value.to_bits());
        }
        self
    }

    /// Writes a double unless it is positive zero.
    pub fn double(&mut self, field: u32, value: f64) -> &mut Self {
        if value.to_bits() != 0 {
            self.tag(field, 1);
            self.bytes.extend_from_slice(&value.to_le_bytes());
        }
        self
    }

    /// Writes four bytes, even if the value is zero.
    pub fn fixed32(&mut self, field: u32, value: u32) -> &mut Self {
        self.tag(field, 5);
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Writes packed doubles; nothing if there are no values.
    pub fn packed_doubles(&mut self, field: u32, values: &[f64]) -> &mut Self {
        if !values.is_empty() {
            let packed: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            self.bytes(field, &packed);
        }
        self
    }

    /// Writes packed integers; nothing if there are no values.
    pub fn packed_ints(&mut self, field: u32, values: impl IntoIterator<Item = i64>) -> &mut Self {
        let mut packed = Vec::new();
        for value in values {
            put_varint(&mut packed, value as u64);
        }
        self.string(field, &packed)
    }

    /// Appends fields that are already encoded.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }
}

/// Appends a varint: groups of seven bits, the lowest first.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a varint from the front of `bytes`; `None` if it is incomplete or too long.
pub fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for i in 0..10 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        if i == 9 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// The error for bytes that are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("malformed message")
    }
}

impl std::error::Error for Malformed {}

/// The value of a field in its wire type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// An iterator over the fields of a message, as field numbers and values. Groups are rejected.
#[derive(Clone, Debug)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Iterates over the fields of the encoded message.
    pub fn of(message: &'a [u8]) -> Fields<'a> {
        Fields(message)
    }

    fn take(&mut self) -> Option<(u32, Field<'a>)> {
        let tag = take_varint(&mut self.0)?;
        let number = u32::try_from(tag >> 3).ok().filter(|&n| n != 0)?;
        let field = match tag & 7 {
            0 => Field::Varint(take_varint(&mut self.0)?),
            1 => Field::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let len = usize::try_from(take_varint(&mut self.0)?).ok()?;
                let (value, rest) = self.0.split_at_checked(len)?;
                self.0 = rest;
                Field::Bytes(value)
            }
            5 => Field::Fixed32(u32::from_le_bytes(self.array()?)),
            _ => return None,
        };
        Some((number, field))
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*value)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Field<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let taken = self.take().ok_or(Malformed);
        if taken.is_err() {
            self.0 = &[];
        }
        Some(taken)
    }
}

impl<'a> Field<'a> {
    /// Returns the value as a signed integer.
    pub fn int(self) -> Result<i64, Malformed> {
        match self {
            Field::Varint(value) => Ok(value as i64),
            _ => Err(Malformed),
        }
    }

    /// Returns the value as bytes.
    pub fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Field::Bytes(value) => Ok(value),
            _ => Err(Malformed),
        }
    }

    /// Returns the fields of the value as an embedded message.
    pub fn fields(self) -> Result<Fields<'a>, Malformed> {
        Ok(Fields(self.bytes()?))
    }

    /// Calls `each` for every integer of a repeated field, packed or unpacked.
    pub fn ints(self, mut each: impl FnMut(i64)) -> Result<(), Malformed> {
        let mut packed = match self {
            Field::Bytes(packed) => packed,
            other => {
                each(other.int()?);
                return Ok(());
            }
        };
        while !packed.is_empty() {
            each(take_varint(&mut packed).ok_or(Malformed)? as i64);
        }
        Ok(())
    }

    /// Calls `each` for every float of a repeated field, packed or unpacked.
    pub fn floats(self, mut each: impl FnMut(f32)) -> Result<(), Malformed> {
        match self {
            Field::Fixed32(bits) => each(f32::from_bits(bits)),
            Field::Bytes(packed) => {
                let (values, rest) = packed.as_chunks();
                if !rest.is_empty() {
                    return Err(Malformed);
                }
                values.iter().for_each(|v| each(f32::from_le_bytes(*v)));
            }
            _ => return Err(Malformed),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_fields_are_read_back() -> Result<(), Malformed> {
        let mut w = Writer::new();
        w.int(1, -1).int(2, 0).string(3, b"x").float(4, 1.5).fixed32(5, 0).packed_ints(6, [1, 300]);
        w.message(7, |inner| {
            inner.double(1, 2.0);
        });
        let bytes = w.finish();
        let fields = Fields::of(&bytes).collect::<Result<Vec<_>, _>>()?;
        assert_eq!(fields[0], (1, Field::Varint(u64::MAX)));
        assert_eq!(fields[1], (3, Field::Bytes(b"x")));
        assert_eq!(fields[2], (4, Field::Fixed32(1.5f32.to_bits())));
        assert_eq!(fields[3], (5, Field::Fixed32(0)));
        let mut ints = Vec::new();
        fields[4].1.ints(|i| ints.push(i))?;
        assert_eq!(ints, [1, 300]);
        assert_eq!(fields[5].1.fields()?.next(), Some(Ok((1, Field::Fixed64(2.0f64.to_bits())))));
        Ok(())
    }

    #[test]
    fn truncated_messages_are_refused() {
        let mut w = Writer::new();
        w.string(1, b"abc").float(2, 1.0);
        let bytes = w.finish();
        for cut in [1, 2, 4, 6, 9] {
            assert!(Fields::of(&bytes[..cut]).any(|f| f.is_err()), "{cut}");
        }
        assert!(Fields::of(&[0xff; 20]).any(|f| f.is_err()));
    }
}
