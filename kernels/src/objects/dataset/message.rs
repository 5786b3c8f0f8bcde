//! Protocol buffer messages that datasets and iterators encode and decode themselves: `Options`, and iterator handles
//! as strings.

use bytes::Bytes;
use checkpoint::proto::{Field, Fields, Writer, put_varint};
use device::{Error, Result};
use graph::ResourceHandle;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Returns the `deterministic` option of a serialised `Options` message. The inner value is `None` if the option is not
/// set, and the outer value is `None` if the message is malformed.
pub(crate) fn deterministic(options: &[u8]) -> Option<Option<bool>> {
    let mut found = None;
    for field in Fields::of(options) {
        if let (1, Field::Varint(value)) = field.ok()? {
            found = Some(value != 0);
        }
    }
    Some(found)
}

/// Returns the option of a serialized `Options` message that the pipeline is tuned; `None` if it is not set.
pub(crate) fn is_tuned(options: &[u8]) -> Option<bool> {
    let mut found = None;
    for field in Fields::of(options) {
        if let (7, Field::Bytes(group)) = field.ok()? {
            for field in Fields::of(group) {
                if let (1, Field::Varint(value)) = field.ok()? {
                    found = Some(value != 0);
                }
            }
        }
    }
    found
}

/// The fields of an `Options` message that are messages; their fields are numbers.
const OPTION_GROUPS: [u32; 5] = [2, 3, 5, 7, 12];

/// The field of an `Options` message that is a list.
const FRAMEWORKS: u32 = 11;

/// Returns the serialized `Options` message in which each field has the value of the last of `all` messages that sets
/// it.
///
/// # Errors
/// `InvalidArgument` if a message is malformed.
pub(crate) fn merged_options<'a>(all: impl IntoIterator<Item = &'a Bytes>) -> Result<Bytes> {
    let mut all = all.into_iter().filter(|options| !options.is_empty()).peekable();
    let Some(first) = all.next() else { return Ok(Bytes::new()) };
    if all.peek().is_none() {
        return Ok(first.clone());
    }
    let mut merged = MergedFields::default();
    for options in std::iter::once(first).chain(all) {
        merged.add(options, &OPTION_GROUPS).ok_or_else(malformed)?;
    }
    Ok(merged.write().into())
}

/// Returns the error for bytes that are no `Options` message.
fn malformed() -> Error {
    Error::invalid("serialized_options is not a serialized Options message")
}

/// The fields of merged messages, by number.
#[derive(Default)]
struct MergedFields {
    numbers: BTreeMap<u32, u64>,
    texts: BTreeMap<u32, Vec<Bytes>>,
    groups: BTreeMap<u32, MergedFields>,
}

