//! Ids that were seen, the oldest forgotten when there are too many: so a request that comes twice runs once.

use crate::status::Status;
use graph::Code;
use rustc_hash::FxHashSet;
use std::collections::VecDeque;

/// The last ids that came, as many as its capacity.
#[derive(Debug)]
pub struct SeenIds {
    seen: FxHashSet<i64>,
    order: VecDeque<i64>,
    capacity: usize,
}

impl SeenIds {
    pub fn new(capacity: usize) -> SeenIds {
        SeenIds { seen: FxHashSet::default(), order: VecDeque::new(), capacity: capacity.max(1) }
    }

    /// Whether the id is new.
    pub fn insert(&mut self, id: i64) -> bool {
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

    /// Lets a request pass that did not come before. Zero is the id of those who do not ask for the check.
    ///
    /// # Errors
    /// `Aborted` with the method, `step`, and the id.
    pub fn accept(&mut self, method: &str, step: Option<i64>, id: i64) -> Result<(), Status> {
        if id == 0 || self.insert(id) {
            return Ok(());
        }
        let step = step.map(|s| format!("step_id: {s} ")).unwrap_or_default();
        let text = format!("The same {method} request was received twice. {step}request_id: {id}");
        Err(Status::new(Code::Aborted, text))
    }

    pub fn contains(&self, id: i64) -> bool {
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

    #[test]
    fn a_repeated_request_is_refused_until_it_is_forgotten() {
        let mut ids = SeenIds::new(2);
        assert_eq!(ids.accept("RunStep (Master)", None, 7), Ok(()));
        let text = "The same RunStep (Master) request was received twice. request_id: 7";
        assert_eq!(ids.accept("RunStep (Master)", None, 7), Err(Status::new(Code::Aborted, text)));
        let text = "The same RunGraph request was received twice. step_id: 3 request_id: 7";
        assert_eq!(ids.accept("RunGraph", Some(3), 7), Err(Status::new(Code::Aborted, text)));
        assert!((0..3).all(|_| ids.accept("RunGraph", None, 0).is_ok()));
        assert!(ids.insert(8) && ids.insert(9));
        assert_eq!(ids.accept("RunGraph", Some(3), 7), Ok(()));
    }
}
