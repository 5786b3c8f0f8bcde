//! Launches of a kernel with all its threads.

use crate::block::Block;
use crate::memory::Memory;
use crate::module::Kernel;
use crate::thread::{Thread, UNWRITTEN};

/// The dimensions of a launch, which has a single axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Number of blocks.
    pub blocks: u32,
    /// Number of threads per block.
    pub threads: u32,
}

/// An invalid action of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kernel}, thread {thread} of block {block}, {place}: {what}")]
pub struct Fault {
    pub kernel: String,
    pub block: u32,
    pub thread: u32,
    /// The faulty instruction, by line and opcode.
    pub place: String,
    pub what: String,
}

/// Number of instructions of all threads together after which a kernel counts as endless.
const MOST_STEPS: u64 = 4_000_000_000;

impl Kernel {
    /// Runs the kernel in all its threads. Each argument consists of 64-bit words, as many as the kernel declares.
    ///
    /// # Errors
    /// The first invalid action of a thread. Memory keeps the writes before it.
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

    /// Returns the bytes of the kernel's parameters, filled with the arguments.
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
