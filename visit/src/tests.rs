//! Tests of the order in which deferred work and writes happen at the end of nested scopes, also after a panic.

use super::*;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

/// A log that closures of one thread share.
#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    fn note(&self, text: &str) {
        self.0.borrow_mut().push(text.to_owned());
    }

    fn noting(&self, text: &'static str) -> impl FnOnce() + 'static {
        let log = self.clone();
        move || log.note(text)
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.borrow_mut())
    }
}

/// A connection that counts the frames written at each flush.
#[derive(Default)]
struct Connection {
    queued: Mutex<usize>,
    writes: Mutex<Vec<usize>>,
}

impl Connection {
    fn post(self: &Arc<Self>) {
        *self.queued.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        if !enqueue_if_corked(self) {
            self.clone().flush_now();
        }
    }

    fn writes(&self) -> Vec<usize> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Flush for Connection {
    fn flush(self: Arc<Self>) {
        if !enqueue_if_corked(&self) {
            self.flush_now();
        }
    }

    fn flush_now(self: Arc<Self>) {
        let queued = std::mem::take(&mut *self.queued.lock().unwrap_or_else(PoisonError::into_inner));
        self.writes.lock().unwrap_or_else(PoisonError::into_inner).push(queued);
    }
}

fn panics(work: impl FnOnce()) {
    assert!(catch_unwind(AssertUnwindSafe(work)).is_err());
}

#[test]
fn deferred_work_runs_when_the_outermost_answer_ends() {
    let log = Log::default();
    defer(log.noting("alone"));
    answer(|| {
        defer(log.noting("first"));
        answer(|| defer(log.noting("within")));
        log.note("the answer");
    });
    assert_eq!(log.take(), ["alone", "the answer", "first", "within"]);
    panics(|| {
        answer(|| {
            defer(log.noting("after a panic"));
            resume_unwind(Box::new("no answer"))
        })
    });
    defer(log.noting("alone again"));
    assert_eq!(log.take(), ["after a panic", "alone again"]);
}

#[test]
fn deferred_work_may_defer_more() {
    let log = Log::default();
    let outer = log.clone();
    answer(|| {
        defer(move || {
            outer.note("outer");
            defer(outer.noting("inner"));
        });
    });
    assert_eq!(log.take(), ["outer", "inner"]);
}

#[test]
fn corked_connections_write_once_at_the_end_even_of_a_panic() {
    let connection = Arc::new(Connection::default());
    connection.post();
    assert_eq!(connection.writes(), [1]);
    cork(|| {
        connection.post();
        connection.post();
        assert_eq!(connection.writes(), [1]);
        release_cork();
        assert_eq!(connection.writes(), [1, 2]);
        connection.post();
    });
    assert_eq!(connection.writes(), [1, 2, 1]);
    panics(|| {
        cork(|| {
            connection.post();
            resume_unwind(Box::new("the reader panics"))
        })
    });
    assert_eq!(connection.writes(), [1, 2, 1, 1]);
    connection.post();
    assert_eq!(connection.writes(), [1, 2, 1, 1, 1]);
}

#[test]
fn a_cork_within_a_cork_writes_at_the_end_of_the_outer_one() {
    let connection = Arc::new(Connection::default());
    cork(|| {
        cork(|| connection.post());
        assert_eq!(connection.writes(), [0; 0]);
        connection.post();
    });
    assert_eq!(connection.writes(), [2]);
}

#[test]
fn a_queue_runs_once_on_a_stack() {
    assert_eq!(run_queue(|| run_queue(|| 1)), Some(None));
    panics(|| assert_eq!(run_queue(|| resume_unwind(Box::new("work panics"))), Some(())));
    assert_eq!(run_queue(|| 2), Some(2));
}

#[test]
fn the_innermost_reply_is_found_by_its_type() {
    assert_eq!(reply::<u32>(), None);
    with_reply(Arc::new(1u32), || {
        assert_eq!((reply::<u32>().as_deref(), reply::<u64>()), (Some(&1), None));
        panics(|| with_reply(Arc::new(2u64), || resume_unwind(Box::new("within"))));
        assert_eq!(reply::<u32>().as_deref(), Some(&1));
    });
    assert_eq!(reply::<u32>(), None);
}

#[test]
fn one_wake_is_inline_in_each_scope() {
    assert!(!take_inline_wake());
    wake_inline(|| {
        assert!(take_inline_wake() && !take_inline_wake());
        wake_inline(|| assert!(take_inline_wake()));
        assert!(!take_inline_wake());
    });
    panics(|| wake_inline(|| resume_unwind(Box::new("the end panics"))));
    assert!(!take_inline_wake());
}

#[test]
fn thread_runs_inline_tasks_but_not_within_an_inline_task() {
    let log = Log::default();
    assert!(!accepts_inline_tasks() && run_inline(log.noting("not accepted")).is_err());
    with_inline_tasks(true, || {
        let inner = log.clone();
        let outer = run_inline(move || {
            inner.note("outer");
            assert!(accepts_inline_tasks() && run_inline(inner.noting("nested")).is_err());
            resume_unwind(Box::new("work that panics"))
        });
        assert!(outer.is_ok() && run_inline(log.noting("after a panic")).is_ok());
        with_inline_tasks(false, || assert!(!accepts_inline_tasks() && !can_run_inline()));
        panics(|| with_inline_tasks(false, || resume_unwind(Box::new("within"))));
        assert!(can_run_inline());
    });
    assert!(!accepts_inline_tasks());
    assert_eq!(log.take(), ["outer", "after a panic"]);
}

#[test]
fn serve_writes_then_stops_accepting_inline_tasks_then_runs_deferred_work() {
    let (log, connection) = (Log::default(), Arc::new(Connection::default()));
    for panicking in [false, true] {
        let (log, written) = (log.clone(), connection.clone());
        let visit = || {
            serve(true, || {
                connection.post();
                assert!(can_run_inline());
                defer(move || {
                    log.note(&format!("{:?} written, accepts: {}", written.writes(), accepts_inline_tasks()));
                });
                if panicking {
                    resume_unwind(Box::new("the visit panics"));
                }
            });
        };
        if panicking { panics(visit) } else { visit() }
    }
    assert_eq!(log.take(), ["[1] written, accepts: false", "[1, 1] written, accepts: false"]);
}
