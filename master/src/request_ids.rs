//! Remembers the ids of requests, so that one that was sent twice runs once.

use graph::Code;
use parking_lot::Mutex;
use proto::Status;
use rustc_hash::FxHashSet;
use std::collections::VecDeque;

/// As many ids as are remembered.
const REMEMBERED: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct RequestIds {
    seen: Mutex<(FxHashSet<i64>, VecDeque<i64>)>,
}

impl RequestIds {
    /// # Errors
    /// `Aborted` if the id was seen before; 0 is never checked.
    pub(crate) fn check(&self, method: &str, id: i64) -> Result<(), Status> {
        if id == 0 {
            return Ok(());
        }
        let mut seen = self.seen.lock();
        let (set, order) = &mut *seen;
        if !set.insert(id) {
            return Err(Status::new(
                Code::Aborted,
                format!("The same {method} request was received twice. request_id: {id}"),
            ));
        }
        order.push_back(id);
        if order.len() > REMEMBERED
            && let Some(oldest) = order.pop_front()
        {
            set.remove(&oldest);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_id_is_refused_until_it_is_forgotten() {
        let ids = RequestIds::default();
        assert!(ids.check("RunStep (Master)", 7).is_ok());
        assert_eq!(ids.check("RunStep (Master)", 7).map_err(|s| s.code), Err(Code::Aborted));
        assert!(ids.check("RunStep (Master)", 0).is_ok() && ids.check("RunStep (Master)", 0).is_ok());
        for id in 1000..1000 + REMEMBERED as i64 {
            assert!(ids.check("RunStep (Master)", id).is_ok());
        }
        assert!(ids.check("RunStep (Master)", 7).is_ok());
    }
}
