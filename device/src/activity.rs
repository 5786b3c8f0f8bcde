//! The kernels of a step that are running, for reports of steps that wait, and notes of kernels for the step's trace.

use graph::Node;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::{Arc, OnceLock};

/// The asynchronous kernels of a step that have not ended, including those of its function calls, and the notes of
/// kernels about their work.
#[derive(Debug, Default)]
pub struct Activity {
    /// The nodes whose kernels have not ended, by the address of the node.
    waiting: Mutex<FxHashMap<usize, Waiting>>,
    /// The notes by the address of the node; unset unless the step is traced.
    notes: OnceLock<Mutex<FxHashMap<usize, String>>>,
}

#[derive(Debug)]
struct Waiting {
    node: Arc<Node>,
    /// Number of the node's runs, in different iterations or calls, that have not ended.
    runs: usize,
}

impl Activity {
    /// Records that the node's kernel has started and will end later.
    pub fn begin(&self, node: &Arc<Node>) {
        let mut waiting = self.waiting.lock();
        waiting.entry(key(node)).or_insert_with(|| Waiting { node: node.clone(), runs: 0 }).runs += 1;
    }

    /// Records the end of a kernel that [`Activity::begin`] has recorded.
    pub fn end(&self, node: &Node) {
        let mut waiting = self.waiting.lock();
        let Some(entry) = waiting.get_mut(&key(node)) else { return };
        entry.runs -= 1;
        if entry.runs == 0 {
            waiting.remove(&key(node));
        }
    }

    /// Returns the nodes whose kernels have not ended, in the order of their names.
    pub fn waiting(&self) -> Vec<Arc<Node>> {
        let mut nodes: Vec<Arc<Node>> = self.waiting.lock().values().map(|w| w.node.clone()).collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        nodes
    }

    /// Stores notes from now on, because the step is traced.
    pub fn keep_notes(&self) {
        self.notes.get_or_init(Mutex::default);
    }

    /// Stores a note about the node's work for the trace of the step; `text` is called only if the step is traced. A
    /// later note about the node replaces one that has not been taken.
    pub fn note(&self, node: &Node, text: impl FnOnce() -> String) {
        if let Some(notes) = self.notes.get() {
            notes.lock().insert(key(node), text());
        }
    }

    /// Removes and returns the note about a node's work.
    pub fn take_note(&self, node: &Node) -> Option<String> {
        self.notes.get()?.lock().remove(&key(node))
    }
}

fn key(node: &Node) -> usize {
    std::ptr::from_ref(node).addr()
}
