//! The few messages of the wire that datasets and iterators read and write themselves, in the protocol-buffer
//! encoding: options, and handles of iterators as strings.

use graph::ResourceHandle;
use std::sync::Arc;

/// A field: its number and its value.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Takes the first field of a message; `None` if it is no message.
fn take<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Field<'a>)> {
    let tag = varint(bytes)?;
    let field = match tag & 7 {
        0 => Field::Number(varint(bytes)?),
        1 => Field::Number(u64::from_le_bytes(split(bytes, 8)?.try_into().ok()?)),
        2 => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            Field::Bytes(split(bytes, length)?)
        }
        5 => Field::Number(u32::from_le_bytes(split(bytes, 4)?.try_into().ok()?).into()),
        _ => return None,
    };
    Some((tag >> 3, field)).filter(|(number, _)| *number > 0)
}

fn split<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_varint(out, number << 3 | 2);
        put_varint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    }
}

/// What a serialised `Options` says of order; the outer `None` if it cannot be read.
pub(crate) fn deterministic(mut options: &[u8]) -> Option<Option<bool>> {
    let mut found = None;
    while !options.is_empty() {
        if let (1, Field::Number(value)) = take(&mut options)? {
            found = Some(value != 0);
        }
    }
    Some(found)
}

/// A handle as a serialised `ResourceHandleProto`.
pub(crate) fn write_handle(handle: &ResourceHandle) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, 1, handle.device.as_bytes());
    put_bytes(&mut out, 2, handle.container.as_bytes());
    put_bytes(&mut out, 3, handle.name.as_bytes());
    if handle.hash_code != 0 {
        put_varint(&mut out, 4 << 3);
        put_varint(&mut out, handle.hash_code);
    }
    put_bytes(&mut out, 5, handle.type_name.as_bytes());
    out
}

/// Reads what [`write_handle`] writes; `None` if it is something else.
pub(crate) fn read_handle(mut bytes: &[u8]) -> Option<ResourceHandle> {
    let mut handle = ResourceHandle {
        device: "".into(),
        container: "".into(),
        name: "".into(),
        hash_code: 0,
        type_name: "".into(),
        dtypes_and_shapes: Vec::new(),
    };
    while !bytes.is_empty() {
        let (number, field) = take(&mut bytes)?;
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(Arc::<str>::from);
        match (number, field) {
            (1, Field::Bytes(bytes)) => handle.device = text(bytes)?,
            (2, Field::Bytes(bytes)) => handle.container = text(bytes)?,
            (3, Field::Bytes(bytes)) => handle.name = text(bytes)?,
            (4, Field::Number(value)) => handle.hash_code = value,
            (5, Field::Bytes(bytes)) => handle.type_name = text(bytes)?,
            // What is known of values: handles of iterators have none.
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
    fn handles_are_read_as_they_were_written_and_rubbish_is_none() {
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
    fn order_is_what_the_options_say() {
        assert_eq!(deterministic(&[]), Some(None));
        assert_eq!(deterministic(&[8, 0]), Some(Some(false)));
        assert_eq!(deterministic(&[0x3a, 1, 7, 8, 1]), Some(Some(true)));
        assert_eq!(deterministic(&[0x3a, 9, 7]), None);
    }
}
