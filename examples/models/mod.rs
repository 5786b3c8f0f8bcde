//! Well-known models, each a function that computes the scores of classes for a batch. The models show how layers are
//! written; `benches/gpu.rs` times them on a GPU, and `tests/it/models.rs` checks them.
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
