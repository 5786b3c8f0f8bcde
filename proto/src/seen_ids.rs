//! Ids that were seen, the oldest forgotten when there are too many.

use rustc_hash::FxHashSet;
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct SeenIds {
    seen: FxHashSet<i64>,
    order: VecDeque<i64>,
    capacity: usize,
}

impl SeenIds {
    pub(crate) fn new(capacity: usize) -> SeenIds {
        SeenIds { seen: FxHashSet::default(), order: VecDeque::new(), capacity: capacity.max(1) }
    }

    /// Whether the id is new.
    pub(crate) fn insert(&mut self, id: i64) -> bool {
        if !self.seen.insert(id) {
            return false;
        }
        if self.order.len() == self.capacity
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        self.order.push_back(id);
        true
    }

    pub(crate) fn contains(&self, id: i64) -> bool {
        self.seen.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut ids = SeenIds::new(2);
        assert!(ids.insert(1) && ids.insert(2) && !ids.insert(1));
        assert!(ids.insert(3));
        assert!(!ids.contains(1) && ids.contains(2) && ids.contains(3));
        assert!(ids.insert(1));
    }
}
