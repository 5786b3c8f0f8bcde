//! Conversions of tensors. The elements in a message are either bytes in `tensor_content` or, as clients write them, a
//! typed list such as `float_val`, whose last element is repeated up to the end of the tensor.

use super::Budget;
use super::attr::dtype_from_proto;
use super::shape::{partial_shape_from_proto, partial_shape_to_proto, shape_from_proto, shape_to_proto};
use super::variant::{variant_from_proto, variant_to_proto};
use crate::pb::{self, resource_handle_proto::DtypeAndShape};
use bytes::Bytes;
use graph::{Buffer, DType, Error, ResourceHandle, Result, Shape, Tensor, Variant};
use prost::Message;
use prost::encoding::{decode_varint, encode_varint, encoded_len_varint};
use std::sync::Arc;

/// Contents up to this size in bytes are copied, because a shared buffer prevents in-place writes to the
/// tensor.
const MAX_COPIED: usize = 256;

/// A buffer that owns the bytes of a message.
struct Shared(Arc<Buffer>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// Converts a tensor with its elements in `tensor_content`, which shares the buffer of large numeric tensors.
pub fn tensor_to_proto(tensor: &Tensor) -> pb::TensorProto {
    let mut proto = pb::TensorProto {
        dtype: tensor.dtype().number(),
        tensor_shape: Some(shape_to_proto(tensor.shape())),
        ..Default::default()
    };
    if let Ok(bytes) = tensor.bytes() {
        let is_shared = bytes.len() > MAX_COPIED;
        proto.tensor_content = match is_shared.then(|| tensor.buffer()).flatten() {
            Some(buffer) => Bytes::from_owner(Shared(buffer)),
            None => Bytes::copy_from_slice(bytes),
        };
    } else if let Ok(strings) = tensor.as_strings() {
        proto.tensor_content = encode_strings(strings);
    } else if let Ok(handles) = tensor.as_resources() {
        proto.resource_handle_val = handles.iter().map(resource_to_proto).collect();
    } else if let Ok(variants) = tensor.as_variants() {
        proto.variant_val = variants.iter().map(variant_to_proto).collect();
    }
    proto
}

/// Converts the message of a tensor within the default [`Budget`].
///
/// # Errors
/// The errors of [`tensor_from_proto_within`].
pub fn tensor_from_proto(proto: pb::TensorProto) -> Result<Tensor> {
    tensor_from_proto_within(proto, &mut Budget::default())
}

/// Converts the message of a tensor within a budget.
///
/// # Errors
/// `InvalidArgument` if type, shape or contents are malformed or contradict each other; `ResourceExhausted`
/// if the value exceeds the budget or the memory; `Unimplemented` for variants other than lists and
/// optionals.
pub fn tensor_from_proto_within(proto: pb::TensorProto, budget: &mut Budget) -> Result<Tensor> {
    let dtype = dtype_from_proto(proto.dtype)?;
    let shape = match &proto.tensor_shape {
        Some(shape) => shape_from_proto(shape)?,
        None => Shape::scalar(),
    };
    match dtype {
        DType::String => strings(proto, shape, budget),
        DType::Resource => resources(proto, shape, budget),
        DType::Variant => variants(proto, shape, budget),
        _ => plain(dtype, proto, shape, budget),
    }
}

/// Converts a tensor to a message with its name.
pub fn named_tensor_to_proto(name: &str, tensor: &Tensor) -> pb::NamedTensorProto {
    pb::NamedTensorProto { name: name.to_owned(), tensor: Some(tensor_to_proto(tensor)) }
}

/// Converts the message of a named tensor.
///
/// # Errors
/// The errors of the tensor, prefixed by its name; `InvalidArgument` if the message has no tensor.
pub fn named_tensor_from_proto(proto: pb::NamedTensorProto, budget: &mut Budget) -> Result<(String, Tensor)> {
    let pb::NamedTensorProto { name, tensor } = proto;
    let tensor = tensor.ok_or_else(|| Error::invalid(format!("tensor '{name}' has no value")))?;
    match tensor_from_proto_within(tensor, budget) {
        Ok(tensor) => Ok((name, tensor)),
        Err(e) => Err(Error::Invalid { code: e.code(), message: format!("tensor '{name}': {e}") }),
    }
}

fn plain(dtype: DType, proto: pb::TensorProto, shape: Shape, budget: &mut Budget) -> Result<Tensor> {
    if !proto.tensor_content.is_empty() {
        let mut tensor = Tensor::from_bytes(dtype, shape, &proto.tensor_content)?;
        // Kernels may rely on a boolean being 0 or 1.
        if dtype == DType::Bool && proto.tensor_content.iter().any(|&b| b > 1) {
            tensor.bytes_mut()?.iter_mut().for_each(|b| *b = (*b != 0) as u8);
        }
        return Ok(tensor);
    }
    let (ints, halves) = (&proto.int_val, &proto.half_val);
    let mut typed = TypedList { dtype, shape, budget };
    match dtype {
        DType::Float => typed.fill(proto.float_val.len(), |i| proto.float_val[i].to_le_bytes()),
        DType::Double => typed.fill(proto.double_val.len(), |i| proto.double_val[i].to_le_bytes()),
        DType::Half | DType::BFloat16 => typed.fill(halves.len(), |i| (halves[i] as u16).to_le_bytes()),
        DType::Int32 | DType::QInt32 => typed.fill(ints.len(), |i| ints[i].to_le_bytes()),
        DType::Int16 | DType::UInt16 | DType::QInt16 | DType::QUInt16 => {
            typed.fill(ints.len(), |i| (ints[i] as u16).to_le_bytes())
        }
        DType::Int8 | DType::UInt8 | DType::QInt8 | DType::QUInt8 => {
            typed.fill(ints.len(), |i| [ints[i] as u8])
        }
        DType::Int64 => typed.fill(proto.int64_val.len(), |i| proto.int64_val[i].to_le_bytes()),
        DType::UInt32 => typed.fill(proto.uint32_val.len(), |i| proto.uint32_val[i].to_le_bytes()),
        DType::UInt64 => typed.fill(proto.uint64_val.len(), |i| proto.uint64_val[i].to_le_bytes()),
        DType::Bool => typed.fill(proto.bool_val.len(), |i| [proto.bool_val[i] as u8]),
        DType::Complex64 => {
            let parts = proto.scomplex_val.as_chunks::<2>().0;
            typed.fill(parts.len(), |i| {
                let [re, im] = parts[i].map(f32::to_bits);
                (u64::from(re) | u64::from(im) << 32).to_le_bytes()
            })
        }
        DType::Complex128 => {
            let parts = proto.dcomplex_val.as_chunks::<2>().0;
            typed.fill(parts.len(), |i| {
                let [re, im] = parts[i].map(f64::to_bits);
                (u128::from(re) | u128::from(im) << 64).to_le_bytes()
            })
        }
        // Narrow integers are in `int_val`, 8-bit floats in `float8_val`.
        _ if !ints.is_empty() => typed.fill(ints.len(), |i| [ints[i] as u8]),
        _ => typed.fill(proto.float8_val.len(), |i| [proto.float8_val[i]]),
    }
}

/// The dtype and shape of a numeric tensor that is filled from a typed list of its message, such as `float_val`.
struct TypedList<'a> {
    dtype: DType,
    shape: Shape,
    budget: &'a mut Budget,
}

