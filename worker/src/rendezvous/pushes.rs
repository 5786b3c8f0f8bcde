//! The values that a step sends over links, and the values that wait for a link.

use crate::transport::{Outbound, PushReason, Route};
use device::Error;
use device::rendezvous::Sent;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The links and routes over which one step sends, the keys of its values that wait for a link, and its outcome.
#[derive(Debug, Default)]
pub(super) struct Pushes {
    /// Set when a frame was posted to one of `links` and that link has not been flushed since.
    needs_flush: AtomicBool,
    used: Mutex<UsedLinks>,
    pending: Mutex<PendingKeys>,
    /// The routes to the tasks that receive values of the step.
    receivers: OnceLock<Arc<[Arc<Route>]>>,
    /// The routes to the tasks whose devices take part in collectives of the step, in sessions of any master.
    members: Mutex<Vec<Arc<Route>>>,
    /// Set once the step sends no more values: success, or the error that ended it.
    end: OnceLock<device::Result<()>>,
}

/// The links to which a step has posted frames.
#[derive(Debug, Default)]
struct UsedLinks {
    links: Vec<Arc<Outbound>>,
    /// The routes to tasks that need no more of the step's values. The end of their links does not cancel the step.
    released: Vec<Arc<Route>>,
}

/// The keys of values that wait for a link.
#[derive(Debug, Default)]
struct PendingKeys {
    keys: Vec<(Arc<Route>, Arc<str>)>,
    /// Number of keys that remained after the last sweep, which removed the keys whose values had been fetched.
    swept: usize,
}

/// Number of pending keys below which no sweep takes place.
const MIN_SWEPT: usize = 1024;

impl Pushes {
    /// Sets the routes to the receivers; only the first call has an effect.
    pub(super) fn set_receivers(&self, step_id: i64, receivers: Arc<[Arc<Route>]>) {
        if self.receivers.set(receivers).is_ok() {
            self.notify_receivers(step_id);
        }
    }

    /// Adds routes to tasks that take part in collectives of the step.
    pub(super) fn add_members(&self, step_id: i64, routes: Vec<Arc<Route>>) {
        let mut members = self.members.lock();
        for route in routes {
            if members.iter().any(|known| Arc::ptr_eq(known, &route)) {
                continue;
            }
            if let (Some(Err(reason)), Some(link)) = (self.end.get(), route.link()) {
                link.send_failure_to_member(step_id, reason);
            }
            members.push(route);
        }
    }

    /// Marks the step as having sent all its values: receivers are not notified of later failures.
    pub(super) fn succeed(&self) {
        let _ = self.end.set(Ok(()));
    }

    /// Notifies the receivers and members that have a link of the step's failure. Receivers that fetch get the failure
    /// as the answer.
    pub(super) fn fail(&self, step_id: i64, reason: &Error) {
        if self.end.set(Err(reason.clone())).is_ok() {
            self.notify_receivers(step_id);
            let members = self.members.lock();
            let links = members.iter().filter_map(|route| route.link());
            links.for_each(|link| link.send_failure_to_member(step_id, reason));
        }
    }

    /// Notifies the receivers that have a link if the step has failed. It is called once after the receivers were set
    /// and once after the failure was set, so that the later of the two calls finds both the receivers and the failure.
    fn notify_receivers(&self, step_id: i64) {
        if let Some(Err(reason)) = self.end.get() {
            let links = self.receivers().iter().filter_map(|route| route.link());
            links.for_each(|link| link.send_failure(step_id, reason));
        }
    }

    /// Notifies a receiver or member of a failure that happened before its link came up.
    pub(super) fn link_up(&self, step_id: i64, route: &Arc<Route>, link: &Arc<Outbound>) {
        let Some(Err(reason)) = self.end.get() else { return };
        let is_route = |other: &Arc<Route>| Arc::ptr_eq(other, route);
        if self.members.lock().iter().any(is_route) {
            link.send_failure_to_member(step_id, reason);
        } else if self.receivers().iter().any(is_route) {
            link.send_failure(step_id, reason);
        }
    }

