//! Tensors as `TensorProto` messages, with their elements as plain bytes or in the value field of their type.

use crate::error::{Error, Result};
use crate::proto::{Field, Fields, Malformed, Writer, put_varint, take_varint};
pub use crate::slice::{read_shape, write_shape};
use bytes::Bytes;
use graph::{DType, Shape, Tensor};

/// Encodes a tensor as a message; numeric elements are written as plain bytes.
///
/// # Errors
/// `Unimplemented` for resource handles and variants.
pub fn encode(tensor: &Tensor) -> Result<Vec<u8>> {
    let mut proto = Writer::new();
    proto.int(1, tensor.dtype().number().into());
    proto.message(2, |shape| write_shape(shape, tensor.shape()));
    match tensor.dtype() {
        DType::String => write_values(&mut proto, tensor)?,
        dtype if dtype.size().is_some() => {
            proto.string(4, tensor.bytes()?);
        }
        other => return Err(Error::unimplemented(format!("a tensor of {other} as a message"))),
    }
    Ok(proto.finish())
}

/// Encodes a tensor as messages like those of [`encode`], each with its part of the elements, and with the type and the
/// shape of the whole. A part has at most `limit` bytes of elements, or strings whose sizes add up to `limit`; a string is
/// never divided.
///
/// # Errors
/// `Unimplemented` for resource handles and variants.
pub fn encode_chunks(tensor: &Tensor, limit: usize) -> Result<Vec<Vec<u8>>> {
    /// The bytes before a string: a tag and a length.
    const FRAMING: usize = 6;
    let mut header = Writer::new();
    header.int(1, tensor.dtype().number().into());
    header.message(2, |shape| write_shape(shape, tensor.shape()));
    if tensor.dtype().size().is_some() {
        let mut chunks: Vec<Vec<u8>> = Vec::new();
        for part in tensor.bytes()?.chunks(limit.max(1)) {
            let mut proto = header.clone();
            proto.string(4, part);
            chunks.push(proto.finish());
        }
        return Ok(if chunks.is_empty() { vec![header.finish()] } else { chunks });
    }
    if tensor.dtype() != DType::String {
        return Err(Error::unimplemented(format!("a tensor of {} as a message", tensor.dtype())));
    }
    let mut chunks = vec![(header.clone(), 0)];
    for string in tensor.as_strings()? {
        if chunks.last().is_some_and(|(_, size)| *size > 0 && size + string.len() + FRAMING > limit) {
            chunks.push((header.clone(), 0));
        }
        if let Some((proto, size)) = chunks.last_mut() {
            proto.bytes(8, string);
            *size += string.len() + FRAMING;
        }
    }
    Ok(chunks.into_iter().map(|(proto, _)| proto.finish()).collect())
}

/// Encodes a tensor as a message like [`encode`], but with strings in the field for plain bytes: the length of each,
/// then their bytes.
///
/// # Errors
/// `Unimplemented` for resource handles and variants.
pub fn encode_content(tensor: &Tensor) -> Result<Vec<u8>> {
    if tensor.dtype() != DType::String {
        return encode(tensor);
    }
    let strings = tensor.as_strings()?;
    let mut content = Vec::new();
    strings.iter().for_each(|string| put_varint(&mut content, string.len() as u64));
    strings.iter().for_each(|string| content.extend_from_slice(string));
    let mut proto = Writer::new();
    proto.int(1, tensor.dtype().number().into());
    proto.message(2, |shape| write_shape(shape, tensor.shape()));
    proto.string(4, &content);
    Ok(proto.finish())
}

/// Decodes strings whose lengths precede their bytes.
fn strings_of(mut content: &[u8], shape: Shape) -> Result<Tensor, Malformed> {
    let mut lengths = Vec::new();
    for _ in 0..shape.num_elements() {
        let length = take_varint(&mut content).and_then(|length| usize::try_from(length).ok());
        lengths.push(length.ok_or(Malformed)?);
    }
    let mut strings = Vec::with_capacity(lengths.len());
    for length in lengths {
        let (string, rest) = content.split_at_checked(length).ok_or(Malformed)?;
        strings.push(Bytes::copy_from_slice(string));
        content = rest;
    }
    if !content.is_empty() {
        return Err(Malformed);
    }
    Tensor::strings(strings, shape).map_err(|_| Malformed)
}

