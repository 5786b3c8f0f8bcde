//! The nodes of a received graph that cannot run because an op is missing. The rest of the graph runs without them.

use crate::error::Error;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The nodes that cannot run, and the missing ops that they need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unavailable {
    /// The op that each node needs, by the node's name.
    nodes: FxHashMap<Arc<str>, Arc<str>>,
    /// The first node that uses each op, perhaps in a function, by the op's name.
    ops: BTreeMap<Arc<str>, Arc<str>>,
}

impl Unavailable {
    /// Returns whether every node can run.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns whether a node cannot run.
    pub fn contains(&self, node: &str) -> bool {
        self.nodes.contains_key(node)
    }

    /// Returns the missing ops in the order of their names, each with the first node that uses it.
    pub fn ops(&self) -> impl Iterator<Item = (&str, &str)> {
        self.ops.iter().map(|(op, user)| (&**op, &**user))
    }

    /// Returns the error of a step that needs a node; `None` if the node can run. The error names all missing ops.
    pub fn error(&self, node: &str) -> Option<Error> {
        self.nodes.get(node).and_then(|op| self.missing(op))
    }

    /// Returns the error for a graph that must not have missing ops.
    pub(crate) fn refusal(&self) -> Option<Error> {
        self.missing(self.ops.keys().next()?)
    }

    fn missing(&self, op: &Arc<str>) -> Option<Error> {
        let user = self.ops.get(op)?;
        let others: Vec<&str> = self.ops.keys().filter(|other| *other != op).map(|other| &**other).collect();
        Some(Error::UnknownOp { node: user.to_string(), op: op.to_string(), others: others.join(", ") })
    }

    /// Returns the op that a node needs, if it cannot run.
    pub(crate) fn op_of(&self, node: &str) -> Option<&Arc<str>> {
        self.nodes.get(node)
    }

    /// Adds a node that cannot run, because the node or one that it depends on uses the missing op `op`.
    pub(crate) fn add_node(&mut self, node: &Arc<str>, op: &Arc<str>) {
        self.nodes.insert(node.clone(), op.clone());
    }

    /// Adds a missing op that a node uses.
    pub(crate) fn add_op(&mut self, op: &Arc<str>, user: &Arc<str>) {
        self.ops.entry(op.clone()).or_insert_with(|| user.clone());
    }
}
