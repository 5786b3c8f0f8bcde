//! Integration tests of the CPU kernels, with fixed and with random inputs.

mod any_input;
mod array;
mod array_gradients;
mod math;
mod neural_kernels;
mod objects;
mod replicas;
