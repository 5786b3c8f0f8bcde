//! The op table as JSON, for comparisons in Python.

use graph::ops::spec::{Arg, ArgType, AttrSpec};
use graph::{AttrList, AttrValue, Op, PartialShape, ops};
use serde_json::{Value, json};

/// Returns a JSON object with the definition of every op that TensorFlow has too, by op name.
pub fn json() -> Value {
    let shared = ops::all().iter().filter(|op| !op.def.is_extension);
    shared.map(|op| (op.name().to_owned(), of_op(op))).collect::<serde_json::Map<_, _>>().into()
}

fn of_op(op: &Op) -> Value {
    let traits = op.def.traits;
    json!({
        "inputs": op.inputs.iter().map(of_arg).collect::<Vec<_>>(),
        "outputs": op.outputs.iter().map(of_arg).collect::<Vec<_>>(),
        "attrs": op.attrs.iter().map(of_attr).collect::<Vec<_>>(),
        "gradient": format!("{:?}", op.def.gradient),
        "stateful": traits.stateful,
        "commutative": traits.commutative,
        "aggregate": traits.aggregate,
        "allows_uninitialized_input": traits.allows_uninitialized_input,
    })
}

fn of_arg(arg: &Arg) -> Value {
    let (kind, ty) = match arg.ty {
        ArgType::Fixed(dtype) => ("type", dtype.name()),
        ArgType::Attr(attr) => ("type_attr", attr),
        ArgType::List(attr) => ("type_list_attr", attr),
    };
    json!({"name": arg.name, kind: ty, "number_attr": arg.number_attr.unwrap_or(""), "is_ref": arg.is_ref})
}

fn of_attr(attr: &AttrSpec) -> Value {
    let kind = attr.kind.name();
    json!({
        "name": attr.name,
        "type": if attr.is_list { format!("list({kind})") } else { kind.to_owned() },
        "minimum": attr.minimum,
        "allowed": attr.allowed.iter().map(value).collect::<Vec<_>>(),
        "default": attr.default.as_ref().map(value),
    })
}

/// Converts an attribute's value to JSON; floats become the nearest doubles, infinities text.
pub fn value(value: &AttrValue) -> Value {
    let text = |s: &[u8]| String::from_utf8_lossy(s).into_owned();
    match value {
        AttrValue::Str(s) => json!(text(s)),
        AttrValue::Int(i) => json!(i),
        AttrValue::Float(f) if f.is_finite() => json!(f64::from(*f)),
        AttrValue::Float(f) => json!(f.to_string()),
        AttrValue::Bool(b) => json!(b),
        AttrValue::Type(t) => json!(t.name()),
        AttrValue::Shape(s) => shape(s),
        AttrValue::Tensor(t) => json!(t.to_string()),
        AttrValue::Placeholder(p) => json!(&**p),
        AttrValue::Func(f) => json!(&*f.name),
        AttrValue::List(list) => match list {
            AttrList::Empty => json!([]),
            AttrList::Str(v) => json!(v.iter().map(|s| text(s)).collect::<Vec<_>>()),
            AttrList::Int(v) => json!(v),
            AttrList::Float(v) => json!(v.iter().map(|f| f64::from(*f)).collect::<Vec<_>>()),
            AttrList::Bool(v) => json!(v),
            AttrList::Type(v) => json!(v.iter().map(|t| t.name()).collect::<Vec<_>>()),
            AttrList::Shape(v) => json!(v.iter().map(shape).collect::<Vec<_>>()),
            AttrList::Tensor(v) => json!(v.iter().map(|t| t.to_string()).collect::<Vec<_>>()),
            AttrList::Func(v) => json!(v.iter().map(|f| &*f.name).collect::<Vec<_>>()),
        },
    }
}

/// Converts a shape to JSON: `null` for an unknown rank, -1 for an unknown dimension.
fn shape(shape: &PartialShape) -> Value {
    json!(shape.dims().map(|dims| dims.iter().map(|d| d.map_or(-1, |d| d as i64)).collect::<Vec<_>>()))
}
