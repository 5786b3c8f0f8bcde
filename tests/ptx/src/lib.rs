//! An interpreter for kernels of NVIDIA GPUs, for tests without a GPU. PTX from the compiler is executed thread
//! by thread, and checked like by a sanitizer: invalid and unaligned addresses, races between threads, barriers
//! that not all threads reach, and kernels that do not end. The semantics are those of NVIDIA's "PTX ISA", 9.0.
//! Unsupported instructions are reported when the text is parsed.
//!
//! A [`Module`] is a parsed text; its [`Kernel`]s run on [`Memory`].
//!
//! The threads of a block run one after the other from barrier to barrier, and blocks one after the other. A
//! dependence on another order is found by the race detection, not by chance.

mod block;
mod convert;
mod float;
mod function;
mod integer;
mod launch;
mod marks;
mod memory;
mod module;
mod number;
mod parser;
mod rule;
mod scope;
mod text;
mod thread;
mod watched;

pub use launch::{Fault, Grid};
pub use memory::Memory;
pub use module::{Kernel, Module};
pub use text::ParseError;
