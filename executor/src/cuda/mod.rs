//! GPUs of NVIDIA. What is decided here (which stream, in what order, when memory is free again) is decided against
//! one narrow trait, [`Driver`]: `nvidia` is CUDA's, and tests have one that writes down what it is asked for.
//!
//! Nothing is needed to build this, and nothing but a look for `libcuda` happens where there is no GPU: [`library`]
//! finds what is there when the process runs.

mod arguments;
mod collective;
mod device;
pub mod driver;
mod engine;
pub mod library;
mod machine;
mod meeting;
mod memory;
mod nvidia;
mod pinned;
mod pool;
mod program;
mod road;
mod streams;
mod waiter;

pub use arguments::Arguments;
pub(crate) use collective::{Collective, Share};
pub use device::CudaDevice;
pub use driver::Driver;
pub use engine::Engine;
pub(crate) use engine::block;
pub use machine::{Gpu, are_present, gpus, pick};
pub(crate) use meeting::{Member, Terms};
pub use memory::Block;
pub use nvidia::compile;
pub use program::{Function, Program, Source};
pub use streams::Stream;
