//! Messages as values: read from the wire format or from text, and written in the order of the field numbers, as protocol
//! buffers' own library does.

use super::budget::{Budget, Failure};
use super::descriptor::{EnumType, Field, Kind, MAX_DEPTH, MessageType, Pool, WireType};
use super::wire::{Reader, put_bytes, put_numbers, put_tag};
use std::collections::BTreeMap;

/// The value of a field.
#[derive(Debug)]
pub(super) enum Value {
    /// The bits of a number.
    Number(u64),
    Bytes(Vec<u8>),
    Message(Message),
}

/// A message: its values by field number, and the encoded fields that its type lacks.
#[derive(Debug, Default)]
pub(super) struct Message {
    fields: BTreeMap<u32, Vec<Value>>,
    /// The number of the member that has a value, by the number of the oneof.
    members: BTreeMap<u64, u32>,
    unknown: Vec<u8>,
}

/// The bytes of the memory blocks that a message with one field takes.
const BLOCK_BYTES: usize = 512;

type Result<T> = std::result::Result<T, Failure>;

impl Message {
    /// Reads an encoded message.
    pub(super) fn read(pool: &Pool, of: &MessageType, bytes: &[u8], budget: &Budget<'_>) -> Result<Message> {
        let mut message = Message::default();
        message.merge(pool, of, bytes, 0, budget)?;
        Ok(message)
    }

