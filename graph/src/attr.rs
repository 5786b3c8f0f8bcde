//! Attributes: the named values that configure a node.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::{Op, PortTypes};
use crate::shape::PartialShape;
use crate::tensor::Tensor;
use bytes::Bytes;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The value of an attribute. Floats are compared by their bits.
#[derive(Clone, Debug)]
pub enum AttrValue {
    Str(Bytes),
    Int(i64),
    Float(f32),
    Bool(bool),
    Type(DType),
    Shape(PartialShape),
    Tensor(Tensor),
    /// In a function body: the name of the function attribute whose value replaces this placeholder when the function
    /// is instantiated.
    Placeholder(Arc<str>),
    Func(FuncAttr),
    List(AttrList),
}

/// A function's name and the attribute values to call the function with.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct FuncAttr {
    pub name: Arc<str>,
    pub attrs: Attrs,
}

/// A list of attribute values of one kind. The wire format does not record the kind of an empty list, so all empty
/// lists are equal.
#[derive(Clone, Debug)]
pub enum AttrList {
    Empty,
    Str(Vec<Bytes>),
    Int(Vec<i64>),
    Float(Vec<f32>),
    Bool(Vec<bool>),
    Type(Vec<DType>),
    Shape(Vec<PartialShape>),
    Tensor(Vec<Tensor>),
    Func(Vec<FuncAttr>),
}

impl AttrList {
    /// Returns the number of values in the list.
    pub fn len(&self) -> usize {
        match self {
            AttrList::Empty => 0,
            AttrList::Str(v) => v.len(),
            AttrList::Int(v) => v.len(),
            AttrList::Float(v) => v.len(),
            AttrList::Bool(v) => v.len(),
            AttrList::Type(v) => v.len(),
            AttrList::Shape(v) => v.len(),
            AttrList::Tensor(v) => v.len(),
            AttrList::Func(v) => v.len(),
        }
    }

    /// Returns whether the list has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl PartialEq for AttrValue {
    fn eq(&self, other: &AttrValue) -> bool {
        use AttrValue::*;
        match (self, other) {
            (Str(a), Str(b)) => a == b,
            (Int(a), Int(b)) => a == b,
            (Float(a), Float(b)) => a.to_bits() == b.to_bits(),
            (Bool(a), Bool(b)) => a == b,
            (Type(a), Type(b)) => a == b,
            (Shape(a), Shape(b)) => a == b,
            (Tensor(a), Tensor(b)) => a == b,
            (Placeholder(a), Placeholder(b)) => a == b,
            (Func(a), Func(b)) => a == b,
            (List(a), List(b)) => a == b,
            _ => false,
        }
    }
}

impl PartialEq for AttrList {
    fn eq(&self, other: &AttrList) -> bool {
        use AttrList::*;
        match (self, other) {
            (Str(a), Str(b)) => a == b,
            (Int(a), Int(b)) => a == b,
            (Float(a), Float(b)) => a.iter().map(|f| f.to_bits()).eq(b.iter().map(|f| f.to_bits())),
            (Bool(a), Bool(b)) => a == b,
            (Type(a), Type(b)) => a == b,
            (Shape(a), Shape(b)) => a == b,
            (Tensor(a), Tensor(b)) => a == b,
            (Func(a), Func(b)) => a == b,
            _ => self.is_empty() && other.is_empty(),
        }
    }
}

/// Attributes sorted by name. Clones share the values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attrs(Arc<SharedAttrs>);

#[derive(Default)]
struct SharedAttrs {
    values: Vec<(Arc<str>, AttrValue)>,
    /// The cached port types of one op under these attributes. The op is the first for which port types were derived.
    ports: OnceLock<CachedPorts>,
}

struct CachedPorts {
    op: &'static Op,
    inputs: PortTypes,
    outputs: PortTypes,
}

impl Clone for SharedAttrs {
    /// Returns a copy whose values the caller can change. The cached port types are not copied, because they may not
    /// match the changed values.
    fn clone(&self) -> SharedAttrs {
        SharedAttrs::from(self.values.clone())
    }
}

impl From<Vec<(Arc<str>, AttrValue)>> for SharedAttrs {
    fn from(values: Vec<(Arc<str>, AttrValue)>) -> SharedAttrs {
        SharedAttrs { values, ports: OnceLock::new() }
    }
}

impl PartialEq for SharedAttrs {
    fn eq(&self, other: &SharedAttrs) -> bool {
        self.values == other.values
    }
}

impl fmt::Debug for SharedAttrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.values.fmt(f)
    }
}

impl Attrs {
    /// Returns an empty set of attributes.
    pub fn new() -> Attrs {
        Attrs::default()
    }

