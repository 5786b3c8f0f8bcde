//! The notation of signatures in the op table, and its parser.
//!
//! Arguments: `"x: T"`, `"values: N * T"`, `"ref: Ref(T)"`, `"handle: resource"`, `"data: T"` where `T` is a list of
//! types. Attributes: `"T: {float, int32} = float"`, `"N: int >= 1"`, `"padding: {'SAME', 'VALID'}"`, `"strides:
//! list(int)"`, `"shape: shape = ?"`, `"shapes: list(shape) >= 0 = []"`. The names `numbertype` and `realnumbertype`
//! stand for sets of types.

use crate::attr::{AttrList, AttrValue};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::PartialShape;
use crate::tensor::Tensor;

/// An input or output argument of an op.
#[derive(Clone, Debug, PartialEq)]
pub struct Arg {
    pub name: &'static str,
    pub ty: ArgType,
    /// The name of the attribute that holds the number of tensors of type `ty`.
    pub number_attr: Option<&'static str>,
    pub is_ref: bool,
}

/// The type of an argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArgType {
    Fixed(DType),
    /// The name of the attribute that holds the type.
    Attr(&'static str),
    /// The name of the attribute that holds a list of types, one per tensor.
    List(&'static str),
}

/// The declaration of an attribute of an op.
#[derive(Clone, Debug, PartialEq)]
pub struct AttrSpec {
    pub name: &'static str,
    pub kind: AttrKind,
    pub is_list: bool,
    /// The smallest value of an int, or the smallest length of a list.
    pub minimum: Option<i64>,
    /// The allowed types or strings; empty if all are allowed.
    pub allowed: Vec<AttrValue>,
    pub default: Option<AttrValue>,
}

/// The kind of an attribute's value, or of the elements of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrKind {
    Str,
    Int,
    Float,
    Bool,
    Type,
    Shape,
    Tensor,
    Func,
}

impl AttrSpec {
    /// Checks a value's kind, minimum and membership in the allowed set.
    ///
    /// # Errors
    /// `InvalidArgument` with TensorFlow's message for the violated condition.
    pub fn check(&self, value: &AttrValue) -> Result<()> {
        let length = match (value, self.is_list) {
            (AttrValue::Placeholder(_), _) => return Ok(()),
            (AttrValue::List(list), true) => Some(list.len() as i64),
            (AttrValue::List(_), false) | (_, true) => return Err(self.wrong_kind(value)),
            _ => None,
        };
        if kind_of(value).is_some_and(|kind| kind != self.kind) {
            return Err(self.wrong_kind(value));
        }
        let measured = length.or(if let AttrValue::Int(i) = value { Some(*i) } else { None });
        if let (Some(minimum), Some(measured)) = (self.minimum, measured)
            && measured < minimum
        {
            let what = if self.is_list { "Length" } else { "Value" };
            crate::invalid!(
                "{what} for attr '{}' of {measured} must be at least minimum {minimum}",
                self.name
            );
        }
        if self.allowed.is_empty() {
            return Ok(());
        }
        let refused = match value {
            AttrValue::List(AttrList::Type(types)) => {
                types.iter().map(|&t| AttrValue::Type(t)).find(|t| !self.allowed.contains(t))
            }
            AttrValue::List(AttrList::Str(all)) => {
                all.iter().map(|s| AttrValue::Str(s.clone())).find(|s| !self.allowed.contains(s))
            }
            AttrValue::List(_) => None,
            value => Some(value.clone()).filter(|v| !self.allowed.contains(v)),
        };
        match refused {
            None => Ok(()),
            Some(value) => {
                let allowed: Vec<String> = self.allowed.iter().map(brief).collect();
                crate::invalid!(
                    "Value for attr '{}' of {} is not in the list of allowed values: {}",
                    self.name,
                    brief(&value),
                    allowed.join(", ")
                )
            }
        }
    }

    fn wrong_kind(&self, value: &AttrValue) -> Error {
        let list = if self.is_list { "a list of " } else { "" };
        Error::invalid(format!(
            "AttrValue of '{}' should be {list}{}, is {value:?}",
            self.name,
            self.kind.name()
        ))
    }
}

/// Returns the kind of a value or of a list's elements; `None` for an empty list and for a placeholder.
fn kind_of(value: &AttrValue) -> Option<AttrKind> {
    Some(match value {
        AttrValue::Str(_) | AttrValue::List(AttrList::Str(_)) => AttrKind::Str,
        AttrValue::Int(_) | AttrValue::List(AttrList::Int(_)) => AttrKind::Int,
        AttrValue::Float(_) | AttrValue::List(AttrList::Float(_)) => AttrKind::Float,
        AttrValue::Bool(_) | AttrValue::List(AttrList::Bool(_)) => AttrKind::Bool,
        AttrValue::Type(_) | AttrValue::List(AttrList::Type(_)) => AttrKind::Type,
        AttrValue::Shape(_) | AttrValue::List(AttrList::Shape(_)) => AttrKind::Shape,
        AttrValue::Tensor(_) | AttrValue::List(AttrList::Tensor(_)) => AttrKind::Tensor,
        AttrValue::Func(_) | AttrValue::List(AttrList::Func(_)) => AttrKind::Func,
        AttrValue::List(AttrList::Empty) | AttrValue::Placeholder(_) => return None,
    })
}

