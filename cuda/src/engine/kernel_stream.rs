//! The stream that a kernel enqueues to: the compute stream, or the stream of the graph that is being captured.

use super::arguments::Arguments;
use super::capture::{Capture, CaptureDevice};
use super::driver::{Driver, Grid, StreamId};
use super::gpu_engine::{Engine, block};
use super::piece_batch::{Piece, PieceBatch};
use super::program::Function;
use super::streams::Stream;
use crate::engine::processor::engine_of;
use device::gpu_options::POISON;
use device::{Device, DeviceMemory, DeviceTensor};
use device::{Error, Result};
use graph::{DType, Shape};
use std::any::Any;
use std::sync::Arc;

/// The CUDA stream to which a kernel enqueues its work, after the work of earlier kernels.
#[derive(Clone, Copy, Debug)]
pub struct KernelStream<'a> {
    engine: &'a Arc<Engine>,
    capture: Option<&'a Capture>,
}

/// Threads per block in all kernel launches.
const THREADS: u32 = 256;

/// Largest number of blocks in a grid; with more work, each thread steps through the elements in strides of the
/// whole grid.
const MAX_BLOCKS: usize = 8192;

/// Number of blocks that is enough to keep any GPU busy.
pub(crate) const BUSY_BLOCKS: usize = 1024;
/// Largest number of blocks in a grid whose threads handle several elements each.
const MAX_STRIDED_BLOCKS: usize = 2048;

impl<'a> KernelStream<'a> {
    /// Returns the stream for kernels on the device.
    ///
    /// # Errors
    /// `Internal` if the device is no GPU; the driver's error if the GPU cannot be opened.
    pub fn of(device: &'a Device) -> Result<KernelStream<'a>> {
        let processor: &dyn Any = device.processor();
        match processor.downcast_ref::<CaptureDevice>() {
            Some(capture_device) => Ok(capture_device.stream()),
            None => Ok(KernelStream::compute(engine_of(device)?)),
        }
    }

    /// Returns the GPU's compute stream.
    pub(super) fn compute(engine: &'a Arc<Engine>) -> KernelStream<'a> {
        KernelStream { engine, capture: None }
    }

    /// Returns the stream of a capture.
    pub(super) fn capturing(capture: &'a Capture) -> KernelStream<'a> {
        KernelStream { engine: capture.arena.engine(), capture: Some(capture) }
    }

    /// Returns the driver's id of the CUDA stream.
    fn stream(&self) -> StreamId {
        self.capture.map_or_else(|| self.engine.streams().id(Stream::Compute), |capture| capture.stream)
    }

    /// Allocates device memory for a tensor that kernels will write.
    ///
    /// # Errors
    /// `ResourceExhausted`, with a message that lists the tensor, the node that requests the memory and the nodes
    /// that hold most memory; `Unimplemented` for dtypes without a device representation.
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

    /// Allocates `bytes` of device memory for a kernel's temporary data.
    ///
    /// # Errors
    /// The errors of [`KernelStream::allocate`].
    pub fn scratch(&self, node: &Arc<str>, bytes: usize) -> Result<DeviceTensor> {
        self.allocate(node, DType::UInt8, Shape::new(&[bytes])?)
    }

    /// Returns whether the kernel's work is captured into a graph for later replay.
    pub fn is_captured(&self) -> bool {
        self.capture.is_some()
    }

    /// Checks that a kernel may change a variable's value in place, which a captured kernel may only if the
    /// value is not shared.
    ///
    /// # Errors
    /// `FailedPrecondition` if the kernel is being captured and other tensors share the value.
    pub fn check_changes(&self, value: &DeviceTensor) -> Result<()> {
        match self.capture {
            Some(capture) if !capture.arena.may_change(value)? => Err(Error::new(
                graph::Code::FailedPrecondition,
                "a variable that others hold cannot be changed in a captured graph",
            )),
            _ => Ok(()),
        }
    }

    /// Checks that a kernel may replace a variable's memory.
    ///
    /// # Errors
    /// `FailedPrecondition` during a capture: a replay would use the old address.
    pub fn check_moves(&self) -> Result<()> {
        match self.capture {
            Some(_) => Err(Error::new(
                graph::Code::FailedPrecondition,
                "a variable cannot be given other memory in a captured graph",
            )),
            None => Ok(()),
        }
    }

    /// Enqueues a kernel for `count` elements: one element per thread, or several per thread if the grid would
    /// exceed its largest size. Enqueues nothing if `count` is 0.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn launch(&self, function: &Function, count: usize, arguments: &Arguments) -> Result<()> {
        self.launch_blocks(function, count.div_ceil(THREADS as usize), arguments)
    }

    /// Like [`KernelStream::launch`], for a kernel whose threads each handle several elements. The number of
    /// threads in the grid is a multiple of `period` if possible: then all elements of a thread have the same
    /// index modulo `period`, and values that depend only on that remainder are computed once per thread.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn launch_strided(
        &self,
        function: &Function,
        count: usize,
        period: usize,
        arguments: &Arguments,
    ) -> Result<()> {
        self.launch_blocks(function, strided_blocks(count, period), arguments)
    }

    /// Like [`KernelStream::launch`], for `count` items of work that each take a whole block of threads.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn launch_blocks(&self, function: &Function, count: usize, arguments: &Arguments) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        self.flush()?;
        let grid = Grid { blocks: count.min(MAX_BLOCKS) as u32, threads: THREADS, shared: 0 };
        self.driver().launch(function.id, grid, arguments, self.stream())
    }

