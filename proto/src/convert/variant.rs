//! Conversions of variants that hold tensor lists, optional values and states of iterators, in TensorFlow's layout.
//! Variants of other kinds cannot leave the task that created them.

use super::Budget;
use super::attr::dtype_from_proto;
use super::shape::{partial_shape_from_proto, partial_shape_to_proto};
use super::tensor::{tensor_from_proto_within, tensor_to_proto};
use crate::pb;
use graph::tensor::{IteratorState, Optional, TensorList, VariantObject};
use graph::{Error, Result, Tensor, Variant};
use prost::Message;
use prost::encoding::{decode_varint, encode_varint};

const LIST: &str = "tensorflow::TensorList";
const OPTIONAL: &str = "tensorflow::data::Optional";

/// Converts a variant. A variant of another kind is encoded as its name without contents, so that the reader
/// can report an error.
pub(super) fn variant_to_proto(variant: &Variant) -> pb::VariantTensorDataProto {
    if let Some(list) = variant.get::<TensorList>() {
        return list_to_proto(list);
    }
    if let Some(optional) = variant.get::<Optional>() {
        let components = optional.components();
        return pb::VariantTensorDataProto {
            type_name: optional.type_name().to_owned(),
            metadata: vec![components.is_some() as u8],
            tensors: components.unwrap_or_default().iter().map(tensor_to_proto).collect(),
        };
    }
    if let Some(state) = variant.get::<IteratorState>() {
        let type_name = IteratorState::TYPE_NAME.to_owned();
        return pb::VariantTensorDataProto { type_name, metadata: state.0.to_vec(), tensors: Vec::new() };
    }
    let type_name = variant.object().map_or("", |object| object.type_name()).to_owned();
    pb::VariantTensorDataProto { type_name, ..Default::default() }
}

/// Converts the message of a variant.
///
/// # Errors
/// `InvalidArgument` if the contents are malformed; `Unimplemented` naming the kind if the kind is not
/// supported.
pub(super) fn variant_from_proto(proto: pb::VariantTensorDataProto, budget: &mut Budget) -> Result<Variant> {
    match &proto.type_name[..] {
        "" => Ok(Variant::EMPTY),
        LIST => list_from_proto(proto, budget),
        OPTIONAL => match &proto.metadata[..] {
            [0] => Ok(Variant::new(Optional::<Tensor>::NONE)),
            [1] => {
                let components = proto.tensors.into_iter().map(|t| tensor_from_proto_within(t, budget));
                Ok(Variant::new(Optional::of(components.collect::<Result<_>>()?)?))
            }
            _ => Err(Error::invalid("a variant holds no optional, though it says so")),
        },
        IteratorState::TYPE_NAME => {
            budget.take(proto.metadata.len(), 1)?;
            Ok(Variant::new(IteratorState(proto.metadata.into())))
        }
        other => Err(Error::unimplemented(format!(
            "a variant that holds {other} cannot leave the task where it was made"
        ))),
    }
}

/// Encodes a tensor list. The metadata consists of the number and the indices of uninitialised elements, the
/// element dtype's number, the maximum length, and the shape as a message.
fn list_to_proto(list: &TensorList) -> pb::VariantTensorDataProto {
    let mut metadata = Vec::new();
    let missing: Vec<u64> =
        (0u64..).zip(list.elements()).filter(|(_, e)| e.is_none()).map(|(i, _)| i).collect();
    encode_varint(missing.len() as u64, &mut metadata);
    missing.into_iter().for_each(|index| encode_varint(index, &mut metadata));
    encode_varint(list.element_dtype.number() as u64, &mut metadata);
    encode_varint(i64::from(list.max_num_elements) as u64, &mut metadata);
    metadata.extend(partial_shape_to_proto(&list.element_shape).encode_to_vec());
    pb::VariantTensorDataProto {
        type_name: list.type_name().to_owned(),
        metadata,
        tensors: list.elements().iter().flatten().map(tensor_to_proto).collect(),
    }
}

fn list_from_proto(proto: pb::VariantTensorDataProto, budget: &mut Budget) -> Result<Variant> {
    let malformed = || Error::invalid("a variant holds no list of tensors, though it says so");
    let mut rest = &proto.metadata[..];
    let mut number = || decode_varint(&mut rest).map_err(|_| malformed());
    let missing = usize::try_from(number()?).map_err(|_| malformed())?;
    // Each index takes at least a byte.
    if missing > proto.metadata.len() {
        return Err(malformed());
    }
    let count = missing.checked_add(proto.tensors.len()).ok_or_else(malformed)?;
    budget.take(count, size_of::<Option<Tensor>>())?;
    let missing = (0..missing).map(|_| number()).collect::<Result<Vec<u64>>>()?;
    let dtype = dtype_from_proto(i32::try_from(number()?).map_err(|_| malformed())?)?;
    let max_num_elements = number()? as i32;
    let shape = pb::TensorShapeProto::decode(rest).map_err(|_| malformed())?;
    let mut missing = missing.into_iter().peekable();
    let mut tensors = proto.tensors.into_iter();
    let mut elements = Vec::with_capacity(count);
    for index in 0..count as u64 {
        if missing.next_if_eq(&index).is_some() {
            elements.push(None);
            continue;
        }
        let tensor = tensor_from_proto_within(tensors.next().ok_or_else(malformed)?, budget)?;
        if tensor.dtype() != dtype {
            return Err(malformed());
        }
        elements.push(Some(tensor));
    }
    let mut list = TensorList::of(dtype, partial_shape_from_proto(&shape)?, elements)?;
    list.max_num_elements = max_num_elements;
    Ok(Variant::new(list))
}