/// Returns an attribute value as text for error messages.
fn brief(value: &AttrValue) -> String {
    match value {
        AttrValue::Str(s) => format!("\"{}\"", String::from_utf8_lossy(s)),
        AttrValue::Type(t) => t.name().to_owned(),
        other => format!("{other:?}"),
    }
}

impl AttrKind {
    /// Returns the kind's name in signatures.
    pub fn name(self) -> &'static str {
        match self {
            AttrKind::Str => "string",
            AttrKind::Int => "int",
            AttrKind::Float => "float",
            AttrKind::Bool => "bool",
            AttrKind::Type => "type",
            AttrKind::Shape => "shape",
            AttrKind::Tensor => "tensor",
            AttrKind::Func => "func",
        }
    }
}

const NUMBER_TYPES: &[DType] = {
    use DType::*;
    &[
        Float, Double, Int32, UInt8, Int16, Int8, Complex64, Int64, QInt8, QUInt8, QInt32, BFloat16, QInt16,
        QUInt16, UInt16, Complex128, Half, UInt32, UInt64,
    ]
};

const REAL_NUMBER_TYPES: &[DType] = {
    use DType::*;
    &[Float, Double, Int32, UInt8, Int16, Int8, Int64, BFloat16, UInt16, Half, UInt32, UInt64]
};

/// Returns the types in the set `numbertype` or `realnumbertype`; `None` for any other name.
fn type_set(name: &str) -> Option<&'static [DType]> {
    match name {
        "numbertype" => Some(NUMBER_TYPES),
        "realnumbertype" => Some(REAL_NUMBER_TYPES),
        _ => None,
    }
}

/// Parses an argument, such as `values: N * T`.
pub(super) fn parse_arg(text: &'static str) -> Result<Arg, String> {
    let (name, rest) = text.split_once(':').ok_or_else(|| format!("'{text}' has no ':'"))?;
    let (number_attr, ty) = match rest.split_once('*') {
        Some((number, ty)) => (Some(number.trim()), ty.trim()),
        None => (None, rest.trim()),
    };
    let (is_ref, ty) = match ty.strip_prefix("Ref(").and_then(|t| t.strip_suffix(')')) {
        Some(inner) => (true, inner),
        None => (false, ty),
    };
    let ty = DType::from_name(ty).map_or(ArgType::Attr(ty), ArgType::Fixed);
    Ok(Arg { name: name.trim(), ty, number_attr, is_ref })
}

/// Parses an attribute, such as `N: int >= 1`.
pub(super) fn parse_attr(text: &'static str) -> Result<AttrSpec, String> {
    let (name, rest) = text.split_once(':').ok_or_else(|| format!("'{text}' has no ':'"))?;
    let mut rest = rest.trim();
    let default = match split_default(rest) {
        Some((before, value)) => {
            rest = before;
            Some(value)
        }
        None => None,
    };
    let minimum = match rest.split_once(">=") {
        Some((before, number)) => {
            rest = before.trim();
            Some(number.trim().parse::<i64>().map_err(|e| format!("'{text}': {e}"))?)
        }
        None => None,
    };
    let (is_list, inner) = match rest.strip_prefix("list(").and_then(|t| t.strip_suffix(')')) {
        Some(inner) => (true, inner),
        None => (false, rest),
    };
    let (kind, allowed) = parse_kind(inner).ok_or_else(|| format!("'{text}': unknown kind '{inner}'"))?;
    let default = match default {
        None => None,
        Some(value) => Some(
            parse_value(kind, is_list, value).ok_or_else(|| format!("'{text}': bad default '{value}'"))?,
        ),
    };
    Ok(AttrSpec { name: name.trim(), kind, is_list, minimum, allowed, default })
}

/// Splits the text at the `=` before the default; the `=` of `>=` does not count.
fn split_default(text: &'static str) -> Option<(&'static str, &'static str)> {
    let at = text.char_indices().rev().find(|&(i, c)| c == '=' && !text[..i].ends_with('>'))?.0;
    Some((text[..at].trim(), text[at + 1..].trim()))
}

fn parse_kind(text: &str) -> Option<(AttrKind, Vec<AttrValue>)> {
    if let Some(types) = type_set(text) {
        return Some((AttrKind::Type, types.iter().map(|&d| d.into()).collect()));
    }
    if let Some(set) = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
        let items: Vec<&str> = set.split(',').map(str::trim).filter(|s| !s.is_empty()).collect();
        let kind = if items.iter().all(|i| i.starts_with('\'')) { AttrKind::Str } else { AttrKind::Type };
        let allowed = items.into_iter().map(|i| parse_scalar(kind, i)).collect::<Option<Vec<_>>>()?;
        return Some((kind, allowed));
    }
    let kind = match text {
        "string" => AttrKind::Str,
        "int" => AttrKind::Int,
        "float" => AttrKind::Float,
        "bool" => AttrKind::Bool,
        "type" => AttrKind::Type,
        "shape" => AttrKind::Shape,
        "tensor" => AttrKind::Tensor,
        "func" => AttrKind::Func,
        _ => return None,
    };
    Some((kind, Vec::new()))
}

