//! A kernel in all its threads.

use crate::marks::{How, Marks, Touch};
use crate::memory::{Memory, raced, value_of};
use crate::module::{GLOBALS, Kernel, Program};
use crate::thread::{Stop, Thread, UNWRITTEN};

/// How many blocks of how many threads, along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub blocks: u32,
    pub threads: u32,
}

/// What a kernel does that it must not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kernel}, thread {thread} of block {block}, line {line}: {what}")]
pub struct Fault {
    pub kernel: String,
    pub block: u32,
    pub thread: u32,
    /// Of the text.
    pub line: usize,
    pub what: String,
}

/// After so many instructions of all threads a kernel has no end.
const MOST_STEPS: u64 = 4_000_000_000;

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
    shared: Vec<u8>,
    marks: Marks,
    steps_left: &'a mut u64,
}

impl Block<'_, '_> {
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
        let range = self.shared_range(at, bytes)?;
        let (all, touch) = (self.shared.len(), self.plain(thread, is_volatile));
        self.marks
            .note(all, range.clone(), touch, false, false)
            .map_err(|other| raced("reads shared", at, other))?;
        Ok(value_of(&self.shared[range]))
    }

    pub(crate) fn write_shared(
        &mut self,
        at: u64,
        bytes: usize,
        value: u64,
        thread: u32,
        is_volatile: bool,
    ) -> Result<(), String> {
        let range = self.shared_range(at, bytes)?;
        let (all, touch) = (self.shared.len(), self.plain(thread, is_volatile));
        let new = &value.to_le_bytes()[..bytes];
        let is_change = &self.shared[range.clone()] != new;
        self.marks
            .note(all, range.clone(), touch, true, is_change)
            .map_err(|other| raced("writes shared", at, other))?;
        self.shared[range].copy_from_slice(new);
        Ok(())
    }

    fn shared_range(&self, at: u64, bytes: usize) -> Result<std::ops::Range<usize>, String> {
        let range = at as usize..at as usize + bytes;
        if range.end <= self.shared.len() {
            Ok(range)
        } else {
            Err(format!("{bytes} bytes at {at:#x} are not in {} of shared memory", self.shared.len()))
        }
    }

    /// Runs all its threads to their ends.
    fn run(&mut self, threads: &mut [Thread<'_>], arguments: &[u8]) -> Result<(), (u32, usize, String)> {
        for (number, thread) in (0..).zip(&mut *threads) {
            thread.start(number, self, arguments);
        }
        loop {
            let mut reached = None;
            for (number, thread) in (0..).zip(&mut *threads) {
                let stop = thread.run(self).map_err(|what| (number, thread.line(), what))?;
                let first = *reached.get_or_insert(stop);
                if stop != first {
                    let what = format!("it stops at {stop:?}, and the threads before it at {first:?}");
                    return Err((number, thread.line(), what));
                }
            }
            match reached {
                Some(Stop::Barrier(_)) => self.epoch += 1,
                Some(Stop::End) | None => return Ok(()),
            }
        }
    }
}

impl Kernel {
    /// Runs it in all its threads. Each argument is words of 8 bytes, as many as the kernel says.
    ///
    /// # Errors
    /// The first thing that it does and must not; memory is as it was left then.
    pub fn run(&self, grid: Grid, arguments: &[&[u64]], memory: &mut Memory<'_>) -> Result<(), Fault> {
        let function = self.function();
        let fault =
            |(thread, line, what), block| Fault { kernel: function.name.clone(), block, thread, line, what };
        let frame = self.frame(arguments).map_err(|what| fault((0, 0, what), 0))?;
        let mut threads: Vec<Thread<'_>> =
            (0..grid.threads).map(|_| Thread::new(&self.program, function)).collect();
        let mut steps_left = MOST_STEPS;
        for number in 0..grid.blocks {
            let mut block = Block {
                memory,
                is_locked: false,
                grid,
                number,
                epoch: 0,
                shared: vec![UNWRITTEN; function.shared],
                marks: Marks::default(),
                steps_left: &mut steps_left,
            };
            block.run(&mut threads, &frame).map_err(|what| fault(what, number))?;
        }
        Ok(())
    }

    /// The bytes of its parameters.
    fn frame(&self, arguments: &[&[u64]]) -> Result<Vec<u8>, String> {
        let parameters = &self.function().parameters;
        if parameters.len() != arguments.len() {
            return Err(format!("{} arguments, not {}", arguments.len(), parameters.len()));
        }
        let mut frame = Vec::new();
        for (i, (span, words)) in parameters.iter().zip(arguments).enumerate() {
            if span.bytes != 8 * words.len() {
                return Err(format!("argument {i} has {} bytes, not {}", 8 * words.len(), span.bytes));
            }
            frame.resize(span.start, UNWRITTEN);
            frame.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        Ok(frame)
    }
}
