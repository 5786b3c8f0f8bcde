//! Thread-local state of a thread that has read a message from a connection: which work it runs itself, and when it
//! writes.
//!
//! # Why
//!
//! A small step is shorter than a thread switch. So the thread that reads a request or a tensor from a connection also
//! runs the short work that follows from it, and sends all resulting messages in one write, before it reads on. The
//! processing of one message is called a *visit*. Functions deep in the call stack must know that they run within a
//! visit: a pool that would start another thread, a waker, a link that would write to a socket. A parameter cannot tell
//! them, because futures, callbacks and kernels are in between. They ask this module.
//!
//! # The state of a visit
//!
//! Each thread has one `State` with six parts. Each part is set for the duration of a closure, and restored at its end, also
//! after a panic:
//!
//! | part | set by | asked by |
//! |---|---|---|
//! | deferred work | [`answer`] | [`defer`]: work that runs when the answer has left |
//! | cork | [`cork`] | [`enqueue_if_corked`]: connections that write at the end; [`release_cork`] writes at once |
//! | reply | [`with_reply`] | [`reply`]: the connection on which small values return to the process that caused them |
//! | inline wake | [`wake_inline`] | [`take_inline_wake`]: a waker that may run its task on this thread |
//! | inline tasks | [`with_inline_tasks`] | [`run_inline`], [`can_run_inline`], [`accepts_inline_tasks`]: a pool that may use this thread |
//! | queue | [`run_queue`] | itself: a compute thread takes from its pool's queue once on its stack |
//!
//! [`serve`] is the visit of a reading thread: it combines answer, inline tasks and cork.
//!
//! # The order of the ends
//!
//! At the end of [`serve`] the corked connections write first, so that the other end can go on. Then the thread takes no more
//! inline tasks. Then the deferred work runs, in its order: nobody waits for it. A scope within a scope of the same kind:
//!
//! - [`answer`] belongs to the outer one, whose end runs the deferred work of both;
//! - [`cork`], [`with_reply`], [`with_inline_tasks`] and [`wake_inline`] hide the outer one, which is restored at the end.
//!
//! An inline task runs no other inline task, so that no kernel below on the stack is delayed: [`run_inline`] clears the
//! allowance while it runs work. Compute threads never accept inline tasks.

#![forbid(unsafe_code)]

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Work that is deferred until the answer to the message has been written.
type Work = Box<dyn FnOnce()>;

/// A connection whose writes can be delayed until the end of a [`cork`].
pub trait Flush: Send + Sync {
    /// Writes the queued bytes, or has them written at the end of an outer [`cork`]. Does not block.
    fn flush(self: Arc<Self>);

    /// Writes the queued bytes now. Does not block.
    fn flush_now(self: Arc<Self>);
}

/// One thread's visit.
struct State {
    /// The deferred work; `None` outside of [`answer`].
    deferred: RefCell<Option<Vec<Work>>>,
    /// The connections that write at the end of the innermost [`cork`]; `None` outside of one.
    corked: RefCell<Option<Vec<Arc<dyn Flush>>>>,
    /// The value that the innermost [`with_reply`] set; `None` outside of one.
    reply: RefCell<Option<Arc<dyn Any + Send + Sync>>>,
    wakes_inline: Cell<bool>,
    inline_tasks: Cell<InlineTasks>,
    runs_queue: Cell<bool>,
}

/// A thread's state with regard to inline tasks of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum InlineTasks {
    /// The thread accepts none.
    #[default]
    No,
    /// The thread accepts one.
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

/// Calls the function at the end of a scope, also after a panic.
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

/// Runs `work`, which may answer somebody, and then the work that was [deferred](defer) in it.
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

/// Runs `work`, which does not panic, at the end of the outermost [`answer`]; at once outside of one.
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

