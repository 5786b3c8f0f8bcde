//! NumPy's file format of one array: a header in Python syntax, then the bytes of the elements.

use crate::error::{Error, Result, invalid};
use bytes::Bytes;
use graph::{DType, Shape, Tensor};

const MAGIC: &[u8] = b"\x93NUMPY";

/// The dtypes that NumPy supports, with their little-endian type descriptions.
const TYPES: &[(&str, DType)] = &[
    ("<f4", DType::Float),
    ("<f8", DType::Double),
    ("<f2", DType::Half),
    ("|i1", DType::Int8),
    ("<i2", DType::Int16),
    ("<i4", DType::Int32),
    ("<i8", DType::Int64),
    ("|u1", DType::UInt8),
    ("<u2", DType::UInt16),
    ("<u4", DType::UInt32),
    ("<u8", DType::UInt64),
    ("|b1", DType::Bool),
    ("<c8", DType::Complex64),
    ("<c16", DType::Complex128),
];

/// Decodes the array in the bytes of an .npy file.
///
/// # Errors
/// `InvalidArgument` if the bytes are not an array; `Unimplemented` if the array has an unsupported type,
/// Fortran order or big-endian elements.
pub fn decode(bytes: &[u8]) -> Result<Tensor> {
    let malformed = || Error::invalid("is no .npy file");
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(malformed)?;
    let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(malformed)?;
    let (length, rest) = match version[0] {
        1 => {
            let (length, rest) = rest.split_first_chunk::<2>().ok_or_else(malformed)?;
            (u16::from_le_bytes(*length) as usize, rest)
        }
        2 | 3 => {
            let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(malformed)?;
            (u32::from_le_bytes(*length) as usize, rest)
        }
        other => return Err(Error::unimplemented(format!("an .npy file of version {other}"))),
    };
    let (header, data) = rest.split_at_checked(length).ok_or_else(malformed)?;
    let header = std::str::from_utf8(header).map_err(|_| malformed())?;
    if field(header, "fortran_order").is_none_or(|order| !order.starts_with("False")) {
        return Err(Error::unimplemented("an array in the order of Fortran"));
    }
    let described = field(header, "descr").and_then(|d| quoted(d)).ok_or_else(malformed)?;
    let dtype = TYPES.iter().find(|(name, _)| *name == described).map(|(_, dtype)| *dtype);
    let dtype = dtype.ok_or_else(|| Error::unimplemented(format!("an array of type '{described}'")))?;
    let shape =
        field(header, "shape").and_then(|s| s.strip_prefix('(')?.split_once(')')).ok_or_else(malformed)?.0;
    let sizes = shape.split(',').map(str::trim).filter(|d| !d.is_empty()).map(str::parse::<usize>);
    let shape = Shape::new(&sizes.collect::<Result<Vec<_>, _>>().map_err(|_| malformed())?)?;
    let needed = dtype.size().and_then(|size| shape.num_elements().checked_mul(size));
    if needed != Some(data.len()) {
        invalid!("has {} bytes of data, which make no {dtype} {shape}", data.len());
    }
    Ok(Tensor::from_bytes(dtype, shape, data)?)
}

/// Encodes a tensor as the bytes of an .npy file.
///
/// # Errors
/// `Unimplemented` for a type that NumPy does not have.
pub fn encode(tensor: &Tensor) -> Result<Bytes> {
    let described = TYPES.iter().find(|(_, dtype)| *dtype == tensor.dtype()).map(|(name, _)| *name);
    let described = described
        .ok_or_else(|| Error::unimplemented(format!("a tensor of {} in an .npy file", tensor.dtype())))?;
    let sizes: String = tensor.shape().iter().map(|d| format!("{d}, ")).collect();
    let mut header =
        format!("{{'descr': '{described}', 'fortran_order': False, 'shape': ({}), }}", sizes.trim_end());
    // The elements start at a multiple of 64 bytes in the file.
    let unpadded = MAGIC.len() + 4 + header.len() + 1;
    header.extend(std::iter::repeat_n(' ', unpadded.next_multiple_of(64) - unpadded));
    header.push('\n');
    let length = u16::try_from(header.len()).map_err(|_| Error::invalid("a shape of too many dimensions"))?;
    let data = tensor.bytes()?;
    let mut out = Vec::with_capacity(MAGIC.len() + 4 + header.len() + data.len());
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[1, 0]);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(data);
    Ok(out.into())
}

/// Returns the text after `'name':` in a header.
fn field<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    let key = format!("'{name}':");
    header.split_once(&key).map(|(_, value)| value.trim_start())
}

fn quoted(text: &str) -> Option<&str> {
    Some(text.strip_prefix('\'')?.split_once('\'')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_arrays_are_read_back() -> Result<()> {
        for dims in [&[][..], &[3], &[2, 3], &[0, 4]] {
            let shape = Shape::new(dims)?;
            let tensor = Tensor::full(1.5f32, shape)?;
            let bytes = encode(&tensor)?;
            assert_eq!((bytes.len() - tensor.num_bytes()) % 64, 0);
            assert_eq!(decode(&bytes)?, tensor);
        }
        Ok(())
    }

    #[test]
    fn malformed_files_are_refused() -> Result<()> {
        let good = encode(&Tensor::full(1.5f32, Shape::new(&[4])?)?)?;
        assert!(decode(b"rubbish").is_err());
        for cut in [1, 7, 9, 40, good.len() - 1] {
            assert!(decode(&good[..cut]).is_err(), "{cut}");
        }
        let text = String::from_utf8_lossy(&good[..80]).replace("(4,)", "(9,)");
        assert!(decode(text.as_bytes()).is_err());
        Ok(())
    }
}
