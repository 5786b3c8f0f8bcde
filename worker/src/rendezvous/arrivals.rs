//! What came over links and has not been taken up: its senders count on hearing of it.

use crate::transport::{Inbound, weight};
use device::rendezvous::Sent;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// From whom a value came, and the memory that it takes, bytes.
type Arrival = (Arc<Inbound>, u64);

#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// By key, for values that take memory.
    untaken: Mutex<FxHashMap<Arc<str>, Arrival>>,
    offers: Mutex<FxHashMap<Arc<str>, Arc<Inbound>>>,
}

impl Arrivals {
    pub(super) fn came(&self, from: &Arc<Inbound>, key: &Arc<str>, sent: &Sent) {
        let bytes = weight(sent);
        if bytes == 0 {
            return;
        }
        let before = self.untaken.lock().insert(key.clone(), (from.clone(), bytes));
        if let Some((from, bytes)) = before {
            from.taken(bytes);
        }
    }

    /// The value under the key has been taken up, or dropped.
    pub(super) fn taken(&self, key: &Arc<str>) {
        let taken = self.untaken.lock().remove(key);
        if let Some((from, bytes)) = taken {
            from.taken(bytes);
        }
    }

    pub(super) fn offered(&self, from: &Arc<Inbound>, key: &Arc<str>) {
        self.offers.lock().insert(key.clone(), from.clone());
    }

    /// Who offered the value; he is told once.
    pub(super) fn accept(&self, key: &Arc<str>) -> Option<Arc<Inbound>> {
        let mut offers = self.offers.lock();
        if offers.is_empty() { None } else { offers.remove(key) }
    }

    /// Nothing will be taken up any more.
    pub(super) fn end(&self) {
        let untaken = std::mem::take(&mut *self.untaken.lock());
        untaken.into_values().for_each(|(from, bytes)| from.taken(bytes));
        self.offers.lock().clear();
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.end();
    }
}
