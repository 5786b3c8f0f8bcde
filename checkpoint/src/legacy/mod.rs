//! Checkpoints of the first format (V1): each file is one table, with tensors as messages in it.

mod reader;
mod writer;

pub use reader::Reader;
pub use writer::{Item, write};

/// The key of the metadata of all tensors in a file.
const META_KEY: &[u8] = b"";

#[cfg(test)]
mod tests;
