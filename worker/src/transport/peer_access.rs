//! Peer access: which devices of the receiving process can access memory of which devices of the sending process.
//! Tensors are sent through host memory unless the receiving device has reported access.

use device::DeviceTensor;
use graph::RendezvousKey;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause before access is queried again if the sender had no shareable copy of a tensor for the query. The
/// pause is long, because each attempt copies a tensor to the host twice.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A device that sends tensors and a device of the other process that receives them, by their names in
/// rendezvous keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct DevicePair {
    pub(super) lender: Arc<str>,
    pub(super) borrower: Arc<str>,
}

impl DevicePair {
    pub(super) fn of(key: &RendezvousKey) -> DevicePair {
        DevicePair { lender: key.src_device.clone(), borrower: key.dst_device.clone() }
    }
}

/// The table of a link that says for each pair of devices whether the receiving one can access the sending
/// one's memory.
#[derive(Debug, Default)]
pub(super) struct PeerAccessTable(Mutex<FxHashMap<DevicePair, PairState>>);

/// The state of the query about one pair of devices.
#[derive(Debug)]
enum PairState {
    /// The query was sent, or is about to be sent. The tensor that the peer tests its access with is retained
    /// until the answer.
    Queried {
        _tensor: Option<DeviceTensor>,
    },
    /// The query was postponed, and is not repeated before this time.
    Later(Instant),
    Answered(bool),
}

/// The answer of a [`PeerAccessTable`]: whether the receiving device of a pair can access the sending one's
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerAccess {
    Yes,
    No,
    /// Not yet queried: the caller must send the query, or [postpone](PeerAccessTable::postpone) it.
    Unknown,
}

impl PeerAccessTable {
    /// Returns whether the receiving device of a pair can access the sending device's memory. If this is unknown, the
    /// caller sends the query, and later calls return `No` until the answer arrives.
    pub(super) fn get_or_begin_query(&self, pair: &DevicePair) -> PeerAccess {
        self.get_or_begin_query_at(pair, Instant::now())
    }

    fn get_or_begin_query_at(&self, pair: &DevicePair, now: Instant) -> PeerAccess {
        let mut table = self.0.lock();
        match table.get(pair) {
            Some(PairState::Answered(true)) => PeerAccess::Yes,
            Some(PairState::Answered(false) | PairState::Queried { .. }) => PeerAccess::No,
            Some(PairState::Later(until)) if now < *until => PeerAccess::No,
            Some(PairState::Later(_)) | None => {
                table.insert(pair.clone(), PairState::Queried { _tensor: None });
                PeerAccess::Unknown
            }
        }
    }

    /// Retains the tensor with which the peer tests its access until the query is answered.
    pub(super) fn set_queried_tensor(&self, pair: DevicePair, tensor: DeviceTensor) {
        self.0.lock().insert(pair, PairState::Queried { _tensor: Some(tensor) });
    }

    /// Postpones the query about a pair by [`RETRY_PAUSE`], because there is no tensor that the peer could
    /// test.
    pub(super) fn postpone(&self, pair: DevicePair) {
        self.0.lock().insert(pair, PairState::Later(Instant::now() + RETRY_PAUSE));
    }

    /// Records the answer to a query; an answer without a query is ignored.
    pub(super) fn set_answer(&self, pair: &DevicePair, has_access: bool) {
        let old = self
            .0
            .lock()
            .get_mut(pair)
            .map(|state| std::mem::replace(state, PairState::Answered(has_access)));
        // The old state is dropped after the lock is released, because dropping it frees the tested tensor.
        drop(old);
    }

    /// Removes all pairs and the tensors retained for queries, after the link has ended.
    pub(super) fn clear(&self) {
        let table = std::mem::take(&mut *self.0.lock());
        drop(table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(lender: &str, borrower: &str) -> DevicePair {
        DevicePair { lender: lender.into(), borrower: borrower.into() }
    }

    #[test]
    fn access_is_queried_once_per_pair_and_denied_until_the_answer() {
        let table = PeerAccessTable::default();
        let (one, other, third) = (pair("GPU:0", "GPU:0"), pair("GPU:1", "GPU:0"), pair("GPU:0", "GPU:2"));
        assert_eq!(
            [0; 3].map(|_| table.get_or_begin_query(&one)),
            [PeerAccess::Unknown, PeerAccess::No, PeerAccess::No]
        );
        table.set_answer(&one, true);
        assert_eq!(
            (table.get_or_begin_query(&one), table.get_or_begin_query(&other)),
            (PeerAccess::Yes, PeerAccess::Unknown)
        );
        table.set_answer(&other, false);
        table.set_answer(&third, true);
        assert_eq!(
            (table.get_or_begin_query(&one), table.get_or_begin_query(&other)),
            (PeerAccess::Yes, PeerAccess::No)
        );
        assert_eq!(table.get_or_begin_query(&third), PeerAccess::Unknown, "an answer without a query counts");
    }

    #[test]
    fn a_postponed_query_is_repeated_after_a_pause() {
        let (table, one) = (PeerAccessTable::default(), pair("GPU:0", "GPU:0"));
        assert_eq!(table.get_or_begin_query(&one), PeerAccess::Unknown);
        table.postpone(one.clone());
        assert_eq!(table.get_or_begin_query(&one), PeerAccess::No);
        let later = Instant::now() + RETRY_PAUSE;
        assert_eq!(
            [later, later].map(|now| table.get_or_begin_query_at(&one, now)),
            [PeerAccess::Unknown, PeerAccess::No]
        );
    }
}