    /// Enqueues the work on one tensor of a kernel whose arguments are a `Pieces` structure (see `prelude.cu`)
    /// and then `shared`. During a capture the piece is held back until other work is enqueued, and launched in
    /// one batch with the following pieces of the same kernel.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn launch_piece(&self, function: &Arc<Function>, piece: Piece, shared: &Arguments) -> Result<()> {
        let Some(capture) = self.capture else {
            return self.launch_pieces(&PieceBatch::new(function, shared, piece));
        };
        let is_taken =
            capture.pending.lock().as_mut().is_some_and(|pending| pending.try_add(function, shared, &piece));
        if !is_taken {
            self.flush()?;
            *capture.pending.lock() = Some(PieceBatch::new(function, shared, piece));
        }
        Ok(())
    }

    /// Enqueues the batch of launches that a capture holds back, if there is one.
    ///
    /// # Errors
    /// The errors of the driver.
    pub(super) fn flush(&self) -> Result<()> {
        let pending = self.capture.and_then(|capture| capture.pending.lock().take());
        pending.map_or(Ok(()), |pieces| self.launch_pieces(&pieces))
    }

    fn launch_pieces(&self, pieces: &PieceBatch) -> Result<()> {
        self.launch_blocks(&pieces.function, pieces.blocks(), &pieces.arguments())
    }

    /// Calls an NVIDIA library, which may enqueue work after the kernels enqueued so far.
    ///
    /// # Errors
    /// The errors of `call`.
    pub fn call<R>(&self, call: impl FnOnce(&dyn Driver, StreamId) -> Result<R>) -> Result<R> {
        self.flush()?;
        call(self.driver(), self.stream())
    }

    /// Returns the driver, for queries such as the workspace size of a library call.
    pub fn driver(&self) -> &'a dyn Driver {
        &**self.engine.driver()
    }

    /// Returns whether float32 factors may be rounded to TF32.
    pub fn tf32(&self) -> bool {
        self.engine.tf32()
    }

    /// Enqueues a copy between two tensors of one size.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn copy(&self, to: &DeviceTensor, from: &DeviceTensor) -> Result<()> {
        self.flush()?;
        let (to, from) = (block(to)?, block(from)?);
        match to.len().min(from.len()) {
            0 => Ok(()),
            len => self.driver().copy(to.write()?, from.read()?, len, self.stream()),
        }
    }

    /// Enqueues work that sets each byte of a tensor to `byte`.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn fill(&self, to: &DeviceTensor, byte: u8) -> Result<()> {
        self.flush()?;
        let to = block(to)?;
        match to.len() {
            0 => Ok(()),
            len => self.driver().fill(to.write()?, byte, len, self.stream()),
        }
    }
}

/// Returns the number of blocks for `count` elements. With many elements each thread handles several, and the
/// number of threads in the grid is a multiple of `period` if possible.
fn strided_blocks(count: usize, period: usize) -> usize {
    const ELEMENTS_PER_THREAD: usize = 4;
    let all = count.div_ceil(THREADS as usize);
    let blocks = (all / ELEMENTS_PER_THREAD).clamp(BUSY_BLOCKS, MAX_STRIDED_BLOCKS).min(all);
    // The number of threads is a multiple of `period` if the number of blocks is a multiple of `rest`: `period`
    // without the powers of two that it has in common with `THREADS`.
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
    fn strided_grids_are_limited_and_aligned_to_the_period() {
        assert_eq!([0, 1, 256, 257].map(|count| strided_blocks(count, 1)), [0, 1, 1, 2]);
        assert_eq!(strided_blocks(256 * 1024, 16), 1024);
        assert_eq!(strided_blocks(256 * 6000, 16), 1500);
        assert_eq!(strided_blocks(256 * 100_000, 16), 2048);
        for period in [24, 48, 182, 512, 1024, 1 << 18, 3 << 9] {
            let blocks = strided_blocks(256 * 100_000, period);
            assert!(blocks > 1024 && (blocks * 256).is_multiple_of(period), "{period}: {blocks}");
        }
        // No multiple of a large prime fits into the largest grid, and a period of 0 has no multiples.
        assert_eq!(strided_blocks(256 * 100_000, 4099), 2048);
        assert_eq!(strided_blocks(256 * 100_000, 0), 2048);
    }
}
