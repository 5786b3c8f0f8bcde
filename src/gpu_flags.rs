//! The flags that select the GPUs of a process and their options.

use device::gpu_options::{GpuOptions, GpuSelection};
use worker::gpus;

/// The GPU flags of a process, which correspond to TensorFlow's `GPUOptions`.
#[derive(Clone, Debug, clap::Args)]
pub struct GpuFlags {
    /// GPUs to offer as GPU:0, GPU:1 and so on: all, none, or a comma-separated list of their numbers on the
    /// machine. A GPU is opened when the first node is placed on it
    #[arg(long, default_value = "all")]
    gpus: GpuSelection,

    /// Fraction of each GPU's memory that may be used, from 0 to 1; 0 means all except a reserve
    #[arg(long, default_value_t = 0.0)]
    gpu_memory_fraction: f64,

    /// Allocate all memory that may be used when a GPU is opened, instead of on demand
    #[arg(long)]
    gpu_take_all: bool,

    /// Do not round the float32 factors of products and convolutions to TF32
    #[arg(long)]
    gpu_no_tf32: bool,

    /// Launch each kernel separately. By default, sequences of kernels that run repeatedly are captured into CUDA
    /// graphs
    #[arg(long)]
    gpu_no_graphs: bool,

    /// Use the algorithm for a product or a convolution that NVIDIA's libraries estimate to be the fastest. By default,
    /// several algorithms are timed at first use, so the chosen algorithm, and with it the last bits of results, may
    /// differ from run to run
    #[arg(long)]
    gpu_no_autotune: bool,
}

impl GpuFlags {
    /// Returns the GPU options that the flags give.
    pub fn options(&self) -> GpuOptions {
        GpuOptions {
            visible: self.gpus.clone(),
            memory_fraction: self.gpu_memory_fraction,
            allow_growth: !self.gpu_take_all,
            tf32: !self.gpu_no_tf32,
            poison: false,
            graphs: !self.gpu_no_graphs,
            autotune: !self.gpu_no_autotune,
        }
    }
}

/// Logs the available GPUs among `visible` in one line, or the reason why there is none.
pub fn log_available(visible: &GpuSelection) {
    match gpus::find_gpus(visible) {
        Ok(found) if found.is_empty() => tracing::info!("no GPU is offered: none is asked for"),
        Ok(found) => tracing::info!("GPUs: {}", found.join("; ")),
        Err(error) => tracing::info!("no GPU is offered: {error}"),
    }
}
