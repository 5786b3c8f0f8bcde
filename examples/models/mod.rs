//! Models that everybody knows, each a function from a batch to scores of its classes: examples of how layers are written,
//! timed on a GPU by `benches/gpu.rs` and checked by `tests/models.rs`.
#![allow(dead_code, unused_imports)]

mod cnn;
mod layers;
mod lstm;
mod mlp;
mod resnet;
mod training;

pub(crate) use cnn::small_cnn;
pub(crate) use layers::Layers;
pub(crate) use lstm::{Lstm, lstm};
pub(crate) use mlp::mlp;
pub(crate) use resnet::ResNet;
pub(crate) use training::{Batch, Model};
