//! A field-by-field reader of serialised messages that builds no value for the whole message, for frequent
//! messages.

use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, encode_varint, skip_field};
use std::fmt;

/// An iterator over the fields of a message, in the order of its bytes.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(&'a [u8]);

pub(super) struct Field<'a> {
    pub(super) number: u32,
    /// The value of a string, bytes or message field.
    value: Option<&'a [u8]>,
    /// The bytes of the whole field, including the key.
    pub(super) bytes: &'a [u8],
}

/// The reason why a message cannot be decoded.
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
            // The position of the next field is unknown after an error.
            self.0 = &[];
        }
        Some(read)
    }
}

impl<'a> Field<'a> {
    /// Returns the value as bytes.
    ///
    /// # Errors
    /// `Malformed` if the field is not a string, bytes or message.
    pub(super) fn as_bytes(&self) -> Result<&'a [u8], Malformed> {
        self.value.ok_or_else(|| Malformed(format!("field {} has a value of another kind", self.number)))
    }

    /// Returns the value as text.
    ///
    /// # Errors
    /// The errors of [`Field::as_bytes`], and `Malformed` if the text is not UTF-8.
    pub(super) fn as_text(&self) -> Result<&'a str, Malformed> {
        let text = std::str::from_utf8(self.as_bytes()?);
        text.map_err(|_| Malformed(format!("field {} is not UTF-8", self.number)))
    }
}

/// Appends a field of a string, bytes or a message.
pub(super) fn put_bytes(number: u32, value: &[u8], to: &mut Vec<u8>) {
    put_length(number, value.len(), to);
    to.extend_from_slice(value);
}

/// Appends the key and the length of a field whose value of `len` bytes follows.
pub(super) fn put_length(number: u32, len: usize, to: &mut Vec<u8>) {
    encode_varint(u64::from(number << 3) | WireType::LengthDelimited as u64, to);
    encode_varint(len as u64, to);
}

/// Appends a varint field.
pub(super) fn put_number(number: u32, value: u64, to: &mut Vec<u8>) {
    encode_varint(u64::from(number << 3) | WireType::Varint as u64, to);
    encode_varint(value, to);
}
