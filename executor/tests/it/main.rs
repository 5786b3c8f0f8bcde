//! Functions and whole graphs on the executor, with the CPU's kernels.

mod functions;
mod simplified;
