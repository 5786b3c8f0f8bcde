//! Parser of the text format.

use super::cursor::Cursor;
use super::function;
use crate::attr::{AttrList, AttrValue, Attrs, FuncAttr};
use crate::dtype::{Bool8, DType};
use crate::error::{Error, Result};
use crate::function::FunctionDef;
use crate::graph::Graph;
use crate::import::Importer;
use crate::shape::{Dim, MAX_RANK, PartialShape, Shape};
use crate::tensor::{ResourceHandle, Tensor, memory_limit};
use half::{bf16, f16};
use std::str::FromStr;
use std::sync::Arc;

/// The depth to which functions may be nested in attributes.
const MAX_NESTING: usize = 32;

pub(super) fn graph(text: &str) -> Result<Graph> {
    let mut importer = Importer::new(Graph::new());
    let mut function: Option<FunctionDef> = None;
    for (i, line) in text.lines().enumerate() {
        let mut cursor = Cursor::new(i + 1, line);
        if cursor.is_done() {
            continue;
        }
        if let Some(open) = &mut function {
            if function::parse_line(&mut cursor, open)? {
                let library = Arc::make_mut(&mut importer.graph_mut().library);
                let added = function.take().map_or(Ok(()), |function| library.add(function));
                added.map_err(|e| cursor.error(e.to_string()))?;
            }
        } else if cursor.take("%") {
            match cursor.word() {
                "function" => function = Some(function::parse_head(&mut cursor)?),
                word => directive(word, &mut cursor, importer.graph_mut())?,
            }
        } else {
            node(&mut cursor, &mut importer)?;
        }
        if !cursor.is_done() {
            return cursor.expected("the end of the line");
        }
    }
    if let Some(open) = function {
        return Err(Error::invalid(format!("function {} has no %end", open.name)));
    }
    importer.finish()
}

fn directive(word: &str, cursor: &mut Cursor<'_>, graph: &mut Graph) -> Result<()> {
    match word {
        "gradient" => {
            let (of, gradient) = (cursor.name()?.into(), cursor.name()?.into());
            let added = Arc::make_mut(&mut graph.library).add_gradient(&of, &gradient);
            added.map_err(|e| cursor.error(e.to_string()))?;
        }
        "registered_gradient" => {
            let (gradient, op) = (cursor.name()?.into(), cursor.name()?.into());
            Arc::make_mut(&mut graph.library).add_registered_gradient(&gradient, &op);
        }
        "opaque" => graph.opaque = cursor.hex()?.into(),
        "versions" => {
            while !cursor.is_done() {
                let key = cursor.word();
                cursor.expect("=")?;
                match key {
                    "producer" => graph.versions.producer = cursor.parse("a version")?,
                    "min_consumer" => graph.versions.min_consumer = cursor.parse("a version")?,
                    "bad_consumers" => {
                        cursor.expect("[")?;
                        graph.versions.bad_consumers = list(cursor, "]", |c| c.parse("a version"))?;
                    }
                    _ => return Err(cursor.error(format!("no version is called '{key}'"))),
                }
            }
        }
        other => return Err(cursor.error(format!("unknown directive '%{other}'"))),
    }
    Ok(())
}

fn node(cursor: &mut Cursor<'_>, importer: &mut Importer) -> Result<()> {
    let name = cursor.name()?;
    cursor.expect("=")?;
    let op = cursor.name()?;
    let attrs = attrs(cursor, 0)?;
    let inputs = match cursor.take("(") {
        true => list(cursor, ")", input)?,
        false => Vec::new(),
    };
    let device = match cursor.take("@") {
        true => cursor.string()?,
        false => Vec::new(),
    };
    let device = String::from_utf8(device).map_err(|_| cursor.error("a device must be UTF-8"))?;
    let opaque = match cursor.take("%") {
        true => Some(cursor.hex()?),
        false => None,
    };
    let id = importer.add(&name, &op, &device, attrs, inputs).map_err(|e| cursor.error(e.to_string()))?;
    importer.node_mut(id).opaque = opaque.map(Into::into);
    Ok(())
}

/// Parses `name`, `name:port` or `^name`, and returns it in the form that [`Importer`] takes.
fn input(cursor: &mut Cursor<'_>) -> Result<String> {
    if cursor.take("^") {
        return Ok(format!("^{}", cursor.name()?));
    }
    let name = cursor.name()?;
    let port: u32 = if cursor.take(":") { cursor.parse("the number of an output")? } else { 0 };
    Ok(format!("{name}:{port}"))
}

/// Parses items separated by commas, up to and including `end`.
pub(super) fn list<'a, T>(
    cursor: &mut Cursor<'a>,
    end: &str,
    mut item: impl FnMut(&mut Cursor<'a>) -> Result<T>,
) -> Result<Vec<T>> {
    let mut all = Vec::new();
    if cursor.take(end) {
        return Ok(all);
    }
    loop {
        all.push(item(cursor)?);
        if cursor.take(end) {
            return Ok(all);
        }
        if !cursor.take(",") {
            return cursor.expected(&format!("',' or '{end}'"));
        }
    }
}

