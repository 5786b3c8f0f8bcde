//! Objects that outlive steps and sessions, by container, kind and name: variables, queues, tables.

use crate::error::{Error, Result};
use graph::Code;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An object of a [`ResourceStore`].
pub trait Resource: Any + Send + Sync + fmt::Debug {
    /// The kind's name in messages.
    const KIND: &'static str;
}

type Key = (TypeId, Arc<str>);
type Container = FxHashMap<Key, Held>;

struct Held {
    kind: &'static str,
    object: Arc<dyn Any + Send + Sync>,
}

/// The resources of one device.
#[derive(Default)]
pub struct ResourceStore {
    default_container: Arc<str>,
    containers: Mutex<FxHashMap<Arc<str>, Container>>,
    removals: AtomicU64,
}

impl ResourceStore {
    /// A store whose container for resources without one is `default_container` (the job's name).
    pub fn new(default_container: &str) -> ResourceStore {
        ResourceStore { default_container: default_container.into(), ..ResourceStore::default() }
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

    /// The resource; made by `make` if it is not there.
    pub fn lookup_or_create<T: Resource>(
        &self,
        container: &str,
        name: &str,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let mut containers = self.containers.lock();
        let of_container = containers.entry(self.container(container)).or_default();
        if let Some(found) = of_container.get(&key::<T>(name)) {
            return found
                .object
                .clone()
                .downcast::<T>()
                .map_err(|_| Error::internal("resource of another type"));
        }
        let made = Arc::new(make()?);
        of_container.insert(key::<T>(name), Held { kind: T::KIND, object: made.clone() });
        Ok(made)
    }

    /// Whether there was one to remove.
    pub fn remove<T: Resource>(&self, container: &str, name: &str) -> bool {
        let mut containers = self.containers.lock();
        self.removals.fetch_add(1, Ordering::AcqRel);
        containers.get_mut(&self.container(container)).is_some_and(|c| c.remove(&key::<T>(name)).is_some())
    }

    /// Removes the resource of any kind that has this name for it; whether there was one.
    pub fn remove_kind(&self, container: &str, kind: &str, name: &str) -> bool {
        let mut containers = self.containers.lock();
        self.removals.fetch_add(1, Ordering::AcqRel);
        let Some(of_container) = containers.get_mut(&self.container(container)) else { return false };
        let found = of_container.iter().find(|((_, own), held)| **own == *name && held.kind == kind);
        let found = found.map(|(key, _)| key.clone());
        found.is_some_and(|key| of_container.remove(&key).is_some())
    }

    /// Forgets everything in a container; an empty name means the default container.
    pub fn clear(&self, container: &str) {
        let mut containers = self.containers.lock();
        self.removals.fetch_add(1, Ordering::AcqRel);
        // Dropped after the lock is free: a resource's end may take long.
        let _removed = containers.remove(&self.container(container));
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
