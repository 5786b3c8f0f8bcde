//! Which devices of the other end see what devices of this one lend. Until one has said so, and where it does not, tensors go by
//! the host.

use device::DeviceTensor;
use graph::RendezvousKey;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What could not be asked, for want of something to show, is asked no sooner than after so long: to try brings a tensor to the
/// host twice.
const PAUSE: Duration = Duration::from_secs(1);

/// A device that lends, and one of the other end that is to see it, by the names that keys have for them.
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

#[derive(Debug, Default)]
pub(super) struct Sights(Mutex<FxHashMap<Pair, Sight>>);

#[derive(Debug)]
enum Sight {
    /// It was asked, or is about to be. What it is shown is held meanwhile.
    Asked {
        _shown: Option<DeviceTensor>,
    },
    /// It is not asked before this time.
    Later(Instant),
    Known(bool),
}

/// What is known of one pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Yes,
    No,
    /// Nobody has asked: who hears this does, or says that he [cannot](Sights::put_off).
    Unasked,
}

impl Sights {
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

    /// This is what the device is asked about.
    pub(super) fn shows(&self, pair: Pair, what: DeviceTensor) {
        self.0.lock().insert(pair, Sight::Asked { _shown: Some(what) });
    }

    /// There was nothing that could be shown.
    pub(super) fn put_off(&self, pair: Pair) {
        self.0.lock().insert(pair, Sight::Later(Instant::now() + PAUSE));
    }

    /// The answer, if the device was asked.
    pub(super) fn hear(&self, pair: &Pair, sees: bool) {
        let shown = self.0.lock().get_mut(pair).map(|sight| std::mem::replace(sight, Sight::Known(sees)));
        // Without the lock: memory is given back.
        drop(shown);
    }

    /// There will be no answers.
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
