//! Printer of the text format.

use super::{function, is_plain};
use crate::attr::{AttrList, AttrValue, Attrs, FuncAttr};
use crate::dtype::{Bool8, DType};
use crate::graph::{CONTROL, Graph};
use crate::shape::PartialShape;
use crate::tensor::{ResourceHandle, Tensor};
use crate::topology::Topology;
use half::{bf16, f16};
use std::fmt::{Display, Write};

pub(super) fn graph(graph: &Graph) -> String {
    let mut out = String::new();
    let versions = &graph.versions;
    if *versions != Default::default() {
        let _ = write!(out, "%versions producer={}", versions.producer);
        let _ = write!(out, " min_consumer={}", versions.min_consumer);
        if !versions.bad_consumers.is_empty() {
            out.push_str(" bad_consumers=[");
            list(&mut out, &versions.bad_consumers, |out, v| display(out, v));
            out.push(']');
        }
        out.push('\n');
    }
    if !graph.opaque.is_empty() {
        out.push_str("%opaque ");
        hex(&mut out, &graph.opaque);
        out.push('\n');
    }
    function::print_library(&mut out, &graph.library);
    let topology = Topology::new(graph);
    for (id, node) in graph.nodes() {
        name(&mut out, &node.name);
        out.push_str(" = ");
        out.push_str(node.op.name());
        attrs(&mut out, &node.attrs);
        let producers = topology.producers(id);
        if !producers.is_empty() {
            out.push('(');
            list(&mut out, producers, |out, p| {
                if p.output == CONTROL {
                    out.push('^');
                }
                name(out, &graph.node(p.node).name);
                if p.output != CONTROL && p.output != 0 {
                    let _ = write!(out, ":{}", p.output);
                }
            });
            out.push(')');
        }
        if !node.device.is_empty() {
            out.push_str(" @");
            string(&mut out, node.device.as_bytes());
        }
        if let Some(opaque) = &node.opaque {
            out.push_str(" %");
            hex(&mut out, opaque);
        }
        out.push('\n');
    }
    out
}

pub(super) fn list<T>(out: &mut String, items: &[T], mut print: impl FnMut(&mut String, &T)) {
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        print(out, item);
    }
}

fn display(out: &mut String, value: impl Display) {
    let _ = write!(out, "{value}");
}

pub(super) fn name(out: &mut String, name: &str) {
    if is_plain(name) { out.push_str(name) } else { string(out, name.as_bytes()) }
}

pub(super) fn string(out: &mut String, bytes: &[u8]) {
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                c if c.is_control() => {
                    c.encode_utf8(&mut [0; 4]).bytes().for_each(|b| display(out, format_args!("\\x{b:02x}")))
                }
                c => out.push(c),
            }
        }
        chunk.invalid().iter().for_each(|b| display(out, format_args!("\\x{b:02x}")));
    }
    out.push('"');
}

pub(super) fn hex(out: &mut String, bytes: &[u8]) {
    out.push_str("0x");
    bytes.iter().for_each(|b| display(out, format_args!("{b:02x}")));
}

pub(super) fn attrs(out: &mut String, attrs: &Attrs) {
    if attrs.is_empty() {
        return;
    }
    out.push('[');
    let all: Vec<_> = attrs.iter().collect();
    list(out, &all, |out, (key, v)| {
        name(out, key);
        out.push('=');
        value(out, v);
    });
    out.push(']');
}

pub(super) fn value(out: &mut String, value: &AttrValue) {
    match value {
        AttrValue::Str(v) => string(out, v),
        AttrValue::Int(v) => display(out, v),
        AttrValue::Float(v) => float(out, *v),
        AttrValue::Bool(v) => display(out, v),
        AttrValue::Type(v) => display(out, v),
        AttrValue::Shape(v) => shape(out, v),
        AttrValue::Tensor(v) => tensor(out, v),
        AttrValue::Placeholder(v) => {
            out.push('$');
            name(out, v);
        }
        AttrValue::Func(v) => func(out, v),
        AttrValue::List(v) => {
            out.push('[');
            match v {
                AttrList::Empty => {}
                AttrList::Str(v) => list(out, v, |out, v| string(out, v)),
                AttrList::Int(v) => list(out, v, |out, v| display(out, v)),
                AttrList::Float(v) => list(out, v, |out, v| float(out, *v)),
                AttrList::Bool(v) => list(out, v, |out, v| display(out, v)),
                AttrList::Type(v) => list(out, v, |out, v| display(out, v)),
                AttrList::Shape(v) => list(out, v, shape),
                AttrList::Tensor(v) => list(out, v, tensor),
                AttrList::Func(v) => list(out, v, func),
            }
            out.push(']');
        }
    }
}

