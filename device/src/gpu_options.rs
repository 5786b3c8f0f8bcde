//! How a process uses GPUs (`--gpus`, and the fields of TensorFlow's `GPUOptions`), as plain values that a program without CUDA
//! has too.

use crate::error::{Error, Result};
use std::str::FromStr;

/// Which GPUs of the machine become `GPU:0`, `GPU:1` and so on, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Visible {
    #[default]
    All,
    /// By their numbers on the machine; an empty list is none.
    These(Vec<u32>),
}

impl FromStr for Visible {
    type Err = String;

    /// `all`, `none`, or numbers with commas.
    fn from_str(text: &str) -> Result<Visible, String> {
        match text.trim() {
            "all" => Ok(Visible::All),
            "none" | "" => Ok(Visible::These(Vec::new())),
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
                Ok(Visible::These(numbers))
            }
        }
    }
}

/// How a process uses GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuOptions {
    pub visible: Visible,
    /// How much of each GPU's memory may be taken, from 0 to 1; 0 is all but a reserve.
    pub memory_fraction: f64,
    /// Take memory as it is needed, rather than all of it when the GPU is first used.
    pub allow_growth: bool,
    /// Whether products and convolutions of float32 may round factors to TF32, as TensorFlow's do.
    pub tf32: bool,
    /// Whether memory is filled with [`POISON`] before a kernel gets it, for tests: what the kernel does not write, or
    /// reads before anybody has written it, shows.
    pub poison: bool,
    /// Whether kernels that are enqueued again and again are captured into CUDA graphs, and launched as one.
    pub graphs: bool,
    /// Whether NVIDIA's algorithms for a product or a convolution are tried when it first comes, and the fastest taken: which
    /// that is may differ from one process to the next, and with it the last bits of results.
    pub autotune: bool,
}

/// Every byte of poisoned memory: not a number of any floating-point type, and -1 of any signed one.
pub const POISON: u8 = 0xff;

impl Default for GpuOptions {
    fn default() -> GpuOptions {
        GpuOptions {
            visible: Visible::All,
            memory_fraction: 0.0,
            allow_growth: true,
            tf32: true,
            poison: false,
            graphs: true,
            autotune: true,
        }
    }
}

/// What is left to the driver, to libraries and to kernels' code.
const RESERVE: u64 = 512 << 20;

impl GpuOptions {
    /// Bytes of a GPU's memory that may be taken.
    ///
    /// # Errors
    /// `InvalidArgument` if the fraction is none.
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

/// What was found of a library that GPUs need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryReport {
    /// `libcudnn`.
    pub name: String,
    /// What it is for.
    pub purpose: &'static str,
    /// The file, with its version, or why there is none.
    pub found: Result<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_gpus_are_read() {
        assert_eq!("all".parse(), Ok(Visible::All));
        assert_eq!("none".parse(), Ok(Visible::These(vec![])));
        assert_eq!("1, 0".parse(), Ok(Visible::These(vec![1, 0])));
        assert!("0,0".parse::<Visible>().is_err_and(|e| e == "'0,0' names GPU 0 twice"));
        assert!("-1".parse::<Visible>().is_err());
        assert!("0,,1".parse::<Visible>().is_err());
    }

    #[test]
    fn limits_are_fractions_of_what_there_is() -> Result<()> {
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
