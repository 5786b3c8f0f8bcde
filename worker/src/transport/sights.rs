//! Peer access: the knowledge about which devices of the other end can access memory that devices of this end
//! share. Tensors are sent by the host until a device has reported access, and if it has none.

use executor::device::DeviceTensor;
use graph::RendezvousKey;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause before access is queried again after a query without a tensor to test: each attempt copies a tensor
/// to the host twice.
const PAUSE: Duration = Duration::from_secs(1);

/// A device that shares memory and a device of the other end that is to access it, by their names in
/// rendezvous keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pair {
    pub(super) lender: Arc<str>,
    pub(super) borrower: Arc<str>,
}

impl Pair {
    pub(super) fn of(key: &RendezvousKey) -> Pair {
        Pair { lender: key.src_device.clone(), borrower: key.dst_device.clone() }
    }
}

/// The peer access of each pair of devices on a link.
#[derive(Debug, Default)]
pub(super) struct Sights(Mutex<FxHashMap<Pair, Sight>>);

/// The state of one pair.
#[derive(Debug)]
enum Sight {
    /// The query was sent, or is about to be. The tested tensor is retained until the answer.
    Asked {
        _shown: Option<DeviceTensor>,
    },
    /// The query is not repeated before this time.
    Later(Instant),
    Known(bool),
}

/// The peer access of one pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Yes,
    No,
    /// Unknown: the caller must query it, or [postpone](PeerAccessTable::postpone) the query.
    Unasked,
}

impl Sights {
    /// Returns the access of a pair. If it is unknown, the pair counts as queried from now on.
    pub(super) fn of(&self, pair: &Pair) -> Seen {
        self.at(pair, Instant::now())
    }

    fn at(&self, pair: &Pair, now: Instant) -> Seen {
        let mut sights = self.0.lock();
        match sights.get(pair) {
            Some(Sight::Known(true)) => Seen::Yes,
            Some(Sight::Known(false) | Sight::Asked { .. }) => Seen::No,
            Some(Sight::Later(until)) if now < *until => Seen::No,
            Some(Sight::Later(_)) | None => {
                sights.insert(pair.clone(), Sight::Asked { _shown: None });
                Seen::Unasked
            }
        }
    }

    /// Retains the tensor that the query is about.
    pub(super) fn shows(&self, pair: Pair, what: DeviceTensor) {
        self.0.lock().insert(pair, Sight::Asked { _shown: Some(what) });
    }

    /// Postpones the query, because there was no tensor to test.
    pub(super) fn put_off(&self, pair: Pair) {
        self.0.lock().insert(pair, Sight::Later(Instant::now() + PAUSE));
    }

    /// Records the answer to a query; an answer without a query is ignored.
    pub(super) fn hear(&self, pair: &Pair, sees: bool) {
        let shown = self.0.lock().get_mut(pair).map(|sight| std::mem::replace(sight, Sight::Known(sees)));
        // Dropped after the lock is released, because this frees memory.
        drop(shown);
    }

    /// Forgets all pairs after the link has ended.
    pub(super) fn end(&self) {
        let sights = std::mem::take(&mut *self.0.lock());
        drop(sights);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(lender: &str, borrower: &str) -> Pair {
        Pair { lender: lender.into(), borrower: borrower.into() }
    }

    #[test]
    fn a_device_is_asked_once_of_each_other_and_is_taken_to_see_nothing_until_it_has_said_so() {
        let sights = Sights::default();
        let (one, other, third) = (pair("GPU:0", "GPU:0"), pair("GPU:1", "GPU:0"), pair("GPU:0", "GPU:2"));
        assert_eq!([0; 3].map(|_| sights.of(&one)), [Seen::Unasked, Seen::No, Seen::No]);
        sights.hear(&one, true);
        assert_eq!((sights.of(&one), sights.of(&other)), (Seen::Yes, Seen::Unasked));
        sights.hear(&other, false);
        sights.hear(&third, true);
        assert_eq!((sights.of(&one), sights.of(&other)), (Seen::Yes, Seen::No));
        assert_eq!(sights.of(&third), Seen::Unasked, "it said what nobody asked");
    }

    #[test]
    fn what_could_not_be_asked_is_asked_again_after_a_pause() {
        let (sights, one) = (Sights::default(), pair("GPU:0", "GPU:0"));
        assert_eq!(sights.of(&one), Seen::Unasked);
        sights.put_off(one.clone());
        assert_eq!(sights.of(&one), Seen::No);
        let later = Instant::now() + PAUSE;
        assert_eq!([later, later].map(|now| sights.at(&one, now)), [Seen::Unasked, Seen::No]);
    }
}
