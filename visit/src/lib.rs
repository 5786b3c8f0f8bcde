//! Thread-local state of a thread that has read a message from a connection. The state decides which work the thread
//! runs itself, and when connections write.
//!
//! # Why
//!
//! A small step is shorter than a thread switch. So the thread that reads a request or a tensor from a connection also
//! runs the short work that the message causes, and sends all resulting messages in one write, before it reads the next
//! message. The processing of one message is called a *visit*. Functions deep in the call stack must know that they run
//! within a visit: a pool that would start another thread, a waker, a link that would write to a socket. No parameter
//! can be passed to them, because futures, callbacks and kernels are in between. These functions therefore query this
//! module.
//!
//! # The state of a visit
//!
//! Each thread has one `State` with six parts. Each part is set for the duration of a closure, and restored at its end,
//! also after a panic:
//!
//! | part | set by | queried by |
//! |---|---|---|
//! | deferred work | [`answer`] | [`defer`]: work that runs when the answer has been written |
//! | cork | [`cork`] | [`enqueue_if_corked`]: connections that write at the end; [`release_cork`] makes them write at once |
//! | reply | [`with_reply`] | [`reply`]: the connection on which small values return to the process that caused them |
//! | inline wake | [`wake_inline`] | [`take_inline_wake`]: a waker that may run its task on this thread |
//! | inline tasks | [`with_inline_tasks`] | [`run_inline`], [`can_run_inline`], [`accepts_inline_tasks`]: a pool that may use this thread |
//! | queue | [`run_queue`] | [`run_queue`]: a compute thread takes from its pool's queue once on its stack |
//!
//! [`serve`] is the visit of a reading thread: it combines answer, inline tasks and cork.
//!
//! # The order at the end of a visit
//!
//! At the end of [`serve`] the corked connections write first, because their peers wait for the messages. Then the
//! thread stops accepting inline tasks. Then the deferred work runs, in the order in which it was deferred,
//! because no caller waits for it. A scope within a scope of the same kind:
//!
//! - [`answer`] within [`answer`] has no end of its own: the end of the outer scope runs the deferred work of both;
//! - [`cork`], [`with_reply`], [`with_inline_tasks`] and [`wake_inline`] hide the outer one, which is restored at the end.
//!
//! An inline task runs no other inline task, so that no kernel below on the stack is delayed: [`run_inline`] refuses
//! work while the thread runs an inline task. Compute threads never accept inline tasks.

#![forbid(unsafe_code)]

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Work that is deferred until the answer to the message that the thread processes has been written.
type Work = Box<dyn FnOnce()>;

/// A connection whose writes can be delayed until the end of a [`cork`].
pub trait Flush: Send + Sync {
    /// Writes the queued bytes, or has them written at the end of an outer [`cork`]. Does not block.
    fn flush(self: Arc<Self>);

    /// Writes the queued bytes now. Does not block.
    fn flush_now(self: Arc<Self>);
}

/// The thread-local state of a visit, in the six parts that the module's documentation lists.
struct State {
    /// The work that [`defer`] has added; `None` outside of [`answer`].
    deferred: RefCell<Option<Vec<Work>>>,
    /// The connections that write at the end of the innermost [`cork`]; `None` outside of [`cork`].
    corked: RefCell<Option<Vec<Arc<dyn Flush>>>>,
    /// The connection on which small values return to the process whose message this thread handles: the argument of
    /// the innermost [`with_reply`], of a type that its caller chooses; `None` outside of [`with_reply`].
    reply: RefCell<Option<Arc<dyn Any + Send + Sync>>>,
    wakes_inline: Cell<bool>,
    inline_tasks: Cell<InlineTasks>,
    runs_queue: Cell<bool>,
}

/// The readiness of a thread to run inline tasks of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum InlineTasks {
    /// The thread accepts no inline tasks.
    #[default]
    No,
    /// The thread accepts inline tasks, and runs none at this moment.
    Allowed,
    /// The thread accepts inline tasks, and runs one at this moment.
    Busy,
}

thread_local! {
    static STATE: State = const {
        State {
            deferred: RefCell::new(None),
            corked: RefCell::new(None),
            reply: RefCell::new(None),
            wakes_inline: Cell::new(false),
            inline_tasks: Cell::new(InlineTasks::No),
            runs_queue: Cell::new(false),
        }
    };
}

/// A guard whose drop calls the function, so that it is called at the end of a scope even after a panic.
struct AtEnd<F: FnMut()>(F);

impl<F: FnMut()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Runs `work`, the processing of a message that this thread has read. Within it, work can be [deferred](defer),
/// writes are [corked](cork), and the thread [accepts inline tasks](with_inline_tasks) if `accepts`.
pub fn serve<T>(accepts: bool, work: impl FnOnce() -> T) -> T {
    answer(|| with_inline_tasks(accepts, || cork(work)))
}

/// Runs `work`, which may answer a message, and afterwards the work that was [deferred](defer) while it ran.
pub fn answer<T>(work: impl FnOnce() -> T) -> T {
    let is_outermost = STATE.with(|state| {
        let mut deferred = state.deferred.borrow_mut();
        let is_outermost = deferred.is_none();
        deferred.get_or_insert_default();
        is_outermost
    });
    let _end = is_outermost.then(|| {
        AtEnd(|| {
            let deferred = STATE.with(|state| state.deferred.take());
            deferred.into_iter().flatten().for_each(|work| work());
        })
    });
    work()
}

