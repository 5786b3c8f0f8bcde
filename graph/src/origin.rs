//! The node that produces the value a `_Recv` receives from another device of its task. The partitioner writes its name
//! into the attributes of the `_Recv`, and the executor of the receiving partition reads it.

use crate::attr::AttrValue;
use crate::node::Node;

/// The node that produces the value of a `_Recv` from another device of the same task. All values with the same
/// origin arrive at the same time, and either all or none of them are dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvOrigin<'a> {
    /// The name of the producing node.
    pub node: &'a str,
    /// True for a fed value, which is available when the step begins (except in a partial run).
    pub is_fed: bool,
}

const NODE: &str = "_origin";
const IS_FED: &str = "_fed";

impl<'a> RecvOrigin<'a> {
    /// Reads the origin from a node's attributes; `None` if the attributes hold none.
    pub fn of(node: &'a Node) -> Option<RecvOrigin<'a>> {
        let origin = match node.attrs.get(NODE) {
            Some(AttrValue::Str(origin)) => std::str::from_utf8(origin).ok()?,
            _ => return None,
        };
        Some(RecvOrigin { node: origin, is_fed: node.attrs.get(IS_FED) == Some(&AttrValue::Bool(true)) })
    }

    /// Writes the origin into the attributes of a `_Recv`.
    pub fn note(&self, recv: &mut Node) {
        recv.attrs.set(NODE, self.node);
        match self.is_fed {
            true => recv.attrs.set(IS_FED, true),
            false => recv.attrs.remove(IS_FED),
        }
    }
}
