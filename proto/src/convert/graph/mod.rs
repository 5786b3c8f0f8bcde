//! Conversions of graphs. No information of a GraphDef is lost: fields that the types of `graph` do not have are
//! stored, serialised, in the `opaque` field of the node or of the graph.
//!
//! Graphs are decoded from and encoded to bytes directly, because an intermediate message would cost several
//! times as much as the graph itself.

mod read;
mod write;

pub use read::{extend_graph, graph_from_bytes, graph_from_proto};
pub use write::{graph_to_bytes, graph_to_proto, new_nodes_to_bytes};

use super::attr::attr_from_proto;
use super::budget::Budget;
use super::message::Field;
use crate::pb;
use graph::{AttrValue, Attrs, Code, Error, Op, Result, Versions};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The newest graph version that can be read: that of the TensorFlow release this project follows.
pub const GRAPH_DEF_VERSION: i32 = 2474;

/// The treatment of attributes that equal their op's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DefaultAttrs {
    /// Default values are written like all other values.
    #[default]
    Keep,
    /// Default values are left out. The reader has the same defaults, or an older op without the attribute.
    Strip,
}

pub(super) fn unreadable(of: &str, error: prost::DecodeError) -> Error {
    Error::Invalid {
        code: Code::Internal,
        message: format!("serialized fields of '{of}' cannot be decoded: {error}"),
    }
}

/// Decodes attributes. Returns the decoded attributes, and the messages of those that are not `known` to the op and
/// cannot be decoded.
pub(super) fn attrs_from_proto(
    attr: BTreeMap<String, pb::AttrValue>,
    budget: &mut Budget,
    cache: &mut AttrCache,
    known: impl Fn(&str) -> bool,
) -> Result<(Attrs, BTreeMap<String, pb::AttrValue>)> {
    let mut left = BTreeMap::new();
    let mut attrs = Vec::with_capacity(attr.len());
    for (key, value) in attr {
        match cache.attr(&key, value, known(&key), budget)? {
            Ok(attr) => attrs.push(attr),
            Err(value) => {
                left.insert(key, value);
            }
        }
    }
    Ok((attrs.into_iter().collect(), left))
}

/// Returns whether an attribute value can be decoded: it is set, and its dtypes are supported.
fn is_readable(value: &pb::AttrValue) -> bool {
    use pb::attr_value::Value;
    let known = |number: &i32| graph::DType::from_number(*number).is_some();
    match &value.value {
        None => false,
        Some(Value::Type(number)) => known(number),
        Some(Value::Tensor(tensor)) => known(&tensor.dtype) && tensor.dtype() != pb::DataType::DtVariant,
        Some(Value::List(list)) => {
            list.r#type.iter().all(known)
                && list.tensor.iter().all(|t| known(&t.dtype) && t.dtype() != pb::DataType::DtVariant)
        }
        Some(_) => true,
    }
}

/// Interned names and attributes that many nodes have in common.
#[derive(Default)]
pub(super) struct AttrCache {
    names: FxHashSet<Arc<str>>,
    /// For each op, the attributes decoded last, because neighbouring nodes often have the same attributes.
    last: FxHashMap<usize, CachedAttrs>,
}

#[derive(Default)]
struct CachedAttrs {
    attrs: Attrs,
    /// The encoded attributes of the node that `attrs` was decoded from; `None` if some of them could not be decoded.
    bytes: Option<Vec<u8>>,
}

impl AttrCache {
    /// Returns the shared copy of a name.
    pub(super) fn intern(&mut self, name: &str) -> Arc<str> {
        match self.names.get(name) {
            Some(shared) => shared.clone(),
            None => {
                let shared: Arc<str> = name.into();
                self.names.insert(shared.clone());
                shared
            }
        }
    }

    /// Decodes an attribute. Returns the value unchanged if it cannot be decoded and the op does not have the
    /// attribute.
    fn attr(
        &mut self,
        key: &str,
        value: pb::AttrValue,
        is_known: bool,
        budget: &mut Budget,
    ) -> Result<std::result::Result<(Arc<str>, AttrValue), pb::AttrValue>> {
        if !is_known && !is_readable(&value) {
            return Ok(Err(value));
        }
        let value = attr_from_proto(value, budget)
            .map_err(|e| Error::Invalid { code: e.code(), message: format!("{e}\n\t for attr '{key}'") })?;
        Ok(Ok((self.intern(key), value)))
    }

    /// Returns the attributes decoded last for the op, if their encoding equals `entries`.
    fn cached(&self, op: &'static Op, entries: &[Field<'_>]) -> Option<Attrs> {
        let cached = self.last.get(&op.index)?;
        let mut bytes = cached.bytes.as_deref()?;
        for entry in entries {
            bytes = bytes.strip_prefix(entry.bytes)?;
        }
        bytes.is_empty().then(|| cached.attrs.clone())
    }

    /// Caches the attributes decoded from `entries`; `is_all` is set if all entries were decoded.
    fn put(&mut self, op: &'static Op, entries: &[Field<'_>], is_all: bool, attrs: Attrs) -> Attrs {
        let cached = self.last.entry(op.index).or_default();
        if cached.attrs != attrs {
            cached.attrs = attrs;
        }
        let mut bytes = cached.bytes.take().unwrap_or_default();
        bytes.clear();
        entries.iter().for_each(|entry| bytes.extend_from_slice(entry.bytes));
        cached.bytes = is_all.then_some(bytes);
        cached.attrs.clone()
    }
}

fn read_versions(def: pb::VersionDef) -> Result<Versions> {
    let pb::VersionDef { producer, min_consumer, bad_consumers } = def;
    if producer < 0 {
        return Err(Error::invalid(format!(
            "GraphDef producer version {producer} below min producer 0 supported. Please regenerate your graph."
        )));
    }
    if min_consumer > GRAPH_DEF_VERSION {
        return Err(Error::invalid(format!(
            "GraphDef min consumer version {min_consumer} above current version {GRAPH_DEF_VERSION}"
        )));
    }
    if bad_consumers.contains(&GRAPH_DEF_VERSION) {
        return Err(Error::invalid(format!("GraphDef disallows consumer version {GRAPH_DEF_VERSION}")));
    }
    Ok(Versions { producer, min_consumer, bad_consumers })
}

fn merge_versions(old: &Versions, new: Versions) -> Result<Versions> {
    if old.producer != new.producer {
        return Err(Error::invalid(format!(
            "Can't extend GraphDef at version {} with graph at version {}.",
            old.producer, new.producer
        )));
    }
    let bad_consumers: BTreeSet<i32> = old.bad_consumers.iter().copied().chain(new.bad_consumers).collect();
    Ok(Versions {
        producer: old.producer,
        min_consumer: old.min_consumer.max(new.min_consumer),
        bad_consumers: bad_consumers.into_iter().collect(),
    })
}
