//! Resources: objects that outlive steps and sessions, such as variables, queues and tables, by container, kind and
//! name.

use crate::error::{Error, Result};
use crate::journal::{Journal, Replica};
use graph::Code;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::any::{Any, TypeId};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A type of objects that a [`ResourceStore`] contains, such as variables or queues.
pub trait Resource: Any + Send + Sync + fmt::Debug {
    /// The name of the resource type, in messages and handles.
    const KIND: &'static str;

    /// Returns how a standby that replicates the store obtains the resource.
    fn replica(_resource: &Arc<Self>) -> Replica
    where
        Self: Sized,
    {
        Replica::Refused
    }
}

type Key = (TypeId, Arc<str>);
type Object = Arc<dyn Any + Send + Sync>;
type Container = FxHashMap<Key, Entry>;
type Containers = FxHashMap<Arc<str>, Container>;

struct Entry {
    kind: &'static str,
    object: Object,
    admit: AdmitFn,
}

/// A function that registers an object with a journal. The function is stored in each entry of the store, because only
/// the creator of an entry knows the object's type.
type AdmitFn = fn(&Arc<Journal>, u32, &Arc<str>, &Arc<str>, &Object) -> Result<()>;

fn admit<T: Resource>(
    journal: &Arc<Journal>,
    number: u32,
    container: &Arc<str>,
    name: &Arc<str>,
    object: &Object,
) -> Result<()> {
    match object.clone().downcast::<T>() {
        Ok(object) => journal.admit(number, container, name, &object),
        Err(_) => Err(other_type_error()),
    }
}

/// The resources of one device.
#[derive(Default)]
pub struct ResourceStore {
    default_container: Arc<str>,
    containers: Mutex<Containers>,
    removals: AtomicU64,
    /// The journal that notes the store's changes, and the store's number in the journal; empty if the store is not
    /// replicated.
    journal: OnceLock<(Arc<Journal>, u32)>,
}

impl ResourceStore {
    /// Creates an empty store. Resources without a container go to `default_container` (the job's name).
    pub fn new(default_container: &str) -> ResourceStore {
        ResourceStore { default_container: default_container.into(), ..ResourceStore::default() }
    }

    /// Makes `journal` record all changes of the store, which gets the number `number` in the journal. The store must
    /// be empty, or have been filled from another store's journal.
    ///
    /// # Errors
    /// `FailedPrecondition` if the store has a journal already.
    pub fn attach(&self, journal: &Arc<Journal>, number: u32) -> Result<()> {
        // Existing resources are registered under the lock, so that no resource can be created meanwhile.
        let containers = self.containers.lock();
        if self.journal.set((journal.clone(), number)).is_err() {
            return Err(Error::new(Code::FailedPrecondition, "the store has a journal"));
        }
        for (container, resources) in containers.iter() {
            for ((_, name), entry) in resources {
                (entry.admit)(journal, number, container, name, &entry.object)?;
            }
        }
        Ok(())
    }

    /// Returns the name of the default container.
    pub fn default_container(&self) -> &Arc<str> {
        &self.default_container
    }

    fn container(&self, name: &str) -> Arc<str> {
        if name.is_empty() { self.default_container.clone() } else { name.into() }
    }

    /// Returns the resource `name` of type `T`, or a `NotFound` error that names the resource.
    pub fn lookup<T: Resource>(&self, container: &str, name: &str) -> Result<Arc<T>> {
        self.find(container, name).ok_or_else(|| self.missing(container, name, T::KIND))
    }

    /// Creates the `NotFound` error for a lookup of a resource that does not exist.
    fn missing(&self, container: &str, name: &str, kind: &str) -> Error {
        let container = self.container(container);
        let message = if self.containers.lock().contains_key(&container) {
            format!("Resource {container}/{name}/{kind} does not exist.")
        } else {
            format!("Container {container} does not exist. (Could not find resource: {container}/{name})")
        };
        Error::new(Code::NotFound, message)
    }

    /// Returns a number that changes whenever a resource is removed. A resource that was cached together with the
    /// number is still in the store if the number is unchanged.
    pub fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// Returns the resource `name` of type `T`, or `None` if the container has none.
    pub fn find<T: Resource>(&self, container: &str, name: &str) -> Option<Arc<T>> {
        self.find_object(container, &key::<T>(name))?.downcast::<T>().ok()
    }

    fn find_object(&self, container: &str, key: &Key) -> Option<Object> {
        let containers = self.containers.lock();
        Some(containers.get(&self.container(container))?.get(key)?.object.clone())
    }

