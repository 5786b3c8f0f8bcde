//! The hand-off of values between two workers of one process: the value is stored in a table that both ends
//! of the link hold, and a frame carries its number.

use executor::rendezvous::Sent;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The tables by the random number of their link, which is unknown to other processes.
static SHELVES: Mutex<BTreeMap<u64, Weak<Shelf>>> = Mutex::new(BTreeMap::new());

/// The values in transfer over one link within the process.
#[derive(Debug)]
pub(super) struct Shelf {
    link: u64,
    parcels: Mutex<Parcels>,
}

#[derive(Debug, Default)]
struct Parcels {
    last: u64,
    by_number: FxHashMap<u64, Sent>,
}

impl Shelf {
    /// Creates the table of a link.
    pub(super) fn new(link: u64) -> Arc<Shelf> {
        let shelf = Arc::new(Shelf { link, parcels: Mutex::default() });
        SHELVES.lock().insert(link, Arc::downgrade(&shelf));
        shelf
    }

    /// Returns the table of a link, if the link is within this process.
    pub(super) fn of(link: u64) -> Option<Arc<Shelf>> {
        SHELVES.lock().get(&link).and_then(Weak::upgrade)
    }

    /// Stores a value. Returns the number by which it can be taken once.
    pub(super) fn leave(&self, sent: Sent) -> u64 {
        let mut parcels = self.parcels.lock();
        parcels.last += 1;
        let number = parcels.last;
        parcels.by_number.insert(number, sent);
        number
    }

    /// Removes and returns a value.
    pub(super) fn take(&self, number: u64) -> Option<Sent> {
        self.parcels.lock().by_number.remove(&number)
    }

    /// Drops the values that were not taken, after the link has ended.
    pub(super) fn clear(&self) {
        let left = std::mem::take(&mut self.parcels.lock().by_number);
        drop(left);
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        SHELVES.lock().remove(&self.link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parcel_is_taken_once_by_who_knows_the_link() {
        let shelf = Shelf::new(7);
        let number = shelf.leave(Sent::dead());
        assert!(Shelf::of(8).is_none());
        let other = Shelf::of(7);
        assert!(other.as_ref().is_some_and(|s| s.take(number).is_some() && s.take(number).is_none()));
        drop((shelf, other));
        assert!(Shelf::of(7).is_none());
    }
}
