//! Messages and their conversions, compared with TensorFlow's.

mod descriptors;
mod generated;
mod graph;
mod tensor;
mod wire;