pub(super) fn attrs(cursor: &mut Cursor<'_>, nesting: usize) -> Result<Attrs> {
    if !cursor.take("[") {
        return Ok(Attrs::new());
    }
    let all = list(cursor, "]", |cursor| {
        let key = cursor.name()?;
        cursor.expect("=")?;
        Ok((key.into(), value(cursor, nesting)?))
    })?;
    let count = all.len();
    let attrs: Attrs = all.into_iter().collect();
    if attrs.len() != count {
        return Err(cursor.error("an attribute is set twice"));
    }
    Ok(attrs)
}

pub(super) fn value(cursor: &mut Cursor<'_>, nesting: usize) -> Result<AttrValue> {
    if nesting > MAX_NESTING {
        return Err(cursor.error("attributes are nested too deep"));
    }
    if cursor.is_next("\"") {
        return Ok(AttrValue::Str(cursor.string()?.into()));
    }
    if cursor.is_next("<") {
        return Ok(AttrValue::Shape(shape(cursor)?));
    }
    if cursor.take("$") {
        return Ok(AttrValue::Placeholder(cursor.name()?.into()));
    }
    if cursor.take("@") {
        let name = cursor.name()?.into();
        return Ok(AttrValue::Func(FuncAttr { name, attrs: attrs(cursor, nesting + 1)? }));
    }
    if cursor.take("[") {
        let items = list(cursor, "]", |cursor| value(cursor, nesting + 1))?;
        return list_of(items)
            .map(AttrValue::List)
            .ok_or_else(|| cursor.error("the list is of several kinds"));
    }
    let start = cursor.position();
    let word = cursor.word();
    if let Some(dtype) = DType::from_name(word) {
        return match cursor.is_next("<") {
            true => Ok(AttrValue::Tensor(tensor(cursor, dtype)?)),
            false => Ok(AttrValue::Type(dtype)),
        };
    }
    match word {
        "true" => return Ok(AttrValue::Bool(true)),
        "false" => return Ok(AttrValue::Bool(false)),
        _ => cursor.rewind(start),
    }
    let number = cursor.number();
    if let Ok(int) = number.parse() {
        return Ok(AttrValue::Int(int));
    }
    match f32_of(number) {
        Some(float) => Ok(AttrValue::Float(float)),
        None => {
            cursor.rewind(start);
            cursor.expected("a value")
        }
    }
}

fn list_of(items: Vec<AttrValue>) -> Option<AttrList> {
    macro_rules! all {
        ($($variant:ident),*) => {
            match items.first() {
                None => Some(AttrList::Empty),
                $(Some(AttrValue::$variant(_)) => Some(AttrList::$variant(
                    items.into_iter()
                        .map(|v| match v { AttrValue::$variant(v) => Some(v), _ => None })
                        .collect::<Option<Vec<_>>>()?)),)*
                _ => None,
            }
        };
    }
    all!(Str, Int, Float, Bool, Type, Shape, Tensor, Func)
}

fn shape(cursor: &mut Cursor<'_>) -> Result<PartialShape> {
    cursor.expect("<")?;
    if cursor.take("*") {
        cursor.expect(">")?;
        return Ok(PartialShape::unknown());
    }
    let dims: Vec<Dim> =
        list(cursor, ">", |c| if c.take("?") { Ok(None) } else { c.parse("a size").map(Some) })?;
    if dims.len() > MAX_RANK {
        return Err(cursor.error(format!("more than {MAX_RANK} dimensions")));
    }
    Ok(PartialShape::of_dims(dims))
}

/// Defines parsers of floats in their printed form: decimal, `nan`, or `nan:0x…` with the bits.
macro_rules! floats {
    ($($name:ident: $t:ty, $bits:ty, $nan:literal, $from:expr;)*) => {
        $(fn $name(text: &str) -> Option<$t> {
            match text.strip_prefix("nan") {
                Some("") => Some(<$t>::from_bits($nan)),
                Some(rest) => {
                    let bits = rest.strip_prefix(":0x")?;
                    Some(<$t>::from_bits(<$bits>::from_str_radix(bits, 16).ok()?)).filter(|v| v.is_nan())
                }
                None => text.parse().ok().map($from),
            }
        })*
    };
}

floats! {
    f32_of: f32, u32, 0x7fc0_0000, |v: f32| v;
    f64_of: f64, u64, 0x7ff8_0000_0000_0000, |v: f64| v;
    f16_of: f16, u16, 0x7e00, f16::from_f32;
    bf16_of: bf16, u16, 0x7fc0, bf16::from_f32;
}

