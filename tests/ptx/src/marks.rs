//! Who has touched which byte of a memory in a launch, and whether in an order.

/// A touch of memory: by which thread of which block, after how many barriers of that block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touch {
    /// Counted over all blocks, from 1 on; 0 is nobody.
    pub(crate) thread: u32,
    pub(crate) block: u32,
    pub(crate) epoch: u32,
    pub(crate) how: How,
}

/// What orders touches beside barriers: the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum How {
    Plain,
    /// By a block that holds a lock.
    Locked,
    Atomic,
}

const NOBODY: Touch = Touch { thread: 0, block: 0, epoch: 0, how: How::Atomic };

impl Touch {
    /// Whether another touch by a thread of its own, of which one may write, is in no order with this one.
    fn races(self, other: Touch) -> bool {
        if other.thread == 0 || self.thread == other.thread {
            return false;
        }
        if self.block == other.block {
            return self.epoch == other.epoch && (self.how != How::Atomic || other.how != How::Atomic);
        }
        self.how == How::Plain || other.how == How::Plain
    }
}

/// Of one byte: the last write, the last read, and one by another thread that the last read is in no order with.
#[derive(Clone, Copy, Debug)]
struct Mark {
    written: Touch,
    read: Touch,
    also_read: Touch,
}

const UNTOUCHED: Mark = Mark { written: NOBODY, read: NOBODY, also_read: NOBODY };

/// Of each byte, once one is touched.
#[derive(Debug, Default)]
pub(crate) struct Marks(Vec<Mark>);

impl Marks {
    /// Notes a touch of some of the memory's `all` bytes. A write that changes nothing races with no other.
    ///
    /// # Errors
    /// With whom it races.
    pub(crate) fn note(
        &mut self,
        all: usize,
        bytes: std::ops::Range<usize>,
        touch: Touch,
        is_write: bool,
        is_change: bool,
    ) -> Result<(), Touch> {
        if self.0.is_empty() {
            self.0.resize(all, UNTOUCHED);
        }
        for mark in &mut self.0[bytes] {
            let against = [mark.written, mark.read, mark.also_read];
            let against = match (is_write, is_change) {
                (true, true) => &against[..],
                (true, false) => &against[1..],
                (false, _) => &against[..1],
            };
            if let Some(&other) = against.iter().find(|&&other| touch.races(other)) {
                return Err(other);
            }
            if is_write {
                mark.written = touch;
            } else {
                // Of three readers in no order two are enough to find a writer that is none of them.
                if mark.read.thread != touch.thread && mark.read.thread != 0 {
                    let keeps = mark.also_read.thread != 0 && mark.also_read.how < mark.read.how;
                    if !keeps {
                        mark.also_read = mark.read;
                    }
                }
                mark.read = touch;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(thread: u32, block: u32, epoch: u32, how: How) -> Touch {
        Touch { thread, block, epoch, how }
    }

    /// Whether the last of some touches, each a write or not, races.
    fn race(touches: &[(Touch, bool)]) -> bool {
        let mut marks = Marks::default();
        let mut last = Ok(());
        for &(touch, is_write) in touches {
            assert!(last.is_ok(), "earlier than the last: {last:?}");
            last = marks.note(8, 4..8, touch, is_write, true);
        }
        last.is_err()
    }

    #[test]
    fn barriers_order_what_a_block_does() {
        use How::Plain;
        let (one, other) = (by(1, 0, 0, Plain), by(2, 0, 0, Plain));
        assert!(race(&[(one, true), (other, true)]));
        assert!(race(&[(one, true), (other, false)]));
        assert!(race(&[(one, false), (other, true)]));
        assert!(!race(&[(one, false), (other, false)]));
        assert!(!race(&[(one, true), (one, false), (one, true)]));
        let later = by(2, 0, 1, Plain);
        assert!(!race(&[(one, true), (later, false), (later, true)]));
        assert!(race(&[(one, false), (other, false), (one, true)]));
    }

    #[test]
    fn nothing_but_atomics_and_locks_orders_blocks() {
        use How::{Atomic, Locked, Plain};
        let here = |how| by(1, 0, 0, how);
        let there = |how| by(300, 1, 5, how);
        assert!(race(&[(here(Plain), true), (there(Plain), true)]));
        assert!(race(&[(here(Plain), false), (there(Atomic), true)]));
        assert!(!race(&[(here(Atomic), true), (there(Atomic), true)]));
        assert!(!race(&[(here(Locked), true), (there(Locked), true)]));
        // Within a block a lock is held by all threads.
        assert!(race(&[(here(Locked), true), (by(2, 0, 0, Locked), true)]));
    }

    #[test]
    fn a_write_of_what_is_there_races_with_readers_alone() {
        let mut marks = Marks::default();
        let (one, other) = (by(1, 0, 0, How::Plain), by(2, 0, 0, How::Plain));
        assert_eq!(marks.note(4, 0..4, one, true, true), Ok(()));
        assert_eq!(marks.note(4, 0..4, other, true, false), Ok(()));
        assert_eq!(marks.note(4, 0..4, other, true, true), Ok(()));
        assert_eq!(marks.note(4, 0..4, one, false, false), Err(other));
    }
}
