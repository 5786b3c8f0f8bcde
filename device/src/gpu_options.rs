//! The use of GPUs by a process (`--gpus`, and the fields of TensorFlow's `GPUOptions`), as plain values that a program
//! without CUDA has too.

use crate::error::{Error, Result};
use std::str::FromStr;

/// The GPUs of the machine that a process uses. In the order of the selection, they become `GPU:0`, `GPU:1` and so on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GpuSelection {
    #[default]
    /// All GPUs of the machine.
    All,
    /// The GPUs with these numbers on the machine; an empty list means none.
    Listed(Vec<u32>),
}

impl FromStr for GpuSelection {
    type Err = String;

    /// Parses `all`, `none`, or numbers separated by commas.
    fn from_str(text: &str) -> Result<GpuSelection, String> {
        match text.trim() {
            "all" => Ok(GpuSelection::All),
            "none" | "" => Ok(GpuSelection::Listed(Vec::new())),
            list => {
                let mut numbers = Vec::new();
                for part in list.split(',') {
                    let number: u32 = part
                        .trim()
                        .parse()
                        .map_err(|_| format!("'{list}' is neither all, none, nor numbers with commas"))?;
                    if numbers.contains(&number) {
                        return Err(format!("'{list}' names GPU {number} twice"));
                    }
                    numbers.push(number);
                }
                Ok(GpuSelection::Listed(numbers))
            }
        }
    }
}

/// A process's options for its GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuOptions {
    /// The GPUs that the process may use.
    pub visible: GpuSelection,
    /// Fraction of each GPU's memory that may be used, from 0 to 1; 0 stands for all of it except a fixed reserve.
    pub memory_fraction: f64,
    /// True to allocate memory as needed, false to reserve all of it when the GPU is first used.
    pub allow_growth: bool,
    /// True if matrix products and convolutions of float32 values may round factors to TF32, as in TensorFlow.
    pub tf32: bool,
    /// True to fill memory with [`POISON`] before a kernel gets it, so that tests find elements that a kernel
    /// does not write or reads uninitialised.
    pub poison: bool,
    /// True to capture repeated segments of kernels into CUDA graphs.
    pub graphs: bool,
    /// True to time NVIDIA's algorithms for each new matrix product or convolution and use the fastest. The choice may
    /// differ between processes, and with it the last bits of results.
    pub autotune: bool,
}

/// The byte that fills poisoned memory: it makes NaN in each floating-point type, and -1 in each signed integer
/// type.
pub const POISON: u8 = 0xff;

impl Default for GpuOptions {
    fn default() -> GpuOptions {
        GpuOptions {
            visible: GpuSelection::All,
            memory_fraction: 0.0,
            allow_growth: true,
            tf32: true,
            poison: false,
            graphs: true,
            autotune: true,
        }
    }
}

/// Bytes of each GPU's memory that are reserved for the driver, the libraries and the code of kernels.
const RESERVE: u64 = 512 << 20;

impl GpuOptions {
    /// Returns the number of bytes that may be used of a GPU's memory of `total` bytes.
    ///
    /// # Errors
    /// `InvalidArgument` if the fraction is not from 0 to 1.
    pub fn limit(&self, total: u64) -> Result<u64> {
        match self.memory_fraction {
            0.0 => Ok(total.saturating_sub(RESERVE.min(total / 8))),
            fraction if fraction > 0.0 && fraction <= 1.0 => Ok((total as f64 * fraction) as u64),
            other => {
                Err(Error::invalid(format!("the fraction of a GPU's memory is {other}, not from 0 to 1")))
            }
        }
    }
}

/// The result of the search for a library that GPUs need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryReport {
    /// Name of the library: `libcudnn`.
    pub name: String,
    /// A short description of the library's use, such as `products of matrices`.
    pub purpose: &'static str,
    /// The file with its version, or the reason why the library is missing.
    pub found: Result<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_lists_are_parsed() {
        assert_eq!("all".parse(), Ok(GpuSelection::All));
        assert_eq!("none".parse(), Ok(GpuSelection::Listed(vec![])));
        assert_eq!("1, 0".parse(), Ok(GpuSelection::Listed(vec![1, 0])));
        assert!("0,0".parse::<GpuSelection>().is_err_and(|e| e == "'0,0' names GPU 0 twice"));
        assert!("-1".parse::<GpuSelection>().is_err());
        assert!("0,,1".parse::<GpuSelection>().is_err());
    }

    #[test]
    fn memory_limits_are_fractions_of_the_total() -> Result<()> {
        let of = |memory_fraction| GpuOptions { memory_fraction, ..GpuOptions::default() };
        assert_eq!(of(0.0).limit(80 << 30)?, (80 << 30) - (512 << 20));
        assert_eq!(of(0.0).limit(8)?, 7);
        assert_eq!(of(0.25).limit(1000)?, 250);
        for wrong in [-0.5, 1.5, f64::NAN] {
            assert!(of(wrong).limit(1000).is_err(), "{wrong}");
        }
        Ok(())
    }
}
