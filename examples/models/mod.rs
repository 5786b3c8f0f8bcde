//! Well-known models, each a function that computes the scores of classes for a batch. The models are examples of
//! writing layers, are timed on a GPU by `benches/gpu.rs`, and are checked by `tests/it/models.rs`.
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
