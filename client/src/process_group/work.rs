//! Calls in progress, which a program waits for or asks about.

use super::driver::Driver;
use crate::error::{Error, Result};
use graph::{Code, Tensor};
use parking_lot::{Condvar, Mutex};
use proto::Status;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use worker::{Group, GroupCallId, GroupFinish};

/// Time after which a waiting member asks those it waits for in which call they are.
const PROBE_AFTER: Duration = Duration::from_millis(100);
/// Longest average time of recent calls at which a waiting thread polls before it sleeps.
const MAX_POLLED: Duration = Duration::from_micros(300);
/// Longest timeout of a call.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// The weight of one call in the average is 1 / `AVERAGED`.
const AVERAGED: u64 = 8;

/// A call of a process group that runs while the program goes on. Dropping it does not end the call, which ends at the
/// group's timeout at the latest.
pub struct Work<T> {
    outcome: Arc<Outcome<T>>,
    /// `None` for a call that has ended before it began.
    call: Option<(Arc<Group>, GroupCallId)>,
    start: Instant,
    timeout: Duration,
    waits: Arc<Waits>,
}

/// The result of a call, which the thread that ends the call leaves for the one that waits.
struct Outcome<T> {
    is_done: AtomicBool,
    result: Mutex<Option<Result<T, Status>>>,
    done: Condvar,
}

/// The waits of a program's threads for the calls of a group.
#[derive(Debug)]
pub(super) struct Waits {
    pace: Pace,
    driver: Arc<Driver>,
}

impl Waits {
    pub(super) fn new(driver: &Arc<Driver>) -> Arc<Waits> {
        Arc::new(Waits { pace: Pace::default(), driver: driver.clone() })
    }
}

/// The average time of recent waits for calls.
#[derive(Debug)]
struct Pace(AtomicU64);

impl Default for Pace {
    fn default() -> Pace {
        Pace(AtomicU64::new(2 * MAX_POLLED.as_nanos() as u64))
    }
}

impl Pace {
    /// Returns the time for which a thread polls before it sleeps: twice the average if that is short.
    fn polled(&self) -> Duration {
        match Duration::from_nanos(self.0.load(Ordering::Relaxed)) {
            average if average <= MAX_POLLED => average * 2,
            _ => Duration::ZERO,
        }
    }

    fn record(&self, took: Duration) {
        let took = took.min(4 * MAX_POLLED).as_nanos() as u64;
        let before = self.0.load(Ordering::Relaxed);
        // A concurrent update may be lost, which does no harm.
        self.0.store((before * (AVERAGED - 1) + took) / AVERAGED, Ordering::Relaxed);
    }
}

impl<T: Send + 'static> Work<T> {
    /// Starts a call: `start` gets the callback that ends the call, and returns the call's id.
    pub(super) fn start(
        group: &Arc<Group>,
        timeout: Duration,
        waits: &Arc<Waits>,
        convert: impl FnOnce(Tensor) -> T + Send + 'static,
        start: impl FnOnce(GroupFinish) -> Result<GroupCallId, Status>,
    ) -> Work<T> {
        let (outcome, waits) = (Arc::default(), waits.clone());
        let work = Work { outcome, call: None, start: Instant::now(), timeout, waits };
        let (finished, driver) = (work.outcome.clone(), work.waits.driver.clone());
        driver.begin_call();
        let finish = move |result: Result<Tensor, Status>| {
            driver.end_call();
            finished.set(result.map(convert));
        };
        match start(Box::new(finish)) {
            Ok(id) => Work { call: Some((group.clone(), id)), ..work },
            Err(status) => {
                work.waits.driver.end_call();
                work.outcome.set(Err(status));
                work
            }
        }
    }

    /// Returns a call that has failed before it began.
    pub(super) fn failed(waits: &Arc<Waits>, status: Status) -> Work<T> {
        let outcome = Arc::<Outcome<T>>::default();
        outcome.set(Err(status));
        Work { outcome, call: None, start: Instant::now(), timeout: Duration::ZERO, waits: waits.clone() }
    }

    /// Waits for the call's result until the group's timeout, counted from the start of the call.
    ///
    /// # Errors
    /// `DeadlineExceeded`, naming the members that have not come, if the call has not ended then; it fails on all
    /// members. `InvalidArgument` if the members call different operations, or with different types or shapes;
    /// `Unavailable` if a member is lost or has left.
    pub fn wait(self) -> Result<T> {
        let deadline = after(self.start, self.timeout);
        self.wait_until(deadline)
    }

    /// Waits like [`Work::wait`] until another deadline, which may be after the group's timeout.
    pub fn wait_until(self, deadline: Instant) -> Result<T> {
        let began = Instant::now();
        if let Some((group, call)) = &self.call
            && deadline > after(self.start, self.timeout)
        {
            group.set_deadline(*call, deadline);
        }
        let polled = self.waits.pace.polled();
        if !self.is_done() && !polled.is_zero() {
            self.waits.driver.poll(|| self.is_done(), (began + polled).min(deadline));
        }
        if !self.is_done() {
            self.waits.driver.resume();
        }
        let probed = (began + PROBE_AFTER).min(deadline);
        let mut result = self.outcome.take_by(probed);
        if result.is_none()
            && let Some((group, call)) = &self.call
        {
            group.probe(*call);
            result = self.outcome.take_by(deadline);
        }
        self.waits.pace.record(began.elapsed());
        match result {
            Some(result) => result.map_err(Error::Status),
            None => Err(Error::Status(self.expire())),
        }
    }

    /// Returns whether the call has ended, with success or an error.
    pub fn is_done(&self) -> bool {
        self.outcome.is_done.load(Ordering::Acquire)
    }

    /// Returns the error with which the call has ended; `None` while it runs and if it has succeeded.
    pub fn error(&self) -> Option<Error> {
        let result = self.outcome.result.lock();
        result.as_ref().and_then(|result| result.as_ref().err().cloned()).map(Error::Status)
    }

    fn expire(&self) -> Status {
        match &self.call {
            Some((group, call)) => group.expire(*call, self.start.elapsed()),
            None => Status::new(Code::DeadlineExceeded, "the call has not ended"),
        }
    }
}

/// Returns the time at which a timeout ends; a timeout that the clock cannot represent is shortened.
pub(super) fn after(start: Instant, timeout: Duration) -> Instant {
    start.checked_add(timeout).unwrap_or(start + LONGEST_TIMEOUT)
}

impl<T> Default for Outcome<T> {
    fn default() -> Outcome<T> {
        Outcome { is_done: AtomicBool::new(false), result: Mutex::new(None), done: Condvar::new() }
    }
}

impl<T> Outcome<T> {
    fn set(&self, result: Result<T, Status>) {
        *self.result.lock() = Some(result);
        self.is_done.store(true, Ordering::Release);
        self.done.notify_all();
    }

    /// Waits for the result until the deadline, and takes it.
    fn take_by(&self, deadline: Instant) -> Option<Result<T, Status>> {
        let mut result = self.result.lock();
        while result.is_none() && !self.done.wait_until(&mut result, deadline).timed_out() {}
        result.take()
    }
}

impl<T> fmt::Debug for Work<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_done = self.outcome.is_done.load(Ordering::Acquire);
        f.debug_struct("Work").field("call", &self.call).field("is_done", &is_done).finish_non_exhaustive()
    }
}
