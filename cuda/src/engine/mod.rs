//! NVIDIA GPUs. The scheduling code (which stream, in which order, when memory is free again) is written
//! against one narrow trait, [`Driver`]: `nvidia` implements it with CUDA, and the tests with a driver that
//! records its calls.
//!
//! A kernel enqueues to a [`KernelStream`]. For a segment that repeats, `segment_runner` decides with the graph cache
//! (`graph_cache`) when to capture it; `capture` is the device during the capture, and `captured_segment` holds the
//! graph that is launched from then on.
//!
//! The crate builds without CUDA installed, and on a machine without a GPU it only looks for `libcuda`:
//! [`library`] loads NVIDIA's libraries at run time.

mod arena;
mod arguments;
mod capture;
mod captured_segment;
mod collective;
mod collective_barrier;
mod communicators;
mod copy_path;
pub mod driver;
mod gpu_engine;
mod gpu_list;
mod graph_cache;
mod ipc_buffers;
mod kernel_stream;
pub mod library;
mod memory;
mod nvidia;
mod piece_batch;
mod pinned;
mod pool;
mod processor;
mod program;
mod result_memory;
mod segment_runner;
mod segment_variables;
mod streams;
mod waiter_thread;

pub use arguments::Arguments;
pub(crate) use collective::{Collective, CollectiveInput};
pub(crate) use collective_barrier::{CollectiveSignature, Participant};
pub use driver::Driver;
pub use gpu_engine::Engine;
pub(crate) use gpu_engine::block;
pub use gpu_list::{Gpu, are_present, gpus, pick};
pub(crate) use kernel_stream::BUSY_BLOCKS;
pub use kernel_stream::KernelStream;
pub use memory::Block;
pub use nvidia::{Compiled, compile};
pub use piece_batch::Piece;
pub use processor::{device, device_with_driver, engine_of};
pub use program::{Function, Program, Source};
pub use streams::Stream;