/// Decodes the tensor of a message. If there are fewer values than elements, the last value is repeated.
pub fn decode(bytes: &[u8]) -> Result<Tensor, Malformed> {
    let (mut dtype, mut shape, mut content) = (0, Shape::scalar(), &b""[..]);
    for field in Fields::of(bytes) {
        match field? {
            (1, value) => dtype = value.int()?,
            (2, value) => shape = read_shape(value.fields()?)?,
            (4, value) => content = value.bytes()?,
            _ => {}
        }
    }
    let dtype = i32::try_from(dtype).ok().and_then(DType::from_number).ok_or(Malformed)?;
    if !content.is_empty() && dtype == DType::String {
        return strings_of(content, shape);
    }
    if !content.is_empty() {
        return Tensor::from_bytes(dtype, shape, content).map_err(|_| Malformed);
    }
    let values = Values::read(bytes, dtype)?;
    values.filled(dtype, shape)
}

/// Returns the number of the field that holds elements of a type, or `None` if there is no such field.
fn field_of(dtype: DType) -> Option<u32> {
    use DType::*;
    Some(match dtype {
        Float => 5,
        Double => 6,
        Int32 | Int16 | Int8 | UInt8 | UInt16 | QInt8 | QUInt8 | QInt32 | QInt16 | QUInt16 | Int4 | UInt4
        | Int2 | UInt2 => 7,
        String => 8,
        Complex64 => 9,
        Int64 => 10,
        Bool => 11,
        Complex128 => 12,
        Half | BFloat16 => 13,
        UInt32 => 16,
        UInt64 => 17,
        Float8E5M2 | Float8E4M3FN | Float8E4M3FNUZ | Float8E4M3B11FNUZ | Float8E5M2FNUZ => 18,
        _ => return None,
    })
}

/// Writes a tensor's elements into the field of their type.
pub(crate) fn write_values(proto: &mut Writer, tensor: &Tensor) -> graph::Result<()> {
    let Some(field) = field_of(tensor.dtype()) else { return Ok(()) };
    if tensor.dtype() == DType::String {
        for string in tensor.as_strings()? {
            proto.bytes(field, string);
        }
        return Ok(());
    }
    let bytes = tensor.bytes()?;
    match field {
        5 | 6 | 9 | 12 | 18 => {
            proto.string(field, bytes);
        }
        _ => {
            let size = tensor.dtype().size().unwrap_or(1);
            proto
                .packed_ints(field, bytes.chunks_exact(size).map(|element| widened(tensor.dtype(), element)));
        }
    }
    Ok(())
}

/// Extends a little-endian integer of this type to 64 bits, by its sign if the type is signed.
fn widened(dtype: DType, element: &[u8]) -> i64 {
    use DType::*;
    let is_signed = matches!(dtype, Int32 | Int16 | Int8 | QInt8 | QInt32 | QInt16 | Int64 | Int4 | Int2);
    let is_negative = is_signed && element.last().is_some_and(|&b| b >= 0x80);
    let mut bytes = [if is_negative { 0xff } else { 0 }; 8];
    for (to, from) in bytes.iter_mut().zip(element) {
        *to = *from;
    }
    i64::from_le_bytes(bytes)
}

/// Decodes a tensor from the value field of its type, which must list every element.
///
/// # Errors
/// `Malformed` if the number of values does not match the shape, or the values are of another type.
pub(crate) fn read_values(proto: &[u8], dtype: DType, shape: Shape) -> Result<Tensor, Malformed> {
    let values = Values::read(proto, dtype)?;
    let tensor = match dtype {
        DType::String => Tensor::strings(values.strings, shape),
        _ => Tensor::from_bytes(dtype, shape, &values.bytes),
    };
    tensor.map_err(|_| Malformed)
}

/// The values read from the field that holds elements of the tensor's type.
#[derive(Default)]
struct Values {
    strings: Vec<Bytes>,
    bytes: Vec<u8>,
}