impl TypedList<'_> {
    /// Fills the tensor with `count` elements and repeats the last one; without elements, the tensor is zero.
    /// Elements beyond the shape are ignored.
    fn fill<const N: usize>(&mut self, count: usize, element: impl Fn(usize) -> [u8; N]) -> Result<Tensor> {
        self.budget.take(self.shape.num_elements(), N)?;
        let mut tensor = Tensor::unspecified(self.dtype, self.shape.clone())?;
        let elements = tensor.bytes_mut()?.as_chunks_mut::<N>().0;
        let given = count.min(elements.len());
        for (i, e) in elements[..given].iter_mut().enumerate() {
            *e = element(i);
        }
        let last = if given == 0 { [0; N] } else { elements[given - 1] };
        elements[given..].fill(last);
        Ok(tensor)
    }
}

/// Encodes strings as the varints of all lengths, followed by all bytes.
fn encode_strings(strings: &[Bytes]) -> Bytes {
    let lengths: usize = strings.iter().map(|s| encoded_len_varint(s.len() as u64)).sum();
    let mut out = Vec::with_capacity(lengths + strings.iter().map(Bytes::len).sum::<usize>());
    strings.iter().for_each(|s| encode_varint(s.len() as u64, &mut out));
    strings.iter().for_each(|s| out.extend_from_slice(s));
    out.into()
}

/// Splits contents written by [`encode_strings`] into `count` strings.
fn decode_strings(content: &Bytes, count: usize, budget: &mut Budget) -> Result<Vec<Bytes>> {
    let malformed = || Error::invalid(format!("tensor_content does not hold {count} strings"));
    // Each length takes at least a byte, so that a short message cannot claim much memory.
    if content.len() < count {
        return Err(malformed());
    }
    budget.take(count, size_of::<Bytes>())?;
    budget.take(content.len(), 1)?;
    let mut rest = &content[..];
    let mut lengths = Vec::with_capacity(count);
    for _ in 0..count {
        let length = decode_varint(&mut rest).map_err(|_| malformed())?;
        lengths.push(usize::try_from(length).map_err(|_| malformed())?);
    }
    let total = lengths.iter().try_fold(0usize, |sum, &l| sum.checked_add(l));
    if total != Some(rest.len()) {
        return Err(malformed());
    }
    // The strings share one copy, so that the tensor does not keep the whole message alive.
    let mut rest = Bytes::copy_from_slice(rest);
    Ok(lengths.into_iter().map(|l| rest.split_to(l)).collect())
}

