//! Where a kernel's work goes: onto the compute stream, or into the graph that is being captured.

use super::arguments::Arguments;
use super::capturing::{Capture, Capturing};
use super::driver::{Driver, Grid, StreamId};
use super::engine::{Engine, block};
use super::pieces::{Piece, Pieces};
use super::program::Function;
use super::streams::Stream;
use crate::engine::processor::engine_of;
use device::gpu_options::POISON;
use device::{Device, DeviceMemory, DeviceTensor};
use device::{Error, Result};
use graph::{DType, Shape};
use std::any::Any;
use std::sync::Arc;

/// One kernel's way to the GPU. Its work is enqueued behind that of the kernels before it.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    engine: &'a Arc<Engine>,
    capture: Option<&'a Capture>,
}

/// Threads a block.
const THREADS: u32 = 256;

/// Blocks beyond this take turns: elements are walked in strides of the whole grid.
const MOST_BLOCKS: usize = 8192;

/// Blocks that keep every GPU busy, and that are enough where threads take several elements each.
pub(crate) const BUSY: usize = 1024;
const ENOUGH: usize = 2048;

impl<'a> Lane<'a> {
    /// That of kernels on the device.
    ///
    /// # Errors
    /// `Internal` if it is no GPU; why the GPU cannot be opened.
    pub fn of(device: &'a Device) -> Result<Lane<'a>> {
        let processor: &dyn Any = device.processor();
        match processor.downcast_ref::<Capturing>() {
            Some(capturing) => Ok(capturing.lane()),
            None => Ok(Lane::to(engine_of(device)?)),
        }
    }

    /// To the compute stream.
    pub(super) fn to(engine: &'a Arc<Engine>) -> Lane<'a> {
        Lane { engine, capture: None }
    }

    pub(super) fn into_graph(capture: &'a Capture) -> Lane<'a> {
        Lane { engine: capture.arena.engine(), capture: Some(capture) }
    }

    fn stream(&self) -> StreamId {
        self.capture.map_or_else(|| self.engine.streams().id(Stream::Compute), |capture| capture.stream)
    }

    /// Memory of the GPU for a tensor that kernels will write.
    ///
    /// # Errors
    /// `ResourceExhausted` with the tensor, the node that wants it and the nodes that hold most;
    /// `Unimplemented` for elements that are objects.
    pub fn allocate(&self, node: &Arc<str>, dtype: DType, shape: Shape) -> Result<DeviceTensor> {
        let tensor = match self.capture {
            Some(capture) => capture.arena.allocate(dtype, shape)?,
            None => self.engine.allocate(node, dtype, shape)?,
        };
        if self.engine.poisons() {
            self.fill(&tensor, POISON)?;
        }
        Ok(tensor)
    }

    /// Bytes of the GPU's memory for a kernel's own use.
    ///
    /// # Errors
    /// As [`Lane::allocate`].
    pub fn scratch(&self, node: &Arc<str>, bytes: usize) -> Result<DeviceTensor> {
        self.allocate(node, DType::UInt8, Shape::new(&[bytes])?)
    }

    /// Whether the kernel's work is written down, to be repeated.
    pub fn is_captured(&self) -> bool {
        self.capture.is_some()
    }

    /// Before a kernel whose work is captured changes the value of a variable where it is.
    ///
    /// # Errors
    /// `FailedPrecondition` if others hold it.
    pub fn check_changes(&self, value: &DeviceTensor) -> Result<()> {
        match self.capture {
            Some(capture) if !capture.arena.may_change(value)? => Err(Error::new(
                graph::Code::FailedPrecondition,
                "a variable that others hold cannot be changed in a captured graph",
            )),
            _ => Ok(()),
        }
    }

    /// Before a kernel puts other memory in a variable's place.
    ///
    /// # Errors
    /// `FailedPrecondition` where its work is captured: when that is repeated, the variable would be elsewhere.
    pub fn check_moves(&self) -> Result<()> {
        match self.capture {
            Some(_) => Err(Error::new(
                graph::Code::FailedPrecondition,
                "a variable cannot be given other memory in a captured graph",
            )),
            None => Ok(()),
        }
    }

    /// Enqueues a kernel for so many elements, each a thread's until the grid has walked all; nothing for none.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(&self, function: &Function, count: usize, arguments: &Arguments) -> Result<()> {
        self.launch_blocks(function, count.div_ceil(THREADS as usize), arguments)
    }

    /// As [`Lane::launch`] of a kernel whose threads each take several elements, that lie a multiple of `period` apart
    /// unless that takes too many blocks: what such have in common is computed once.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch_in_turns(
        &self,
        function: &Function,
        count: usize,
        period: usize,
        arguments: &Arguments,
    ) -> Result<()> {
        self.launch_blocks(function, blocks_in_turns(count, period), arguments)
    }

    /// As [`Lane::launch`], for so many pieces of work that a block of threads shares.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch_blocks(&self, function: &Function, count: usize, arguments: &Arguments) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        self.settle()?;
        let grid = Grid { blocks: count.min(MOST_BLOCKS) as u32, threads: THREADS, shared: 0 };
        self.driver().launch(function.id, grid, arguments, self.stream())
    }

