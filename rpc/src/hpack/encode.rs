//! The encoder of header blocks. It puts only two fields, `content-type` and `grpc-status: 0`, into the
//! client's dynamic table, because other fields are not repeated in all answers.

/// Size of a client's dynamic table unless its settings change it, bytes.
const DEFAULT_TABLE_SIZE: u32 = 4096;
/// Indices of the fields `:status: 200` and `content-type` in the static table.
const STATUS_200: u8 = 8;
const CONTENT_TYPE: u8 = 31;
/// Index of the newest field of the dynamic table.
const NEWEST: u8 = 62;

const INDEXED: u8 = 0x80;
const LITERAL_WITH_INDEXING: u8 = 0x40;
const TABLE_SIZE: u8 = 0x20;

/// The encoder of a connection's header blocks, with the state of the client's dynamic table.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    /// Set when the client has announced a table smaller than the default: the dynamic table is not used from
    /// then on.
    is_table_unused: bool,
    /// Set until the client has been sent the reduction of its dynamic table's size to zero.
    has_pending_resize: bool,
    has_content_type: bool,
    has_ok: bool,
}

impl Encoder {
    /// Applies the limit for the dynamic table that the client's settings announce, bytes.
    pub(crate) fn set_table_size(&mut self, size: u32) {
        if size < DEFAULT_TABLE_SIZE && !self.is_table_unused {
            *self = Encoder { is_table_unused: true, has_pending_resize: true, ..Encoder::default() };
        }
    }

    /// Writes a pending change of the dynamic table's size. Must be called at the start of each header block.
    pub(crate) fn put_table_resize(&mut self, block: &mut Vec<u8>) {
        if std::mem::take(&mut self.has_pending_resize) {
            block.push(TABLE_SIZE);
        }
    }

    /// Writes the header fields of a successful gRPC answer.
    pub(crate) fn put_answer_fields(&mut self, block: &mut Vec<u8>) {
        block.push(INDEXED | STATUS_200);
        if self.has_content_type {
            block.push(INDEXED | if self.has_ok { NEWEST + 1 } else { NEWEST });
        } else if self.is_table_unused {
            put_field(b"content-type", super::GRPC, block);
        } else {
            block.push(LITERAL_WITH_INDEXING | CONTENT_TYPE);
            put_string(super::GRPC, block);
            self.has_content_type = true;
        }
    }

    /// Writes the trailer of a successful gRPC answer. Must be called after [`Encoder::put_answer_fields`].
    pub(crate) fn put_ok_trailers(&mut self, block: &mut Vec<u8>) {
        if self.has_ok {
            block.push(INDEXED | NEWEST);
        } else if self.has_content_type {
            block.push(LITERAL_WITH_INDEXING);
            put_string(b"grpc-status", block);
            put_string(b"0", block);
            self.has_ok = true;
        } else {
            put_field(b"grpc-status", b"0", block);
        }
    }
}

/// Writes the field `:status` of an answer, the HTTP status.
pub(crate) fn put_status(status: u16, block: &mut Vec<u8>) {
    match status {
        200 => block.push(0x88),
        _ => {
            // A literal whose name has index 8 in the static table.
            block.push(0x08);
            put_string(status.to_string().as_bytes(), block);
        }
    }
}

/// Writes a literal field that is not added to the dynamic table, with its name spelled out.
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
    fn fields_of_answers_are_sent_literally_once() {
        for table in [None, Some(4096), Some(100), Some(0)] {
            let (mut encoder, mut decoder) = (Encoder::default(), Decoder::new());
            for round in 0..4 {
                // The client may change the table size between any two answers.
                if let Some(size) = table
                    && round == 2
                {
                    encoder.set_table_size(size);
                }
                let mut block = Vec::new();
                encoder.put_table_resize(&mut block);
                encoder.put_answer_fields(&mut block);
                let head = decoder.decode(&block).map(|fields| text(&fields));
                assert_eq!(head.as_deref(), Ok(":status=200 content-type=application/grpc "), "{table:?}");
                let short = block.len() == 2;
                block.clear();
                encoder.put_table_resize(&mut block);
                encoder.put_ok_trailers(&mut block);
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
    fn encoded_fields_can_be_decoded() {
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
