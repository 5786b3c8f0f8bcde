//! The limit on the bytes that a sender pushes before the receiver has consumed them, which bounds the memory
//! of a slow receiver. A value beyond the limit is offered instead and sent when the receiver requests it, so
//! that it delays no later values.

/// The bytes that were pushed without a request and are not yet reported as consumed.
#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    in_flight: u64,
}

/// The fraction 1 / `REPORT_FRACTION` of the sender's limit is the number of consumed bytes that a receiver
/// reports at once.
pub(super) const TOLD_SHARE: u64 = 8;

impl Budget {
    pub(super) fn new(limit: u64) -> Budget {
        Budget { limit, in_flight: 0 }
    }

    /// Reserves bytes for a push. Returns false if the limit is reached. A single tensor may exceed the
    /// limit, because a tensor larger than the limit must be sent too.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let fits = bytes == 0 || self.has_room();
        if fits {
            self.in_flight = self.in_flight.saturating_add(bytes);
        }
        fits
    }

    /// Returns whether something may be pushed; another thread may use the room first.
    pub(super) fn has_room(&self) -> bool {
        self.in_flight < self.limit
    }

    /// Reserves bytes for a value that the receiver has requested, whatever the limit.
    pub(super) fn asked(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_add(bytes);
    }

    /// Releases bytes that the receiver has consumed.
    pub(super) fn taken(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_and_one_tensor_is_in_flight() {
        let mut budget = Budget::new(100);
        assert!(budget.take(60) && budget.take(1000));
        assert!(!budget.take(1));
        assert!(budget.take(0), "what takes no memory may always leave");
        budget.taken(60);
        assert!(!budget.take(1));
        budget.taken(1000);
        assert!(budget.take(500));
        budget.asked(10);
        budget.taken(u64::MAX);
        assert!(budget.take(1));
    }
}
