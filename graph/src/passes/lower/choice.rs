//! The choice between lowering a node and leaving it to a kernel that executes function calls.

use crate::attr::{AttrList, AttrValue};
use crate::function::{FunctionLibrary, FunctionNode};
use crate::node::Node;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The kind of lowering: of a call, a conditional, a loop or a gradient.
#[derive(Clone, Copy)]
pub(super) enum LoweredKind {
    Call,
    If,
    Case,
    While,
    Gradient,
}

/// Decides which nodes of one graph are lowered.
pub(super) struct LoweringChoice {
    /// True if a call is lowered only when no kernel can execute it, and all other calls stay calls.
    keeps_calls: bool,
    /// Functions in whose bodies, directly or through calls, a node asks for a device. A kernel that executes a call
    /// runs the whole body on one device, so calls of these functions are always lowered.
    placed: FxHashSet<Arc<str>>,
}

impl LoweringChoice {
    pub(super) fn new(library: &FunctionLibrary, keeps_calls: bool) -> LoweringChoice {
        LoweringChoice { keeps_calls, placed: placed(library) }
    }

    /// Returns the kind of lowering for the node; `None` if the node is not lowered.
    pub(super) fn of(&self, node: &Node) -> Option<LoweredKind> {
        let kind = match node.op.name() {
            "PartitionedCall" | "StatefulPartitionedCall" => LoweredKind::Call,
            "If" | "StatelessIf" => LoweredKind::If,
            "Case" | "StatelessCase" => LoweredKind::Case,
            "While" | "StatelessWhile" => LoweredKind::While,
            // SymbolicGradient has no kernel, so it is always lowered.
            "SymbolicGradient" => return Some(LoweredKind::Gradient),
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

    /// Returns whether nodes of the function, or of functions that it calls, ask for devices.
    pub(super) fn is_placed(&self, function: &str) -> bool {
        self.placed.contains(function)
    }
}

/// Returns the names of the functions that an attribute holds.
fn functions(value: &AttrValue) -> impl Iterator<Item = &Arc<str>> {
    let all = match value {
        AttrValue::Func(function) => std::slice::from_ref(function),
        AttrValue::List(AttrList::Func(functions)) => functions,
        _ => &[],
    };
    all.iter().map(|function| &function.name)
}

/// Returns the names of the functions that a node of a body may call, through its attributes or through its op.
fn called(node: &FunctionNode) -> impl Iterator<Item = &Arc<str>> {
    node.attrs.iter().flat_map(|(_, value)| functions(value)).chain([&node.op])
}

/// Returns the functions that contain a node with a device, and all their direct and indirect callers.
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
