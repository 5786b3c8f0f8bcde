//! What a step sends over links, and what it keeps until there is one.

use crate::transport::{Cause, Outbound, Road};
use device::Error;
use device::rendezvous::Sent;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

#[derive(Debug, Default)]
pub(super) struct Pushes {
    /// Something was taken that has not been told to leave.
    is_open: AtomicBool,
    /// The links that the step has used.
    links: Mutex<Vec<Arc<Outbound>>>,
    kept: Mutex<Kept>,
    /// Those that wait for what the step sends.
    receivers: OnceLock<Arc<[Arc<Road>]>>,
    /// How that ended: with everything sent, or why there will be no more.
    end: OnceLock<device::Result<()>>,
}

/// Keys of values that wait for a link.
#[derive(Debug, Default)]
struct Kept {
    keys: Vec<(Arc<Road>, Arc<str>)>,
    /// How many there were when those were left out that had been fetched.
    swept: usize,
}

/// Fewer keys are not worth looking through.
const FEW: usize = 1024;

impl Pushes {
    /// Says who waits for what the step sends; the first word holds.
    pub(super) fn will_go_to(&self, step_id: i64, receivers: Arc<[Arc<Road>]>) {
        if self.receivers.set(receivers).is_ok() {
            self.tell_all(step_id);
        }
    }

    /// All is sent, and nobody has to hear of what comes after.
    pub(super) fn succeed(&self) {
        let _ = self.end.set(Ok(()));
    }

    /// Tells the receivers on links that no more will come. Those that fetch hear of it by that.
    pub(super) fn fail(&self, step_id: i64, reason: &Error) {
        if self.end.set(Err(reason.clone())).is_ok() {
            self.tell_all(step_id);
        }
    }

    /// Called whenever a receiver, a failure or a link has come to be known: whichever is the last tells.
    fn tell_all(&self, step_id: i64) {
        if let Some(Err(reason)) = self.end.get() {
            let links = self.receivers().iter().filter_map(|road| road.link());
            links.for_each(|link| link.failed(step_id, reason));
        }
    }

    /// Tells a receiver that came to be on a link what it would not hear otherwise.
    pub(super) fn link_up(&self, step_id: i64, road: &Arc<Road>, link: &Arc<Outbound>) {
        if let Some(Err(reason)) = self.end.get()
            && self.receivers().iter().any(|receiver| Arc::ptr_eq(receiver, road))
        {
            link.failed(step_id, reason);
        }
    }

    fn receivers(&self) -> &[Arc<Road>] {
        self.receivers.get().map_or(&[], |receivers| receivers)
    }

    /// As [`Outbound::push`] of a value that is ready.
    pub(super) fn push(
        &self,
        link: &Arc<Outbound>,
        step_id: i64,
        key: &Arc<str>,
        sent: &Sent,
    ) -> device::Result<bool> {
        self.using(link, || link.push(step_id, key, sent, Cause::Ready))
    }

    /// As [`Outbound::push`] of a value that was asked for.
    pub(super) fn answer(
        &self,
        link: &Arc<Outbound>,
        step_id: i64,
        key: &Arc<str>,
        sent: &Sent,
    ) -> device::Result<()> {
        self.using(link, || link.push(step_id, key, sent, Cause::Asked)).map(drop)
    }

    pub(super) fn offer(&self, link: &Arc<Outbound>, step_id: i64, key: &Arc<str>) -> device::Result<()> {
        self.using(link, || link.offer(step_id, key))
    }

    /// Posts something. The link is known before anything leaves: what comes back because of it may be lost with the
    /// link, which the step must hear of.
    fn using<T>(&self, link: &Arc<Outbound>, post: impl FnOnce() -> T) -> T {
        {
            let mut links = self.links.lock();
            if !links.iter().any(|known| Arc::ptr_eq(known, link)) {
                links.push(link.clone());
            }
        }
        let posted = post();
        self.is_open.store(true, Ordering::Release);
        posted
    }

    pub(super) fn flush(&self) {
        if self.is_open.load(Ordering::Relaxed) && self.is_open.swap(false, Ordering::AcqRel) {
            self.links.lock().iter().for_each(|link| link.flush());
        }
    }

    pub(super) fn used(&self, link: &Arc<Outbound>) -> bool {
        self.links.lock().iter().any(|known| Arc::ptr_eq(known, link))
    }

    /// Notes a value that is kept. Now and then those are forgotten that are there no more.
    pub(super) fn keep(&self, road: &Arc<Road>, key: &Arc<str>, is_there: impl Fn(&Arc<str>) -> bool) {
        let mut kept = self.kept.lock();
        if kept.keys.len() >= FEW.max(2 * kept.swept) {
            kept.keys.retain(|(_, key)| is_there(key));
            kept.swept = kept.keys.len();
        }
        kept.keys.push((road.clone(), key.clone()));
    }

    /// The keys of what waits for this road, which waits no more.
    pub(super) fn kept_for(&self, road: &Arc<Road>) -> Vec<Arc<str>> {
        let keys = &mut self.kept.lock().keys;
        keys.extract_if(.., |(of, _)| Arc::ptr_eq(of, road)).map(|(_, key)| key).collect()
    }
}
