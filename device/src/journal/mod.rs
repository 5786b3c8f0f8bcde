//! The journal of a resource store: the changes from which another process maintains a replica, such as the standby of
//! a parameter server.
//!
//! Resources note that they change; [`Journal::take`] collects everything that has changed since the last collection,
//! as of one moment: no change begins during a collection, which starts by waiting for the changes in progress. A
//! change that was caused by another change is therefore collected with it or after it, never before.

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

/// A resource whose state another process can replicate.
pub trait Replicated: Send + Sync + fmt::Debug {
    /// Makes the resource note each of its changes in `record`, after waiting for a collection of the journal that is
    /// in progress. It is called once.
    fn attach(&self, record: Record);

    /// Returns the part of the resource's state that `extent` describes.
    fn state(&self, extent: &Extent) -> Box<dyn ReplicaState>;
}

/// The method by which a standby obtains a replica of a resource.
#[derive(Debug)]
pub enum Replica {
    /// The standby receives the resource's state.
    Follows(Arc<dyn Replicated>),
    /// The standby needs no replica, because the resource is of no use once its process has ended.
    NotNeeded,
    /// The resource cannot be replicated, so creating it in a replicated store fails.
    Refused,
}

/// The part of a resource that has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    #[default]
    Nothing,
    /// The slices of the resource whose indices are in `numbers`; each slice is a run of `length` elements.
    Slices {
        length: usize,
        numbers: BTreeSet<usize>,
    },
    Whole,
}

/// The journal of one or more resource stores: it notes which of their resources have changed or have been removed.
#[derive(Default)]
pub struct Journal {
    /// True while changes are noted for [`Journal::take`].
    is_recording: AtomicBool,
    has_changed: AtomicBool,
    /// Held for writing while [`Journal::everything`], [`Journal::take`] or [`Journal::stop`] runs, and for reading
    /// during each change of a resource.
    collection_lock: RwLock<()>,
    notes: Mutex<Vec<Note>>,
    entries: Mutex<FxHashMap<Key, Arc<Entry>>>,
}

