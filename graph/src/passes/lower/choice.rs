//! Which nodes are lowered, and which are left to the kernels that call.

use crate::attr::{AttrList, AttrValue};
use crate::function::{FunctionLibrary, FunctionNode};
use crate::node::Node;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// What a node that can be lowered is.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Call,
    If,
    Case,
    While,
    Gradient,
}

pub(super) struct Choice {
    /// Nothing is lowered that need not be.
    keeps_calls: bool,
    /// Functions of which some node, or one of a function that is called there, asks for a device. A kernel that calls
    /// runs all of a body on one device, so these are lowered whatever says otherwise.
    placed: FxHashSet<Arc<str>>,
}

impl Choice {
    pub(super) fn new(library: &FunctionLibrary, keeps_calls: bool) -> Choice {
        Choice { keeps_calls, placed: placed(library) }
    }

    /// What the node is, if it is to be lowered.
    pub(super) fn of(&self, node: &Node) -> Option<Kind> {
        let kind = match node.op.name() {
            "PartitionedCall" | "StatefulPartitionedCall" => Kind::Call,
            "If" | "StatelessIf" => Kind::If,
            "Case" | "StatelessCase" => Kind::Case,
            "While" | "StatelessWhile" => Kind::While,
            // No kernel computes it.
            "SymbolicGradient" => return Some(Kind::Gradient),
            _ => return None,
        };
        let flag = |name: &str| match node.attrs.get(name) {
            Some(AttrValue::Bool(value)) => Some(*value),
            _ => None,
        };
        let is_kept = self.keeps_calls
            || flag("_noinline") == Some(true)
            || flag("_lower_using_switch_merge") == Some(false);
        let calls_placed = || node.attrs.iter().any(|(_, value)| functions(value).any(|f| self.is_placed(f)));
        (!is_kept || calls_placed()).then_some(kind)
    }

    /// Whether the function's nodes ask for devices.
    pub(super) fn is_placed(&self, function: &str) -> bool {
        self.placed.contains(function)
    }
}

/// The functions that an attribute names.
fn functions(value: &AttrValue) -> impl Iterator<Item = &Arc<str>> {
    let all = match value {
        AttrValue::Func(function) => std::slice::from_ref(function),
        AttrValue::List(AttrList::Func(functions)) => functions,
        _ => &[],
    };
    all.iter().map(|function| &function.name)
}

/// The functions that a node of a body calls, by its attributes or as what it is.
fn called(node: &FunctionNode) -> impl Iterator<Item = &Arc<str>> {
    node.attrs.iter().flat_map(|(_, value)| functions(value)).chain([&node.op])
}

fn placed(library: &FunctionLibrary) -> FxHashSet<Arc<str>> {
    let asks = |node: &FunctionNode| !node.device.is_empty();
    let mut open: Vec<&Arc<str>> =
        library.functions().iter().filter(|f| f.nodes.iter().any(asks)).map(|f| &f.name).collect();
    if open.is_empty() {
        return FxHashSet::default();
    }
    let mut callers: FxHashMap<&str, Vec<&Arc<str>>> = FxHashMap::default();
    for function in library.functions() {
        for callee in function.nodes.iter().flat_map(called) {
            callers.entry(callee).or_default().push(&function.name);
        }
    }
    let mut placed = FxHashSet::default();
    while let Some(function) = open.pop() {
        if placed.insert(function.clone()) {
            open.extend(callers.get(&**function).into_iter().flatten());
        }
    }
    placed
}