    /// Adds the fields of an encoded message: values of singular fields are replaced, messages are merged.
    fn merge(
        &mut self,
        pool: &Pool,
        of: &MessageType,
        bytes: &[u8],
        depth: usize,
        budget: &Budget<'_>,
    ) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Failure::Malformed);
        }
        let mut reader = Reader(bytes);
        loop {
            budget.step()?;
            let start = reader;
            let Some((number, wire_type)) = reader.tag()? else { return Ok(()) };
            let field = of.field(number);
            match field {
                Some(field)
                    if field.kind.is_number() && wire_type == WireType::Delimited && field.is_repeated =>
                {
                    let mut packed = Reader(reader.bytes()?);
                    while !packed.0.is_empty() {
                        let value = packed.number(field.kind)?;
                        self.add_number(pool, field, value, budget)?;
                    }
                }
                Some(field) if field.kind.wire_type() != wire_type => {
                    reader.skip(number, wire_type)?;
                    self.add_unknown(&start.0[..start.0.len() - reader.0.len()], budget)?;
                }
                Some(field) if field.kind.is_number() => {
                    let value = reader.number(field.kind)?;
                    self.add_number(pool, field, value, budget)?;
                }
                Some(field) => {
                    let bytes = match field.kind {
                        Kind::Group => reader.group(number)?,
                        _ => reader.bytes()?,
                    };
                    if matches!(field.kind, Kind::Message | Kind::Group) {
                        let part = self.message(field, budget)?;
                        part.merge(pool, &pool.messages[field.of], bytes, depth + 1, budget)?;
                    } else if field.kind == Kind::String
                        && field.must_be_utf8
                        && std::str::from_utf8(bytes).is_err()
                    {
                        return Err(Failure::Malformed);
                    } else {
                        budget.take(bytes.len())?;
                        self.add(field, Value::Bytes(bytes.to_vec()), budget)?;
                    }
                }
                None => {
                    reader.skip(number, wire_type)?;
                    self.add_unknown(&start.0[..start.0.len() - reader.0.len()], budget)?;
                }
            }
            if let Some(field) = field {
                self.clear_others(field);
            }
        }
    }

    /// Adds a number; a number that a closed enum lacks becomes an unknown field.
    fn add_number(&mut self, pool: &Pool, field: &Field, bits: u64, budget: &Budget<'_>) -> Result<()> {
        if field.kind == Kind::Enum && is_unknown(&pool.enums[field.of], bits) {
            let before = self.unknown.len();
            put_numbers(&mut self.unknown, field.number, field.kind, false, std::iter::once(bits));
            return Ok(budget.take(self.unknown.len() - before)?);
        }
        self.put(field, Value::Number(bits), budget)
    }

    fn add_unknown(&mut self, field: &[u8], budget: &Budget<'_>) -> Result<()> {
        budget.take(field.len())?;
        self.unknown.extend_from_slice(field);
        Ok(())
    }

    fn put(&mut self, field: &Field, value: Value, budget: &Budget<'_>) -> Result<()> {
        let values = self.fields.entry(field.number).or_default();
        if values.is_empty() {
            budget.take(BLOCK_BYTES)?;
        } else if field.is_repeated {
            budget.take(size_of::<Value>())?;
        } else {
            values.clear();
        }
        values.push(value);
        Ok(())
    }

    /// Removes the other member of a field's oneof if the field has a value.
    fn clear_others(&mut self, field: &Field) {
        let Some(oneof) = field.oneof.filter(|_| self.fields.contains_key(&field.number)) else { return };
        let other = self.members.insert(oneof, field.number);
        if let Some(other) = other.filter(|other| *other != field.number) {
            self.fields.remove(&other);
        }
    }

    /// Adds a value to a repeated field, or replaces the value of a singular one and of the other members of its oneof. The
    /// budget pays for the place of the value, not for its bytes.
    pub(super) fn add(&mut self, field: &Field, value: Value, budget: &Budget<'_>) -> Result<()> {
        self.put(field, value, budget)?;
        self.clear_others(field);
        Ok(())
    }

    /// Returns the message of a singular field, created if there is none, or a new element of a repeated field.
    pub(super) fn message(&mut self, field: &Field, budget: &Budget<'_>) -> Result<&mut Message> {
        if field.is_repeated || !self.has(field.number) {
            self.add(field, Value::Message(Message::default()), budget)?;
        }
        match self.fields.get_mut(&field.number).and_then(|values| values.last_mut()) {
            Some(Value::Message(message)) => Ok(message),
            _ => unreachable!("fields of messages have no other values"),
        }
    }

    /// Returns whether a member of a oneof has a value.
    pub(super) fn has_member(&self, oneof: u64) -> bool {
        self.members.contains_key(&oneof)
    }

    /// Returns whether a singular field has a value.
    pub(super) fn has(&self, number: u32) -> bool {
        self.fields.get(&number).is_some_and(|values| !values.is_empty())
    }

    /// Returns whether all required fields have values, also in the messages inside.
    pub(super) fn is_complete(&self, pool: &Pool, of: &MessageType, budget: &Budget<'_>) -> Result<bool> {
        for number in &of.required {
            budget.step()?;
            if !self.has(*number) {
                return Ok(false);
            }
        }
        for (number, values) in &self.fields {
            let Some(field) = of.field(*number) else { continue };
            for value in values {
                budget.step()?;
                if let Value::Message(part) = value
                    && !part.is_complete(pool, &pool.messages[field.of], budget)?
                {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Appends the encoded message. The budget pays for the bytes.
    pub(super) fn write(
        &self,
        pool: &Pool,
        of: &MessageType,
        out: &mut Vec<u8>,
        budget: &Budget<'_>,
    ) -> Result<()> {
        if of.is_map_entry {
            for field in &of.fields {
                let values = self.fields.get(&field.number).map_or(&[][..], |values| values);
                if !values.is_empty() {
                    write_field(pool, of, field, values, out, budget)?;
                    continue;
                }
                let before = out.len();
                if field.kind.is_number() {
                    put_numbers(out, field.number, field.kind, field.is_packed, std::iter::once(0));
                } else {
                    put_tag(out, field.number, WireType::Delimited);
                    put_bytes(out, &[]);
                }
                budget.take(out.len() - before)?;
            }
        } else {
            for (number, values) in &self.fields {
                if let Some(field) = of.field(*number) {
                    write_field(pool, of, field, values, out, budget)?;
                }
            }
        }
        budget.take(self.unknown.len())?;
        out.extend_from_slice(&self.unknown);
        Ok(())
    }
}

/// Appends the values of a field of a message of type `of`.
fn write_field(
    pool: &Pool,
    of: &MessageType,
    field: &Field,
    values: &[Value],
    out: &mut Vec<u8>,
    budget: &Budget<'_>,
) -> Result<()> {
    let is_written = field.is_repeated || field.has_presence || of.is_map_entry;
    if field.kind.is_number() {
        let numbers = values.iter().filter_map(|value| match value {
            Value::Number(bits) if is_written || *bits != 0 => Some(*bits),
            _ => None,
        });
        let mut numbers = numbers.peekable();
        if numbers.peek().is_some() {
            let before = out.len();
            put_numbers(out, field.number, field.kind, field.is_packed, numbers);
            budget.take(out.len() - before)?;
        }
        return Ok(());
    }
    for value in values {
        budget.step()?;
        match value {
            Value::Number(_) => {}
            Value::Bytes(bytes) => {
                if is_written || !bytes.is_empty() {
                    let before = out.len();
                    put_tag(out, field.number, WireType::Delimited);
                    put_bytes(out, bytes);
                    budget.take(out.len() - before)?;
                }
            }
            Value::Message(part) if field.kind == Kind::Group => {
                put_tag(out, field.number, WireType::StartGroup);
                part.write(pool, &pool.messages[field.of], out, budget)?;
                put_tag(out, field.number, WireType::EndGroup);
            }
            Value::Message(part) => {
                // The budget pays for the bytes of the part once: its own copy is freed here.
                let mut bytes = Vec::new();
                part.write(pool, &pool.messages[field.of], &mut bytes, budget)?;
                put_tag(out, field.number, WireType::Delimited);
                put_bytes(out, &bytes);
            }
        }
    }
    Ok(())
}

fn is_unknown(of: &EnumType, bits: u64) -> bool {
    of.is_closed && !of.has_number(bits)
}

#[cfg(test)]
mod tests {
    use super::super::{pool_of, text};
    use super::*;
    use device::cancel::Cancellation;

    #[test]
    fn the_last_member_of_a_oneof_replaces_the_others() {
        let cancellation = Cancellation::new();
        let budget = Budget::new(1 << 20, &cancellation);
        let pool = pool_of(b"local://").expect("the messages of TensorFlow");
        let of = pool.message("tensorflow.Feature").expect("a message type");
        // Fields 1 and 3 are members of one oneof.
        let message = Message::read(&pool, of, &[3 << 3 | 2, 0, 1 << 3 | 2, 0, 3 << 3 | 2, 0], &budget)
            .expect("a message within the limit");
        assert_eq!([1, 3].map(|number| message.has(number)), [false, true]);
        let mut out = Vec::new();
        message.write(&pool, of, &mut out, &budget).expect("a message within the limit");
        assert_eq!(out, [3 << 3 | 2, 0]);
        assert!(text::parse(&pool, of, b"int64_list {} bytes_list {}", &budget).is_err());
        assert!(
            text::parse(&pool, of, b"int64_list {}", &budget).expect("a message within the limit").has(3)
        );
    }

    #[test]
    fn a_message_that_needs_more_than_the_memory_limit_is_refused() {
        let cancellation = Cancellation::new();
        let pool = pool_of(b"local://").expect("the messages of TensorFlow");
        let of = pool.message("tensorflow.Int64List").expect("a message type");
        let packed = [&[1 << 3 | 2, 100][..], &[1; 100]].concat();
        let read = |limit| Message::read(&pool, of, &packed, &Budget::new(limit, &cancellation));
        assert!(matches!(read(1_000), Err(Failure::Stopped(_))));
        assert_eq!(read(100_000).expect("a message within the limit").fields[&1].len(), 100);
    }
}
