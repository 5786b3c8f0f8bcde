//! Escaping of bytes for messages.

/// Returns the bytes as printable ASCII with the escapes of a C string literal.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &b in bytes {
        match b {
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            b'"' => out.push_str("\\\""),
            b'\'' => out.push_str("\\'"),
            b'\\' => out.push_str("\\\\"),
            0x20..=0x7e => out.push(b.into()),
            _ => out.push_str(&format!("\\{b:03o}")),
        }
    }
    out
}