    /// Returns the value of an attribute, if it is set.
    pub fn get(&self, name: &str) -> Option<&AttrValue> {
        let values = &self.0.values;
        let index = values.binary_search_by(|(n, _)| (**n).cmp(name)).ok()?;
        values.get(index).map(|(_, value)| value)
    }

    /// Sets an attribute; an existing value is replaced.
    pub fn set(&mut self, name: &str, value: impl Into<AttrValue>) {
        let all = self.values_mut();
        match all.binary_search_by(|(n, _)| (**n).cmp(name)) {
            Ok(index) => all[index].1 = value.into(),
            Err(index) => all.insert(index, (name.into(), value.into())),
        }
    }

    /// Removes an attribute, if it is set.
    pub fn remove(&mut self, name: &str) {
        if self.get(name).is_some() {
            self.values_mut().retain(|(n, _)| **n != *name);
        }
    }

    /// Returns the attributes in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &AttrValue)> {
        self.0.values.iter().map(|(n, v)| (n, v))
    }

    /// Returns the number of attributes.
    pub fn len(&self) -> usize {
        self.0.values.len()
    }

    /// Returns whether no attribute is set.
    pub fn is_empty(&self) -> bool {
        self.0.values.is_empty()
    }

    /// Returns the sorted names and values for the caller to change, and clears the cached port types.
    fn values_mut(&mut self) -> &mut Vec<(Arc<str>, AttrValue)> {
        let shared = Arc::make_mut(&mut self.0);
        shared.ports.take();
        &mut shared.values
    }

    /// Returns the types of an op's inputs under these attributes. The result is cached, because passes ask once per
    /// edge, and many nodes share their attributes.
    pub(crate) fn input_types(&self, op: &'static Op) -> Result<PortTypes> {
        match self.cached_ports(op) {
            Some(ports) => Ok(ports.inputs.clone()),
            None => op.input_types(self),
        }
    }

    /// Returns the types of an op's outputs under these attributes, cached like those of [`Attrs::input_types`].
    pub(crate) fn output_types(&self, op: &'static Op) -> Result<PortTypes> {
        match self.cached_ports(op) {
            Some(ports) => Ok(ports.outputs.clone()),
            None => op.output_types(self),
        }
    }

    /// Returns the cached port types of `op`; `None` if the cache holds the port types of another op, or if the
    /// attributes do not fit `op`.
    fn cached_ports(&self, op: &'static Op) -> Option<&CachedPorts> {
        let ports = match self.0.ports.get() {
            Some(cached) => cached,
            None => {
                let (inputs, outputs) = (op.input_types(self).ok()?, op.output_types(self).ok()?);
                self.0.ports.get_or_init(|| CachedPorts { op, inputs, outputs })
            }
        };
        Some(ports).filter(|ports| std::ptr::eq(ports.op, op))
    }

    /// Returns whether two attribute sets share one allocation: a cheap test before a comparison of the values.
    pub fn is_same(&self, other: &Attrs) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl FromIterator<(Arc<str>, AttrValue)> for Attrs {
    /// Collects attributes from pairs of name and value; the last value of a name wins.
    fn from_iter<I: IntoIterator<Item = (Arc<str>, AttrValue)>>(values: I) -> Attrs {
        let mut all: Vec<_> = values.into_iter().collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all.reverse();
        all.dedup_by(|a, b| a.0 == b.0);
        all.reverse();
        Attrs(Arc::new(all.into()))
    }
}

macro_rules! conversions {
    ($($from:ty => $build:expr;)*) => {
        $(impl From<$from> for AttrValue { fn from(v: $from) -> AttrValue { $build(v) } })*
    };
}

conversions! {
    i64 => AttrValue::Int;
    f32 => AttrValue::Float;
    bool => AttrValue::Bool;
    DType => AttrValue::Type;
    PartialShape => AttrValue::Shape;
    Tensor => AttrValue::Tensor;
    FuncAttr => AttrValue::Func;
    Bytes => AttrValue::Str;
    &str => |s: &str| AttrValue::Str(Bytes::copy_from_slice(s.as_bytes()));
    String => |s: String| AttrValue::Str(s.into());
    AttrList => AttrValue::List;
    Vec<i64> => |v| AttrValue::List(AttrList::Int(v));
    Vec<f32> => |v| AttrValue::List(AttrList::Float(v));
    Vec<bool> => |v| AttrValue::List(AttrList::Bool(v));
    Vec<DType> => |v| AttrValue::List(AttrList::Type(v));
    Vec<PartialShape> => |v| AttrValue::List(AttrList::Shape(v));
    Vec<Bytes> => |v| AttrValue::List(AttrList::Str(v));
}

