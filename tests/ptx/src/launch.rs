//! A kernel in all its threads.

use crate::block::Block;
use crate::memory::Memory;
use crate::module::Kernel;
use crate::thread::{Thread, UNWRITTEN};

/// How many blocks of how many threads, along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub blocks: u32,
    pub threads: u32,
}

/// What a kernel does that it must not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kernel}, thread {thread} of block {block}, {place}: {what}")]
pub struct Fault {
    pub kernel: String,
    pub block: u32,
    pub thread: u32,
    /// The instruction: its line in the text, and its name.
    pub place: String,
    pub what: String,
}

/// After so many instructions of all threads a kernel has no end.
const MOST_STEPS: u64 = 4_000_000_000;

impl Kernel {
    /// Runs it in all its threads. Each argument is words of 8 bytes, as many as the kernel says.
    ///
    /// # Errors
    /// The first thing that it does and must not; memory is as it was left then.
    pub fn run(&self, grid: Grid, arguments: &[&[u64]], memory: &mut Memory<'_>) -> Result<(), Fault> {
        let function = self.function();
        let fault = |(thread, place, what), block| Fault {
            kernel: function.name.clone(),
            block,
            thread,
            place,
            what,
        };
        let frame = self.frame(arguments).map_err(|what| fault((0, "its arguments".to_owned(), what), 0))?;
        let mut threads: Vec<Thread<'_>> =
            (0..grid.threads).map(|_| Thread::new(&self.program, function)).collect();
        let mut steps_left = MOST_STEPS;
        for number in 0..grid.blocks {
            let mut block = Block::new(memory, grid, number, function.shared, &mut steps_left);
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
