//! What changes in a store, so that another process can hold the same: a parameter server and its standby.
//!
//! Resources note that they change; [`Journal::take`] gives all that has changed since the last time, as it was at one
//! moment: no change begins while states are taken, and those under way are waited for. So whatever followed from a
//! change is taken with it or after it, never before.

mod change;

pub use change::{AccumulatorState, Change, State, Sum, VariableState, What};

use crate::error::{Error, Result};
use crate::resource::Resource;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// A resource whose state another process can hold.
pub trait Replicated: Send + Sync {
    /// From now on the resource waits for `record` before it changes, and notes that it has. Called once.
    fn attach(&self, record: Record);

    /// What has changed of it to this extent.
    fn state(&self, extent: &Extent) -> State;
}

/// How much of a resource has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    #[default]
    Nothing,
    /// Slices of so many elements each, by number.
    Slices {
        length: usize,
        numbers: BTreeSet<usize>,
    },
    Whole,
}

/// The journal of one or more stores.
#[derive(Default)]
pub struct Journal {
    /// Whether somebody wants to know.
    is_kept: AtomicBool,
    /// Closed while states are taken.
    gate: RwLock<()>,
    notes: Mutex<Vec<Note>>,
    entries: Mutex<FxHashMap<Key, Arc<Entry>>>,
}

/// Store, container, kind and name.
type Key = (u32, Arc<str>, &'static str, Arc<str>);

/// What has happened, in order.
enum Note {
    Changed(Arc<Entry>),
    Gone(Box<Change>),
}

/// A resource's place in its journal.
struct Entry {
    key: Key,
    resource: Weak<dyn Replicated>,
    extent: Mutex<Extent>,
}

/// What a resource holds of its journal.
pub struct Record {
    journal: Arc<Journal>,
    entry: Arc<Entry>,
}

impl Journal {
    /// A resource of this kind has been made.
    ///
    /// # Errors
    /// `Unimplemented` of a kind whose state no other process can hold.
    pub(crate) fn admit<T: Resource>(
        self: &Arc<Journal>,
        store: u32,
        container: &Arc<str>,
        name: &Arc<str>,
        resource: &Arc<T>,
    ) -> Result<()> {
        let Some(replicated) = T::replicated(resource) else {
            return Err(Error::unimplemented(format!(
                "a {} ('{name}') on a parameter server that has a replica, which holds variables, queues and \
                 accumulators: place it on another task",
                T::KIND
            )));
        };
        let key = (store, container.clone(), T::KIND, name.clone());
        let (resource, extent) = (Arc::downgrade(&replicated), Mutex::default());
        let entry = Arc::new(Entry { key: key.clone(), resource, extent });
        self.entries.lock().insert(key, entry.clone());
        replicated.attach(Record { journal: self.clone(), entry });
        Ok(())
    }

    /// A resource has been removed.
    pub(crate) fn removed(&self, store: u32, container: &Arc<str>, kind: &'static str, name: &Arc<str>) {
        self.entries.lock().remove(&(store, container.clone(), kind, name.clone()));
        let what = What::Removed { kind: kind.into(), name: name.clone() };
        self.gone(Change { store, container: container.clone(), what });
    }

    /// So has everything in a container.
    pub(crate) fn cleared(&self, store: u32, container: &Arc<str>) {
        self.entries.lock().retain(|(of, within, ..), _| (*of, within) != (store, container));
        self.gone(Change { store, container: container.clone(), what: What::Cleared });
    }

    fn gone(&self, change: Change) {
        if self.is_kept.load(Ordering::Acquire) {
            self.notes.lock().push(Note::Gone(Box::new(change)));
        }
    }

    /// All that there is; from now on [`Journal::take`] gives what changes.
    pub fn everything(&self) -> Vec<Change> {
        let _closed = self.gate.write();
        self.is_kept.store(true, Ordering::Release);
        self.notes.lock().clear();
        let entries: Vec<Arc<Entry>> = self.entries.lock().values().cloned().collect();
        let changes = entries.iter().filter_map(|entry| {
            *entry.extent.lock() = Extent::Nothing;
            entry.change(&Extent::Whole)
        });
        changes.collect()
    }

    /// What has changed since the last time, in the order to apply it.
    pub fn take(&self) -> Vec<Change> {
        let _closed = self.gate.write();
        let notes = std::mem::take(&mut *self.notes.lock());
        let change = |note| match note {
            Note::Gone(change) => Some(*change),
            Note::Changed(entry) => {
                let extent = std::mem::take(&mut *entry.extent.lock());
                entry.change(&extent)
            }
        };
        notes.into_iter().filter_map(change).collect()
    }

    /// Whether there is nothing in its stores.
    pub fn is_empty(&self) -> bool {
        self.entries.lock().is_empty()
    }

    /// Nobody wants to know any more.
    pub fn stop(&self) {
        let _closed = self.gate.write();
        self.is_kept.store(false, Ordering::Release);
        for note in self.notes.lock().drain(..) {
            if let Note::Changed(entry) = note {
                *entry.extent.lock() = Extent::Nothing;
            }
        }
    }
}

impl Entry {
    /// `None` of a resource that is no more.
    fn change(&self, extent: &Extent) -> Option<Change> {
        let state = Box::new(self.resource.upgrade()?.state(extent));
        let (store, container, kind, name) = self.key.clone();
        Some(Change { store, container, what: What::State { kind: kind.into(), name, state } })
    }
}

impl Record {
    /// Waits while states are taken: called before a change, by whoever holds no lock of a resource.
    pub fn pass(&self) {
        drop(self.journal.gate.read());
    }

    /// All of the resource changes; its state cannot be read until that is done.
    pub fn changes(&self) {
        self.note(|extent| *extent = Extent::Whole);
    }

    /// These slices of it do, of `total` elements in all.
    pub fn changes_slices(&self, slices: impl Iterator<Item = usize>, length: usize, total: usize) {
        self.note(|extent| {
            if *extent == Extent::Nothing {
                *extent = Extent::Slices { length, numbers: BTreeSet::new() };
            }
            match extent {
                Extent::Slices { length: same, numbers } if *same == length => {
                    numbers.extend(slices);
                    // Then numbers cost more than they save.
                    if numbers.len().saturating_mul(length).saturating_mul(2) > total {
                        *extent = Extent::Whole;
                    }
                }
                _ => *extent = Extent::Whole,
            }
        });
    }

    fn note(&self, change: impl FnOnce(&mut Extent)) {
        if !self.journal.is_kept.load(Ordering::Acquire) {
            return;
        }
        let was_known = {
            let mut extent = self.entry.extent.lock();
            let was_known = *extent != Extent::Nothing;
            change(&mut extent);
            was_known
        };
        if !was_known {
            self.journal.notes.lock().push(Note::Changed(self.entry.clone()));
        }
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Journal({} resources, {} notes)", self.entries.lock().len(), self.notes.lock().len())
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record{:?}", self.entry.key)
    }
}

#[cfg(test)]
mod tests;
