//! Values that were received over links and not yet consumed by a receive. Senders limit the bytes in flight,
//! so each consumed value is reported to its sender.

use crate::transport::{Inbound, pushed_bytes};
use device::rendezvous::Sent;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The link over which a value was received, and the number of bytes for which the value counts against the sender's
/// limit.
type Arrival = (Arc<Inbound>, u64);

/// The values of one step that were received and not yet consumed, and those that a sender offers.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// The unconsumed values that count against their sender's limit, by rendezvous key.
    unconsumed: Mutex<FxHashMap<Arc<str>, Arrival>>,
    /// The links of the senders that withhold a value until it is requested, by the value's rendezvous key.
    offers: Mutex<FxHashMap<Arc<str>, Arc<Inbound>>>,
}

impl Arrivals {
    /// Records a received value. An earlier value under the same key is reported to its sender as consumed.
    pub(super) fn record(&self, from: &Arc<Inbound>, key: &Arc<str>, sent: &Sent) {
        let bytes = pushed_bytes(sent);
        if bytes == 0 {
            return;
        }
        let before = self.unconsumed.lock().insert(key.clone(), (from.clone(), bytes));
        if let Some((from, bytes)) = before {
            from.report_consumed(bytes);
        }
    }

    /// Reports to the sender of the value under a key that the value was consumed or dropped, so that its bytes no
    /// longer count against the sender's limit.
    pub(super) fn report_consumed(&self, key: &Arc<str>) {
        let consumed = self.unconsumed.lock().remove(key);
        if let Some((from, bytes)) = consumed {
            from.report_consumed(bytes);
        }
    }

    /// Records that a sender offers the value under a key.
    pub(super) fn record_offer(&self, from: &Arc<Inbound>, key: &Arc<str>) {
        self.offers.lock().insert(key.clone(), from.clone());
    }

    /// Removes the offer for a key. Returns the link over which to request the value.
    pub(super) fn take_offer(&self, key: &Arc<str>) -> Option<Arc<Inbound>> {
        let mut offers = self.offers.lock();
        if offers.is_empty() { None } else { offers.remove(key) }
    }

    /// Reports all unconsumed values to their senders as consumed, and forgets all offers.
    pub(super) fn clear(&self) {
        let unconsumed = std::mem::take(&mut *self.unconsumed.lock());
        unconsumed.into_values().for_each(|(from, bytes)| from.report_consumed(bytes));
        self.offers.lock().clear();
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.clear();
    }
}
