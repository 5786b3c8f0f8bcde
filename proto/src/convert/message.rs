//! A serialised message field by field, without a value for the whole: for messages of which there are many.

use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, encode_varint, skip_field};
use std::fmt;

/// The fields of a message, in the order of its bytes.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(&'a [u8]);

pub(super) struct Field<'a> {
    pub(super) number: u32,
    /// Of a text, bytes, or a message.
    value: Option<&'a [u8]>,
    /// All of it, key included.
    pub(super) bytes: &'a [u8],
}

/// Why a message cannot be read.
#[derive(Debug)]
pub(super) struct Malformed(String);

impl From<DecodeError> for Malformed {
    fn from(error: DecodeError) -> Malformed {
        Malformed(error.to_string())
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Fields<'a> {
        Fields(message)
    }

    fn read(&mut self) -> Result<Field<'a>, Malformed> {
        let all = self.0;
        let (number, wire_type) = decode_key(&mut self.0)?;
        let mut value = None;
        if wire_type == WireType::LengthDelimited {
            let len = decode_varint(&mut self.0)?;
            let parts = usize::try_from(len).ok().and_then(|len| self.0.split_at_checked(len));
            let cut_off = || Malformed(format!("field {number} is cut off"));
            let (bytes, rest) = parts.ok_or_else(cut_off)?;
            (self.0, value) = (rest, Some(bytes));
        } else {
            skip_field(wire_type, number, &mut self.0, DecodeContext::default())?;
        }
        Ok(Field { number, value, bytes: &all[..all.len() - self.0.len()] })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let read = self.read();
        if read.is_err() {
            // What comes after what cannot be read means nothing.
            self.0 = &[];
        }
        Some(read)
    }
}

impl<'a> Field<'a> {
    /// # Errors
    /// If the field is no text, bytes or message.
    pub(super) fn as_bytes(&self) -> Result<&'a [u8], Malformed> {
        self.value.ok_or_else(|| Malformed(format!("field {} has a value of another kind", self.number)))
    }

    /// # Errors
    /// As [`Field::as_bytes`], and if the text is not UTF-8.
    pub(super) fn as_text(&self) -> Result<&'a str, Malformed> {
        let text = std::str::from_utf8(self.as_bytes()?);
        text.map_err(|_| Malformed(format!("field {} is not UTF-8", self.number)))
    }
}

/// Appends a field of text, bytes, or a message.
pub(super) fn put_bytes(number: u32, value: &[u8], to: &mut Vec<u8>) {
    put_length(number, value.len(), to);
    to.extend_from_slice(value);
}

/// Appends the beginning of such a field, whose value of `len` bytes follows.
pub(super) fn put_length(number: u32, len: usize, to: &mut Vec<u8>) {
    encode_varint(u64::from(number << 3) | WireType::LengthDelimited as u64, to);
    encode_varint(len as u64, to);
}

/// Appends a field with a number.
pub(super) fn put_number(number: u32, value: u64, to: &mut Vec<u8>) {
    encode_varint(u64::from(number << 3) | WireType::Varint as u64, to);
    encode_varint(value, to);
}
