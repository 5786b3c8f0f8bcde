//! Checkpoints of variables as files, in TensorFlow's formats byte for byte, the stores that the files are in, and the
//! pieces that its other files share with them: masked checksums, the protocol-buffer codec, patterns of file names,
//! errors of files.
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
