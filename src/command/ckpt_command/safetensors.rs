//! The safetensors format: the length of a JSON header (8 bytes, little-endian), the header, then the bytes
//! of the elements.

use super::Fallible;
use super::convert::Tensors;
use graph::{DType, Shape, Tensor};
use serde_json::{Map, Value, json};

const TYPES: &[(&str, DType)] = &[
    ("F64", DType::Double),
    ("F32", DType::Float),
    ("F16", DType::Half),
    ("BF16", DType::BFloat16),
    ("I64", DType::Int64),
    ("I32", DType::Int32),
    ("I16", DType::Int16),
    ("I8", DType::Int8),
    ("U64", DType::UInt64),
    ("U32", DType::UInt32),
    ("U16", DType::UInt16),
    ("U8", DType::UInt8),
    ("BOOL", DType::Bool),
];

pub(super) fn encode(tensors: &Tensors) -> Fallible<Vec<u8>> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, tensor) in tensors {
        let dtype = TYPES.iter().find(|(_, dtype)| *dtype == tensor.dtype()).map(|(text, _)| *text);
        let dtype = dtype.ok_or_else(|| format!("{name}: safetensors have no {}", tensor.dtype()))?;
        let start = data.len();
        data.extend_from_slice(tensor.bytes()?);
        let entry =
            json!({"dtype": dtype, "shape": tensor.shape().dims(), "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = (header.len() as u64).to_le_bytes();
    Ok([&length[..], &header, &data].concat())
}

pub(super) fn decode(bytes: &[u8]) -> Fallible<Tensors> {
    let malformed = || "is no safetensors file";
    let (length, rest) = bytes.split_first_chunk::<8>().ok_or_else(malformed)?;
    let length = usize::try_from(u64::from_le_bytes(*length))?;
    let (header, data) = rest.split_at_checked(length).ok_or_else(malformed)?;
    let header: Map<String, Value> = serde_json::from_slice(header)?;
    let mut tensors = Tensors::new();
    for (name, entry) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let wrong = || format!("{name}: malformed entry");
        let text = entry["dtype"].as_str().ok_or_else(wrong)?;
        let dtype = TYPES.iter().find(|(known, _)| *known == text).map(|(_, dtype)| *dtype);
        let dtype = dtype.ok_or_else(|| format!("{name}: type {text} is not there"))?;
        let numbers = |field: &str| {
            let all = entry[field].as_array()?.iter();
            all.map(|v| usize::try_from(v.as_u64()?).ok()).collect::<Option<Vec<usize>>>()
        };
        let shape = Shape::new(&numbers("shape").ok_or_else(wrong)?)?;
        let [start, end] = numbers("data_offsets").ok_or_else(wrong)?[..] else { return Err(wrong().into()) };
        let values = data.get(start..end).ok_or_else(wrong)?;
        tensors.push((name.clone(), Tensor::from_bytes(dtype, shape, values)?));
    }
    Ok(tensors)
}
