//! Messages as values: read from the wire format or from text, and written in the order of the field numbers, as protocol
//! buffers' own library does.

use super::descriptor::{EnumType, Field, Kind, MAX_DEPTH, MessageType, Pool, WireType};
use super::wire::{Reader, put_bytes, put_numbers, put_tag};
use checkpoint::proto::Malformed;
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
    pub(super) fields: BTreeMap<u32, Vec<Value>>,
    unknown: Vec<u8>,
}

type Result<T> = std::result::Result<T, Malformed>;

impl Message {
    /// Reads an encoded message.
    pub(super) fn read(pool: &Pool, of: &MessageType, bytes: &[u8]) -> Result<Message> {
        let mut message = Message::default();
        message.merge(pool, of, bytes, 0)?;
        Ok(message)
    }

    /// Adds the fields of an encoded message: values of singular fields are replaced, messages are merged.
    fn merge(&mut self, pool: &Pool, of: &MessageType, bytes: &[u8], depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Malformed);
        }
        let mut reader = Reader(bytes);
        loop {
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
                        self.add_number(pool, field, value);
                    }
                }
                Some(field) if field.kind.wire_type() != wire_type => {
                    reader.skip(number, wire_type)?;
                    self.unknown.extend_from_slice(&start.0[..start.0.len() - reader.0.len()]);
                }
                Some(field) if field.kind.is_number() => {
                    let value = reader.number(field.kind)?;
                    self.add_number(pool, field, value);
                }
                Some(field) => {
                    let bytes = match field.kind {
                        Kind::Group => reader.group(number)?,
                        _ => reader.bytes()?,
                    };
                    if matches!(field.kind, Kind::Message | Kind::Group) {
                        let part = self.message(of, field);
                        part.merge(pool, &pool.messages[field.of], bytes, depth + 1)?;
                    } else if field.kind == Kind::String
                        && field.must_be_utf8
                        && std::str::from_utf8(bytes).is_err()
                    {
                        return Err(Malformed);
                    } else {
                        self.add(of, field, Value::Bytes(bytes.to_vec()));
                    }
                }
                None => {
                    reader.skip(number, wire_type)?;
                    self.unknown.extend_from_slice(&start.0[..start.0.len() - reader.0.len()]);
                }
            }
            if let Some(field) = field {
                self.clear_others(of, field);
            }
        }
    }

    /// Adds a number; a number that a closed enum lacks becomes an unknown field.
    fn add_number(&mut self, pool: &Pool, field: &Field, bits: u64) {
        if field.kind == Kind::Enum && is_unknown(&pool.enums[field.of], bits) {
            put_numbers(&mut self.unknown, field.number, field.kind, false, std::iter::once(bits));
        } else {
            self.put(field, Value::Number(bits));
        }
    }

    fn put(&mut self, field: &Field, value: Value) {
        let values = self.fields.entry(field.number).or_default();
        if !field.is_repeated {
            values.clear();
        }
        values.push(value);
    }

    /// Removes the other members of a field's oneof.
    fn clear_others(&mut self, of: &MessageType, field: &Field) {
        if field.oneof.is_some() && self.fields.contains_key(&field.number) {
            let others =
                of.fields.iter().filter(|other| other.oneof == field.oneof && other.number != field.number);
            for other in others {
                self.fields.remove(&other.number);
            }
        }
    }

    /// Adds a value to a repeated field, or replaces the value of a singular one and of the other members of its oneof.
    pub(super) fn add(&mut self, of: &MessageType, field: &Field, value: Value) {
        self.put(field, value);
        self.clear_others(of, field);
    }

    /// Returns the message of a singular field, created if there is none, or a new element of a repeated field.
    pub(super) fn message(&mut self, of: &MessageType, field: &Field) -> &mut Message {
        let has_one =
            !field.is_repeated && self.fields.get(&field.number).is_some_and(|values| !values.is_empty());
        if !has_one {
            self.add(of, field, Value::Message(Message::default()));
        }
        let values = self.fields.entry(field.number).or_default();
        if !matches!(values.last(), Some(Value::Message(_))) {
            values.push(Value::Message(Message::default()));
        }
        match values.last_mut() {
            Some(Value::Message(message)) => message,
            _ => unreachable!("a message was added"),
        }
    }

    /// Returns whether a singular field has a value.
    pub(super) fn has(&self, number: u32) -> bool {
        self.fields.get(&number).is_some_and(|values| !values.is_empty())
    }

    /// Returns whether all required fields have values, also in the messages inside.
    pub(super) fn is_complete(&self, pool: &Pool, of: &MessageType) -> bool {
        of.fields.iter().all(|field| !field.is_required || field.is_extension || self.has(field.number))
            && self.fields.iter().all(|(number, values)| {
                values.iter().all(|value| match (value, of.field(*number)) {
                    (Value::Message(part), Some(field)) => part.is_complete(pool, &pool.messages[field.of]),
                    _ => true,
                })
            })
    }

    /// Appends the encoded message.
    pub(super) fn write(&self, pool: &Pool, of: &MessageType, out: &mut Vec<u8>) {
        for field in &of.fields {
            let none = Vec::new();
            let values = self.fields.get(&field.number).unwrap_or(&none);
            if field.kind.is_number() {
                let is_written =
                    |bits: &u64| field.is_repeated || field.has_presence || of.is_map_entry || *bits != 0;
                let numbers = values.iter().filter_map(|value| match value {
                    Value::Number(bits) => Some(*bits),
                    _ => None,
                });
                let mut numbers: Vec<u64> = numbers.filter(is_written).collect();
                if numbers.is_empty() && of.is_map_entry {
                    numbers.push(0);
                }
                if !numbers.is_empty() {
                    put_numbers(out, field.number, field.kind, field.is_packed, numbers.into_iter());
                }
                continue;
            }
            if values.is_empty() && of.is_map_entry {
                put_tag(out, field.number, WireType::Delimited);
                put_bytes(out, &[]);
            }
            for value in values {
                match value {
                    Value::Number(_) => {}
                    Value::Bytes(bytes) => {
                        if !bytes.is_empty() || field.is_repeated || field.has_presence || of.is_map_entry {
                            put_tag(out, field.number, WireType::Delimited);
                            put_bytes(out, bytes);
                        }
                    }
                    Value::Message(part) if field.kind == Kind::Group => {
                        put_tag(out, field.number, WireType::StartGroup);
                        part.write(pool, &pool.messages[field.of], out);
                        put_tag(out, field.number, WireType::EndGroup);
                    }
                    Value::Message(part) => {
                        let mut bytes = Vec::new();
                        part.write(pool, &pool.messages[field.of], &mut bytes);
                        put_tag(out, field.number, WireType::Delimited);
                        put_bytes(out, &bytes);
                    }
                }
            }
        }
        out.extend_from_slice(&self.unknown);
    }
}

fn is_unknown(of: &EnumType, bits: u64) -> bool {
    of.is_closed && !of.values.iter().any(|(_, number)| i64::from(*number) as u64 == bits)
}
