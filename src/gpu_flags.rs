//! How a process is told which GPUs to offer, and how to use them.

use executor::gpus::{self, GpuOptions, Visible};

/// The GPUs of a process: what TensorFlow's `GPUOptions` say.
#[derive(Clone, Debug, clap::Args)]
pub struct GpuFlags {
    /// GPUs to offer as GPU:0, GPU:1 and so on: all, none, or their numbers on the machine with commas. None is opened
    /// before a node is placed on it
    #[arg(long, default_value = "all")]
    gpus: Visible,

    /// How much of each GPU's memory may be taken, from 0 to 1; 0 is all but a reserve
    #[arg(long, default_value_t = 0.0)]
    gpu_memory_fraction: f64,

    /// Take all of that when a GPU is opened, not as it is needed
    #[arg(long)]
    gpu_take_all: bool,

    /// Do not round float32 factors of products and convolutions to TF32
    #[arg(long)]
    gpu_no_tf32: bool,

    /// Launch each kernel by itself: those that are enqueued again and again are else captured into CUDA graphs
    #[arg(long)]
    gpu_no_graphs: bool,

    /// Take the algorithm for a product or a convolution that NVIDIA's libraries expect to be the fastest: else several are
    /// tried when it first comes, so that which is taken, and with it the last bits, may differ from run to run
    #[arg(long)]
    gpu_no_autotune: bool,
}

impl GpuFlags {
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

/// Logs, in a line, which of these GPUs there are, or why there is none.
pub fn tell(visible: &Visible) {
    match gpus::found(visible) {
        Ok(found) if found.is_empty() => tracing::info!("no GPU is offered: none is asked for"),
        Ok(found) => tracing::info!("GPUs: {}", found.join("; ")),
        Err(error) => tracing::info!("no GPU is offered: {error}"),
    }
}
