//! Which GPUs this machine has. Asking opens none of them.

use super::library;
use super::nvidia;
use device::gpu_options::Visible;
use device::{Error, Result};
use std::sync::OnceLock;

/// A GPU of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number on the machine.
    pub number: u32,
    /// `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Bytes.
    pub memory: u64,
    /// The architecture: 9 and 0.
    pub capability: [u32; 2],
    /// Where it is: `0000:17:00.0`.
    pub bus: String,
}

impl Gpu {
    /// As TensorFlow describes its device number `id`.
    pub fn description(&self, id: u32) -> String {
        let Gpu { name, bus, capability: [major, minor], .. } = self;
        format!("device: {id}, name: {name}, pci bus id: {bus}, compute capability: {major}.{minor}")
    }
}

/// The machine's GPUs, looked for once.
///
/// # Errors
/// `Unavailable`: why there are none.
pub fn gpus() -> Result<&'static [Gpu]> {
    static FOUND: OnceLock<Result<Vec<Gpu>>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        library::DRIVER.check()?;
        nvidia::list()
    });
    found.as_deref().map_err(Error::clone)
}

/// Whether this machine has a GPU.
pub fn are_present() -> bool {
    gpus().is_ok_and(|gpus| !gpus.is_empty())
}

/// The GPUs that these options let a process use, in order.
///
/// # Errors
/// `InvalidArgument` for one that the machine has not; `Unavailable` if it has none at all, and some are asked for.
pub fn pick(visible: &Visible) -> Result<Vec<Gpu>> {
    match visible {
        Visible::All => Ok(gpus()?.to_vec()),
        Visible::These(numbers) if numbers.is_empty() => Ok(Vec::new()),
        Visible::These(numbers) => {
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
