//! Memory for the result of a collective, written in the collective stream.

use super::driver::Address;
use super::gpu_engine::{Engine, block};
use super::memory::Block;
use super::streams::{Mark, Stream};
use device::{DeviceTensor, Result};
use std::sync::Arc;

/// Memory for one GPU's result of a reduction, freed on drop if the reduction was not enqueued.
pub(super) struct ResultMemory {
    engine: Arc<Engine>,
    /// The reduction's input, of the same dtype and shape.
    input: DeviceTensor,
    address: Address,
    is_kept: bool,
}

impl ResultMemory {
    /// Allocates memory as large as the input of the reduction of a node.
    ///
    /// # Errors
    /// `ResourceExhausted`, and the errors of the driver.
    pub(super) fn new(engine: &Arc<Engine>, input: &DeviceTensor, node: &Arc<str>) -> Result<ResultMemory> {
        let DeviceTensor { dtype, shape, memory } = input;
        let description = || format!("tensor with shape{shape} and type {dtype} for {node}");
        let stream = engine.streams().id(Stream::Collective);
        let address = engine.pool().allocate(memory.len(), stream, node, description)?;
        Ok(ResultMemory { engine: engine.clone(), input: input.clone(), address, is_kept: false })
    }

    pub(super) fn address(&self) -> Address {
        self.address
    }

    /// Returns the result as a tensor that is complete at an event of the collective stream, and the event; records that
    /// the input is read until that event.
    ///
    /// # Errors
    /// The errors of the driver.
    pub(super) fn into_tensor(mut self) -> Result<(DeviceTensor, Arc<Mark>)> {
        let mark = self.engine.streams().mark(Stream::Collective)?;
        block(&self.input)?.add_reader(mark.clone());
        let len = self.input.memory.len();
        self.is_kept = true;
        let block = Block::filled(self.engine.clone(), self.address, len, Stream::Collective, mark.clone());
        Ok((DeviceTensor { memory: Arc::new(block), ..self.input.clone() }, mark))
    }
}

impl Drop for ResultMemory {
    fn drop(&mut self) {
        if !self.is_kept {
            self.engine.pool().free(self.address, self.engine.streams().id(Stream::Collective));
        }
    }
}
