//! What changes in a store, so that another process can hold the same: a parameter server and its standby.
//!
//! Resources note that they change; [`Journal::take`] gives all that has changed since the last time, as it was at one
//! moment: no change begins while states are taken, and those under way are waited for. So whatever followed from a
//! change is taken with it or after it, never before.

mod change;

pub use change::{Change, ChangeKind, ReplicaState};

use crate::error::{Error, Result};
use crate::resource::Resource;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// A resource whose state another process can hold.
pub trait Replicated: Send + Sync + fmt::Debug {
    /// From now on the resource waits for `record` before it changes, and notes that it has. Called once.
    fn attach(&self, record: Record);

    /// What has changed of it to this extent.
    fn state(&self, extent: &Extent) -> Box<dyn ReplicaState>;
}

/// How a process that follows a store comes to hold a resource of it.
#[derive(Debug)]
pub enum Replica {
    /// It is told what the resource is.
    Follows(Arc<dyn Replicated>),
    /// It does without: what the resource is for ends with its process.
    NotNeeded,
    /// It cannot.
    Refused,
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
    was_used: AtomicBool,
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
    /// It has been removed: whoever still has the resource changes nothing that others are told.
    is_gone: AtomicBool,
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
        let replicated = match T::replica(resource) {
            Replica::Follows(replicated) => replicated,
            Replica::NotNeeded => return Ok(()),
            Replica::Refused => {
                return Err(Error::unimplemented(format!(
                    "a {} ('{name}') on a parameter server that has a replica, which holds variables, queues and \
                     accumulators: place it on another task",
                    T::KIND
                )));
            }
        };
        let key = (store, container.clone(), T::KIND, name.clone());
        let (resource, extent) = (Arc::downgrade(&replicated), Mutex::default());
        let entry = Arc::new(Entry { key: key.clone(), resource, extent, is_gone: AtomicBool::new(false) });
        self.entries.lock().insert(key, entry.clone());
        replicated.attach(Record { journal: self.clone(), entry });
        Ok(())
    }

    /// A resource has been removed: states are taken before that, or after it is noted.
    pub(crate) fn removed(&self, store: u32, container: &Arc<str>, kind: &'static str, name: &Arc<str>) {
        let _not_taken = self.gate.read();
        let entry = self.entries.lock().remove(&(store, container.clone(), kind, name.clone()));
        let Some(entry) = entry else { return };
        entry.is_gone.store(true, Ordering::Release);
        let what = ChangeKind::Removed { kind: kind.into(), name: name.clone() };
        self.gone(Change { store, container: container.clone(), what });
    }

    /// So has everything in a container.
    pub(crate) fn cleared(&self, store: u32, container: &Arc<str>) {
        let _not_taken = self.gate.read();
        self.entries.lock().retain(|(of, within, ..), entry| {
            let is_gone = (*of, within) == (store, container);
            entry.is_gone.fetch_or(is_gone, Ordering::AcqRel);
            !is_gone
        });
        self.gone(Change { store, container: container.clone(), what: ChangeKind::Cleared });
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

    /// A resource has changed.
    pub(crate) fn is_used(&self) {
        self.was_used.store(true, Ordering::Release);
    }

    /// Whether what its stores hold has ever changed: what has no value yet is nothing to lose.
    pub fn was_used(&self) -> bool {
        self.was_used.load(Ordering::Acquire)
    }

    /// Whether something is noted that [`Journal::take`] would give.
    pub fn has_notes(&self) -> bool {
        !self.notes.lock().is_empty()
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
        if self.is_gone.load(Ordering::Acquire) {
            return None;
        }
        let state = self.resource.upgrade()?.state(extent);
        let (store, container, kind, name) = self.key.clone();
        Some(Change { store, container, what: ChangeKind::State { kind: kind.into(), name, state } })
    }
}

impl Record {
    /// Waits while states are taken; none are before this is dropped. For a change of several resources, which are taken
    /// together or not at all. Whoever calls it holds no lock of a resource, and calls it once.
    pub fn hold(&self) -> RwLockReadGuard<'_, ()> {
        self.journal.gate.read()
    }

    /// All of the resource changes; its state cannot be read until that is done.
    pub fn changes(&self) {
        self.note(|extent| *extent = Extent::Whole);
    }

    /// These slices of it do, of `total` elements in all.
    pub fn changes_slices(&self, slices: impl Iterator<Item = usize>, length: usize, total: usize) {
        let mut slices = slices.peekable();
        if slices.peek().is_none() {
            return;
        }
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
        self.journal.is_used();
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
