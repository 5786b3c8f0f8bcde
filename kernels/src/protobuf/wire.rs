//! The wire format of messages, with groups.

use super::descriptor::{Kind, MAX_DEPTH, WireType};
use checkpoint::proto::{Malformed, put_varint, take_varint};

type Result<T> = std::result::Result<T, Malformed>;

/// A reader of encoded fields.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// Takes the number and the wire type of the next field; `None` at the end.
    pub(super) fn tag(&mut self) -> Result<Option<(u32, WireType)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = u32::try_from(self.varint()?).map_err(|_| Malformed)?;
        let wire_type = match tag & 7 {
            0 => WireType::Varint,
            1 => WireType::Fixed64,
            2 => WireType::Delimited,
            3 => WireType::StartGroup,
            4 => WireType::EndGroup,
            5 => WireType::Fixed32,
            _ => return Err(Malformed),
        };
        if tag >> 3 == 0 { Err(Malformed) } else { Ok(Some((tag >> 3, wire_type))) }
    }

    pub(super) fn varint(&mut self) -> Result<u64> {
        take_varint(&mut self.0).ok_or(Malformed)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (value, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*value)
    }

    /// Takes a length and as many bytes.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
        let (value, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(value)
    }

    /// Takes the fields of a group with the end tag; returns the bytes of the fields.
    pub(super) fn group(&mut self, number: u32) -> Result<&'a [u8]> {
        let all = self.0;
        let mut open = vec![number];
        loop {
            let before = self.0.len();
            let (number, wire_type) = self.tag()?.ok_or(Malformed)?;
            match wire_type {
                WireType::StartGroup if open.len() < MAX_DEPTH => open.push(number),
                WireType::EndGroup if open.pop() == Some(number) => {
                    if open.is_empty() {
                        return Ok(&all[..all.len() - before]);
                    }
                }
                WireType::StartGroup | WireType::EndGroup => return Err(Malformed),
                _ => self.skip(number, wire_type)?,
            }
        }
    }

    /// Passes over the value of a field.
    pub(super) fn skip(&mut self, number: u32, wire_type: WireType) -> Result<()> {
        match wire_type {
            WireType::Varint => self.varint().map(|_| ()),
            WireType::Fixed64 => self.array::<8>().map(|_| ()),
            WireType::Delimited => self.bytes().map(|_| ()),
            WireType::StartGroup => self.group(number).map(|_| ()),
            WireType::Fixed32 => self.array::<4>().map(|_| ()),
            WireType::EndGroup => Err(Malformed),
        }
    }

    /// Takes a number as 64 bits: an integer with its sign extended, or the bits of a float.
    pub(super) fn number(&mut self, kind: Kind) -> Result<u64> {
        Ok(match kind {
            Kind::Double | Kind::Fixed64 | Kind::SFixed64 => u64::from_le_bytes(self.array()?),
            Kind::Float | Kind::Fixed32 => u32::from_le_bytes(self.array()?).into(),
            Kind::SFixed32 => i64::from(i32::from_le_bytes(self.array()?)) as u64,
            _ => of_varint(self.varint()?, kind),
        })
    }
}

/// Returns the number that a varint stands for.
fn of_varint(value: u64, kind: Kind) -> u64 {
    match kind {
        Kind::Int32 | Kind::Enum => i64::from(value as i32) as u64,
        Kind::UInt32 => u64::from(value as u32),
        Kind::Bool => u64::from(value != 0),
        Kind::SInt32 => {
            let low = value as u32;
            i64::from((low >> 1) as i32 ^ -((low & 1) as i32)) as u64
        }
        Kind::SInt64 => value >> 1 ^ (value & 1).wrapping_neg(),
        _ => value,
    }
}

/// Appends the tag of a field.
pub(super) fn put_tag(out: &mut Vec<u8>, number: u32, wire_type: WireType) {
    put_varint(out, u64::from(number) << 3 | wire_type as u64);
}

/// Appends a number without its tag; the bits are those that [`Reader::number`] returns.
pub(super) fn put_number(out: &mut Vec<u8>, kind: Kind, bits: u64) {
    match kind {
        Kind::Double | Kind::Fixed64 | Kind::SFixed64 => out.extend_from_slice(&bits.to_le_bytes()),
        Kind::Float | Kind::Fixed32 | Kind::SFixed32 => out.extend_from_slice(&(bits as u32).to_le_bytes()),
        Kind::SInt32 => {
            let value = bits as i32;
            put_varint(out, ((value << 1 ^ value >> 31) as u32).into());
        }
        Kind::SInt64 => {
            let value = bits as i64;
            put_varint(out, (value << 1 ^ value >> 63) as u64);
        }
        _ => put_varint(out, bits),
    }
}

/// Appends bytes with their length.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends the numbers of a repeated field: packed, or each with a tag.
pub(super) fn put_numbers(
    out: &mut Vec<u8>,
    number: u32,
    kind: Kind,
    is_packed: bool,
    values: impl Iterator<Item = u64>,
) {
    if is_packed {
        let mut packed = Vec::new();
        values.for_each(|bits| put_number(&mut packed, kind, bits));
        put_tag(out, number, WireType::Delimited);
        put_bytes(out, &packed);
    } else {
        for bits in values {
            put_tag(out, number, kind.wire_type());
            put_number(out, kind, bits);
        }
    }
}