impl MergedFields {
    /// Adds the fields of a message, in which the fields with the numbers `groups` are messages.
    fn add(&mut self, message: &[u8], groups: &[u32]) -> Option<()> {
        for field in Fields::of(message) {
            match field.ok()? {
                (number, Field::Bytes(bytes)) if groups.contains(&number) => {
                    self.groups.entry(number).or_default().add(bytes, &[])?;
                }
                (number, Field::Bytes(bytes)) => {
                    let texts = self.texts.entry(number).or_default();
                    if number != FRAMEWORKS {
                        texts.clear();
                    }
                    texts.push(Bytes::copy_from_slice(bytes));
                }
                (number, Field::Varint(value)) => {
                    self.numbers.insert(number, value);
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// Returns the message with the fields in the order of their numbers.
    fn write(&self) -> Vec<u8> {
        let mut fields: Vec<u32> = self.numbers.keys().chain(self.texts.keys()).copied().collect();
        fields.extend(self.groups.keys());
        fields.sort_unstable();
        fields.dedup();
        let mut out = Writer::new();
        for number in fields {
            if let Some(value) = self.numbers.get(&number) {
                out.raw(&tagged(number, *value));
            }
            for text in self.texts.get(&number).into_iter().flatten() {
                out.bytes(number, text);
            }
            if let Some(group) = self.groups.get(&number) {
                out.bytes(number, &group.write());
            }
        }
        out.finish()
    }
}

/// Returns the bytes of a field with a number, also if the number is 0.
fn tagged(field: u32, value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_varint(&mut bytes, u64::from(field) << 3);
    put_varint(&mut bytes, value);
    bytes
}

/// Returns the handle as a serialised `ResourceHandleProto`.
pub(crate) fn write_handle(handle: &ResourceHandle) -> Vec<u8> {
    let mut out = Writer::new();
    out.string(1, handle.device.as_bytes())
        .string(2, handle.container.as_bytes())
        .string(3, handle.name.as_bytes())
        .int(4, handle.hash_code as i64)
        .string(5, handle.type_name.as_bytes());
    out.finish()
}

/// Decodes a handle that [`write_handle`] encoded; returns `None` if the bytes are not an encoded handle.
pub(crate) fn read_handle(bytes: &[u8]) -> Option<ResourceHandle> {
    let mut handle = ResourceHandle {
        device: "".into(),
        container: "".into(),
        name: "".into(),
        hash_code: 0,
        type_name: "".into(),
        dtypes_and_shapes: Vec::new(),
    };
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(Arc::<str>::from);
    for field in Fields::of(bytes) {
        match field.ok()? {
            (1, Field::Bytes(bytes)) => handle.device = text(bytes)?,
            (2, Field::Bytes(bytes)) => handle.container = text(bytes)?,
            (3, Field::Bytes(bytes)) => handle.name = text(bytes)?,
            (4, Field::Varint(value)) => handle.hash_code = value,
            (5, Field::Bytes(bytes)) => handle.type_name = text(bytes)?,
            // Field 6 has the dtypes and shapes of the resource's values, which iterator handles do not have.
            (1..=6, _) => {}
            _ => return None,
        }
    }
    Some(handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_round_trip_and_malformed_bytes_are_rejected() {
        let handle = ResourceHandle {
            device: "/job:worker/replica:0/task:0/device:CPU:0".into(),
            container: "worker".into(),
            name: "iterator".into(),
            hash_code: u64::MAX,
            type_name: "Iterator".into(),
            dtypes_and_shapes: Vec::new(),
        };
        let bytes = write_handle(&handle);
        assert_eq!(read_handle(&bytes).as_ref(), Some(&handle));
        assert_eq!(read_handle(b"rubbish"), None);
        assert!((0..bytes.len()).all(|n| read_handle(&bytes[..n]).as_ref() != Some(&handle)));
    }

    #[test]
    fn the_deterministic_option_is_decoded() {
        assert_eq!(deterministic(&[]), Some(None));
        assert_eq!(deterministic(&[8, 0]), Some(Some(false)));
        assert_eq!(deterministic(&[0x3a, 1, 7, 8, 1]), Some(Some(true)));
        assert_eq!(deterministic(&[0x3a, 9, 7]), None);
    }

    /// The messages and the result are those of TensorFlow's `GetOptions`.
    #[test]
    fn the_last_options_count() -> Result<()> {
        let first = Bytes::from_static(b"\x08\x00\x12\x00\x1a\x00\x2a\x02\x10\x03\x3a\x00\x62\x00");
        let second = Bytes::from_static(b"\x08\x01\x12\x00\x1a\x00\x20\x01\x2a\x00\x3a\x00\x62\x00");
        let merged = b"\x08\x01\x12\x00\x1a\x00\x20\x01\x2a\x02\x10\x03\x3a\x00\x62\x00";
        assert_eq!(merged_options([&first, &Bytes::new(), &second])?, merged[..]);
        assert_eq!(merged_options([&first, &Bytes::new()])?, first);
        assert_eq!(merged_options([])?, Bytes::new());
        assert!(merged_options([&first, &Bytes::from_static(b"\x3a\x09\x07")]).is_err());
        Ok(())
    }
}
