//! Checkpoint files in TensorFlow's formats, byte for byte, and the stores that hold them. Other files of
//! TensorFlow share parts of this crate: masked checksums, the protocol-buffer codec, file name patterns and
//! file errors.
#![forbid(unsafe_code)]

pub mod bundle;
pub mod checksum;
mod error;
pub mod legacy;
pub mod npy;
mod ordered_code;
pub mod pattern;
pub mod proto;
mod slice;
pub mod store;
mod table;
pub mod tensor;
#[cfg(test)]
mod testing;

pub use error::{Error, Result};
pub use slice::{SliceSpec, TensorSlice};