    /// Notes in the store's journal, if there is one, that at least one resource has changed.
    pub(crate) fn mark_used(&self) {
        self.journal.get().into_iter().for_each(|(journal, _)| journal.mark_used());
    }

    /// Returns the resource `name` of type `T`, created by `make` if the container has none.
    pub fn lookup_or_create<T: Resource>(
        &self,
        container: &str,
        name: &str,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        self.find_or_make(container, name, make, admit::<T>)
    }

    /// Returns the resource like [`ResourceStore::lookup_or_create`]. The resource is removed with the kernel that
    /// created it and is not replicated.
    pub fn lookup_or_create_private<T: Resource>(
        &self,
        container: &str,
        name: &str,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        self.find_or_make(container, name, make, |_, _, _, _, _| Ok(()))
    }

    fn find_or_make<T: Resource>(
        &self,
        container: &str,
        name: &str,
        make: impl FnOnce() -> Result<T>,
        admit: AdmitFn,
    ) -> Result<Arc<T>> {
        // The lock is held until the new resource is in the store, so that a resource is created once.
        let (mut containers, container) = (self.containers.lock(), self.container(container));
        let key = key::<T>(name);
        if let Some(found) = find_or_add_container(&mut containers, &container, &key) {
            return found.downcast::<T>().map_err(|_| other_type_error());
        }
        let made = Arc::new(make()?);
        self.insert(&mut containers, &container, key, Entry { kind: T::KIND, object: made.clone(), admit })?;
        Ok(made)
    }

    /// Adds a resource to a container, after registering it with the journal.
    fn insert(
        &self,
        containers: &mut Containers,
        container: &Arc<str>,
        key: Key,
        entry: Entry,
    ) -> Result<()> {
        if let Some((journal, number)) = self.journal.get() {
            (entry.admit)(journal, *number, container, &key.1, &entry.object)?;
        }
        containers.entry(container.clone()).or_default().insert(key, entry);
        Ok(())
    }

    /// Removes a resource. Returns whether there was one.
    pub fn remove<T: Resource>(&self, container: &str, name: &str) -> bool {
        self.remove_key(container, key::<T>(name))
    }

    fn remove_key(&self, container: &str, key: Key) -> bool {
        self.remove_found(container, |_| Some(key))
    }

    /// Removes the resource `name` of the type whose [`Resource::KIND`] is `kind`. Returns whether there was one.
    pub fn remove_kind(&self, container: &str, kind: &str, name: &str) -> bool {
        let is_match = |((_, own), entry): &(&Key, &Entry)| **own == *name && entry.kind == kind;
        self.remove_found(container, |resources| resources.iter().find(is_match).map(|(key, _)| key.clone()))
    }

    fn remove_found(&self, container: &str, find: impl FnOnce(&Container) -> Option<Key>) -> bool {
        let mut containers = self.containers.lock();
        self.removals.fetch_add(1, Ordering::AcqRel);
        let container = self.container(container);
        let Some(resources) = containers.get_mut(&container) else { return false };
        let found = find(resources);
        let Some((key, removed)) = found.and_then(|key| resources.remove_entry(&key)) else { return false };
        if let Some((journal, number)) = self.journal.get() {
            journal.removed(*number, &container, removed.kind, &key.1);
        }
        // The resource is dropped after the lock is released, because dropping it may take long.
        drop(containers);
        drop(removed);
        true
    }

    /// Removes all resources of the store.
    pub fn clear_all(&self) {
        let all: Vec<Arc<str>> = self.containers.lock().keys().cloned().collect();
        all.iter().for_each(|container| self.clear(container));
    }

    /// Removes all resources of a container; an empty name means the default container.
    pub fn clear(&self, container: &str) {
        let mut containers = self.containers.lock();
        self.removals.fetch_add(1, Ordering::AcqRel);
        // The resources are dropped after the lock is released, because dropping them may take long.
        let container = self.container(container);
        let _removed = containers.remove(&container);
        if let Some((journal, number)) = self.journal.get() {
            journal.cleared(*number, &container);
        }
        drop(containers);
    }
}

/// Returns the resource with this key; `None` if there is none. Adds the container if it does not exist.
fn find_or_add_container(containers: &mut Containers, container: &Arc<str>, key: &Key) -> Option<Object> {
    containers.entry(container.clone()).or_default().get(key).map(|entry| entry.object.clone())
}

fn other_type_error() -> Error {
    Error::internal("resource of another type")
}

fn key<T: Resource>(name: &str) -> Key {
    (TypeId::of::<T>(), name.into())
}

impl fmt::Debug for ResourceStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let containers = self.containers.lock();
        f.debug_map().entries(containers.iter().map(|(c, r)| (c, r.len()))).finish()
    }
}
