//! The GPUs of this machine, listed without opening any.

use super::library;
use super::nvidia;
use device::gpu_options::GpuSelection;
use device::{Error, Result};
use std::sync::OnceLock;

/// A GPU of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Number of the GPU on the machine, counted from 0.
    pub number: u32,
    /// Name of the model, such as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Total memory in bytes.
    pub memory: u64,
    /// Compute capability, major and minor, such as 9 and 0.
    pub capability: [u32; 2],
    /// PCI bus id, such as `0000:17:00.0`.
    pub bus: String,
}

impl Gpu {
    /// Returns TensorFlow's description of the GPU as device number `id`.
    pub fn description(&self, id: u32) -> String {
        let Gpu { name, bus, capability: [major, minor], .. } = self;
        format!("device: {id}, name: {name}, pci bus id: {bus}, compute capability: {major}.{minor}")
    }
}

/// Returns the machine's GPUs; the driver is asked only once per process.
///
/// # Errors
/// `Unavailable` with the reason if no GPU is found.
pub fn gpus() -> Result<&'static [Gpu]> {
    static FOUND: OnceLock<Result<Vec<Gpu>>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        library::DRIVER.check()?;
        nvidia::list()
    });
    found.as_deref().map_err(Error::clone)
}

/// Returns whether this machine has a GPU.
pub fn are_present() -> bool {
    gpus().is_ok_and(|gpus| !gpus.is_empty())
}

/// Returns the GPUs that these options make visible to a process, in the order of the options.
///
/// # Errors
/// `InvalidArgument` for a number that the machine does not have; `Unavailable` if the machine has no GPU and
/// the options name one.
pub fn pick(visible: &GpuSelection) -> Result<Vec<Gpu>> {
    match visible {
        GpuSelection::All => Ok(gpus()?.to_vec()),
        GpuSelection::Listed(numbers) if numbers.is_empty() => Ok(Vec::new()),
        GpuSelection::Listed(numbers) => {
            let all = gpus()?;
            let find = |number: &u32| {
                let found = all.iter().find(|gpu| gpu.number == *number).cloned();
                let count = all.len();
                found.ok_or_else(|| {
                    Error::invalid(format!("there is no GPU {number}: the machine has {count}"))
                })
            };
            numbers.iter().map(find).collect()
        }
    }
}
