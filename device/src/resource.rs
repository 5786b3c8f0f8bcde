//! Objects that outlive steps and sessions, by container, kind and name: variables, queues, tables.

use crate::error::{Error, Result};
use crate::journal::{Journal, Replica};
use graph::Code;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::any::{Any, TypeId};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// An object of a [`ResourceStore`].
pub trait Resource: Any + Send + Sync + fmt::Debug {
    /// The kind's name in messages.
    const KIND: &'static str;

    /// How another process that follows the store comes to hold the same.
    fn replica(_resource: &Arc<Self>) -> Replica
    where
        Self: Sized,
    {
        Replica::Refused
    }
}

type Key = (TypeId, Arc<str>);
type Container = FxHashMap<Key, Held>;

struct Held {
    kind: &'static str,
    object: Arc<dyn Any + Send + Sync>,
    admit: Admit,
}

/// Tells a journal of an object whose type is known here alone.
type Admit = fn(&Arc<Journal>, u32, &Arc<str>, &Arc<str>, &Arc<dyn Any + Send + Sync>) -> Result<()>;

fn admit<T: Resource>(
    journal: &Arc<Journal>,
    number: u32,
    container: &Arc<str>,
    name: &Arc<str>,
    object: &Arc<dyn Any + Send + Sync>,
) -> Result<()> {
    match object.clone().downcast::<T>() {
        Ok(object) => journal.admit(number, container, name, &object),
        Err(_) => Err(Error::internal("resource of another type")),
    }
}

/// The resources of one device.
#[derive(Default)]
pub struct ResourceStore {
    default_container: Arc<str>,
    containers: Mutex<FxHashMap<Arc<str>, Container>>,
    removals: AtomicU64,
    /// Of a store that has a replica, with the store's number there.
    journal: OnceLock<(Arc<Journal>, u32)>,
}

impl ResourceStore {
    /// A store whose container for resources without one is `default_container` (the job's name).
    pub fn new(default_container: &str) -> ResourceStore {
        ResourceStore { default_container: default_container.into(), ..ResourceStore::default() }
    }

    /// From now on `journal` knows of what the store holds, which is `number` there. The store holds nothing yet, or what
    /// another journal's has held.
    ///
    /// # Errors
    /// `FailedPrecondition` if it has a journal.
    pub fn attach(&self, journal: &Arc<Journal>, number: u32) -> Result<()> {
        // What is there is told under the lock that keeps others from being made meanwhile.
        let containers = self.containers.lock();
        if self.journal.set((journal.clone(), number)).is_err() {
            return Err(Error::new(Code::FailedPrecondition, "the store has a journal"));
        }
        for (container, resources) in containers.iter() {
            for ((_, name), held) in resources {
                (held.admit)(journal, number, container, name, &held.object)?;
            }
        }
        Ok(())
    }

    pub fn default_container(&self) -> &Arc<str> {
        &self.default_container
    }

    fn container(&self, name: &str) -> Arc<str> {
        if name.is_empty() { self.default_container.clone() } else { name.into() }
    }

    /// The resource, or the error `NotFound` naming it.
    pub fn lookup<T: Resource>(&self, container: &str, name: &str) -> Result<Arc<T>> {
        self.find(container, name).ok_or_else(|| {
            let container = self.container(container);
            let message = if self.containers.lock().contains_key(&container) {
                format!("Resource {container}/{name}/{} does not exist.", T::KIND)
            } else {
                format!("Container {container} does not exist. (Could not find resource: {container}/{name})")
            };
            Error::new(Code::NotFound, message)
        })
    }

    /// A number that changes whenever a resource is removed: what was found before and is kept beside the
    /// number is still there while the number is the same.
    pub fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    pub fn find<T: Resource>(&self, container: &str, name: &str) -> Option<Arc<T>> {
        let containers = self.containers.lock();
        let found = containers.get(&self.container(container))?.get(&key::<T>(name))?.object.clone();
        found.downcast::<T>().ok()
    }

    /// Something of the store changes.
    pub(crate) fn is_used(&self) {
        self.journal.get().into_iter().for_each(|(journal, _)| journal.is_used());
    }

    /// The resource; made by `make` if it is not there.
    pub fn lookup_or_create<T: Resource>(
        &self,
        container: &str,
        name: &str,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        self.find_or_make(container, name, make, admit::<T>)
    }

    /// As [`ResourceStore::lookup_or_create`], of what ends with the kernel that makes it: no other process holds the same.
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
        admit: Admit,
    ) -> Result<Arc<T>> {
        let mut containers = self.containers.lock();
        let container = self.container(container);
        let of_container = containers.entry(container.clone()).or_default();
        if let Some(found) = of_container.get(&key::<T>(name)) {
            return found
                .object
                .clone()
                .downcast::<T>()
                .map_err(|_| Error::internal("resource of another type"));
        }
        let made = Arc::new(make()?);
        let key = key::<T>(name);
        let held = Held { kind: T::KIND, object: made.clone(), admit };
        if let Some((journal, number)) = self.journal.get() {
            (held.admit)(journal, *number, &container, &key.1, &held.object)?;
        }
        of_container.insert(key, held);
        Ok(made)
    }

    /// Whether there was one to remove.
    pub fn remove<T: Resource>(&self, container: &str, name: &str) -> bool {
        self.remove_found(container, |_| Some(key::<T>(name)))
    }

    /// Removes the resource of any kind that has this name for it; whether there was one.
    pub fn remove_kind(&self, container: &str, kind: &str, name: &str) -> bool {
        let is_it = |((_, own), held): &(&Key, &Held)| **own == *name && held.kind == kind;
        self.remove_found(container, |resources| resources.iter().find(is_it).map(|(key, _)| key.clone()))
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
        // Dropped after the lock is free: a resource's end may take long.
        drop(containers);
        drop(removed);
        true
    }

    /// Forgets everything.
    pub fn clear_all(&self) {
        let all: Vec<Arc<str>> = self.containers.lock().keys().cloned().collect();
        all.iter().for_each(|container| self.clear(container));
    }

    /// Forgets everything in a container; an empty name means the default container.
    pub fn clear(&self, container: &str) {
        let mut containers = self.containers.lock();
        self.removals.fetch_add(1, Ordering::AcqRel);
        // Dropped after the lock is free: a resource's end may take long.
        let container = self.container(container);
        let _removed = containers.remove(&container);
        if let Some((journal, number)) = self.journal.get() {
            journal.cleared(*number, &container);
        }
        drop(containers);
    }
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
