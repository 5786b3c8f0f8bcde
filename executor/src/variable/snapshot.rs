//! What several variables held at one moment, for a checkpoint that is written behind the steps.

use super::SetAside;
use crate::journal::Replica;
use crate::resource::Resource;
use parking_lot::Mutex;
use std::sync::Arc;

/// A place for values that were set aside: the latest ones, until they are taken.
#[derive(Debug, Default)]
pub struct Snapshot(Mutex<Option<Vec<Arc<SetAside>>>>);

impl Resource for Snapshot {
    const KIND: &'static str = "Snapshot";

    fn replica(_: &Arc<Snapshot>) -> Replica {
        Replica::NotNeeded
    }
}

impl Snapshot {
    pub fn put(&self, values: Vec<Arc<SetAside>>) {
        *self.0.lock() = Some(values);
    }

    /// The values, in the order in which they were put; `None` if there are none.
    pub fn take(&self) -> Option<Vec<Arc<SetAside>>> {
        self.0.lock().take()
    }
}
