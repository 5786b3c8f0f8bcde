//! NVIDIA GPUs. The scheduling code (which stream, in which order, when memory is free again) is written
//! against one narrow trait, [`Driver`]: `nvidia` implements it with CUDA, and the tests with a driver that
//! records its calls.
//!
//! A kernel enqueues to a [`KernelStream`]. For a segment that repeats, `repeater` decides with the graph cache
//! (`known`) when to capture it; `capturing` is the device during the capture, and `captured` holds the graph
//! that is launched from then on.
//!
//! The crate builds without CUDA installed, and on a machine without a GPU it only looks for `libcuda`:
//! [`library`] loads NVIDIA's libraries at run time.

mod arena;
mod arguments;
mod captured;
mod capturing;
mod collective;
pub mod driver;
mod engine;
mod known;
mod lane;
pub mod library;
mod machine;
mod meeting;
mod memory;
mod nvidia;
mod pieces;
mod pinned;
mod pool;
mod processor;
mod program;
mod repeater;
mod road;
mod streams;
mod variables;
mod waiter;
mod windows;

pub use arguments::Arguments;
pub(crate) use collective::{Collective, CollectiveInput};
pub use driver::Driver;
pub use engine::Engine;
pub(crate) use engine::block;
pub(crate) use lane::BUSY_BLOCKS;
pub use lane::KernelStream;
pub use machine::{Gpu, are_present, gpus, pick};
pub(crate) use meeting::{CollectiveSignature, Participant};
pub use memory::Block;
pub use nvidia::compile;
pub use pieces::Piece;
pub use processor::{device, device_with_driver, engine_of};
pub use program::{Function, Program, Source};
pub use streams::Stream;