impl Values {
    fn read(proto: &[u8], dtype: DType) -> Result<Values, Malformed> {
        let wanted = field_of(dtype).ok_or(Malformed)?;
        let size = dtype.size().unwrap_or(0);
        let Values { mut strings, mut bytes } = Values::default();
        for field in Fields::of(proto) {
            let (number, field) = field?;
            if number != wanted {
                continue;
            }
            match (wanted, field) {
                (8, _) => strings.push(Bytes::copy_from_slice(field.bytes()?)),
                (5 | 9, Field::Fixed32(bits)) => bytes.extend_from_slice(&bits.to_le_bytes()),
                (6 | 12, Field::Fixed64(bits)) => bytes.extend_from_slice(&bits.to_le_bytes()),
                (5 | 6 | 9 | 12 | 18, _) => bytes.extend_from_slice(field.bytes()?),
                _ => field.ints(|value| {
                    let value = if dtype == DType::Bool { i64::from(value != 0) } else { value };
                    bytes.extend_from_slice(&value.to_le_bytes()[..size]);
                })?,
            }
        }
        Ok(Values { strings, bytes })
    }

    /// Builds a tensor from the values. Missing elements repeat the last value, or are zero if there are no
    /// values.
    fn filled(mut self, dtype: DType, shape: Shape) -> Result<Tensor, Malformed> {
        let mut tensor = Tensor::zeros(dtype, shape.clone()).map_err(|_| Malformed)?;
        let count = shape.num_elements();
        if dtype == DType::String {
            let last = self.strings.last().cloned().unwrap_or_default();
            self.strings.resize(count, last);
            return Tensor::strings(self.strings, shape).map_err(|_| Malformed);
        }
        let size = dtype.size().ok_or(Malformed)?;
        if !self.bytes.len().is_multiple_of(size) {
            return Err(Malformed);
        }
        let out = tensor.bytes_mut().map_err(|_| Malformed)?;
        if let Some(last) = self.bytes.chunks_exact(size).last() {
            let given = self.bytes.len().min(out.len());
            out[..given].copy_from_slice(&self.bytes[..given]);
            out[given..].chunks_exact_mut(size).for_each(|element| element.copy_from_slice(last));
        }
        Ok(tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_identical_to_tensorflows() -> Result<()> {
        let floats = Tensor::try_from([1f32, 2.0])?;
        let expected = b"\x08\x01\x12\x04\x12\x02\x08\x02\"\x08\x00\x00\x80?\x00\x00\x00@";
        assert_eq!(encode(&floats)?, expected);
        assert_eq!(decode(expected).ok(), Some(floats));
        let strings = Tensor::strings(vec!["a".into(), "".into()], Shape::new(&[2])?)?;
        assert_eq!(encode(&strings)?, b"\x08\x07\x12\x04\x12\x02\x08\x02B\x01aB\x00");
        assert_eq!(decode(&encode(&strings)?).ok(), Some(strings.clone()));
        let content = b"\x08\x07\x12\x04\x12\x02\x08\x02\"\x03\x01\x00a";
        assert_eq!(encode_content(&strings)?, content);
        assert_eq!(decode(content).ok(), Some(strings));
        assert_eq!(decode(&content[..content.len() - 1]), Err(Malformed));
        let empty = Tensor::zeros(DType::Int32, Shape::new(&[0, 3])?)?;
        assert_eq!(encode(&empty)?, b"\x08\x03\x12\x06\x12\x00\x12\x02\x08\x03");
        assert_eq!(decode(&encode(&empty)?).ok(), Some(empty));
        Ok(())
    }

    #[test]
    fn values_of_every_type_are_read_and_the_last_is_repeated() -> Result<()> {
        for &dtype in DType::ALL.iter().filter(|&&d| field_of(d).is_some() && d.size().is_some()) {
            let mut tensor = Tensor::zeros(dtype, Shape::new(&[3])?)?;
            let size = dtype.size().unwrap_or(1);
            tensor.bytes_mut()?[size..].fill(1);
            let mut proto = Writer::new();
            proto.int(1, dtype.number().into()).message(2, |s| write_shape(s, tensor.shape()));
            write_values(&mut proto, &tensor)?;
            assert_eq!(decode(&proto.finish()).ok(), Some(tensor), "{dtype}");
        }
        let mut proto = Writer::new();
        proto.int(1, 3).packed_ints(7, [5, 6]);
        let mut shape = Writer::new();
        write_shape(&mut shape, &Shape::new(&[4])?);
        proto.bytes(2, &shape.finish());
        assert_eq!(decode(&proto.finish()).ok(), Some(Tensor::try_from([5, 6, 6, 6])?));
        for bad in [&b"junk"[..], b"", b"\x08\x01\x12\x04\x12\x02\x08\x02\"\x01\x00"] {
            assert_eq!(decode(bad), Err(Malformed));
        }
        Ok(())
    }
}
