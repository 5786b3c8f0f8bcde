//! How much a sender pushes before the receiver has taken it up: memory of a slow receiver stays bounded. What is
//! beyond it is offered, and sent when the receiver asks, so that nothing waits for what comes after it.

/// Bytes that are pushed unasked and have not been taken up.
#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    in_flight: u64,
}

/// What a receiver tells back at once rather than when more has come together, of the sender's limit.
pub(super) const TOLD_SHARE: u64 = 8;

impl Budget {
    pub(super) fn new(limit: u64) -> Budget {
        Budget { limit, in_flight: 0 }
    }

    /// Whether so many bytes may be pushed; if so, they count from now on. One tensor may go beyond the limit: a
    /// tensor larger than it must be able to leave.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let fits = bytes == 0 || self.has_room();
        if fits {
            self.in_flight = self.in_flight.saturating_add(bytes);
        }
        fits
    }

    /// Whether something may be pushed: a hint.
    pub(super) fn has_room(&self) -> bool {
        self.in_flight < self.limit
    }

    /// Counts what the receiver has asked for.
    pub(super) fn asked(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_add(bytes);
    }

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
