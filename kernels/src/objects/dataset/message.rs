//! Protocol buffer messages that datasets and iterators encode and decode themselves: `Options`, and iterator handles
//! as strings.

use checkpoint::proto::{Field, Fields, Writer};
use graph::ResourceHandle;
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
}
