//! Conversions of attribute values and dtypes.

use super::Budget;
use super::shape::{partial_shape_from_proto, partial_shape_to_proto};
use super::tensor::{tensor_from_proto_within, tensor_to_proto};
use crate::pb::{self, attr_value::ListValue, attr_value::Value};
use graph::{AttrList, AttrValue, DType, Error, FuncAttr, REF_OFFSET, Result};

/// Converts the number of a `DataType` to a dtype.
///
/// # Errors
/// `InvalidArgument` for reference types, which values and attributes never have, and unknown numbers.
pub fn dtype_from_proto(number: i32) -> Result<DType> {
    if let Some(dtype) = DType::from_number(number) {
        return Ok(dtype);
    }
    Err(Error::invalid(match number.checked_sub(REF_OFFSET).and_then(DType::from_number) {
        Some(dtype) => format!("AttrValue must not have reference type value of {dtype}_ref"),
        None => format!("AttrValue has invalid DataType enum: {number}"),
    }))
}

/// Converts an attribute value to its message.
pub fn attr_to_proto(value: &AttrValue) -> pb::AttrValue {
    let value = match value {
        AttrValue::Str(v) => Value::S(v.to_vec()),
        AttrValue::Int(v) => Value::I(*v),
        AttrValue::Float(v) => Value::F(*v),
        AttrValue::Bool(v) => Value::B(*v),
        AttrValue::Type(v) => Value::Type(v.number()),
        AttrValue::Shape(v) => Value::Shape(partial_shape_to_proto(v)),
        AttrValue::Tensor(v) => Value::Tensor(tensor_to_proto(v)),
        AttrValue::Placeholder(v) => Value::Placeholder(v.to_string()),
        AttrValue::Func(v) => Value::Func(func_to_proto(v)),
        AttrValue::List(v) => Value::List(list_to_proto(v)),
    };
    pb::AttrValue { value: Some(value) }
}

fn list_to_proto(list: &AttrList) -> ListValue {
    let mut out = ListValue::default();
    match list {
        AttrList::Empty => {}
        AttrList::Str(v) => out.s = v.iter().map(|s| s.to_vec()).collect(),
        AttrList::Int(v) => out.i = v.clone(),
        AttrList::Float(v) => out.f = v.clone(),
        AttrList::Bool(v) => out.b = v.clone(),
        AttrList::Type(v) => out.r#type = v.iter().map(|t| t.number()).collect(),
        AttrList::Shape(v) => out.shape = v.iter().map(partial_shape_to_proto).collect(),
        AttrList::Tensor(v) => out.tensor = v.iter().map(tensor_to_proto).collect(),
        AttrList::Func(v) => out.func = v.iter().map(func_to_proto).collect(),
    }
    out
}

/// Converts the message of an attribute value.
///
/// # Errors
/// `InvalidArgument` if no value is set, a list holds values of several kinds, or the value itself is
/// invalid.
pub fn attr_from_proto(value: pb::AttrValue, budget: &mut Budget) -> Result<AttrValue> {
    Ok(match value.value.ok_or_else(|| Error::invalid("AttrValue has no value"))? {
        Value::S(v) => AttrValue::Str(v.into()),
        Value::I(v) => AttrValue::Int(v),
        Value::F(v) => AttrValue::Float(v),
        Value::B(v) => AttrValue::Bool(v),
        Value::Type(v) => AttrValue::Type(dtype_from_proto(v)?),
        Value::Shape(v) => AttrValue::Shape(partial_shape_from_proto(&v)?),
        Value::Tensor(v) => AttrValue::Tensor(tensor_from_proto_within(v, budget)?),
        Value::Placeholder(v) => AttrValue::Placeholder(v.into()),
        Value::Func(v) => AttrValue::Func(func_from_proto(v, budget)?),
        Value::List(v) => AttrValue::List(list_from_proto(v, budget)?),
    })
}

fn list_from_proto(list: ListValue, budget: &mut Budget) -> Result<AttrList> {
    let ListValue { s, i, f, b, r#type, shape, tensor, func } = list;
    let lengths = [s.len(), i.len(), f.len(), b.len(), r#type.len(), shape.len(), tensor.len(), func.len()];
    if lengths.iter().filter(|&&l| l > 0).count() > 1 {
        return Err(Error::invalid("AttrValue has a list with values of several kinds"));
    }
    Ok(if !s.is_empty() {
        AttrList::Str(s.into_iter().map(Into::into).collect())
    } else if !i.is_empty() {
        AttrList::Int(i)
    } else if !f.is_empty() {
        AttrList::Float(f)
    } else if !b.is_empty() {
        AttrList::Bool(b)
    } else if !r#type.is_empty() {
        AttrList::Type(r#type.into_iter().map(dtype_from_proto).collect::<Result<_>>()?)
    } else if !shape.is_empty() {
        AttrList::Shape(shape.iter().map(partial_shape_from_proto).collect::<Result<_>>()?)
    } else if !tensor.is_empty() {
        let read = |t| tensor_from_proto_within(t, budget);
        AttrList::Tensor(tensor.into_iter().map(read).collect::<Result<_>>()?)
    } else if !func.is_empty() {
        let read = |f| func_from_proto(f, budget);
        AttrList::Func(func.into_iter().map(read).collect::<Result<_>>()?)
    } else {
        AttrList::Empty
    })
}

/// Converts a function attribute to its message.
pub fn func_to_proto(func: &FuncAttr) -> pb::NameAttrList {
    pb::NameAttrList {
        name: func.name.to_string(),
        attr: func.attrs.iter().map(|(name, value)| (name.to_string(), attr_to_proto(value))).collect(),
    }
}

/// Converts the message of a function attribute. Nesting is only limited by the decoder of messages.
///
/// # Errors
/// The errors of [`attr_from_proto`].
pub fn func_from_proto(func: pb::NameAttrList, budget: &mut Budget) -> Result<FuncAttr> {
    let attrs = func.attr.into_iter();
    let read = |(name, value): (String, _)| Ok((name.into(), attr_from_proto(value, budget)?));
    Ok(FuncAttr { name: func.name.into(), attrs: attrs.map(read).collect::<Result<_>>()? })
}
