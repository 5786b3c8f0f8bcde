//! One change of a store, and how another store follows it.

use crate::error::Result;
use crate::resource::ResourceStore;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A change of a resource, or of a container.
#[derive(Debug)]
pub struct Change {
    /// The number of the store's device.
    pub store: u32,
    pub container: Arc<str>,
    pub what: ChangeKind,
}

/// The ways in which a store changes.
#[derive(Debug)]
pub enum ChangeKind {
    /// A resource has this state.
    State { kind: Arc<str>, name: Arc<str>, state: Box<dyn ReplicaState> },
    /// A resource has been removed.
    Removed { kind: Arc<str>, name: Arc<str> },
    /// All resources of the container have been removed.
    Cleared,
}

/// The state of one kind of resource, from which another store makes or updates its replica.
pub trait ReplicaState: Any + Send + Sync + fmt::Debug {
    /// Gives the replica this state, and makes it where it is missing. `kind` is the resource's.
    ///
    /// # Errors
    /// `Internal` if the store did not follow all changes before.
    fn apply(self: Box<Self>, store: &ResourceStore, container: &str, kind: &str, name: &str) -> Result<()>;
}

impl Change {
    /// Repeats the change in another store.
    ///
    /// # Errors
    /// `Internal` if the store did not follow all changes before this one.
    pub fn apply(self, store: &ResourceStore) -> Result<()> {
        let container = &*self.container;
        match self.what {
            ChangeKind::Cleared => store.clear(container),
            ChangeKind::Removed { kind, name } => {
                // A resource that was made and removed between two takes was never replicated.
                let _was_there = store.remove_kind(container, &kind, &name);
            }
            ChangeKind::State { kind, name, state } => {
                store.is_used();
                state.apply(store, container, &kind, &name)?;
            }
        }
        Ok(())
    }
}
