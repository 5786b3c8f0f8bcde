//! Fields as header blocks. What every answer has is kept in the client's table once it was spelled out; nothing else
//! is, since nothing else comes again.

/// The table that a client has unless it says otherwise, bytes.
const FIRST_TABLE: u32 = 4096;
/// Indices of the static table.
const STATUS_200: u8 = 8;
const CONTENT_TYPE: u8 = 31;
/// The last field that was kept, and the one before.
const NEWEST: u8 = 62;

const INDEXED: u8 = 0x80;
const KEPT: u8 = 0x40;
const TABLE_SIZE: u8 = 0x20;

/// What a client's table holds.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    /// The client has a table that is too small for us, or had: it is not used.
    is_without: bool,
    /// The client is to be told so.
    is_untold: bool,
    has_content_type: bool,
    has_ok: bool,
}

impl Encoder {
    /// The client says how large its table may be.
    pub(crate) fn set_table_size(&mut self, size: u32) {
        if size < FIRST_TABLE && !self.is_without {
            *self = Encoder { is_without: true, is_untold: true, ..Encoder::default() };
        }
    }

    /// To be called before each block.
    pub(crate) fn begin(&mut self, block: &mut Vec<u8>) {
        if std::mem::take(&mut self.is_untold) {
            block.push(TABLE_SIZE);
        }
    }

    /// What stands before an answer of gRPC.
    pub(crate) fn put_head(&mut self, block: &mut Vec<u8>) {
        block.push(INDEXED | STATUS_200);
        if self.has_content_type {
            block.push(INDEXED | if self.has_ok { NEWEST + 1 } else { NEWEST });
        } else if self.is_without {
            put_field(b"content-type", super::GRPC, block);
        } else {
            block.push(KEPT | CONTENT_TYPE);
            put_string(super::GRPC, block);
            self.has_content_type = true;
        }
    }

    /// What stands behind an answer that is none of failure. To be called after [`Encoder::put_head`].
    pub(crate) fn put_ok(&mut self, block: &mut Vec<u8>) {
        if self.has_ok {
            block.push(INDEXED | NEWEST);
        } else if self.has_content_type {
            block.push(KEPT);
            put_string(b"grpc-status", block);
            put_string(b"0", block);
            self.has_ok = true;
        } else {
            put_field(b"grpc-status", b"0", block);
        }
    }
}

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

    fn text(fields: &[super::super::Field]) -> String {
        let line = |f: &super::super::Field| {
            format!("{}={} ", String::from_utf8_lossy(&f.name), String::from_utf8_lossy(&f.value))
        };
        fields.iter().map(line).collect()
    }

    #[test]
    fn answers_are_spelled_out_once() {
        for table in [None, Some(4096), Some(100), Some(0)] {
            let (mut encoder, mut decoder) = (Encoder::default(), Decoder::new());
            for round in 0..4 {
                // It may come between any two answers.
                if let Some(size) = table
                    && round == 2
                {
                    encoder.set_table_size(size);
                }
                let mut block = Vec::new();
                encoder.begin(&mut block);
                encoder.put_head(&mut block);
                let head = decoder.decode(&block).map(|fields| text(&fields));
                assert_eq!(head.as_deref(), Ok(":status=200 content-type=application/grpc "), "{table:?}");
                let short = block.len() == 2;
                block.clear();
                encoder.begin(&mut block);
                encoder.put_ok(&mut block);
                assert_eq!(
                    decoder.decode(&block).map(|fields| text(&fields)).as_deref(),
                    Ok("grpc-status=0 ")
                );
                let expected = round > 0 && !(round > 1 && table.is_some_and(|size| size < 4096));
                assert_eq!((short, block.len() == 1), (expected, expected), "{table:?}, {round}");
            }
        }
    }

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