fn tensor(cursor: &mut Cursor<'_>, dtype: DType) -> Result<Tensor> {
    let Some(shape) = shape(cursor)?.as_shape() else {
        return Err(cursor.error("a tensor's shape must be known and not too large"));
    };
    cursor.expect("{")?;
    let line = |cursor: &Cursor<'_>, e: Error| cursor.error(e.to_string());
    macro_rules! numbers {
        ($t:ty, $of:expr) => {{
            let all: Vec<$t> = elements(cursor, &shape, |c| {
                let start = c.position();
                match $of(c.number()) {
                    Some(v) => Ok(v),
                    None => {
                        c.rewind(start);
                        c.expected(concat!("an element of type ", stringify!($t)))
                    }
                }
            })?;
            Tensor::from_slice(&all, shape)
        }};
    }
    fn int<T: FromStr>(text: &str) -> Option<T> {
        text.parse().ok()
    }
    match dtype {
        DType::Float => numbers!(f32, f32_of),
        DType::Double => numbers!(f64, f64_of),
        DType::Half => numbers!(f16, f16_of),
        DType::BFloat16 => numbers!(bf16, bf16_of),
        DType::Int8 => numbers!(i8, int),
        DType::Int16 => numbers!(i16, int),
        DType::Int32 => numbers!(i32, int),
        DType::Int64 => numbers!(i64, int),
        DType::UInt8 => numbers!(u8, int),
        DType::UInt16 => numbers!(u16, int),
        DType::UInt32 => numbers!(u32, int),
        DType::UInt64 => numbers!(u64, int),
        DType::Bool => numbers!(Bool8, |text| int::<bool>(text).map(Bool8::from)),
        DType::String => Tensor::strings(elements(cursor, &shape, |c| Ok(c.string()?.into()))?, shape),
        DType::Resource => Tensor::resources(elements(cursor, &shape, resource)?, shape),
        _ => {
            let bytes = cursor.hex()?;
            cursor.expect("}")?;
            Tensor::from_bytes(dtype, shape, &bytes)
        }
    }
    .map_err(|e| line(cursor, e))
}

/// Parses the elements of a tensor of this shape, up to and including `}`; `...` repeats the last element.
fn elements<'a, T: Clone>(
    cursor: &mut Cursor<'a>,
    shape: &Shape,
    mut element: impl FnMut(&mut Cursor<'a>) -> Result<T>,
) -> Result<Vec<T>> {
    let wanted = shape.num_elements();
    let mut ellipsis = false;
    let all = list(cursor, "}", |c| {
        if c.take("...") {
            ellipsis = true;
            return Ok(None);
        }
        if ellipsis { c.expected("'}'") } else { element(c).map(Some) }
    })?;
    let mut all: Vec<T> = all.into_iter().flatten().collect();
    if let Some(last) = all.last().cloned()
        && ellipsis
        && all.len() < wanted
    {
        let more = wanted - all.len();
        if wanted as u128 * size_of::<T>() as u128 > memory_limit() as u128 / 2
            || all.try_reserve_exact(more).is_err()
        {
            return Err(cursor.error(format!("a tensor of {wanted} elements does not fit the memory")));
        }
        all.resize(wanted, last);
    }
    if all.len() != wanted {
        return Err(cursor.error(format!("{} elements are given, the shape {shape} has {wanted}", all.len())));
    }
    Ok(all)
}

fn resource(cursor: &mut Cursor<'_>) -> Result<ResourceHandle> {
    fn text(cursor: &mut Cursor<'_>) -> Result<std::sync::Arc<str>> {
        let bytes = cursor.string()?;
        let text = String::from_utf8(bytes).map_err(|_| cursor.error("a handle's names must be UTF-8"))?;
        Ok(text.into())
    }
    fn next<'a, T>(cursor: &mut Cursor<'a>, read: impl FnOnce(&mut Cursor<'a>) -> Result<T>) -> Result<T> {
        cursor.expect(",")?;
        read(cursor)
    }
    cursor.expect("(")?;
    let device = text(cursor)?;
    let container = next(cursor, text)?;
    let name = next(cursor, text)?;
    let hash_code = next(cursor, |c| {
        let digits = c.number().strip_prefix("0x").and_then(|d| u64::from_str_radix(d, 16).ok());
        digits.ok_or_else(|| c.error("a handle's hash code is hexadecimal"))
    })?;
    let type_name = next(cursor, text)?;
    let mut dtypes_and_shapes = Vec::new();
    while cursor.take(",") {
        let word = cursor.word();
        let dtype = DType::from_name(word).ok_or_else(|| cursor.error(format!("'{word}' is no type")))?;
        dtypes_and_shapes.push((dtype, shape(cursor)?));
    }
    cursor.expect(")")?;
    Ok(ResourceHandle { device, container, name, hash_code, type_name, dtypes_and_shapes })
}