fn strings(proto: pb::TensorProto, shape: Shape, budget: &mut Budget) -> Result<Tensor> {
    let count = shape.num_elements();
    if !proto.tensor_content.is_empty() {
        return Tensor::strings(decode_strings(&proto.tensor_content, count, budget)?, shape);
    }
    let given = proto.string_val.into_iter().map(Bytes::from);
    Tensor::strings(splat(given, Bytes::new, count, budget)?, shape)
}

fn resources(proto: pb::TensorProto, shape: Shape, budget: &mut Budget) -> Result<Tensor> {
    let count = shape.num_elements();
    let given: Vec<ResourceHandle> = if proto.tensor_content.is_empty() {
        proto.resource_handle_val.into_iter().take(count).map(resource_from_proto).collect::<Result<_>>()?
    } else {
        let decode = |bytes: Bytes| {
            pb::ResourceHandleProto::decode(bytes)
                .map_err(|e| Error::invalid(format!("tensor_content holds no resource handle: {e}")))
                .and_then(resource_from_proto)
        };
        decode_strings(&proto.tensor_content, count, budget)?
            .into_iter()
            .map(decode)
            .collect::<Result<_>>()?
    };
    let nothing = || ResourceHandle {
        device: "".into(),
        container: "".into(),
        name: "".into(),
        hash_code: 0,
        type_name: "".into(),
        dtypes_and_shapes: Vec::new(),
    };
    Tensor::resources(splat(given.into_iter(), nothing, count, budget)?, shape)
}

fn variants(proto: pb::TensorProto, shape: Shape, budget: &mut Budget) -> Result<Tensor> {
    let count = shape.num_elements();
    let given: Vec<Variant> = if proto.tensor_content.is_empty() {
        let given = proto.variant_val.into_iter().take(count);
        given.map(|v| variant_from_proto(v, budget)).collect::<Result<_>>()?
    } else {
        let all = decode_strings(&proto.tensor_content, count, budget)?;
        let decode = |bytes: Bytes| {
            let proto = pb::VariantTensorDataProto::decode(bytes)
                .map_err(|e| Error::invalid(format!("tensor_content holds no variant: {e}")))?;
            variant_from_proto(proto, budget)
        };
        all.into_iter().map(decode).collect::<Result<_>>()?
    };
    Tensor::variants(splat(given.into_iter(), || Variant::EMPTY, count, budget)?, shape)
}

/// Returns `count` objects: the given ones, with the last of them (or `nothing` if there are none) repeated.
fn splat<T: Clone>(
    given: impl Iterator<Item = T>,
    nothing: impl FnOnce() -> T,
    count: usize,
    budget: &mut Budget,
) -> Result<Vec<T>> {
    budget.take(count, size_of::<T>())?;
    let mut all = Vec::new();
    all.try_reserve_exact(count).map_err(|e| Error::Invalid {
        code: graph::Code::ResourceExhausted,
        message: format!("a tensor of {count} objects: {e}"),
    })?;
    all.extend(given.take(count));
    let last = all.last().cloned().unwrap_or_else(nothing);
    all.resize(count, last);
    Ok(all)
}

fn resource_to_proto(handle: &ResourceHandle) -> pb::ResourceHandleProto {
    let known = |(dtype, shape): &(DType, _)| DtypeAndShape {
        dtype: dtype.number(),
        shape: Some(partial_shape_to_proto(shape)),
    };
    pb::ResourceHandleProto {
        device: handle.device.to_string(),
        container: handle.container.to_string(),
        name: handle.name.to_string(),
        hash_code: handle.hash_code,
        maybe_type_name: handle.type_name.to_string(),
        dtypes_and_shapes: handle.dtypes_and_shapes.iter().map(known).collect(),
    }
}

fn resource_from_proto(proto: pb::ResourceHandleProto) -> Result<ResourceHandle> {
    let known = |known: DtypeAndShape| {
        let shape = known.shape.unwrap_or_default();
        Ok((dtype_from_proto(known.dtype)?, partial_shape_from_proto(&shape)?))
    };
    Ok(ResourceHandle {
        device: proto.device.into(),
        container: proto.container.into(),
        name: proto.name.into(),
        hash_code: proto.hash_code,
        type_name: proto.maybe_type_name.into(),
        dtypes_and_shapes: proto.dtypes_and_shapes.into_iter().map(known).collect::<Result<_>>()?,
    })
}
