//! The limit on the bytes that a sender pushes before the receiver has consumed them, which bounds the memory
//! of a slow receiver. A value beyond the limit is not pushed but offered, and sent when the receiver
//! requests it, so that it delays no later values.

/// The number of bytes that were sent and that the receiver has not yet reported as consumed, and the limit of this
/// number.
#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    in_flight: u64,
}

/// A receiver reports consumed bytes once they are 1 / `REPORT_FRACTION` of the sender's limit.
pub(super) const REPORT_FRACTION: u64 = 8;

impl Budget {
    pub(super) fn new(limit: u64) -> Budget {
        Budget { limit, in_flight: 0 }
    }

    /// Reserves bytes for a push. Returns false if the limit is reached. A single tensor may exceed the
    /// limit, because a tensor larger than the limit must be sent too.
    pub(super) fn try_reserve(&mut self, bytes: u64) -> bool {
        let fits = bytes == 0 || self.has_room();
        if fits {
            self.in_flight = self.in_flight.saturating_add(bytes);
        }
        fits
    }

    /// Returns whether a value may be pushed at present; a push by another thread may reach the limit first.
    pub(super) fn has_room(&self) -> bool {
        self.in_flight < self.limit
    }

    /// Reserves bytes for a value that the receiver has requested, whatever the limit.
    pub(super) fn reserve(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_add(bytes);
    }

    /// Releases bytes that the receiver has consumed.
    pub(super) fn release(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushes_are_limited_except_for_a_single_tensor() {
        let mut budget = Budget::new(100);
        assert!(budget.try_reserve(60) && budget.try_reserve(1000));
        assert!(!budget.try_reserve(1));
        assert!(budget.try_reserve(0), "values without memory may always be pushed");
        budget.release(60);
        assert!(!budget.try_reserve(1));
        budget.release(1000);
        assert!(budget.try_reserve(500));
        budget.reserve(10);
        budget.release(u64::MAX);
        assert!(budget.try_reserve(1));
    }
}
