//! A GPU in software: a driver that records its calls, and executes the PTX of kernels and the calls of NVIDIA's libraries.

pub(crate) mod compiler;
pub(crate) mod gpu;
mod processor;
pub(crate) mod recording;
