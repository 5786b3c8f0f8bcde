//! The machine's GPUs as devices of a task, and the state of the NVIDIA libraries that they need.

use crate::engine::{self, Gpu, library, pick};
use device::gpu_options::{GpuOptions, GpuSelection, LibraryReport};
use device::{Device, Result};
use graph::{DeviceName, TaskName};
use std::sync::Arc;

/// Returns the devices `GPU:0`, `GPU:1` and so on of a task, with new incarnations. No GPU is opened.
///
/// # Errors
/// `Unavailable` with the reason why there is no GPU; `InvalidArgument` for invalid options, or a number that the
/// machine does not have.
pub fn devices(
    task: &TaskName,
    options: &GpuOptions,
    incarnation: impl Fn() -> u64,
) -> Result<Vec<Arc<Device>>> {
    let make = |(id, gpu)| -> Result<Arc<Device>> {
        let name = DeviceName::new(task, "GPU", id);
        Ok(Arc::new(engine::device(name, incarnation(), &gpu, options)?))
    };
    (0..).zip(pick(&options.visible)?).map(make).collect()
}

/// Returns a description of each GPU that a process may use.
///
/// # Errors
/// The errors of [`devices`].
pub fn find_gpus(visible: &GpuSelection) -> Result<Vec<String>> {
    let describe =
        |(id, gpu): (u32, Gpu)| format!("{} and {} MiB of memory", gpu.description(id), gpu.memory >> 20);
    Ok((0..).zip(pick(visible)?).map(describe).collect())
}

/// Returns a report on each NVIDIA library that GPUs need: its file and version, or the reason why it is
/// missing.
pub fn libraries() -> Vec<LibraryReport> {
    library::ALL.iter().map(|library| library.report()).collect()
}
