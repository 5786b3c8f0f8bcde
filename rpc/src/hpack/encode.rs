//! Fields as a header block that no later one refers to: answers are short, and so need no table at the other end.

/// `:status` of an answer.
pub(crate) fn put_status(status: u16, block: &mut Vec<u8>) {
    match status {
        200 => block.push(0x88),
        _ => {
            // A literal whose name has the number 8 of the static table.
            block.push(0x08);
            put_string(status.to_string().as_bytes(), block);
        }
    }
}

/// A literal that is not to be kept, name spelled out.
pub(crate) fn put_field(name: &[u8], value: &[u8], block: &mut Vec<u8>) {
    block.push(0);
    put_string(name, block);
    put_string(value, block);
}

fn put_string(string: &[u8], block: &mut Vec<u8>) {
    const MASK: usize = 0x7f;
    match string.len() {
        short if short < MASK => block.push(short as u8),
        long => {
            block.push(MASK as u8);
            let mut left = long - MASK;
            while left > MASK {
                block.push((left & MASK) as u8 | 0x80);
                left >>= 7;
            }
            block.push(left as u8);
        }
    }
    block.extend_from_slice(string);
}

#[cfg(test)]
mod tests {
    use super::super::Decoder;
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for len in [0, 1, 126, 127, 128, 254, 255, 300, 20_000] {
            let mut block = Vec::new();
            put_status(if len == 0 { 200 } else { 415 }, &mut block);
            put_field(b"grpc-status", &vec![b'x'; len], &mut block);
            let fields = Decoder::new().decode(&block).unwrap_or_default();
            let status: &[u8] = if len == 0 { b"200" } else { b"415" };
            assert!(fields.len() == 2 && fields[0].value == status, "{len}: {fields:?}");
            assert!(&fields[1].name[..] == b"grpc-status" && fields[1].value == vec![b'x'; len], "{len}");
        }
    }
}
