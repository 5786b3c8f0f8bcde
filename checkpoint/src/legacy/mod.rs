//! Checkpoints of the first format (V1): one table a file, tensors as messages in it.

mod reader;
mod writer;

pub use reader::Reader;
pub use writer::{Item, write};

/// The key of what is said of all tensors of a file.
const META_KEY: &[u8] = b"";

#[cfg(test)]
mod tests;
