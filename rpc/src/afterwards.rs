//! What can wait until an answer has left: whoever waits for the answer need not wait for that too.

use std::cell::RefCell;

type Work = Box<dyn FnOnce()>;

thread_local! {
    /// What waits for the end of what this thread does; `None` while it answers nobody.
    static WAITING: RefCell<Option<Vec<Work>>> = const { RefCell::new(None) };
}

/// Does something that may answer somebody, and then what was left for [afterwards] meanwhile. Within another such
/// thing it is a part of that.
pub fn answering<T>(something: impl FnOnce() -> T) -> T {
    let is_outermost = WAITING.with_borrow_mut(|waiting| match waiting {
        Some(_) => false,
        None => {
            *waiting = Some(Vec::new());
            true
        }
    });
    let _end = is_outermost.then(|| End);
    something()
}

/// Does something, which does not panic, once what this thread answers has left; at once, if it answers nobody.
pub fn afterwards(something: impl FnOnce() + 'static) {
    let at_once = WAITING.with_borrow_mut(|waiting| match waiting {
        Some(waiting) => {
            waiting.push(Box::new(something));
            None
        }
        None => Some(something),
    });
    if let Some(something) = at_once {
        something();
    }
}

/// Of what answers; it comes after a panic too.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        for work in WAITING.take().unwrap_or_default() {
            work();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    #[test]
    fn what_can_wait_is_done_when_all_is_answered() {
        let done = Rc::new(RefCell::new(Vec::new()));
        let note = |what: &'static str| {
            let done = done.clone();
            move || done.borrow_mut().push(what)
        };
        afterwards(note("alone"));
        answering(|| {
            afterwards(note("first"));
            answering(|| afterwards(note("within")));
            note("the answer")();
        });
        let panics = catch_unwind(AssertUnwindSafe(|| {
            answering(|| {
                afterwards(note("after a panic"));
                std::panic::resume_unwind(Box::new("no answer"))
            })
        }));
        assert!(panics.map(|(): ()| ()).is_err());
        afterwards(note("alone again"));
        assert_eq!(
            *done.borrow(),
            ["alone", "the answer", "first", "within", "after a panic", "alone again"]
        );
    }

    #[test]
    fn what_is_done_afterwards_may_leave_more() {
        let done = Rc::new(RefCell::new(0));
        let (outer, inner) = (done.clone(), done.clone());
        answering(|| {
            afterwards(move || {
                *outer.borrow_mut() += 1;
                afterwards(move || *inner.borrow_mut() += 1);
            });
        });
        assert_eq!(*done.borrow(), 2);
    }
}
