//! The threads of a block and their shared memory.

use crate::launch::Grid;
use crate::marks::{Access, AccessKind};
use crate::memory::Memory;
use crate::module::{GLOBALS, Program};
use crate::thread::{StopReason, Thread, UNWRITTEN};
use crate::watched::{CheckedBytes, value_of};

/// A block of a launch whose threads are being executed.
#[derive(Debug)]
pub(crate) struct Block<'a, 'm> {
    pub(crate) memory: &'a mut Memory<'m>,
    /// True while a thread of the block holds a lock; the lock counts as held by all threads of the block.
    pub(crate) is_locked: bool,
    grid: Grid,
    number: u32,
    /// Number of barriers that the block's threads have passed.
    epoch: u32,
    /// The block's shared memory.
    shared: CheckedBytes<Vec<u8>>,
    /// Number of instructions that the launch may still execute before it counts as endless.
    steps_left: &'a mut u64,
}

impl<'a, 'm> Block<'a, 'm> {
    pub(crate) fn new(
        memory: &'a mut Memory<'m>,
        grid: Grid,
        number: u32,
        shared: usize,
        steps_left: &'a mut u64,
    ) -> Block<'a, 'm> {
        Block {
            memory,
            is_locked: false,
            grid,
            number,
            epoch: 0,
            shared: CheckedBytes::new(vec![UNWRITTEN; shared]),
            steps_left,
        }
    }

    /// Returns the values of a thread's special registers, in the order of [`SPECIALS`](crate::function::SPECIALS).
    pub(crate) fn specials(&self, thread: u32) -> [u64; 4] {
        [thread, self.grid.threads, self.number, self.grid.blocks].map(u64::from)
    }

    /// Counts an instruction of the launch, and fails if the launch has reached its limit.
    pub(crate) fn step(&mut self) -> Result<(), String> {
        *self.steps_left = self.steps_left.checked_sub(1).ok_or("it does not end")?;
        Ok(())
    }

    /// Returns the record of an access by a thread of the block, for race detection.
    fn access(&self, thread: u32, kind: AccessKind) -> Access {
        let thread = self.number * self.grid.threads + thread + 1;
        Access { thread, block: self.number, epoch: self.epoch, kind }
    }

    /// Returns the record of an atomic access by a thread of the block.
    pub(crate) fn atomic(&self, thread: u32) -> Access {
        self.access(thread, AccessKind::Atomic)
    }

    /// Returns the record of a read or write by a thread of the block; a volatile access counts as atomic.
    fn plain(&self, thread: u32, is_volatile: bool) -> Access {
        self.access(
            thread,
            match (is_volatile, self.is_locked) {
                (true, _) => AccessKind::Atomic,
                (false, true) => AccessKind::Locked,
                (false, false) => AccessKind::Plain,
            },
        )
    }

    /// Reads a value of `bytes` bytes from global memory or from the module's global variables.
    pub(crate) fn read_global(
        &mut self,
        program: &Program,
        at: u64,
        bytes: usize,
        thread: u32,
        is_volatile: bool,
    ) -> Result<u64, String> {
        if at >= GLOBALS {
            let at = (at - GLOBALS) as usize;
            let data = program.data.get(at..at + bytes);
            return data.map(value_of).ok_or_else(|| format!("{at:#x} is not in the module's data"));
        }
        let access = self.plain(thread, is_volatile);
        self.memory.read(at, bytes, access)
    }

    /// Writes a value of `bytes` bytes to global memory.
    pub(crate) fn write_global(
        &mut self,
        at: u64,
        bytes: usize,
        value: u64,
        thread: u32,
        is_volatile: bool,
    ) -> Result<(), String> {
        let access = self.plain(thread, is_volatile);
        self.memory.write(at, bytes, value, access)
    }

    /// Reads a value of `bytes` bytes from the block's shared memory.
    pub(crate) fn read_shared(
        &mut self,
        at: u64,
        bytes: usize,
        thread: u32,
        is_volatile: bool,
    ) -> Result<u64, String> {
        let access = self.plain(thread, is_volatile);
        self.shared.read(at as usize, bytes, access).map_err(|what| format!("shared: {what}"))
    }

    /// Writes a value of `bytes` bytes to the block's shared memory.
    pub(crate) fn write_shared(
        &mut self,
        at: u64,
        bytes: usize,
        value: u64,
        thread: u32,
        is_volatile: bool,
    ) -> Result<(), String> {
        let access = self.plain(thread, is_volatile);
        self.shared.write(at as usize, bytes, value, access).map_err(|what| format!("shared: {what}"))
    }

    /// Runs all threads of the block to their ends.
    ///
    /// # Errors
    /// The thread, the instruction, and a description of the invalid action.
    pub(crate) fn run(
        &mut self,
        threads: &mut [Thread<'_>],
        arguments: &[u8],
    ) -> Result<(), (u32, String, String)> {
        for (number, thread) in (0..).zip(&mut *threads) {
            thread.start(number, self, arguments);
        }
        loop {
            let mut reached = None;
            for (number, thread) in (0..).zip(&mut *threads) {
                let stop = thread.run(self).map_err(|what| (number, thread.position(), what))?;
                let first = *reached.get_or_insert(stop);
                if stop != first {
                    let what = format!("it stops at {stop:?}, and the threads before it at {first:?}");
                    return Err((number, thread.position(), what));
                }
            }
            match reached {
                Some(StopReason::Barrier(_)) => self.epoch += 1,
                Some(StopReason::End) | None => return Ok(()),
            }
        }
    }
}
