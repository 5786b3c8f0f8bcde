//! A node: one application of an op.

use crate::attr::{Attrs, FromAttr};
use crate::error::Result;
use crate::ops::{Op, PortTypes};
use std::sync::Arc;

/// One application of an op, without its edges. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: Arc<str>,
    pub op: &'static Op,
    /// The device as requested, in the requester's spelling; empty if none was.
    pub device: Arc<str>,
    /// What was set; other attributes have their defaults.
    pub attrs: Attrs,
    /// Fields of a NodeDef that mean nothing here and travel along, serialised; mostly absent.
    pub opaque: Option<Arc<[u8]>>,
}

impl Node {
    pub fn new(name: impl Into<Arc<str>>, op: &'static Op) -> Node {
        Node { name: name.into(), op, device: "".into(), attrs: Attrs::new(), opaque: None }
    }

    pub fn with_attr(mut self, name: &str, value: impl Into<crate::attr::AttrValue>) -> Node {
        self.attrs.set(name, value);
        self
    }

    /// The attribute's value, or its default; the error names the node.
    pub fn attr<T: FromAttr>(&self, name: &str) -> Result<T> {
        self.op.attr(&self.attrs, name).map_err(|e| e.at_node(&self.name))
    }

    pub fn input_types(&self) -> Result<PortTypes> {
        self.attrs.input_types(self.op).map_err(|e| e.at_node(&self.name))
    }

    pub fn output_types(&self) -> Result<PortTypes> {
        self.attrs.output_types(self.op).map_err(|e| e.at_node(&self.name))
    }

    /// Whether the attributes, those with defaults included, and the op are the same.
    pub fn computes_same_as(&self, other: &Node) -> bool {
        std::ptr::eq(self.op, other.op) && (self.attrs.is_same(&other.attrs) || self.attrs == other.attrs)
    }
}
