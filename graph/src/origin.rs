//! Where a `_Recv` has its value from, within a task: who splits a task's graph notes it, who runs the parts reads it.

use crate::attr::AttrValue;
use crate::node::Node;

/// Where what one device of a task receives from another comes from. All that has one origin comes at one time, and all of
/// it is dead or none is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin<'a> {
    /// The name of the node that gives it.
    pub node: &'a str,
    /// It is what the step is fed, and there when the step begins, unless that runs in parts.
    pub is_fed: bool,
}

const NODE: &str = "_origin";
const IS_FED: &str = "_fed";

impl<'a> Origin<'a> {
    /// What is noted at a node; `None` if nothing is.
    pub fn of(node: &'a Node) -> Option<Origin<'a>> {
        let origin = match node.attrs.get(NODE) {
            Some(AttrValue::Str(origin)) => std::str::from_utf8(origin).ok()?,
            _ => return None,
        };
        Some(Origin { node: origin, is_fed: node.attrs.get(IS_FED) == Some(&AttrValue::Bool(true)) })
    }

    /// Notes it at a `_Recv`.
    pub fn note(&self, recv: &mut Node) {
        recv.attrs.set(NODE, self.node);
        match self.is_fed {
            true => recv.attrs.set(IS_FED, true),
            false => recv.attrs.remove(IS_FED),
        }
    }
}
