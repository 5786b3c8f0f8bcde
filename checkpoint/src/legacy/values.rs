//! Elements of tensors as the value fields of a `TensorProto`.

use crate::proto::{Field, Fields, Malformed, Writer};
use bytes::Bytes;
use graph::{DType, Shape, Tensor};

/// The field that holds elements of a type; `None` if the format has none for it.
pub(super) fn field_of(dtype: DType) -> Option<u32> {
    use DType::*;
    Some(match dtype {
        Float => 5,
        Double => 6,
        Int32 | Int16 | Int8 | UInt8 | UInt16 | QInt8 | QUInt8 | QInt32 | QInt16 | QUInt16 => 7,
        String => 8,
        Complex64 => 9,
        Int64 => 10,
        Bool => 11,
        Complex128 => 12,
        Half => 13,
        _ => return None,
    })
}

/// Writes a tensor's elements.
pub(super) fn write(proto: &mut Writer, tensor: &Tensor) -> graph::Result<()> {
    let Some(field) = field_of(tensor.dtype()) else { return Ok(()) };
    if tensor.dtype() == DType::String {
        for string in tensor.as_strings()? {
            proto.bytes(field, string);
        }
        return Ok(());
    }
    let bytes = tensor.bytes()?;
    match field {
        5 | 6 | 9 | 12 => {
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

/// A little-endian integer of this type.
fn widened(dtype: DType, element: &[u8]) -> i64 {
    use DType::*;
    let is_signed = matches!(dtype, Int32 | Int16 | Int8 | QInt8 | QInt32 | QInt16 | Int64);
    let is_negative = is_signed && element.last().is_some_and(|&b| b >= 0x80);
    let mut bytes = [if is_negative { 0xff } else { 0 }; 8];
    for (to, from) in bytes.iter_mut().zip(element) {
        *to = *from;
    }
    i64::from_le_bytes(bytes)
}

/// Reads a tensor's elements from a `TensorProto`.
///
/// # Errors
/// `Malformed` if they are not as many as the shape wants, or of another type.
pub(super) fn read(proto: &[u8], dtype: DType, shape: Shape) -> Result<Tensor, Malformed> {
    let wanted = field_of(dtype).ok_or(Malformed)?;
    let count = shape.num_elements();
    let mut strings = Vec::new();
    let mut bytes = Vec::new();
    let size = dtype.size().unwrap_or(0);
    for field in Fields::of(proto) {
        let (number, field) = field?;
        if number != wanted {
            continue;
        }
        match (dtype, field) {
            (DType::String, _) => strings.push(Bytes::copy_from_slice(field.bytes()?)),
            (DType::Float | DType::Complex64, Field::Fixed32(bits)) => {
                bytes.extend_from_slice(&bits.to_le_bytes())
            }
            (DType::Double | DType::Complex128, Field::Fixed64(bits)) => {
                bytes.extend_from_slice(&bits.to_le_bytes())
            }
            (DType::Float | DType::Complex64 | DType::Double | DType::Complex128, _) => {
                bytes.extend_from_slice(field.bytes()?);
            }
            _ => field.ints(|value| bytes.extend_from_slice(&value.to_le_bytes()[..size]))?,
        }
    }
    let tensor = match dtype {
        DType::String if strings.len() == count => Tensor::strings(strings, shape),
        DType::String => return Err(Malformed),
        _ => Tensor::from_bytes(dtype, shape, &bytes),
    };
    tensor.map_err(|_| Malformed)
}
