//! The hand-off of values between two workers of one process: the value is stored in a table that both ends
//! of the link hold, and a frame carries its number.

use device::rendezvous::Sent;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The hand-off tables of this process by the number of their link, which is random and unknown to other
/// processes.
static TABLES: Mutex<BTreeMap<u64, Weak<HandoffTable>>> = Mutex::new(BTreeMap::new());

/// The values in transfer over one link within the process.
#[derive(Debug)]
pub(super) struct HandoffTable {
    link: u64,
    values: Mutex<Values>,
}

#[derive(Debug, Default)]
struct Values {
    last: u64,
    by_number: FxHashMap<u64, Sent>,
}

impl HandoffTable {
    /// Makes the hand-off table of the link with number `link`, and registers it under that number.
    pub(super) fn new(link: u64) -> Arc<HandoffTable> {
        let table = Arc::new(HandoffTable { link, values: Mutex::default() });
        TABLES.lock().insert(link, Arc::downgrade(&table));
        table
    }

    /// Returns the hand-off table of the link with number `link`; `None` if the link's other end is in another process.
    pub(super) fn find(link: u64) -> Option<Arc<HandoffTable>> {
        TABLES.lock().get(&link).and_then(Weak::upgrade)
    }

    /// Stores a value. Returns the value's number for [`HandoffTable::take`].
    pub(super) fn insert(&self, sent: Sent) -> u64 {
        let mut values = self.values.lock();
        values.last += 1;
        let number = values.last;
        values.by_number.insert(number, sent);
        number
    }

    /// Removes and returns the value that is stored under `number`.
    pub(super) fn take(&self, number: u64) -> Option<Sent> {
        self.values.lock().by_number.remove(&number)
    }

    /// Drops the values that were not taken, after the link has ended.
    pub(super) fn clear(&self) {
        let left = std::mem::take(&mut self.values.lock().by_number);
        drop(left);
    }
}

impl Drop for HandoffTable {
    fn drop(&mut self) {
        TABLES.lock().remove(&self.link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_taken_once_by_the_link_number() {
        let table = HandoffTable::new(7);
        let number = table.insert(Sent::dead());
        assert!(HandoffTable::find(8).is_none());
        let other = HandoffTable::find(7);
        assert!(other.as_ref().is_some_and(|s| s.take(number).is_some() && s.take(number).is_none()));
        drop((table, other));
        assert!(HandoffTable::find(7).is_none());
    }
}
