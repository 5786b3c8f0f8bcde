//! Nodes of a graph.

use crate::attr::{Attrs, FromAttr};
use crate::error::Result;
use crate::ops::{Op, PortTypes};
use std::sync::Arc;

/// A use of an op in a graph, without its edges. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: Arc<str>,
    pub op: &'static Op,
    /// The device that the client requested, as the client wrote it; empty without a request.
    pub device: Arc<str>,
    /// The attributes that are set explicitly; all other attributes have their defaults.
    pub attrs: Attrs,
    /// Serialized NodeDef fields that this crate does not interpret and writes back unchanged; mostly absent.
    pub opaque: Option<Arc<[u8]>>,
}

impl Node {
    /// Returns a node without attributes and without a device.
    pub fn new(name: impl Into<Arc<str>>, op: &'static Op) -> Node {
        Node { name: name.into(), op, device: "".into(), attrs: Attrs::new(), opaque: None }
    }

    /// Returns the node with an attribute set.
    pub fn with_attr(mut self, name: &str, value: impl Into<crate::attr::AttrValue>) -> Node {
        self.attrs.set(name, value);
        self
    }

    /// Returns the attribute's value, or its default; the error names the node.
    pub fn attr<T: FromAttr>(&self, name: &str) -> Result<T> {
        self.op.attr(&self.attrs, name).map_err(|e| e.at_node(&self.name))
    }

    /// Returns the types of the node's data inputs; the error names the node.
    pub fn input_types(&self) -> Result<PortTypes> {
        self.attrs.input_types(self.op).map_err(|e| e.at_node(&self.name))
    }

    /// Returns the types of the node's outputs; the error names the node.
    pub fn output_types(&self) -> Result<PortTypes> {
        self.attrs.output_types(self.op).map_err(|e| e.at_node(&self.name))
    }

    /// Returns whether both nodes have the same op and attributes, so that equal inputs give equal outputs.
    pub fn computes_same_as(&self, other: &Node) -> bool {
        std::ptr::eq(self.op, other.op) && (self.attrs.is_same(&other.attrs) || self.attrs == other.attrs)
    }
}