/// A Rust type that an attribute value can be converted to.
pub trait FromAttr: Sized {
    /// The name of the attribute kind in op definitions, such as `list(int)`.
    const KIND: &'static str;
    /// Converts an attribute value; `None` if the value is of another kind.
    fn from_attr(value: &AttrValue) -> Option<Self>;
}

macro_rules! readers {
    ($($t:ty, $kind:literal, $pattern:pat => $value:expr;)*) => {
        $(impl FromAttr for $t {
            const KIND: &'static str = $kind;
            fn from_attr(value: &AttrValue) -> Option<$t> {
                match value { $pattern => Some($value), _ => None }
            }
        })*
    };
}

readers! {
    i64, "int", AttrValue::Int(v) => *v;
    f32, "float", AttrValue::Float(v) => *v;
    bool, "bool", AttrValue::Bool(v) => *v;
    DType, "type", AttrValue::Type(v) => *v;
    PartialShape, "shape", AttrValue::Shape(v) => v.clone();
    Tensor, "tensor", AttrValue::Tensor(v) => v.clone();
    FuncAttr, "func", AttrValue::Func(v) => v.clone();
    Bytes, "string", AttrValue::Str(v) => v.clone();
}

impl FromAttr for String {
    const KIND: &'static str = "string";
    fn from_attr(value: &AttrValue) -> Option<String> {
        match value {
            AttrValue::Str(v) => String::from_utf8(v.to_vec()).ok(),
            _ => None,
        }
    }
}

macro_rules! list_readers {
    ($($t:ty, $kind:literal, $variant:ident;)*) => {
        $(impl FromAttr for Vec<$t> {
            const KIND: &'static str = $kind;
            fn from_attr(value: &AttrValue) -> Option<Vec<$t>> {
                match value {
                    AttrValue::List(AttrList::$variant(v)) => Some(v.clone()),
                    AttrValue::List(AttrList::Empty) => Some(Vec::new()),
                    _ => None,
                }
            }
        })*
    };
}

list_readers! {
    Bytes, "list(string)", Str;
    i64, "list(int)", Int;
    f32, "list(float)", Float;
    bool, "list(bool)", Bool;
    DType, "list(type)", Type;
    PartialShape, "list(shape)", Shape;
    Tensor, "list(tensor)", Tensor;
    FuncAttr, "list(func)", Func;
}

impl FromAttr for AttrValue {
    const KIND: &'static str = "any";
    fn from_attr(value: &AttrValue) -> Option<AttrValue> {
        Some(value.clone())
    }
}

/// Converts `value` to a `T`; the error names the attribute, the expected kind and the actual kind.
pub(crate) fn read<T: FromAttr>(name: &str, value: &AttrValue) -> Result<T> {
    T::from_attr(value)
        .ok_or_else(|| Error::invalid(format!("AttrValue of '{name}' should be a {}, is {value:?}", T::KIND)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attrs_are_sorted_and_the_last_value_of_a_name_stays() {
        let attrs: Attrs =
            [("b", 1i64), ("a", 2), ("b", 3)].into_iter().map(|(n, v)| (n.into(), v.into())).collect();
        assert_eq!(attrs.len(), 2);
        assert_eq!(attrs.get("b"), Some(&AttrValue::Int(3)));
        let mut more = attrs.clone();
        more.set("aa", true);
        assert_eq!(more.iter().map(|(n, _)| &**n).collect::<Vec<_>>(), ["a", "aa", "b"]);
        assert_eq!(attrs.len(), 2);
    }

    #[test]
    fn types_follow_the_attributes_and_the_op() -> Result<()> {
        let op = |name| crate::ops::lookup(name).ok_or_else(|| Error::unimplemented(name));
        let (identity, add) = (op("Identity")?, op("AddV2")?);
        let mut attrs = Attrs::new();
        assert!(attrs.input_types(identity).is_err());
        attrs.set("T", DType::Float);
        let of = |attrs: &Attrs, op: &'static Op| -> Result<Vec<DType>> {
            let (inputs, outputs) = (attrs.input_types(op)?, attrs.output_types(op)?);
            Ok(inputs.iter().chain(&outputs).map(|port| port.dtype).collect())
        };
        for _ in 0..2 {
            assert_eq!(of(&attrs, identity)?, [DType::Float; 2]);
            assert_eq!(of(&attrs, add)?, [DType::Float; 3]);
        }
        let before = attrs.clone();
        attrs.set("T", DType::Int32);
        assert_eq!(of(&attrs, identity)?, [DType::Int32; 2]);
        assert_eq!(of(&before, identity)?, [DType::Float; 2]);
        attrs.remove("T");
        assert!(of(&attrs, identity).is_err());
        Ok(())
    }
}