fn parse_value(kind: AttrKind, is_list: bool, text: &'static str) -> Option<AttrValue> {
    if !is_list {
        return parse_scalar(kind, text);
    }
    let inner = text.strip_prefix('[')?.strip_suffix(']')?.trim();
    if inner.is_empty() {
        return Some(AttrValue::List(AttrList::Empty));
    }
    let items: Vec<AttrValue> =
        inner.split(',').map(|i| parse_scalar(kind, i.trim())).collect::<Option<_>>()?;
    macro_rules! list {
        ($($variant:ident),*) => {
            match kind {
                $(AttrKind::$variant => AttrList::$variant(
                    items.into_iter()
                        .map(|v| match v { AttrValue::$variant(v) => Some(v), _ => None })
                        .collect::<Option<Vec<_>>>()?),)*
                _ => return None,
            }
        };
    }
    Some(AttrValue::List(list!(Str, Int, Float, Bool, Type)))
}

fn parse_scalar(kind: AttrKind, text: &str) -> Option<AttrValue> {
    Some(match kind {
        AttrKind::Str => text.strip_prefix('\'')?.strip_suffix('\'')?.into(),
        AttrKind::Int => AttrValue::Int(text.parse().ok()?),
        AttrKind::Float => AttrValue::Float(text.parse().ok()?),
        AttrKind::Bool => AttrValue::Bool(text.parse().ok()?),
        AttrKind::Type => AttrValue::Type(DType::from_name(text)?),
        AttrKind::Shape => AttrValue::Shape(parse_shape(text)?),
        AttrKind::Tensor => AttrValue::Tensor(parse_bytes(text)?),
        AttrKind::Func => return None,
    })
}

/// Parses `uint8[1, 2]`, a vector; op defaults have no tensors of other types.
fn parse_bytes(text: &str) -> Option<Tensor> {
    let items = text.strip_prefix("uint8[")?.strip_suffix(']')?.split(',');
    let bytes = items.map(|i| i.trim().parse::<u8>().ok()).collect::<Option<Vec<_>>>()?;
    Tensor::vector(&bytes).ok()
}

/// Parses a shape: `?` has unknown rank, `[2,?]` has rank 2, `[]` is a scalar's.
fn parse_shape(text: &str) -> Option<PartialShape> {
    if text == "?" {
        return Some(PartialShape::unknown());
    }
    let inner = text.strip_prefix('[')?.strip_suffix(']')?.trim();
    let dims = inner.split(',').map(str::trim).filter(|d| !d.is_empty());
    let dims = dims.map(|d| if d == "?" { Some(None) } else { d.parse().ok().map(Some) });
    Some(PartialShape::of_dims(dims.collect::<Option<Vec<_>>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let arg = |text| parse_arg(text).map(|a| (a.name, a.ty, a.number_attr, a.is_ref));
        assert_eq!(arg("x: T"), Ok(("x", ArgType::Attr("T"), None, false)));
        assert_eq!(arg("v: N * float"), Ok(("v", ArgType::Fixed(DType::Float), Some("N"), false)));
        assert_eq!(arg("ref: Ref(T)"), Ok(("ref", ArgType::Attr("T"), None, true)));
        assert_eq!(arg("handle: resource"), Ok(("handle", ArgType::Fixed(DType::Resource), None, false)));
        assert!(arg("nothing").is_err());
    }

    #[test]
    fn attributes() -> Result<(), String> {
        let a = parse_attr("N: int >= 1")?;
        assert_eq!((a.kind, a.minimum, a.default), (AttrKind::Int, Some(1), None));
        let a = parse_attr("T: {float, int32} = float")?;
        assert_eq!(a.allowed, [DType::Float.into(), DType::Int32.into()]);
        assert_eq!(a.default, Some(DType::Float.into()));
        let a = parse_attr("padding: {'SAME', 'VALID'}")?;
        assert_eq!(a.allowed, ["SAME".into(), "VALID".into()]);
        let a = parse_attr("dilations: list(int) = [1, 1, 1, 1]")?;
        assert!(a.is_list);
        assert_eq!(a.default, Some(vec![1i64, 1, 1, 1].into()));
        let a = parse_attr("shapes: list(shape) >= 0 = []")?;
        assert_eq!((a.minimum, a.default), (Some(0), Some(AttrValue::List(AttrList::Empty))));
        let a = parse_attr("shape: shape = ?")?;
        assert_eq!(a.default, Some(PartialShape::unknown().into()));
        assert_eq!(parse_attr("T: numbertype")?.allowed.len(), NUMBER_TYPES.len());
        assert_eq!(parse_attr("container: string = ''")?.default, Some("".into()));
        assert!(parse_attr("x: wrong").is_err());
        Ok(())
    }
}