    /// Enqueues a kernel of `Pieces` of the `.cu` files for one of them, with what the kernel is told behind it. Where work is
    /// captured it waits for others that can be launched with it, until something else is enqueued.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch_piece(&self, function: &Arc<Function>, piece: Piece, shared: &Arguments) -> Result<()> {
        let Some(capture) = self.capture else {
            return self.launch_pieces(&Pieces::new(function, shared, piece));
        };
        let is_taken =
            capture.waiting.lock().as_mut().is_some_and(|waiting| waiting.add(function, shared, &piece));
        if !is_taken {
            self.settle()?;
            *capture.waiting.lock() = Some(Pieces::new(function, shared, piece));
        }
        Ok(())
    }

    /// Enqueues what waits.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn settle(&self) -> Result<()> {
        let waiting = self.capture.and_then(|capture| capture.waiting.lock().take());
        waiting.map_or(Ok(()), |pieces| self.launch_pieces(&pieces))
    }

    fn launch_pieces(&self, pieces: &Pieces) -> Result<()> {
        self.launch_blocks(&pieces.function, pieces.blocks(), &pieces.arguments())
    }

    /// Asks a library of NVIDIA's, which may enqueue something behind the kernels.
    ///
    /// # Errors
    /// Those of `call`.
    pub fn call<R>(&self, call: impl FnOnce(&dyn Driver, StreamId) -> Result<R>) -> Result<R> {
        self.settle()?;
        call(self.driver(), self.stream())
    }

    /// What tells how much memory a call will need.
    pub fn driver(&self) -> &'a dyn Driver {
        &**self.engine.driver()
    }

    /// Whether float32 factors may be rounded to TF32.
    pub fn tf32(&self) -> bool {
        self.engine.tf32()
    }

    /// Enqueues a copy from tensor to tensor of one size.
    ///
    /// # Errors
    /// The driver's.
    pub fn copy(&self, to: &DeviceTensor, from: &DeviceTensor) -> Result<()> {
        self.settle()?;
        let (to, from) = (block(to)?, block(from)?);
        match to.len().min(from.len()) {
            0 => Ok(()),
            len => self.driver().copy(to.write()?, from.read()?, len, self.stream()),
        }
    }

    /// Enqueues to set every byte of a tensor.
    ///
    /// # Errors
    /// The driver's.
    pub fn fill(&self, to: &DeviceTensor, byte: u8) -> Result<()> {
        self.settle()?;
        let to = block(to)?;
        match to.len() {
            0 => Ok(()),
            len => self.driver().fill(to.write()?, byte, len, self.stream()),
        }
    }
}

/// Blocks whose threads take several of `count` elements each, if there are many, so that the grid's stride is a multiple
/// of `period` elements if it can be.
fn blocks_in_turns(count: usize, period: usize) -> usize {
    const TURNS: usize = 4;
    let all = count.div_ceil(THREADS as usize);
    let blocks = (all / TURNS).clamp(BUSY, ENOUGH).min(all);
    // Of the period, what a block's threads are no multiple of: they are a power of two.
    let rest = period >> period.trailing_zeros().min(THREADS.trailing_zeros());
    match blocks.checked_rem(rest) {
        Some(over) if over < blocks => blocks - over,
        _ => blocks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns_where_there_are_many_elements_and_meet_a_period_again() {
        assert_eq!([0, 1, 256, 257].map(|count| blocks_in_turns(count, 1)), [0, 1, 1, 2]);
        assert_eq!(blocks_in_turns(256 * 1024, 16), 1024);
        assert_eq!(blocks_in_turns(256 * 6000, 16), 1500);
        assert_eq!(blocks_in_turns(256 * 100_000, 16), 2048);
        for period in [24, 48, 182, 512, 1024, 1 << 18, 3 << 9] {
            let blocks = blocks_in_turns(256 * 100_000, period);
            assert!(blocks > 1024 && (blocks * 256).is_multiple_of(period), "{period}: {blocks}");
        }
        // Whose multiples are too many.
        assert_eq!(blocks_in_turns(256 * 100_000, 4099), 2048);
        assert_eq!(blocks_in_turns(256 * 100_000, 0), 2048);
    }
}