fn func(out: &mut String, func: &FuncAttr) {
    out.push('@');
    name(out, &func.name);
    attrs(out, &func.attrs);
}

fn shape(out: &mut String, shape: &PartialShape) {
    let Some(dims) = shape.dims() else { return out.push_str("<*>") };
    out.push('<');
    for (i, dim) in dims.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        match dim {
            Some(size) => display(out, size),
            None => out.push('?'),
        }
    }
    out.push('>');
}

fn float(out: &mut String, v: f32) {
    floating(out, v.is_nan(), v.to_bits() == 0x7fc0_0000, v.to_bits(), format_args!("{v:?}"));
}

/// Prints a number; a NaN whose bits differ from the standard NaN is printed with its bits.
fn floating(
    out: &mut String,
    is_nan: bool,
    is_usual: bool,
    bits: impl std::fmt::LowerHex,
    text: impl Display,
) {
    match (is_nan, is_usual) {
        (false, _) => display(out, text),
        (true, true) => out.push_str("nan"),
        (true, false) => display(out, format_args!("nan:{bits:#x}")),
    }
}

fn tensor(out: &mut String, tensor: &Tensor) {
    display(out, tensor.dtype());
    shape(out, &tensor.shape().into());
    out.push('{');
    macro_rules! elements {
        ($t:ty, $print:expr) => {
            match tensor.values::<$t>() {
                Ok(all) => repeated(out, all, |a, b| bytemuck::bytes_of(a) == bytemuck::bytes_of(b), $print),
                Err(_) => {}
            }
        };
    }
    match tensor.dtype() {
        DType::Float => elements!(f32, |out, v| float(out, *v)),
        DType::Double => elements!(f64, |out, v: &f64| {
            let bits = v.to_bits();
            floating(out, v.is_nan(), bits == 0x7ff8_0000_0000_0000, bits, format_args!("{v:?}"));
        }),
        DType::Half => elements!(f16, |out, v: &f16| {
            let bits = v.to_bits();
            floating(out, v.is_nan(), bits == 0x7e00, bits, format_args!("{:?}", v.to_f32()));
        }),
        DType::BFloat16 => elements!(bf16, |out, v: &bf16| {
            let bits = v.to_bits();
            floating(out, v.is_nan(), bits == 0x7fc0, bits, format_args!("{:?}", v.to_f32()));
        }),
        DType::Int8 => elements!(i8, |out, v| display(out, v)),
        DType::Int16 => elements!(i16, |out, v| display(out, v)),
        DType::Int32 => elements!(i32, |out, v| display(out, v)),
        DType::Int64 => elements!(i64, |out, v| display(out, v)),
        DType::UInt8 => elements!(u8, |out, v| display(out, v)),
        DType::UInt16 => elements!(u16, |out, v| display(out, v)),
        DType::UInt32 => elements!(u32, |out, v| display(out, v)),
        DType::UInt64 => elements!(u64, |out, v| display(out, v)),
        DType::Bool => elements!(Bool8, |out, v: &Bool8| display(out, v.get())),
        DType::String => {
            let all = tensor.as_strings().unwrap_or_default();
            repeated(out, all, PartialEq::eq, |out, v| string(out, v));
        }
        DType::Resource => {
            let all = tensor.as_resources().unwrap_or_default();
            repeated(out, all, PartialEq::eq, resource);
        }
        _ => hex(out, tensor.bytes().unwrap_or_default()),
    }
    out.push('}');
}

/// Prints the elements; three or more equal elements at the end are printed as one element and an ellipsis.
fn repeated<T>(out: &mut String, all: &[T], same: impl Fn(&T, &T) -> bool, print: impl Fn(&mut String, &T)) {
    let run = match all.last() {
        None => 0,
        Some(last) => all.iter().rev().take_while(|v| same(v, last)).count(),
    };
    let cut = run > 2;
    list(out, if cut { &all[..all.len() - run + 1] } else { all }, print);
    if cut {
        out.push_str(", ...");
    }
}

fn resource(out: &mut String, handle: &ResourceHandle) {
    out.push('(');
    list(out, &[&handle.device, &handle.container, &handle.name], |out, v| string(out, v.as_bytes()));
    display(out, format_args!(", {:#x}, ", handle.hash_code));
    string(out, handle.type_name.as_bytes());
    for (dtype, known) in &handle.dtypes_and_shapes {
        display(out, format_args!(", {dtype} "));
        shape(out, known);
    }
    out.push(')');
}