    fn receivers(&self) -> &[Arc<Route>] {
        self.receivers.get().map_or(&[], |receivers| receivers)
    }

    /// Pushes a value that a Send node has just sent, see [`Outbound::push`].
    pub(super) fn push(
        &self,
        link: &Arc<Outbound>,
        step_id: i64,
        key: &Arc<str>,
        sent: &Sent,
    ) -> device::Result<bool> {
        self.post_over(link, || link.push(step_id, key, sent, PushReason::Ready))
    }

    /// Pushes an offered value that its receiver has requested, see [`Outbound::push`].
    pub(super) fn answer(
        &self,
        link: &Arc<Outbound>,
        step_id: i64,
        key: &Arc<str>,
        sent: &Sent,
    ) -> device::Result<()> {
        self.post_over(link, || link.push(step_id, key, sent, PushReason::Requested)).map(drop)
    }

    /// Offers a value to the receiver.
    pub(super) fn offer(&self, link: &Arc<Outbound>, step_id: i64, key: &Arc<str>) -> device::Result<()> {
        self.post_over(link, || link.offer(step_id, key))
    }

    /// Calls `post`, which posts frames to a link. The link is recorded first, because the step must be
    /// cancelled if the link breaks: frames in flight may be lost.
    fn post_over<T>(&self, link: &Arc<Outbound>, post: impl FnOnce() -> T) -> T {
        {
            let links = &mut *self.used.lock();
            if !links.links.iter().any(|known| Arc::ptr_eq(known, link)) {
                links.links.push(link.clone());
            }
        }
        let posted = post();
        self.needs_flush.store(true, Ordering::Release);
        posted
    }

    /// Flushes the links that have unflushed frames.
    pub(super) fn flush(&self) {
        if self.needs_flush.load(Ordering::Relaxed) && self.needs_flush.swap(false, Ordering::AcqRel) {
            self.used.lock().links.iter().for_each(|link| link.flush());
        }
    }

    /// Returns whether the end of a route's link cancels the step, because frames that the step has posted to it may be
    /// lost.
    pub(super) fn needs(&self, route: &Arc<Route>, link: &Arc<Outbound>) -> bool {
        let used = self.used.lock();
        !used.released.iter().any(|known| Arc::ptr_eq(known, route))
            && used.links.iter().any(|known| Arc::ptr_eq(known, link))
    }

    /// Makes the end of a route's links harmless to the step, also of links that come up later.
    pub(super) fn release(&self, route: &Arc<Route>) {
        let used = &mut *self.used.lock();
        if !used.released.iter().any(|known| Arc::ptr_eq(known, route)) {
            used.released.push(route.clone());
        }
    }

    /// Drops the step's reference to a link.
    pub(super) fn forget(&self, link: &Arc<Outbound>) {
        self.used.lock().links.retain(|known| !Arc::ptr_eq(known, link));
    }

    /// Adds the key of a value that waits for a link. From time to time, keys whose values were fetched are
    /// removed.
    pub(super) fn add_pending(
        &self,
        route: &Arc<Route>,
        key: &Arc<str>,
        is_stored: impl Fn(&Arc<str>) -> bool,
    ) {
        let mut pending = self.pending.lock();
        if pending.keys.len() >= MIN_SWEPT.max(2 * pending.swept) {
            pending.keys.retain(|(_, key)| is_stored(key));
            pending.swept = pending.keys.len();
        }
        pending.keys.push((route.clone(), key.clone()));
    }

    /// Removes and returns the keys of the values that wait for a link on a route.
    pub(super) fn take_pending(&self, route: &Arc<Route>) -> Vec<Arc<str>> {
        let keys = &mut self.pending.lock().keys;
        keys.extract_if(.., |(of, _)| Arc::ptr_eq(of, route)).map(|(_, key)| key).collect()
    }
}
