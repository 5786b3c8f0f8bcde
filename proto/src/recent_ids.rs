//! A bounded set of request ids, so that a request that is received twice runs once.

use crate::status::Status;
use graph::Code;
use rustc_hash::{FxBuildHasher, FxHashSet};

/// The most recent request ids: at least `capacity` and at most twice as many. The memory is allocated at
/// creation and does not grow.
#[derive(Debug)]
pub struct RecentIds {
    recent: FxHashSet<i64>,
    /// The ids added before those in `recent`. When `recent` is full, this set is dropped and replaced by `recent`.
    before: FxHashSet<i64>,
    capacity: usize,
}

impl RecentIds {
    /// Creates a set that holds at least `capacity` ids.
    pub fn new(capacity: usize) -> RecentIds {
        let capacity = capacity.max(1);
        let set = || FxHashSet::with_capacity_and_hasher(capacity, FxBuildHasher);
        RecentIds { recent: set(), before: set(), capacity }
    }

    /// Adds an id. Returns whether it is new.
    pub fn insert(&mut self, id: i64) -> bool {
        if self.contains(id) {
            return false;
        }
        if self.recent.len() == self.capacity {
            std::mem::swap(&mut self.recent, &mut self.before);
            self.recent.clear();
        }
        self.recent.insert(id)
    }

    /// Accepts a request if its id is new or 0, which clients send that do not want this check.
    ///
    /// # Errors
    /// `Aborted` with the method, `step` and the id if the request was received before.
    pub fn accept(&mut self, method: &str, step: Option<i64>, id: i64) -> Result<(), Status> {
        if id == 0 || self.insert(id) {
            return Ok(());
        }
        let step = step.map(|s| format!("step_id: {s} ")).unwrap_or_default();
        let text = format!("The same {method} request was received twice. {step}request_id: {id}");
        Err(Status::new(Code::Aborted, text))
    }

    /// Returns whether the set contains an id.
    pub fn contains(&self, id: i64) -> bool {
        self.recent.contains(&id) || self.before.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_least_capacity_ids_are_kept_and_the_oldest_are_dropped() {
        let mut ids = RecentIds::new(2);
        for id in 0..100 {
            assert!(ids.insert(id) && !ids.insert(id));
            assert!(id == 0 || !ids.insert(id - 1));
            assert!(id < 4 || !ids.contains(id - 4));
        }
        assert!(ids.insert(0));
    }

    #[test]
    fn a_repeated_request_is_refused_until_its_id_is_dropped() {
        let mut ids = RecentIds::new(2);
        assert_eq!(ids.accept("RunStep (Master)", None, 7), Ok(()));
        let text = "The same RunStep (Master) request was received twice. request_id: 7";
        assert_eq!(ids.accept("RunStep (Master)", None, 7), Err(Status::new(Code::Aborted, text)));
        let text = "The same RunGraph request was received twice. step_id: 3 request_id: 7";
        assert_eq!(ids.accept("RunGraph", Some(3), 7), Err(Status::new(Code::Aborted, text)));
        assert!((0..3).all(|_| ids.accept("RunGraph", None, 0).is_ok()));
        assert!((8..12).all(|id| ids.insert(id)));
        assert_eq!(ids.accept("RunGraph", Some(3), 7), Ok(()));
    }
}
