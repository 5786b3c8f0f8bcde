//! CPU kernels, alone and in generated cases.

mod any_input;
mod array;
mod array_gradients;
mod math;
mod neural_kernels;
mod objects;
mod replicas;
