//! Nodes with which a graph was sent and that cannot run, because an op is missing. The rest of the graph runs without
//! them.

use crate::error::Error;
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The nodes that a graph lacks, and the ops whose absence is the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unavailable {
    nodes: FxHashSet<Arc<str>>,
    /// The first node or function that uses each op, by the op's name.
    ops: BTreeMap<Arc<str>, Arc<str>>,
}

impl Unavailable {
    /// Returns whether every node can run.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns whether a node cannot run.
    pub fn contains(&self, node: &str) -> bool {
        self.nodes.contains(node)
    }

    /// Returns the missing ops in the order of their names, each with the first node or function that uses it.
    pub fn ops(&self) -> impl Iterator<Item = (&str, &str)> {
        self.ops.iter().map(|(op, user)| (&**op, &**user))
    }

    /// Returns the error of a step that needs a node; `None` if the node can run. It names all missing ops.
    pub fn error(&self, node: &str) -> Option<Error> {
        self.contains(node).then(|| self.missing_ops(node)).flatten()
    }

    /// Returns the error for a graph that must not have missing ops.
    pub(crate) fn refusal(&self) -> Option<Error> {
        let (_, user) = self.ops.iter().next()?;
        self.missing_ops(user)
    }

    fn missing_ops(&self, node: &str) -> Option<Error> {
        let own = self.ops.iter().find(|(_, user)| ***user == *node);
        let (op, user) = own.or_else(|| self.ops.iter().next())?;
        let others: Vec<&str> = self.ops.keys().filter(|other| *other != op).map(|other| &**other).collect();
        Some(Error::UnknownOp { node: user.to_string(), op: op.to_string(), others: others.join(", ") })
    }

    pub(crate) fn add_node(&mut self, node: &Arc<str>) {
        self.nodes.insert(node.clone());
    }

    pub(crate) fn add_op(&mut self, op: &str, user: &Arc<str>) {
        self.ops.entry(op.into()).or_insert_with(|| user.clone());
    }
}