/// Runs `work`; connections that would write meanwhile write once, at its end.
pub fn cork<T>(work: impl FnOnce() -> T) -> T {
    let mut outer = STATE.with(|state| state.corked.replace(Some(Vec::new())));
    let _end = AtEnd(move || {
        let corked = STATE.with(|state| state.corked.replace(outer.take()));
        corked.into_iter().flatten().for_each(|connection| connection.flush());
    });
    work()
}

/// Has the connection flushed at the end of the [`cork`]. Returns false outside of one: then the caller writes.
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

/// Flushes the connections of the [`cork`] now, because long work may follow.
pub fn release_cork() {
    let corked = STATE.with(|state| state.corked.borrow_mut().as_mut().map(std::mem::take));
    corked.into_iter().flatten().for_each(|connection| connection.flush_now());
}

/// Runs `work`; meanwhile [`reply`] returns `reply`.
pub fn with_reply<T>(reply: Arc<dyn Any + Send + Sync>, work: impl FnOnce() -> T) -> T {
    let mut outer = STATE.with(|state| state.reply.replace(Some(reply)));
    let _end = AtEnd(move || {
        STATE.with(|state| state.reply.replace(outer.take()));
    });
    work()
}

/// The reply of the innermost [`with_reply`], if it is of this type.
pub fn reply<R: Any + Send + Sync>() -> Option<Arc<R>> {
    STATE.with(|state| state.reply.borrow().clone())?.downcast().ok()
}

/// Runs `end`, which completes the wait of a task; if that task is woken inline, it runs before this returns. The caller
/// holds no locks.
pub fn wake_inline<T>(end: impl FnOnce() -> T) -> T {
    let before = STATE.with(|state| state.wakes_inline.replace(true));
    let _end = AtEnd(move || STATE.with(|state| state.wakes_inline.set(before)));
    end()
}

/// Returns whether a waker may run its task on this thread, once in each [`wake_inline`].
pub fn take_inline_wake() -> bool {
    STATE.with(|state| state.wakes_inline.replace(false))
}

/// Runs `work`; meanwhile the thread runs [inline tasks](run_inline) of pools if `accepts`.
pub fn with_inline_tasks<T>(accepts: bool, work: impl FnOnce() -> T) -> T {
    let allowed = if accepts { InlineTasks::Allowed } else { InlineTasks::No };
    let before = STATE.with(|state| state.inline_tasks.replace(allowed));
    let _end = AtEnd(move || STATE.with(|state| state.inline_tasks.set(before)));
    work()
}

/// Returns whether the thread accepts inline tasks, and so has other work to return to, such as reading a link.
pub fn accepts_inline_tasks() -> bool {
    STATE.with(|state| state.inline_tasks.get()) != InlineTasks::No
}

/// Returns whether [`run_inline`] would run work on this thread.
pub fn can_run_inline() -> bool {
    STATE.with(|state| state.inline_tasks.get()) == InlineTasks::Allowed
}

/// Runs work that ends sooner than another thread would begin it, on this thread if it accepts inline tasks and runs
/// none already. A panic in the work ends the work alone.
///
/// # Errors
/// The work, if it must run elsewhere.
pub fn run_inline<W: FnOnce()>(work: W) -> Result<(), W> {
    if !can_run_inline() {
        return Err(work);
    }
    STATE.with(|state| state.inline_tasks.set(InlineTasks::Busy));
    // The panic hook has reported a panic; the thread must go on.
    let _ = catch_unwind(AssertUnwindSafe(work));
    STATE.with(|state| state.inline_tasks.set(InlineTasks::Allowed));
    Ok(())
}

/// Runs `work`, which takes from a pool's queue. Returns `None`, without running it, if this thread is within such work already:
/// then there is a kernel below on its stack, which must not be delayed.
pub fn run_queue<T>(work: impl FnOnce() -> T) -> Option<T> {
    if STATE.with(|state| state.runs_queue.replace(true)) {
        return None;
    }
    let _end = AtEnd(|| STATE.with(|state| state.runs_queue.set(false)));
    Some(work())
}

#[cfg(test)]
mod tests;