/// Runs `work`, which must not panic, at the end of the outermost [`answer`]; at once outside of [`answer`].
pub fn defer(work: impl FnOnce() + 'static) {
    let mut work = Some(work);
    STATE.with(|state| {
        if let Some(deferred) = &mut *state.deferred.borrow_mut()
            && let Some(work) = work.take()
        {
            deferred.push(Box::new(work));
        }
    });
    if let Some(work) = work {
        work();
    }
}

/// Runs `work`; each connection that would write meanwhile writes once, at the end of `work`.
pub fn cork<T>(work: impl FnOnce() -> T) -> T {
    let mut outer = STATE.with(|state| state.corked.replace(Some(Vec::new())));
    let _end = AtEnd(move || {
        let corked = STATE.with(|state| state.corked.replace(outer.take()));
        corked.into_iter().flatten().for_each(|connection| connection.flush());
    });
    work()
}

/// Arranges that the end of the innermost [`cork`] flushes the connection. Returns false outside of [`cork`];
/// the caller must flush the connection then.
pub fn enqueue_if_corked<C: Flush + 'static>(connection: &Arc<C>) -> bool {
    STATE.with(|state| {
        let mut corked = state.corked.borrow_mut();
        let Some(connections) = &mut *corked else { return false };
        let is_same = |known: &Arc<dyn Flush>| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(connection));
        if !connections.iter().any(is_same) {
            connections.push(connection.clone());
        }
        true
    })
}

/// Flushes the connections of the innermost [`cork`] at once, for callers that begin long work.
pub fn release_cork() {
    let corked = STATE.with(|state| state.corked.borrow_mut().as_mut().map(std::mem::take));
    corked.into_iter().flatten().for_each(|connection| connection.flush_now());
}

/// Runs `work`. Within it the function [`reply`] returns the argument `reply`, the connection on which the current
/// request is answered.
pub fn with_reply<T>(reply: Arc<dyn Any + Send + Sync>, work: impl FnOnce() -> T) -> T {
    let mut outer = STATE.with(|state| state.reply.replace(Some(reply)));
    let _end = AtEnd(move || {
        STATE.with(|state| state.reply.replace(outer.take()));
    });
    work()
}

/// Returns the connection that the innermost [`with_reply`] set; `None` outside of [`with_reply`], or if the
/// connection's type is not `R`.
pub fn reply<R: Any + Send + Sync>() -> Option<Arc<R>> {
    STATE.with(|state| state.reply.borrow().clone())?.downcast().ok()
}

/// Runs `end`, which completes an asynchronous task's wait. A task that is woken inline runs on this thread before this
/// function returns, so the caller must hold no locks.
pub fn wake_inline<T>(end: impl FnOnce() -> T) -> T {
    let before = STATE.with(|state| state.wakes_inline.replace(true));
    let _end = AtEnd(move || STATE.with(|state| state.wakes_inline.set(before)));
    end()
}

/// Returns whether a waker may run its task on this thread: true for the first call within each
/// [`wake_inline`].
pub fn take_inline_wake() -> bool {
    STATE.with(|state| state.wakes_inline.replace(false))
}

/// Runs `work`; if `accepts`, the thread accepts [inline tasks](run_inline) of pools meanwhile.
pub fn with_inline_tasks<T>(accepts: bool, work: impl FnOnce() -> T) -> T {
    let allowed = if accepts { InlineTasks::Allowed } else { InlineTasks::No };
    let before = STATE.with(|state| state.inline_tasks.replace(allowed));
    let _end = AtEnd(move || STATE.with(|state| state.inline_tasks.set(before)));
    work()
}

/// Returns whether the thread accepts inline tasks. Such a thread has other work to return to, for example
/// reading a link.
pub fn accepts_inline_tasks() -> bool {
    STATE.with(|state| state.inline_tasks.get()) != InlineTasks::No
}

/// Returns whether [`run_inline`] would run work on this thread.
pub fn can_run_inline() -> bool {
    STATE.with(|state| state.inline_tasks.get()) == InlineTasks::Allowed
}

/// Runs short `work` on this thread if the thread accepts inline tasks and runs none already, because
/// starting another thread would take longer than the work. A panic in the work ends only the work.
///
/// # Errors
/// `work`, which has not run, if it must run on another thread.
pub fn run_inline<W: FnOnce()>(work: W) -> Result<(), W> {
    if !can_run_inline() {
        return Err(work);
    }
    STATE.with(|state| state.inline_tasks.set(InlineTasks::Busy));
    // A panic of `work` was reported by the panic hook; it is caught so that the thread continues.
    let _ = catch_unwind(AssertUnwindSafe(work));
    STATE.with(|state| state.inline_tasks.set(InlineTasks::Allowed));
    Ok(())
}

/// Runs `work`, which takes from a pool's queue. Returns `None` without running `work` if [`run_queue`] is already on
/// this thread's stack, because `work` would delay the kernel below it on the stack.
pub fn run_queue<T>(work: impl FnOnce() -> T) -> Option<T> {
    if STATE.with(|state| state.runs_queue.replace(true)) {
        return None;
    }
    let _end = AtEnd(|| STATE.with(|state| state.runs_queue.set(false)));
    Some(work())
}

#[cfg(test)]
mod tests;
