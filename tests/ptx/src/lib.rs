//! Kernels of NVIDIA's GPUs run without a GPU, for tests: their PTX is carried out thread by thread, as the compiler wrote
//! it, and watched as a sanitizer would: addresses where there is no memory or that are not aligned, threads that touch
//! the same memory in no order, barriers that not all reach, kernels that do not end. What an instruction means is of
//! NVIDIA's "PTX ISA", 9.0. What is not needed yet is not there, and is named when a text that has it is read.
//!
//! A [`Module`] is a text that was read; its [`Kernel`]s run on [`Memory`].
//!
//! Threads of a block run one after the other from barrier to barrier, and blocks one after the other: what depends on
//! another order is found by the watch, not by chance.

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
pub use text::Wrong;
