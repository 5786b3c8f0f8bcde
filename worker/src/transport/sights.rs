//! Which devices of the other end see what devices of this one lend. Each is asked once: until it has answered, and where it
//! does not, tensors go by the host.

use executor::device::DeviceTensor;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// By the name that keys have for a device.
#[derive(Debug, Default)]
pub(super) struct Sights(Mutex<FxHashMap<Arc<str>, Sight>>);

#[derive(Debug)]
enum Sight {
    /// It was asked, or is about to be. What it is shown is held meanwhile.
    Asked {
        _shown: Option<DeviceTensor>,
    },
    Known(bool),
}

/// What is known of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Yes,
    No,
    /// Nobody has asked: who hears this does.
    Unasked,
}

impl Sights {
    pub(super) fn of(&self, device: &Arc<str>) -> Seen {
        let mut sights = self.0.lock();
        match sights.get(device) {
            Some(Sight::Known(true)) => Seen::Yes,
            Some(_) => Seen::No,
            None => {
                sights.insert(device.clone(), Sight::Asked { _shown: None });
                Seen::Unasked
            }
        }
    }

    /// This is what the device is asked about.
    pub(super) fn shows(&self, device: &Arc<str>, what: DeviceTensor) {
        self.0.lock().insert(device.clone(), Sight::Asked { _shown: Some(what) });
    }

    /// The answer, if the device was asked.
    pub(super) fn hear(&self, device: &str, sees: bool) {
        let shown = self.0.lock().get_mut(device).map(|sight| std::mem::replace(sight, Sight::Known(sees)));
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

    #[test]
    fn a_device_is_asked_once_and_is_taken_to_see_nothing_until_it_has_said_so() {
        let (sights, one, other) = (Sights::default(), Arc::from("GPU:0"), Arc::from("GPU:1"));
        assert_eq!([0; 3].map(|_| sights.of(&one)), [Seen::Unasked, Seen::No, Seen::No]);
        sights.hear("GPU:0", true);
        assert_eq!((sights.of(&one), sights.of(&other)), (Seen::Yes, Seen::Unasked));
        sights.hear("GPU:1", false);
        sights.hear("GPU:2", true);
        assert_eq!((sights.of(&one), sights.of(&other)), (Seen::Yes, Seen::No));
        assert_eq!(sights.of(&Arc::from("GPU:2")), Seen::Unasked, "it said what nobody asked");
    }
}
