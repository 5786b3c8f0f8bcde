//! A change of a resource store, and its application to a replica.

use crate::error::Result;
use crate::resource::ResourceStore;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A change of one resource of a store, or the removal of all resources of a container.
#[derive(Debug)]
pub struct Change {
    /// The number of the changed store in the journal, which is the number of the store's device in its task.
    pub store: u32,
    pub container: Arc<str>,
    pub what: ChangeKind,
}

/// The kinds of changes of a store.
#[derive(Debug)]
pub enum ChangeKind {
    /// A resource has changed to this state.
    State { kind: Arc<str>, name: Arc<str>, state: Box<dyn ReplicaState> },
    /// A resource has been removed.
    Removed { kind: Arc<str>, name: Arc<str> },
    /// All resources of the container have been removed.
    Cleared,
}

/// The whole or partial state of a resource, from which another store creates or updates its replica of the resource.
pub trait ReplicaState: Any + Send + Sync + fmt::Debug {
    /// Sets the replica `name` in `store` to this state, and creates the replica if it is missing. `kind` is the name
    /// of the resource's type.
    ///
    /// # Errors
    /// `Internal` if an earlier change was not applied to the store.
    fn apply(self: Box<Self>, store: &ResourceStore, container: &str, kind: &str, name: &str) -> Result<()>;
}

impl Change {
    /// Applies the change to the replicas in `store`.
    ///
    /// # Errors
    /// `Internal` if an earlier change was not applied to the store.
    pub fn apply(self, store: &ResourceStore) -> Result<()> {
        let container = &*self.container;
        match self.what {
            ChangeKind::Cleared => store.clear(container),
            ChangeKind::Removed { kind, name } => {
                // The replica may be missing: a resource that was created and removed between two collections of the
                // journal was never replicated.
                let _was_there = store.remove_kind(container, &kind, &name);
            }
            ChangeKind::State { kind, name, state } => {
                store.mark_used();
                state.apply(store, container, &kind, &name)?;
            }
        }
        Ok(())
    }
}
