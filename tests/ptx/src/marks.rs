//! Race detection: the accesses to each byte of a memory in a launch.

/// An access to memory: its thread and block, the number of barriers (`epoch`) that the block had passed, and its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// The number of the thread among the threads of all blocks, from 1 on; 0 means no access.
    pub(crate) thread: u32,
    pub(crate) block: u32,
    pub(crate) epoch: u32,
    pub(crate) kind: AccessKind,
}

/// The kind of an access. Locks and atomic operations order accesses even without a barrier. The kinds are sorted,
/// beginning with the kind that orders the fewest accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AccessKind {
    Plain,
    /// A plain access while a thread of the block holds a lock.
    Locked,
    Atomic,
}

const NO_ACCESS: Access = Access { thread: 0, block: 0, epoch: 0, kind: AccessKind::Atomic };

impl Access {
    /// Returns whether two accesses, of which at least one writes, race: they are by different threads, and no barrier,
    /// lock or atomic operation orders them.
    fn races(self, other: Access) -> bool {
        if other.thread == 0 || self.thread == other.thread {
            return false;
        }
        if self.block == other.block {
            return self.epoch == other.epoch
                && (self.kind != AccessKind::Atomic || other.kind != AccessKind::Atomic);
        }
        self.kind == AccessKind::Plain || other.kind == AccessKind::Plain
    }
}

/// The accesses to one byte: the last write, the last read, and an earlier read by another thread.
#[derive(Clone, Copy, Debug)]
struct Mark {
    written: Access,
    read: Access,
    also_read: Access,
}

const UNTOUCHED: Mark = Mark { written: NO_ACCESS, read: NO_ACCESS, also_read: NO_ACCESS };

/// The accesses to each byte of a memory, allocated at the first access.
#[derive(Debug, Default)]
pub(crate) struct Marks(Vec<Mark>);

impl Marks {
    /// Records an access to the range `bytes` of a memory of `all` bytes. A write that does not change the value races
    /// with no other write.
    ///
    /// # Errors
    /// The earlier access that races with `access`.
    pub(crate) fn note(
        &mut self,
        all: usize,
        bytes: std::ops::Range<usize>,
        access: Access,
        is_write: bool,
        is_change: bool,
    ) -> Result<(), Access> {
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
            if let Some(&other) = against.iter().find(|&&other| access.races(other)) {
                return Err(other);
            }
            if is_write {
                mark.written = access;
            } else {
                // Two of several concurrent readers are enough, because the thread of any writer differs from at least
                // one of them.
                if mark.read.thread != access.thread && mark.read.thread != 0 {
                    let keeps = mark.also_read.thread != 0 && mark.also_read.kind < mark.read.kind;
                    if !keeps {
                        mark.also_read = mark.read;
                    }
                }
                mark.read = access;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(thread: u32, block: u32, epoch: u32, kind: AccessKind) -> Access {
        Access { thread, block, epoch, kind }
    }

    /// Returns whether the last of `accesses`, each given with a flag that is true for writes, races with an earlier
    /// access.
    fn race(accesses: &[(Access, bool)]) -> bool {
        let mut marks = Marks::default();
        let mut last = Ok(());
        for &(access, is_write) in accesses {
            assert!(last.is_ok(), "earlier than the last: {last:?}");
            last = marks.note(8, 4..8, access, is_write, true);
        }
        last.is_err()
    }

    #[test]
    fn barriers_order_accesses_of_one_block() {
        use AccessKind::Plain;
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
    fn only_atomics_and_locks_order_blocks() {
        use AccessKind::{Atomic, Locked, Plain};
        let here = |kind| by(1, 0, 0, kind);
        let there = |kind| by(300, 1, 5, kind);
        assert!(race(&[(here(Plain), true), (there(Plain), true)]));
        assert!(race(&[(here(Plain), false), (there(Atomic), true)]));
        assert!(!race(&[(here(Atomic), true), (there(Atomic), true)]));
        assert!(!race(&[(here(Locked), true), (there(Locked), true)]));
        // A lock counts as held by all threads of the block, so it orders no accesses within the block.
        assert!(race(&[(here(Locked), true), (by(2, 0, 0, Locked), true)]));
    }

    #[test]
    fn write_of_the_same_value_races_only_with_reads() {
        let mut marks = Marks::default();
        let (one, other) = (by(1, 0, 0, AccessKind::Plain), by(2, 0, 0, AccessKind::Plain));
        assert_eq!(marks.note(4, 0..4, one, true, true), Ok(()));
        assert_eq!(marks.note(4, 0..4, other, true, false), Ok(()));
        assert_eq!(marks.note(4, 0..4, other, true, true), Ok(()));
        assert_eq!(marks.note(4, 0..4, one, false, false), Err(other));
    }
}
