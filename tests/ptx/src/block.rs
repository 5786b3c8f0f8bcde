//! The threads of a block, with the memory they share.

use crate::launch::Grid;
use crate::marks::{How, Touch};
use crate::memory::Memory;
use crate::module::{GLOBALS, Program};
use crate::thread::{Stop, Thread, UNWRITTEN};
use crate::watched::{Watched, value_of};

/// A block while its threads run.
#[derive(Debug)]
pub(crate) struct Block<'a, 'm> {
    pub(crate) memory: &'a mut Memory<'m>,
    /// Whether it holds a lock, with all its threads.
    pub(crate) is_locked: bool,
    grid: Grid,
    number: u32,
    /// Barriers so far.
    epoch: u32,
    shared: Watched<Vec<u8>>,
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
            shared: Watched::new(vec![UNWRITTEN; shared]),
            steps_left,
        }
    }

    /// What the special registers of one of its threads hold.
    pub(crate) fn specials(&self, thread: u32) -> [u64; 4] {
        [thread, self.grid.threads, self.number, self.grid.blocks].map(u64::from)
    }

    pub(crate) fn step(&mut self) -> Result<(), String> {
        *self.steps_left = self.steps_left.checked_sub(1).ok_or("it does not end")?;
        Ok(())
    }

    fn touch(&self, thread: u32, how: How) -> Touch {
        let thread = self.number * self.grid.threads + thread + 1;
        Touch { thread, block: self.number, epoch: self.epoch, how }
    }

    pub(crate) fn atomic(&self, thread: u32) -> Touch {
        self.touch(thread, How::Atomic)
    }

    fn plain(&self, thread: u32, is_volatile: bool) -> Touch {
        self.touch(
            thread,
            match (is_volatile, self.is_locked) {
                (true, _) => How::Atomic,
                (false, true) => How::Locked,
                (false, false) => How::Plain,
            },
        )
    }

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
        let touch = self.plain(thread, is_volatile);
        self.memory.read(at, bytes, touch)
    }

    pub(crate) fn write_global(
        &mut self,
        at: u64,
        bytes: usize,
        value: u64,
        thread: u32,
        is_volatile: bool,
    ) -> Result<(), String> {
        let touch = self.plain(thread, is_volatile);
        self.memory.write(at, bytes, value, touch)
    }

    pub(crate) fn read_shared(
        &mut self,
        at: u64,
        bytes: usize,
        thread: u32,
        is_volatile: bool,
    ) -> Result<u64, String> {
        let touch = self.plain(thread, is_volatile);
        self.shared.read(at as usize, bytes, touch).map_err(|what| format!("shared: {what}"))
    }

    pub(crate) fn write_shared(
        &mut self,
        at: u64,
        bytes: usize,
        value: u64,
        thread: u32,
        is_volatile: bool,
    ) -> Result<(), String> {
        let touch = self.plain(thread, is_volatile);
        self.shared.write(at as usize, bytes, value, touch).map_err(|what| format!("shared: {what}"))
    }

    /// Runs all its threads to their ends.
    ///
    /// # Errors
    /// Which thread, at which instruction, does what it must not.
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
                let stop = thread.run(self).map_err(|what| (number, thread.place(), what))?;
                let first = *reached.get_or_insert(stop);
                if stop != first {
                    let what = format!("it stops at {stop:?}, and the threads before it at {first:?}");
                    return Err((number, thread.place(), what));
                }
            }
            match reached {
                Some(Stop::Barrier(_)) => self.epoch += 1,
                Some(Stop::End) | None => return Ok(()),
            }
        }
    }
}
