//! The GPUs of this machine; a program that is built without CUDA finds none.

#[cfg(feature = "cuda")]
pub use cuda::gpus::{devices, find_gpus, libraries};
#[cfg(not(feature = "cuda"))]
pub use without_cuda::{devices, find_gpus, libraries};

use device::KernelTable;

/// Returns the kernel table of GPUs; `None` if the program is built without CUDA.
pub(crate) fn kernel_table() -> Option<&'static KernelTable> {
    #[cfg(feature = "cuda")]
    return Some(cuda::table());
    #[cfg(not(feature = "cuda"))]
    None
}

/// Stand-ins for the functions of the `cuda` crate, in a program that is built without it.
#[cfg(not(feature = "cuda"))]
mod without_cuda {
    use device::Device;
    use device::gpu_options::{GpuOptions, GpuSelection, LibraryReport};
    use device::{Error, Result};
    use graph::{Code, TaskName};
    use std::sync::Arc;

    /// Returns no devices, because the program is built without CUDA.
    ///
    /// # Errors
    /// `Unavailable` if the options ask for GPUs.
    pub fn devices(_: &TaskName, options: &GpuOptions, _: impl Fn() -> u64) -> Result<Vec<Arc<Device>>> {
        find_gpus(&options.visible).map(|_| Vec::new())
    }

    /// Returns no descriptions of GPUs, because the program is built without CUDA.
    ///
    /// # Errors
    /// `Unavailable` if `visible` asks for GPUs.
    pub fn find_gpus(visible: &GpuSelection) -> Result<Vec<String>> {
        match visible {
            GpuSelection::Listed(numbers) if numbers.is_empty() => Ok(Vec::new()),
            _ => Err(Error::new(Code::Unavailable, "this program is built without CUDA")),
        }
    }

    /// Returns no reports about CUDA libraries, because the program is built without CUDA.
    pub fn libraries() -> Vec<LibraryReport> {
        Vec::new()
    }
}
