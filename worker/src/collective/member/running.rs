//! A collective in progress on a member, and its time limit.

use crate::collective::course::Course;
use device::Error;
use device::Value;
use device::cancel::{Cancellation, Registration};
use device::collective::{Finish, Request, StepCollectives};
use graph::Code;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// Additional time for the leader's answer after the collective's deadline.
const LEADER_GRACE: Duration = Duration::from_millis(150);

/// A callback that returns a description of the event that a collective awaits.
type Description = Box<dyn Fn() -> String + Send>;

/// A collective of a node, from the start of the node's kernel to its end.
pub(super) struct Running {
    /// The op, the node and the keys, as error messages name them.
    pub(super) name: String,
    pub(super) timeout: Duration,
    finish: Mutex<Option<Finish>>,
    cancellation: Arc<Cancellation>,
    /// The callback by which the step's cancellation ends the collective.
    on_cancel: Mutex<Option<Registration>>,
    timer: Mutex<Option<AbortHandle>>,
    /// The calls to the leader. They are aborted when the collective ends, because a later step may begin the instance
    /// again.
    negotiation: Mutex<Option<AbortHandle>>,
    /// A text about the actions of the missing members, as far as they are known.
    pub(super) doing: Mutex<String>,
    /// Describes the event that a collective without a course awaits; `None` while its members agree.
    wait: Mutex<Option<Description>>,
    /// The course of the collective; `None` until the members have agreed.
    pub(super) course: Mutex<Option<Arc<Course>>>,
}

impl Running {
    /// Begins the collective of a request.
    pub(super) fn of_request(
        step: &StepCollectives,
        request: &Request,
        timeout: Duration,
        finish: Finish,
    ) -> Option<Arc<Running>> {
        let Request { node, group_key, group_size, instance_key, .. } = request;
        let keys = format!("group {group_key} of {group_size}, instance {instance_key}");
        Running::start(step, format!("{} '{}' ({keys})", node.op.name(), node.name), timeout, finish)
    }

    /// Begins a collective, which ends when the step is cancelled; `None` if the step has been cancelled.
    pub(super) fn start(
        step: &StepCollectives,
        name: String,
        timeout: Duration,
        finish: Finish,
    ) -> Option<Arc<Running>> {
        let run = Arc::new(Running {
            name,
            timeout,
            finish: Mutex::new(Some(finish)),
            cancellation: step.cancellation.clone(),
            on_cancel: Mutex::default(),
            timer: Mutex::default(),
            negotiation: Mutex::default(),
            doing: Mutex::default(),
            wait: Mutex::default(),
            course: Mutex::default(),
        });
        let cancelled = run.clone();
        match step.cancellation.register(move |reason| cancelled.end(Err(reason.clone().derived()))) {
            Ok(registration) => *run.on_cancel.lock() = Some(registration),
            Err(reason) => {
                run.end(Err(reason));
                return None;
            }
        }
        Some(run)
    }

    /// Sets the task that ends the collective at its deadline.
    pub(super) fn set_timer(&self, timer: AbortHandle) {
        *self.timer.lock() = Some(timer);
    }

    /// Ends the collective with an error at its deadline. `began` is the time of the collective's start.
    pub(super) async fn expire_at_last(&self, began: Instant) {
        tokio::time::sleep(self.timeout.saturating_sub(began.elapsed())).await;
        let course = self.course.lock().clone();
        match course {
            Some(course) => self.expire(&awaited(&course)),
            None if self.wait.lock().is_some() => {
                let awaited = self.wait.lock().as_ref().map(|describe| describe());
                self.expire(&awaited.unwrap_or_default());
            }
            None => {
                // The leader also answers at the time limit, and its answer names the members that have joined.
                tokio::time::sleep(LEADER_GRACE).await;
                self.expire("the leader of its group has not answered");
            }
        }
    }

    /// Ends the collective with `DeadlineExceeded`; `awaited` is the event that it waits for.
    pub(super) fn expire(&self, awaited: &str) {
        let seconds = self.timeout.as_secs_f64();
        let text = format!("{}: {awaited}{}; waited {seconds:.1} s", self.name, self.doing.lock());
        self.end(Err(Error::new(Code::DeadlineExceeded, text)));
    }

    /// Sets the callback that describes, at the deadline, the event that the collective awaits.
    pub(super) fn describe_wait(&self, describe: impl Fn() -> String + Send + 'static) {
        *self.wait.lock() = Some(Box::new(describe));
    }

    /// Records the course of the collective. A first course (`is_first`) does not replace a recorded one, because a
    /// repeated agreement may have started a newer course meanwhile.
    pub(super) fn follow(&self, course: Arc<Course>, is_first: bool) {
        let mut latest = self.course.lock();
        match is_first {
            true => drop(latest.get_or_insert(course)),
            false => *latest = Some(course),
        }
    }

    /// Aborts the calls to the leader when the collective ends, or at once if it has ended.
    pub(super) fn abort_at_end(&self, calls: AbortHandle) {
        *self.negotiation.lock() = Some(calls);
        if self.finish.lock().is_none()
            && let Some(calls) = self.negotiation.lock().take()
        {
            calls.abort();
        }
    }

    /// Ends the collective, unless it has ended.
    pub(super) fn end(&self, output: device::Result<Value>) {
        let Some(finish) = self.release() else { return };
        // The course is failed too, because it refers to this object and may wait for members of TensorFlow.
        let course = self.course.lock().take();
        if let (Some(course), Err(error)) = (course, &output) {
            course.fail(error.clone());
        }
        finish(output);
    }

    /// Takes the callback for the output, so that the caller can end the collective in another way; `None` if the
    /// collective has ended. The deadline and the calls to the leader are dropped.
    pub(super) fn release(&self) -> Option<Finish> {
        let finish = self.finish.lock().take()?;
        if let Some(registration) = self.on_cancel.lock().take() {
            self.cancellation.deregister(registration);
        }
        let calls = [self.timer.lock().take(), self.negotiation.lock().take()];
        calls.into_iter().flatten().for_each(|call| call.abort());
        Some(finish)
    }
}

/// Returns a text that names the members for which a course waits.
pub(super) fn awaited(course: &Course) -> String {
    let members: Vec<String> = course.awaited().iter().map(|member| member.name.to_string()).collect();
    format!("waits for {}", members.join(", "))
}