/// The key of a resource: the number of the store, the container, the kind and the name.
type Key = (u32, Arc<str>, &'static str, Arc<str>);

/// A note for the next call of [`Journal::take`]: a resource has changed, or resources have been removed. A resource
/// that changes several times before that call has one note, in the position of its first change.
enum Note {
    Changed(Arc<Entry>),
    Removal(Box<Change>),
}

/// A resource's entry in its journal: the resource, and the part of it that has changed since the last call of
/// [`Journal::take`].
struct Entry {
    key: Key,
    resource: Weak<dyn Replicated>,
    extent: Mutex<Extent>,
    /// True if the resource has been removed. Changes by kernels that still use it are not replicated.
    is_gone: AtomicBool,
}

/// The access to the journal with which a resource notes its own changes.
pub struct Record {
    journal: Arc<Journal>,
    entry: Arc<Entry>,
}

impl Journal {
    /// Registers a resource that has just been created.
    ///
    /// # Errors
    /// `Unimplemented` if the state of resources of this kind cannot be replicated.
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

    /// Notes that a resource has been removed. A collection happens either before the removal or after it is noted.
    pub(crate) fn removed(&self, store: u32, container: &Arc<str>, kind: &'static str, name: &Arc<str>) {
        let _change_guard = self.collection_lock.read();
        let entry = self.entries.lock().remove(&(store, container.clone(), kind, name.clone()));
        let Some(entry) = entry else { return };
        entry.is_gone.store(true, Ordering::Release);
        let what = ChangeKind::Removed { kind: kind.into(), name: name.clone() };
        self.note_removal(Change { store, container: container.clone(), what });
    }

    /// Notes that all resources of a container have been removed.
    pub(crate) fn cleared(&self, store: u32, container: &Arc<str>) {
        let _change_guard = self.collection_lock.read();
        self.entries.lock().retain(|(of, within, ..), entry| {
            let is_gone = (*of, within) == (store, container);
            entry.is_gone.fetch_or(is_gone, Ordering::AcqRel);
            !is_gone
        });
        self.note_removal(Change { store, container: container.clone(), what: ChangeKind::Cleared });
    }

    fn note_removal(&self, change: Change) {
        if self.is_recording.load(Ordering::Acquire) {
            self.notes.lock().push(Note::Removal(Box::new(change)));
        }
    }

    /// Returns changes that create the whole state of the stores in a replica, and starts to note changes for
    /// [`Journal::take`].
    pub fn everything(&self) -> Vec<Change> {
        let _collection_guard = self.collection_lock.write();
        self.is_recording.store(true, Ordering::Release);
        self.notes.lock().clear();
        let entries: Vec<Arc<Entry>> = self.entries.lock().values().cloned().collect();
        let changes = entries.iter().filter_map(|entry| {
            *entry.extent.lock() = Extent::Nothing;
            entry.change(&Extent::Whole)
        });
        changes.collect()
    }

    /// Returns the changes since the last collection, in the order in which to apply them.
    pub fn take(&self) -> Vec<Change> {
        let _collection_guard = self.collection_lock.write();
        let notes = std::mem::take(&mut *self.notes.lock());
        let change = |note| match note {
            Note::Removal(change) => Some(*change),
            Note::Changed(entry) => {
                let extent = std::mem::take(&mut *entry.extent.lock());
                entry.change(&extent)
            }
        };
        notes.into_iter().filter_map(change).collect()
    }

    /// Marks the stores as used, because a resource has changed.
    pub(crate) fn mark_used(&self) {
        self.has_changed.store(true, Ordering::Release);
    }

    /// Returns whether any resource of the stores has ever changed. Before the first change, no resource has a value
    /// that could be lost.
    pub fn has_changed(&self) -> bool {
        self.has_changed.load(Ordering::Acquire)
    }

    /// Returns whether changes are noted that [`Journal::take`] would return.
    pub fn has_notes(&self) -> bool {
        !self.notes.lock().is_empty()
    }

    /// Stops noting changes and discards all notes.
    pub fn stop(&self) {
        let _collection_guard = self.collection_lock.write();
        self.is_recording.store(false, Ordering::Release);
        for note in self.notes.lock().drain(..) {
            if let Note::Changed(entry) = note {
                *entry.extent.lock() = Extent::Nothing;
            }
        }
    }
}

impl Entry {
    /// Returns a change with the part of the resource's state that `extent` describes; `None` if the resource has been
    /// removed or dropped.
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
    /// Waits for a collection in progress and delays the next until the guard is dropped. A change of several resources
    /// holds one guard, so that all or none of it is collected. The caller must hold no lock of a resource, and no
    /// other guard.
    pub fn delay_collection(&self) -> RwLockReadGuard<'_, ()> {
        self.journal.collection_lock.read()
    }

    /// Notes that the whole resource changes. The caller has locked the resource, so that its state is not read before
    /// the change is complete.
    pub fn note_change(&self) {
        self.note(|extent| *extent = Extent::Whole);
    }

    /// Notes that the slices with the indices `slices` change. Each slice is a run of `length` elements; the whole
    /// resource has `total` elements.
    pub fn note_slice_changes(&self, slices: impl Iterator<Item = usize>, length: usize, total: usize) {
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
                    // If the slices cover over half of the resource, a list of slices would cost more than it saves.
                    if numbers.len().saturating_mul(length).saturating_mul(2) > total {
                        *extent = Extent::Whole;
                    }
                }
                _ => *extent = Extent::Whole,
            }
        });
    }

    fn note(&self, change: impl FnOnce(&mut Extent)) {
        self.journal.mark_used();
        if !self.journal.is_recording.load(Ordering::Acquire) {
            return;
        }
        let is_noted = {
            let mut extent = self.entry.extent.lock();
            let is_noted = *extent != Extent::Nothing;
            change(&mut extent);
            is_noted
        };
        if !is_noted {
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
