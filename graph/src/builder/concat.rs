//! Joining and splitting tensors along an axis.
