//! Checkpoints of variables as files, in TensorFlow's formats byte for byte, and the pieces that its other files
//! share with them: masked checksums, the protocol-buffer codec, errors of files.
#![forbid(unsafe_code)]

pub mod checksum;
mod error;
pub mod proto;

pub use error::{Error, Result};
