//! GPUs of NVIDIA. What is decided here (which stream, in what order, when memory is free again) is decided against
//! one narrow trait, [`Driver`]: `nvidia` is CUDA's, and tests have one that writes down what it is asked for.
//!
//! A kernel enqueues in a [`Lane`]. For a segment that repeats, that leads into a graph: `repeater` decides when, by what
//! is `known`; `capturing` is the device meanwhile, and `captured` what is launched from then on.
//!
//! Nothing is needed to build this, and nothing but a look for `libcuda` happens where there is no GPU: [`library`]
//! finds what is there when the process runs.

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
pub mod processor;
mod program;
mod repeater;
mod road;
mod streams;
mod variables;
mod waiter;
mod windows;

pub use arguments::Arguments;
pub(crate) use collective::{Collective, Share};
pub use driver::Driver;
pub use engine::Engine;
pub(crate) use engine::block;
pub(crate) use lane::BUSY;
pub use lane::Lane;
pub use machine::{Gpu, are_present, gpus, pick};
pub(crate) use meeting::{Member, Terms};
pub use memory::Block;
pub use nvidia::compile;
pub use pieces::Piece;
pub use processor::{device, device_over, engine_of};
pub use program::{Function, Program, Source};
pub use streams::Stream;
